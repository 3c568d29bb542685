import numpy as np
import pytest

from ps_cluster.training import ledger


def rows_of(*steps):
    """Rows of ledger.ROW of these steps: (worker, the seven times of PHASE_COLUMNS)."""
    rows = np.zeros(len(steps), ledger.ROW)
    for row, values in zip(rows, steps):
        for name, value in zip(("worker", *ledger.PHASE_COLUMNS), values, strict=True):
            row[name] = value
    return rows


def test_shares_are_of_the_time_of_the_whole_run_and_sum_to_one():
    found = ledger.phase_shares(rows_of((0, 10, 10.5, 11, 13, 13, 13.5, 14), (1, 10, 10, 11, 12, 18, 19, 20)))
    assert list(found[0].values()) == pytest.approx([0.05, 0.05, 0.2, 0, 0.05, 0.05, 0, 0, 0.6])
    assert list(found[1].values()) == pytest.approx([0, 0.1, 0.1, 0.6, 0.1, 0.1, 0, 0, 0])
    assert list(found[0]) == [*ledger.PHASES, "returns", "dispatch", "idle"]


def test_shares_of_no_rows_are_nobodys():
    assert ledger.phase_shares(rows_of()) == {}


def test_a_parameter_server_whose_clock_is_behind_makes_no_phase_negative():
    [shares] = ledger.phase_shares(rows_of((0, 10, 10, 10, 12, 12, 11, 11), (0, 12, 12, 12, 14, 14, 14, 15))).values()
    assert list(shares.values()) == pytest.approx([0, 0, 0.8, 0, 0, 0.2, 0, 0, 0])


def test_what_is_read_is_what_was_written(tmp_path):
    ledgers = np.zeros([1, 3, len(ledger.COLUMNS)])
    ledgers[0, [0, 2]] = np.arange(1, 1 + len(ledger.COLUMNS))
    ledger.write_csv(tmp_path / "updates.csv", ledgers)
    rows = ledger.read_csv(tmp_path / "updates.csv")
    assert rows["step"].tolist() == [0, 2]
    assert [rows[name].tolist() for name in ledger.COLUMNS] == [[value, value] for value in ledgers[0, 0]]


def test_an_update_is_applied_when_its_last_slice_is_and_entered_when_that_one_was():
    ledgers = np.ones([2, 2, len(ledger.COLUMNS)])
    for name, values in {"entered_time": [[1, 3], [2, 1]], "applied_time": [[4, 5], [3, 9]]}.items():
        ledgers[..., ledger.COLUMNS.index(name)] = values
    rows = ledger.merged_rows(ledgers)
    assert ledger.column(rows, "entered_time").tolist() == [1, 1]
    assert ledger.column(rows, "applied_time").tolist() == [4, 9]


def test_every_slices_update_has_a_line_of_its_own(tmp_path):
    ledgers = np.zeros([2, 3, len(ledger.COLUMNS)])
    for server, step, entered in ((0, 0, 1.5), (1, 0, 2.5), (1, 2, 3.5)):
        for name, value in {"version": 1, "entered_time": entered, "applied_time": entered + 1}.items():
            ledgers[server, step, ledger.COLUMNS.index(name)] = value
    ledger.write_applies(tmp_path / "applies.csv", ledgers)
    lines = ledger.read_csv(tmp_path / "applies.csv", ledger.APPLY_ROW).tolist()
    assert lines == [(0, 0, 1.5, 2.5), (1, 0, 2.5, 3.5), (1, 2, 3.5, 4.5)]


def scheduled(*steps):
    """Rows of (worker, scheduled_time, asked_time, applied_time)."""
    rows = np.zeros(len(steps), ledger.ROW)
    for name, values in zip(("worker", "scheduled_time", "asked_time", "applied_time"), zip(*steps)):
        rows[name] = values
    return rows


def test_a_free_worker_idles_until_a_dispatch_is_scheduled_and_within_one_its_answer_returns():
    rows = scheduled((0, 1, 2, 3), (0, 1, 3.5, 4), (0, 2, 5, 6), (0, 8, 9, 10))
    assert ledger.gap_times(rows).T.tolist() == [[2, 2, 2, 2], [3, 3, 3, 3.5], [4, 4, 5, 5], [6, 8, 9, 9]]


def test_a_worker_that_comes_late_is_free_from_when_the_first_one_asked():
    assert ledger.gap_times(scheduled((0, 1, 2, 9), (1, 1.5, 5, 9))).T.tolist() == [[2, 2, 2, 2], [2, 2, 5, 5]]


def test_a_ledger_without_updates_is_read_as_no_rows(tmp_path):
    ledger.write_csv(tmp_path / "updates.csv", np.zeros([1, 3, len(ledger.COLUMNS)]))
    assert len(ledger.read_csv(tmp_path / "updates.csv")) == 0


@pytest.mark.parametrize("header", ["", "step,colour"])
def test_a_file_with_other_columns_is_refused(tmp_path, header):
    (tmp_path / "updates.csv").write_text(f"{header}\n1,2\n")
    with pytest.raises(ValueError, match=f"updates.csv has other columns: {header}"):
        ledger.read_csv(tmp_path / "updates.csv")
