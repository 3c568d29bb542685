"""updates.csv and applies.csv, written out of the journals and read again."""

import numpy as np
import pytest

from ps_cluster.errors import UserError
from ps_cluster.runs import ledger_csv
from ps_cluster.runs.journal import CHUNK_ROWS, RECORD, JournalDamaged
from ps_cluster.runs.ledger import COLUMNS
from ps_cluster.runs.proof import RoundShape
from tests.helpers.ledgers import rows_of, write_journal

ONE = RoundShape(1, 1, 1)


@pytest.fixture
def written(tmp_path):
    """written(rows, …) → what updates.csv holds, where each shard's journal holds `rows`."""

    def call(*shards, rounds=ONE, window=2**16, **options):
        call.journals = [write_journal(tmp_path / f"shard-{i}.bin", rows) for i, rows in enumerate(shards)]
        ledger_csv.write_updates(call.path, call.journals, rounds, window, **options)
        return ledger_csv.read_csv(call.path)

    call.path = tmp_path / "updates.csv"
    return call


def test_the_columns_are_named_and_numbers_written_as_what_they_are(written):
    times = {"entered_time": 1_800_000_000.25, "applied_time": [1_800_000_001.5, 1_800_000_002.5]}
    written(rows_of([0, 2], version=[1, 2], staleness=[0, 1], rate_factor=0.6, loss=[0.1, np.nan], **times))
    header, *lines = written.path.read_text().splitlines()
    assert header.split(",") == list(COLUMNS)
    assert [line.split(",")[:6] for line in lines] == [
        ["0", "1", "0", "0.6", "1800000000.250000", "1800000001.500000"],
        ["2", "2", "1", "0.6", "1800000000.250000", "1800000002.500000"],
    ]
    loss = COLUMNS.index("loss")
    assert [line.split(",")[loss] for line in lines] == ["0.1", "nan"]


def test_what_is_read_is_what_was_written_also_a_ledger_without_updates(written):
    rows = rows_of([0, 2])
    for number, name in enumerate(COLUMNS[1:], 1):
        rows[name] = number
    assert (written(rows) == rows).all() and len(written(rows_of([]))) == 0


def test_lines_are_in_the_order_of_steps_and_a_step_that_a_shard_lacks_has_none(written):
    orders = [0, 3, 1, 2, 5, 4], [5, 1, 0, 2, 4]
    rows = written(
        *(rows_of(one, version=range(1, len(one) + 1), applied_time=list(map(float, one))) for one in orders)
    )
    assert rows["step"].tolist() == rows["applied_time"].tolist() == [0, 1, 2, 4, 5]


@pytest.mark.parametrize("shards", [1, 2])
def test_a_ledger_longer_than_a_chunk_has_each_step_once_and_in_order(written, shards):
    count, random = CHUNK_ROWS + 5000, np.random.default_rng(0)
    orders = [np.argsort(np.arange(count) + random.uniform(0, 300, count)) for _ in range(shards)]
    told = []
    rows = written(*(rows_of(order) for order in orders), on_rows=told.append)
    assert (rows["step"] == np.arange(count)).all()
    assert sum(told) == count * shards and len(told) > 2, "somebody hears of it on the way"


def test_rounds_have_the_lines_of_the_gradients_that_counted(written):
    """Those of a round of three, two of whom count; the others never come, and nobody waits for them."""
    count = CHUNK_ROWS + 5000
    late = np.random.default_rng(0).integers(0, 3, count // 2)
    steps = np.delete(np.arange(count // 2 * 3), np.arange(count // 2) * 3 + late)
    told = []
    rows = written(rows_of(steps), rounds=RoundShape(3, 2, 2), on_rows=told.append)
    assert (rows["step"] == steps).all()
    assert told[0] > CHUNK_ROWS - 10, "those of the first chunk were not held back"


def test_a_damaged_row_is_told_and_leaves_the_table_of_before(written):
    written(rows_of(range(5)))
    ((file, *_),) = written.journals[0]
    content = bytearray(file.read_bytes())
    content[3 * RECORD.itemsize] ^= 1
    file.write_bytes(content)
    with pytest.raises(JournalDamaged, match="row 3 of"):
        ledger_csv.write_updates(written.path, written.journals, ONE, 2**16)
    assert ledger_csv.read_csv(written.path)["step"].tolist() == [0, 1, 2, 3, 4]


def test_every_shards_update_has_a_line_of_its_own(tmp_path):
    given = {"worker": 1, "pid": 71}
    shards = [
        rows_of([0], version=[1], entered_time=[1.5], applied_time=[2.5], **given),
        rows_of([2, 0], version=[1, 2], staleness=[0, 1], entered_time=[3.5, 4.5], applied_time=[4.0, 5.5], **given),
    ]
    journals = [write_journal(tmp_path / f"shard-{index}.bin", rows) for index, rows in enumerate(shards)]
    told = []
    ledger_csv.write_applies(tmp_path / "applies.csv", journals, told.append)
    lines = ledger_csv.read_csv(tmp_path / "applies.csv", ledger_csv.APPLY_ROW)
    assert lines.dtype.names == ("ps", "step", "version", "staleness", "worker", "pid", "entered_time", "applied_time")
    assert lines.tolist() == [
        (0, 0, 1, 0, 1, 71, 1.5, 2.5),
        (1, 2, 1, 0, 1, 71, 3.5, 4.0),
        (1, 0, 2, 1, 1, 71, 4.5, 5.5),
    ]
    assert sum(told) == 3


@pytest.mark.parametrize("header", ["", "step,colour"])
def test_a_file_with_other_columns_is_refused(tmp_path, header):
    (tmp_path / "updates.csv").write_text(f"{header}\n1,2\n")
    with pytest.raises(UserError, match=f"updates.csv': has other columns: ?{header}"):
        ledger_csv.read_csv(tmp_path / "updates.csv")


@pytest.fixture
def held(monkeypatch):
    """By how much the rows in memory became more with each look; a look takes 10 rows."""
    held, step_order, read = [], ledger_csv._in_step_order, ledger_csv.journal.read

    def watched(*arguments):
        for rows, taken in step_order(*arguments):
            held.append(taken - len(rows))
            yield rows, taken

    monkeypatch.setattr(ledger_csv, "_in_step_order", watched)
    monkeypatch.setattr(ledger_csv.journal, "read", lambda path: read(path, 10))
    return held


def test_a_lost_step_holds_nothing_back_beyond_the_window(written, held):
    steps = [step for step in range(500) if step != 7]
    rows = rows_of(steps, version=range(1, 500))
    assert written(rows, window=20)["step"].tolist() == steps
    assert max(np.cumsum(held)) <= 20 + 10, "rows in memory"


def test_a_disk_that_refuses_leaves_the_table_of_before_and_nothing_beside_it(written):
    written(rows_of([0], version=[1]))
    before = written.path.read_text()

    def refuse(rows):
        raise OSError("no room")

    with pytest.raises(OSError):
        written(rows_of([0, 1], version=[1, 2]), on_rows=refuse)
    assert written.path.read_text() == before
    assert sorted(path.name for path in written.path.parent.iterdir()) == ["shard-0.bin", "updates.csv"]
