from ps_cluster.config.tasks import Task
from ps_cluster.runs.result_rows import WorkerRow
from ps_cluster.tools.chaos.signs import TrainingContinues, new_snapshot
from tests.helpers.rows import progress_row


def test_a_worker_continues_with_an_update_of_its_own_and_training_with_any_update():
    rows = [
        progress_row(
            phase="training", monotonic=time, applied=applied,
            workers=[WorkerRow(index=0, pid=1, updates=1), WorkerRow(index=1, pid=2, updates=updates)],
        )
        for time, applied, updates in ((9.0, 5, 4), (10.5, 9, 4), (11.0, 4, 4), (11.5, 5, 4), (12.0, 6, 5))
    ]  # fmt: skip
    training, worker = TrainingContinues(10.0), TrainingContinues(10.0, of=Task("worker", 1))
    # The updates in the first row after the fault may be from before it, and after a restart there are fewer.
    assert [sign.seen(rows, {}, 20.0) for sign in (training, worker)] == [11.5, 12.0]


def test_a_file_that_was_there_before_is_not_a_new_one(tmp_path):
    (tmp_path / "step-1.safetensors").touch()
    sign = new_snapshot(tmp_path)
    assert sign.seen([], {}, 1.0) is None
    (tmp_path / "step-2.safetensors").touch()
    assert sign.seen([], {}, 2.0) == 2.0
