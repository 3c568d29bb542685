"""Real clusters: every process is what a user's run starts, on the embedded set (20,000 generated images)."""

import csv
import json
import signal
import time
from pathlib import Path

import keras
import numpy as np
import pytest

from ps_cluster.runs import ledger_csv, phases
from tests.helpers import held_modes
from tests.helpers.finished_runs import last_arrays
from tests.helpers.processes import assert_none_left, wait_until
from tests.helpers.real_cluster import BEHIND_A_PROXY, finish, rows, small, start, summary_of, tasks, unhurried

pytestmark = pytest.mark.cluster
STEPS = 120


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of 3 workers and 2 parameter servers, 120 updates, with the evaluator, on a machine behind a proxy."""
    run_dir = tmp_path_factory.mktemp("finished") / "run"
    options = ("--model", "tutorial_cnn", "--workers", 3, "--ps", 2, "--steps", STEPS, "--profile", "--tensorboard")
    output = finish(start("run", "--run-dir", run_dir, *small(*options, draws=True), env=BEHIND_A_PROXY))
    assert_none_left(run_dir)
    return run_dir, output, summary_of(run_dir)


def test_all_steps_of_three_workers_are_applied_exactly_once_each(finished):
    run_dir, _, summary = finished
    nothing = dict.fromkeys(("duplicated", "lost", "rolled_back", "replays_refused", "mixed"), 0)
    expected = {"scheduled": STEPS, "applied": STEPS} | nothing
    assert summary["updates"] == expected and summary["outcome"] == "completed"
    updates = list(csv.DictReader((run_dir / "metrics" / "updates.csv").read_text().splitlines()))
    assert [int(row["step"]) for row in updates] == list(range(STEPS))
    assert sorted(int(row["version"]) for row in updates) == list(range(1, STEPS + 1))
    assert sum(summary["staleness"]["histogram"].values()) == STEPS


def test_three_workers_learn_as_much_as_plain_keras_does_from_as_many_images(finished):
    """Guessing is right for 10 %, with a log loss of 2.303.

    Plain Keras with Adam at 0.001 is right for 12.2, 13.3 and 13.8 % after 120 updates of 32 images, with log losses of
    2.297, 2.292 and 2.288 (three seeds).
    """
    summary = finished[2]
    assert summary["learned"] and summary["evaluation"]["test_accuracy"] > 0.12
    assert summary["evaluation"]["test_loss"] < 2.295


def test_updates_of_each_worker_were_computed_again_with_the_same_result(finished):
    run_dir, _, summary = finished
    recomputed = summary["proof"]["recomputed"]
    assert summary["proof"]["holds"] and recomputed["of"] == STEPS and recomputed["unchecked"] == []
    assert recomputed["workers"].keys() == {"0", "1", "2"} and min(recomputed["workers"].values()) >= 1
    assert max(recomputed["largest_deviations"].values()) < 1
    assert not list((run_dir / "metrics" / "samples").iterdir()), "what agrees is removed"


def test_every_step_went_its_way_in_order_on_one_clock_and_each_server_applied_it(finished):
    run_dir, output, _ = finished
    updates = ledger_csv.read_csv(run_dir / "metrics" / "updates.csv")
    way = np.stack([updates[name] for name in ("scheduled_time", *phases.PHASE_COLUMNS)])
    assert (np.diff(way, axis=0) >= 0).all() and way.min() > time.time() - 600
    applies = ledger_csv.read_csv(run_dir / "metrics" / "applies.csv", ledger_csv.APPLY_ROW)
    assert sorted(zip(applies["ps"], applies["step"])) == [(ps, step) for ps in range(2) for step in range(STEPS)]
    for server in range(2):
        turns = np.sort(applies[applies["ps"] == server], order="entered_time")
        assert (turns["applied_time"][:-1] <= turns["entered_time"][1:]).all(), "one after the other"
    assert "share of the training time" in output and (run_dir / "metrics" / "trace.json").is_file()


def test_the_summary_proves_that_three_distinct_processes_worked(finished):
    run_dir, output, summary = finished
    workers = summary["workers"]
    assert len({worker["pid"] for worker in workers}) == len({worker["address"] for worker in workers}) == 3
    assert all(worker["updates"] > 0 for worker in workers)
    assert sum(worker["updates"] for worker in workers) == STEPS
    assert sum(worker["examples"] for worker in workers) == STEPS * 32
    pids = {name: task["pid"] for name, task in tasks(run_dir).items()}
    assert all(pids["worker", worker["index"]] == worker["pid"] for worker in workers)
    assert len(set(pids.values())) == 1 + 2 + 3 + 1, "chief, ps, workers and evaluator are processes of their own"
    assert "3 distinct worker processes" in output


def test_the_parameter_servers_share_the_parameters_as_evenly_as_whole_matrices_allow(finished):
    """The kernel of the first dense layer, [1024, 64], is not cut, because the network's rule is Muon."""
    parameters = [server["parameters"] for server in finished[2]["parameter_servers"]]
    assert parameters == [56_320, 66_250] and sum(parameters) == 122_570


