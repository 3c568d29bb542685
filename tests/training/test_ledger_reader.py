"""Rows go from the parameter servers to the journals and into the run's progress, each once."""

import numpy as np
import pytest

from ps_cluster.config import build_config
from ps_cluster.runs import journal
from ps_cluster.runs.journal import Journal, JournalNotWritten
from ps_cluster.runs.ledger import COUNTS, NO_ROWS
from ps_cluster.runs.times import TrainingClock
from ps_cluster.server.store import Ledgers
from ps_cluster.training.ledger_reader import LedgerReader, without_clock_jumps
from ps_cluster.training.run_progress import RunProgress
from tests.helpers.ledgers import rows_of
from tests.helpers.progress import WALL, Machine, applied, counts_of


class FakeStore:
    """Two shards; `accept` writes a row on each."""

    def __init__(self):
        self.rows = [NO_ROWS, NO_ROWS]

    def accept(self, *steps):
        self.rows = [np.concatenate([rows, rows_of(steps, examples=10)]) for rows in self.rows]

    def read_ledgers(self, firsts):
        counts = np.zeros([2, len(COUNTS)], np.int64)
        counts[:, COUNTS.index("accepted")] = [len(rows) for rows in self.rows]
        return Ledgers([rows[first:] for rows, first in zip(self.rows, firsts)], counts)

    def snapshot(self, firsts, closed, extent):
        ledgers = self.read_ledgers(firsts)
        self.closed = closed
        return {"counts": ledgers.counts}, ledgers


class FakeJournal:
    """Of a disk that refuses while `full`."""

    def __init__(self):
        self.full, self.rows = False, []

    def append(self, rows):
        self.rows += rows["step"].tolist()
        self.flush()

    def flush(self):
        if self.full:
            raise JournalNotWritten("no room")


def make(journals):
    store, said = FakeStore(), []
    progress = RunProgress(build_config(overrides={"training.steps": 9, "cluster.parameter_servers": 2}), 100)
    return LedgerReader(store, progress, journals, notify=said.append), store, progress, said


def test_every_row_is_in_its_journal_once_and_counted_once(tmp_path):
    books, store, progress, said = make([Journal(tmp_path / f"shard-{index}.bin") for index in range(2)])
    store.accept(0, 2)
    books.poll()
    books.poll()
    store.accept(1)
    arrays = books.snapshot()
    assert store.closed == 1, "of the look before: 0 was accepted, 1 was not"
    assert [np.concatenate(list(journal.read([piece])))["step"].tolist() for piece in books.pieces] == [[0, 2, 1]] * 2
    assert (progress.applied, progress.examples, said) == (3, 30, [])
    assert arrays["counts"][:, COUNTS.index("accepted")].tolist() == [3, 3] and arrays["waiting"].shape[0] == 0


def test_a_snapshot_holds_the_rows_that_some_shard_still_lacks():
    books, store, progress, _ = make([FakeJournal(), FakeJournal()])
    store.accept(0)
    store.rows[1] = np.concatenate([store.rows[1], rows_of([5])])
    waiting = books.snapshot()["waiting"]
    assert waiting[:, :2].tolist() == [[1, 5]] and progress.applied == 1


def test_a_disk_that_refuses_is_told_once_and_the_other_journals_are_written():
    journals = [FakeJournal(), FakeJournal()]
    books, store, progress, said = make(journals)
    journals[0].full = True
    for step in range(3):
        store.accept(step)
        books.poll()
    assert [str(line) for line in said] == ["training continues, but: no room"]
    assert progress.applied == 3 and journals[1].rows == [0, 1, 2]
    journals[0].full = False
    books.poll()
    journals[0].full = True
    books.poll()
    assert len(said) == 2, "it was well in between"


def test_while_rows_are_not_on_the_disk_there_is_no_snapshot():
    journals = [FakeJournal(), FakeJournal()]
    books, store, _, _ = make(journals)
    journals[1].full = True
    store.accept(0)
    with pytest.raises(JournalNotWritten):
        books.snapshot()


def test_a_process_that_keeps_no_journals_counts_all_the_same():
    books, store, progress, _ = make([])
    store.accept(0, 1)
    books.poll()
    books.snapshot()
    assert progress.applied == 2


def test_a_clock_that_is_set_meanwhile_changes_no_time_of_a_row():
    machine, wall = Machine(), [0.0]
    start = machine.clock()
    clock = TrainingClock(monotonic=lambda: start.monotonic, wall=lambda: start.unix + wall[0])
    machine.now, wall[0] = 2.0, -3600.0
    times = {"entered_time": [WALL + 1, WALL + 2 - 3600], "scheduled_time": 0, "pushed_time": WALL + 0.5}
    rows = applied((0, 1, 0, 0, 7, 1.0), (1, 2, 0, 0, 7, 2 - 3600), **times)
    given, found = rows.copy(), without_clock_jumps(Ledgers([rows], counts_of(2)), clock).rows[0]
    assert found["applied_time"].tolist() == found["entered_time"].tolist() == [WALL + 1, WALL + 2]
    assert found["pushed_time"].tolist() == [WALL + 0.5] * 2 and not found["scheduled_time"].any()
    assert (rows == given).all(), "what was given stays as it was"
