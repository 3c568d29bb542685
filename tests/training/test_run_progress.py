import time

import numpy as np
import pytest

from ps_cluster.config import build_config
from ps_cluster.training import ledger
from ps_cluster.training.run_progress import RunProgress, examples_per_second


def rows_of(*updates, examples=10):
    """A row for each update (version, staleness, worker, pid, applied_time), None for a step that is not applied."""
    table = np.zeros([len(updates), len(ledger.COLUMNS)])
    for row, update in zip(table, updates):
        if update is not None:
            values = dict(zip(("version", "staleness", "worker", "pid", "applied_time"), update))
            for name, value in (values | {"examples": examples, "correct": 5, "loss": update[0]}).items():
                row[ledger.COLUMNS.index(name)] = value
    return table


def make_progress(steps=4, ps=1):
    overrides = {"training.steps": steps, "training.batch_size_per_worker": 10, "cluster.parameter_servers": ps}
    return RunProgress(build_config(overrides=overrides), train_examples=100)


def look(progress, *ledgers, refused=0):
    first, end = progress.open_range
    rows = np.stack(ledgers)[:, first:end]
    accepted = [int((ledger.column(own, "version") > 0).sum()) for own in ledgers]
    progress.update(rows, np.array([[n, refused, 0, n] for n in accepted]), first=first)


def test_an_update_counts_when_its_last_slice_is_applied_and_is_as_stale_as_its_stalest():
    progress = make_progress(steps=2, ps=2)
    progress.scheduled_steps(np.array([0, 1]))
    one = rows_of((1, 0, 0, 7, 5.0), (2, 1, 1, 8, 6.0))
    look(progress, one, rows_of((1, 3, 0, 7, 9.0), None))
    assert progress.applied == 1 and progress.outstanding == 1 and not progress.completed
    look(progress, one, rows_of((1, 3, 0, 7, 9.0), (2, 0, 1, 8, 6.5)))
    assert progress.completed
    assert progress.result([1, 1])["staleness"]["histogram"] == {"1": 1, "3": 1}


def test_steps_applied_out_of_order_keep_the_range_open_and_are_counted_once():
    progress = make_progress()
    progress.scheduled_steps(np.arange(4))
    full = rows_of((4, 0, 0, 7, 4.0), (1, 0, 1, 8, 1.0), (2, 1, 0, 7, 2.0), (3, 0, 1, 8, 3.0))
    part = full.copy()
    part[0] = 0
    look(progress, part)
    assert progress.open_range == (0, 4) and progress.applied == 3
    look(progress, full)
    assert progress.open_range == (4, 4) and progress.applied == 4 and progress.examples == 40
    assert progress.row("training")["workers"] == [
        {"index": 0, "pid": 7, "updates": 2, "examples": 20},
        {"index": 1, "pid": 8, "updates": 2, "examples": 20},
    ]


def test_a_row_reports_only_what_no_row_has_reported():
    progress = make_progress()
    progress.scheduled_steps(np.arange(4))
    look(progress, rows_of((1, 0, 0, 7, 1.0), (2, 0, 0, 7, 1.0), None, None))
    first = progress.row("training")
    assert first["loss"] == 1.5 and first["accuracy"] == 0.5 and first["epoch"] == pytest.approx(0.2)
    assert progress.row("training")["loss"] is None
    look(progress, rows_of((1, 0, 0, 7, 1.0), (2, 0, 0, 7, 1.0), (3, 2, 0, 7, 1.0), None))
    assert progress.row("training")["staleness_mean"] == 2


def test_a_row_has_nothing_where_a_mean_is_no_number():
    progress = make_progress()
    progress.scheduled_steps(np.arange(1))
    rows = rows_of((1, 0, 0, 7, 1.0), None, None, None)
    rows[0, ledger.COLUMNS.index("loss")] = np.nan
    look(progress, rows)
    row = progress.row("training")
    assert row["loss"] is None and row["diverged"] is True and row["accuracy"] == 0.5
    assert progress.row("training")["diverged"] is False


