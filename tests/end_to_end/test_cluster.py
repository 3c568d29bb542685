"""Real clusters: every process is what a user's run starts, on the embedded set (20,000 generated images)."""

import csv
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ps_cluster.runs import checkpoints, proof, times
from tests.helpers import held_modes
from tests.helpers.processes import assert_none_left, has_heard, wait_until
from tests.helpers.real_cluster import FEW_EXAMPLES, finish, rows, small, start, tasks, unhurried, wait_for_training

pytestmark = pytest.mark.cluster


def run(run_dir, *options, expected=0, draws=False):
    output = finish(start("run", "--run-dir", run_dir, *small(*options, draws=draws)), expected)
    assert_none_left(run_dir)
    return output, json.loads((run_dir / "summary.json").read_text())


def final_weights(run_dir):
    folder = run_dir / "checkpoints"
    return checkpoints.load(checkpoints.path_of(folder, checkpoints.steps(folder)[-1])).arrays["weights"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of 3 workers and 2 parameter servers, 300 updates, with the evaluator."""
    run_dir = tmp_path_factory.mktemp("finished") / "run"
    options = ("--workers", 3, "--ps", 2, "--steps", 300, "--batch-size", 64, "--profile", "--tensorboard")
    output, summary = run(run_dir, *options, draws=True)
    return run_dir, output, summary


def test_three_hundred_steps_of_three_workers_are_applied_exactly_once_each(finished):
    run_dir, _, summary = finished
    nothing = dict.fromkeys(("duplicated", "lost", "rolled_back", "replays_refused", "mixed"), 0)
    expected = {"scheduled": 300, "applied": 300} | nothing
    assert summary["updates"] == expected and summary["outcome"] == "completed"
    updates = list(csv.DictReader((run_dir / "metrics" / "updates.csv").open()))
    assert [int(row["step"]) for row in updates] == list(range(300))
    assert sorted(int(row["version"]) for row in updates) == list(range(1, 301))
    assert sum(summary["staleness"]["histogram"].values()) == 300


def test_every_step_went_its_way_in_order_on_one_clock_and_each_server_applied_it(finished):
    run_dir, output, _ = finished
    updates = proof.read_csv(run_dir / "metrics" / "updates.csv")
    way = np.stack([updates[name] for name in ("scheduled_time", *times.PHASE_COLUMNS)])
    assert (np.diff(way, axis=0) >= 0).all() and way.min() > time.time() - 600
    applies = proof.read_csv(run_dir / "metrics" / "applies.csv", proof.APPLY_ROW)
    assert sorted(zip(applies["ps"], applies["step"])) == [(ps, step) for ps in range(2) for step in range(300)]
    for server in range(2):
        turns = np.sort(applies[applies["ps"] == server], order="entered_time")
        assert (turns["applied_time"][:-1] <= turns["entered_time"][1:]).all(), "one after the other"
    assert "share of the training time" in output and (run_dir / "metrics" / "trace.json").is_file()


def test_the_summary_proves_that_three_distinct_processes_worked(finished):
    run_dir, output, summary = finished
    workers = summary["workers"]
    assert len({worker["pid"] for worker in workers}) == len({worker["address"] for worker in workers}) == 3
    assert all(worker["updates"] > 0 for worker in workers)
    assert sum(worker["updates"] for worker in workers) == 300
    assert sum(worker["examples"] for worker in workers) == 300 * 64
    pids = {name: task["pid"] for name, task in tasks(run_dir).items()}
    assert all(pids["worker", worker["index"]] == worker["pid"] for worker in workers)
    assert len(set(pids.values())) == 1 + 2 + 3 + 1, "chief, ps, workers and evaluator are processes of their own"
    assert "3 distinct worker processes" in output


def test_the_parameter_servers_share_the_parameters_evenly(finished):
    parameters = [server["parameters"] for server in finished[2]["parameter_servers"]]
    assert sum(parameters) == 122_570 and max(parameters) - min(parameters) <= 1


def test_the_evaluator_scores_the_last_checkpoint_and_plain_keras_agrees(finished):
    run_dir, _, summary = finished
    assert summary["evaluation"]["step"] == 300 and summary["dataset_kind"] == "synthetic"
    images = Path(json.loads((run_dir / "dataset.json").read_text())["directory"])
    code = (
        "import keras, numpy as np, sys\n"
        "model = keras.models.load_model(sys.argv[1])\n"
        "images = np.fromfile(sys.argv[2] + '/test_image.uint8', np.uint8).reshape(-1, 32, 32, 3)\n"
        "labels = np.fromfile(sys.argv[2] + '/test_target.uint8', np.uint8)\n"
        "print((model.predict(images, verbose=0).argmax(1) == labels).mean())\n"
    )
    command = [sys.executable, "-c", code, run_dir / "best" / "model.keras", images]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, cwd=run_dir)
    assert float(answer.stdout.split()[-1]) == pytest.approx(summary["evaluation"]["best_test_accuracy"], abs=1e-3)


def test_the_results_are_of_the_last_score_and_have_pictures_of_mistakes(finished):
    run_dir, output, summary = finished
    results = json.loads((run_dir / "results" / "results.json").read_text())
    assert results["step"] == summary["evaluation"]["step"] == 300
    assert results["found"]["accuracy"] == pytest.approx(summary["evaluation"]["test_accuracy"], abs=1e-6)
    assert sum(map(sum, results["found"]["confusion_matrix"])) == results["test_examples"]
    page = run_dir / "results" / "results.html"
    assert page.read_text().count("data:image/png;base64,") == len(results["mistakes"]) > 0
    assert output.index("did the work") < output.index(str(page)), "the table comes first"


def test_tensorboard_finds_the_curves(finished):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tags = set()
    for folder in {file.parent for file in (finished[0] / "tensorboard").rglob("events.*")}:
        events = EventAccumulator(str(folder))
        events.Reload()
        tags |= {tag for kind in ("scalars", "tensors", "histograms") for tag in events.Tags()[kind]}
    names = " ".join(tags)
    expected = ("loss", "accuracy", "learning_rate", "staleness", "test_accuracy", "predictions", "weights/")
    assert all(word in names for word in expected)


def test_link_to_tensorboard_is_told_while_it_trains(finished):
    assert "TensorBoard: http://127.0.0.1:" in finished[1]


def test_resuming_a_completed_run_changes_nothing(finished):
    run_dir = finished[0]
    before = {path: path.stat().st_mtime_ns for path in run_dir.rglob("*") if path.is_file()}
    assert "is complete, nothing is left to do" in finish(start("run", "--resume", run_dir))
    assert_none_left(run_dir)
    assert {path: path.stat().st_mtime_ns for path in run_dir.rglob("*") if path.is_file()} == before


def test_one_worker_gives_the_same_weights_bit_for_bit_interrupted_and_resumed_or_not(tmp_path):
    options = ("--workers", 1, "--steps", 150, "--no-evaluator", "--seed", 5, *unhurried(workers=1, seconds=0.03))
    run(tmp_path / "whole", *options)
    parts, mark = tmp_path / "parts", tmp_path / "applied"
    held = held_modes.held({"applied": 20}, tmp_path)
    mode = ("--mode", held_modes.mode("asynchronous"))
    process = start("run", "--run-dir", parts, *small(*options, *mode), env=held)
    wait_until(mark.exists, within_s=90)
    process.send_signal(signal.SIGINT)
    # The chief hears of it while its worker is held.
    wait_until(lambda: any(row["phase"] == "draining" for row in rows(parts)[-1:]), within_s=60)
    mark.with_name("applied.go_on").touch()
    finish(process)
    summary = json.loads((parts / "summary.json").read_text())
    assert summary["outcome"] == "stopped" and 20 < summary["updates"]["applied"] < 150
    assert summary["updates"]["applied"] == summary["updates"]["scheduled"]
    finish(start("run", "--resume", parts, "--code", held_modes.__file__, env=held))
    assert_none_left(parts)
    resumed = json.loads((parts / "summary.json").read_text())
    assert resumed["outcome"] == "completed" and resumed["updates"]["applied"] == 150
    assert resumed["updates"]["rolled_back"] == 0
    assert (final_weights(parts) == final_weights(tmp_path / "whole")).all()


def test_a_second_signal_stops_at_once(tmp_path):
    run_dir = tmp_path / "run"
    process = start("run", "--run-dir", run_dir, *small("--steps", 100_000, "--workers", 1, *FEW_EXAMPLES))
    wait_for_training(run_dir)
    process.send_signal(signal.SIGTERM)
    wait_until(lambda: has_heard(process.pid, signal.SIGTERM))  # a second one would be the same signal before
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    finish(process, expected=143)
    assert_none_left(run_dir)


def test_an_evaluator_started_by_hand_before_the_run_scores_it_to_the_end(tmp_path):
    run_dir = tmp_path / "run"
    evaluator = start("evaluate", "--checkpoint-dir", run_dir / "checkpoints")
    options = ("--steps", 200, "--no-evaluator", *FEW_EXAMPLES, "--set", "checkpoints.every_seconds=1")
    finish(start("run", "--run-dir", run_dir, *small(*options)))
    output = finish(evaluator)  # may take longer than the run, whose processes it is counted among
    assert_none_left(run_dir)
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["evaluation"]["step"] == 200 and summary["evaluation"]["test_accuracy"] > 0
    assert "step 200" in output and (run_dir / "best" / "model.keras").exists()


def test_no_image_is_visited_twice_in_an_epoch_whoever_takes_it(finished):
    import tensorflow as tf

    from ps_cluster.data.batches import batch_of

    updates = csv.DictReader((finished[0] / "metrics" / "updates.csv").open())
    steps = [tf.constant(int(row["step"]), tf.int64) for row in updates]
    ids = np.concatenate([batch_of(step, batch_size=64, examples=20_000, seed=0).ids for step in steps])
    assert len(np.unique(ids)) == len(ids) == 300 * 64