def test_the_evaluator_scores_the_last_checkpoint_and_plain_keras_agrees(finished):
    run_dir, _, summary = finished
    assert summary["evaluation"]["step"] == STEPS and summary["dataset_kind"] == "synthetic"
    images = Path(json.loads((run_dir / "dataset.json").read_text())["directory"])
    inputs = np.fromfile(images / "test_image.uint8", np.uint8).reshape(-1, 32, 32, 3)
    labels = np.fromfile(images / "test_target.uint8", np.uint8)
    outputs = keras.models.load_model(run_dir / "best" / "model.keras").predict(inputs, verbose=0)
    accuracy = (outputs.argmax(1) == labels).mean()
    assert accuracy == pytest.approx(summary["evaluation"]["best_test_accuracy"], abs=1e-3)


def test_the_results_are_of_the_last_score_and_have_pictures_of_mistakes(finished):
    run_dir, output, summary = finished
    results = json.loads((run_dir / "results" / "results.json").read_text())
    assert results["step"] == summary["evaluation"]["step"] == STEPS
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
    assert "TensorBoard: http://127.0.0.1:" in finished[1], "the link is told"


def test_resuming_a_completed_run_changes_nothing(finished):
    run_dir = finished[0]
    before = {path: path.stat().st_mtime_ns for path in run_dir.rglob("*") if path.is_file()}
    assert "is complete, nothing is left to do" in finish(start("run", "--resume", run_dir))
    assert_none_left(run_dir)
    assert {path: path.stat().st_mtime_ns for path in run_dir.rglob("*") if path.is_file()} == before


@pytest.mark.exhaustive
def test_one_worker_gives_the_same_weights_bit_for_bit_interrupted_and_resumed_or_not(tmp_path):
    """The one that is not interrupted is scored by an evaluator that was started by hand before it."""
    options = ("--workers", 1, "--steps", 80, "--no-evaluator", "--seed", 5, *unhurried(workers=1, seconds=0.03))
    evaluator = start("evaluate", "--checkpoint-dir", tmp_path / "whole" / "checkpoints")
    finish(start("run", "--run-dir", tmp_path / "whole", *small(*options)))
    # The evaluator may take longer than the run, whose processes it is counted among.
    assert "step 80: test accuracy" in finish(evaluator)
    assert_none_left(tmp_path / "whole")
    summary = summary_of(tmp_path / "whole")
    assert summary["evaluation"]["step"] == 80 and (tmp_path / "whole" / "best" / "model.keras").exists()
    parts, mark = tmp_path / "parts", tmp_path / "applied"
    held = held_modes.held({"applied": (0, 20)}, tmp_path)
    process = start("run", "--run-dir", parts, *small(*options, *held_modes.MODE), env=held)
    wait_until(mark.exists)
    process.send_signal(signal.SIGINT)
    # The chief hears of it while its worker is held.
    wait_until(lambda: any(row["phase"] == "draining" for row in rows(parts)[-1:]))
    mark.with_name("applied.go_on").touch()
    finish(process)
    summary = summary_of(parts)
    assert summary["outcome"] == "stopped" and 20 < summary["updates"]["applied"] < 80
    assert summary["updates"]["applied"] == summary["updates"]["scheduled"]
    finish(start("run", "--resume", parts, "--code", held_modes.__file__, env=held))
    assert_none_left(parts)
    resumed = summary_of(parts)
    assert resumed["outcome"] == "completed" and resumed["updates"]["applied"] == 80
    assert resumed["updates"]["rolled_back"] == 0
    assert (last_arrays(parts)["weights"] == last_arrays(tmp_path / "whole")["weights"]).all()


def test_no_image_is_visited_twice_in_an_epoch_whoever_takes_it(finished):
    import tensorflow as tf

    from ps_cluster.data.batches import batch_of

    updates = csv.DictReader((finished[0] / "metrics" / "updates.csv").read_text().splitlines())
    steps = [tf.constant(int(row["step"]), tf.int64) for row in updates]
    ids = np.concatenate([batch_of(step, batch_size=32, examples=20_000, seed=0).ids for step in steps])
    assert len(np.unique(ids)) == len(ids) == STEPS * 32
