import numpy as np
import pytest

from ps_cluster.training import ledger


def rows_of(*steps):
    """Rows of ledger.ROW of these steps: (worker, the six times of PHASE_COLUMNS)."""
    rows = np.zeros(len(steps), ledger.ROW)
    for row, values in zip(rows, steps):
        for name, value in zip(("worker", *ledger.PHASE_COLUMNS), values, strict=True):
            row[name] = value
    return rows


def test_shares_are_of_the_time_of_the_whole_run_and_sum_to_one():
    found = ledger.phase_shares(rows_of((0, 10, 10.5, 11, 13, 13, 14), (1, 10, 10, 11, 12, 18, 20)))
    assert list(found[0].values()) == pytest.approx([0.05, 0.05, 0.2, 0, 0.1, 0.6])
    assert list(found[1].values()) == pytest.approx([0, 0.1, 0.1, 0.6, 0.2, 0])
    assert list(found[0]) == [*ledger.PHASES, ledger.BETWEEN]


def test_shares_of_no_rows_are_nobodys():
    assert ledger.phase_shares(rows_of()) == {}


def test_a_parameter_server_whose_clock_is_behind_makes_no_phase_negative():
    [shares] = ledger.phase_shares(rows_of((0, 10, 10, 10, 12, 12, 11), (0, 12, 12, 12, 14, 14, 15))).values()
    assert list(shares.values()) == pytest.approx([0, 0, 0.8, 0, 0.2, 0])


def test_what_is_read_is_what_was_written(tmp_path):
    ledgers = np.zeros([1, 3, len(ledger.COLUMNS)])
    ledgers[0, [0, 2]] = np.arange(1, 1 + len(ledger.COLUMNS))
    ledger.write_csv(tmp_path / "updates.csv", ledgers)
    rows = ledger.read_csv(tmp_path / "updates.csv")
    assert rows["step"].tolist() == [0, 2]
    assert [rows[name].tolist() for name in ledger.COLUMNS] == [[value, value] for value in ledgers[0, 0]]


def test_a_ledger_without_updates_is_read_as_no_rows(tmp_path):
    ledger.write_csv(tmp_path / "updates.csv", np.zeros([1, 3, len(ledger.COLUMNS)]))
    assert len(ledger.read_csv(tmp_path / "updates.csv")) == 0


@pytest.mark.parametrize("header", ["", "step,colour"])
def test_a_file_with_other_columns_is_refused(tmp_path, header):
    (tmp_path / "updates.csv").write_text(f"{header}\n1,2\n")
    with pytest.raises(ValueError, match=f"updates.csv has other columns: {header}"):
        ledger.read_csv(tmp_path / "updates.csv")