def test_the_result_tells_lost_duplicated_and_refused_apart():
    progress = make_progress()
    progress.scheduled_steps(np.arange(4))
    table = rows_of((1, 0, 0, 7, 1.0), (2, 0, 0, 7, 2.0), (3, 0, 0, 7, 3.0), None)
    progress.update(table[None], np.array([[5, 2, 0, 5]]), first=0)
    assert progress.result([1])["updates"] == {
        "scheduled": 4,
        "applied": 3,
        "duplicated": 2,
        "lost": 1,
        "replays_refused": 2,
    }


def test_updates_of_rounds_count_when_their_last_gradient_is_there_and_late_ones_stay_open():
    config = build_config(overrides={"training.mode": "sync-ps", "training.backup_workers": 1, "training.steps": 2})
    progress = RunProgress(config, train_examples=100)
    progress.scheduled_updates(2)
    late = None  # of three gradients the first two count
    look(progress, rows_of((1, 0, 0, 7, 1.0), late, (1, 0, 2, 9, 2.0), (2, 0, 0, 7, 3.0), None, None))
    assert (progress.applied, progress.outstanding, progress.open_range) == (1, 1, (3, 6))
    look(progress, rows_of((1, 0, 0, 7, 1.0), late, (1, 0, 2, 9, 2.0), (2, 0, 0, 7, 3.0), (2, 0, 1, 8, 4.0), late))
    assert progress.completed
    result = progress.result([1])
    assert (result["updates"]["scheduled"], result["updates"]["applied"], result["updates"]["lost"]) == (2, 2, 0)
    assert result["gradients"] == {"scheduled": 6, "applied": 4, "dropped": 0, "per_update": 2}


def test_a_resumed_run_schedules_just_the_steps_that_are_missing():
    progress = make_progress(steps=5)
    progress.resume(rows_of((1, 0, 0, 7, 1.0), None, (2, 0, 0, 7, 2.0))[None], train_seconds=30.0)
    assert progress.missing_steps().tolist() == [1, 3, 4]
    assert progress.applied == 2 and progress.outstanding == 0 and progress.train_seconds == 30.0


def test_training_ends_with_its_last_update_whatever_is_written_after_it():
    progress = make_progress(steps=3)
    progress.resume(rows_of((1, 0, 0, 7, 1.0), None, None)[None], train_seconds=30.0)
    progress.start()
    began = time.time()
    progress.scheduled_steps(np.array([1, 2]))
    look(progress, rows_of((1, 0, 0, 7, 1.0), (2, 0, 0, 7, began + 4.0), (3, 0, 0, 7, began + 5.0)))
    assert progress.result([1])["train_seconds"] == pytest.approx(35.0, abs=0.1)


def test_a_resumed_run_without_an_update_has_trained_no_longer():
    progress = make_progress(steps=1)
    progress.resume(rows_of((1, 0, 0, 7, 1.0))[None], train_seconds=30.0)
    progress.start()
    assert progress.result([1])["train_seconds"] == 30.0


def test_the_rate_counts_from_when_every_worker_process_has_had_its_first_update():
    rows = rows_of((1, 0, 0, 7, 0.0), (2, 0, 0, 7, 1.0), (3, 0, 1, 8, 10.0), (4, 0, 0, 7, 11.0), (5, 0, 1, 8, 12.0))
    assert examples_per_second(rows) == 20 / 2.0
    assert examples_per_second(rows[:3]) is None and examples_per_second(rows[:0]) is None


def test_the_ledger_written_as_csv_names_its_columns(tmp_path):
    ledger.write_csv(tmp_path / "updates.csv", rows_of((1, 0, 0, 7, 1.5), None, (2, 1, 1, 8, 2.5))[None])
    lines = (tmp_path / "updates.csv").read_text().splitlines()
    assert lines[0].split(",") == ["step", *ledger.COLUMNS]
    found = [line.split(",")[:5] for line in lines[1:]]
    assert found == [["0", "1", "0", "0.000000", "1.500000"], ["2", "2", "1", "0.000000", "2.500000"]]
