"""The summary is a pure function of the run directory, and the closing table tells it to a person."""

import io
import itertools
import json
import shlex
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console

from ps_cluster.config import build_config, load_config
from ps_cluster.config.tasks import Task
from ps_cluster.data.packed import write_pointer
from ps_cluster.errors import FAILED_FOR_GOOD
from ps_cluster.files.json_rows import append_row
from ps_cluster.files.writing import write_json, write_whole
from ps_cluster.files.yaml_files import dump_yaml, read_yaml
from ps_cluster.launch.one_task import OneTask, TaskOptions
from ps_cluster.launch.topology import ClusterTopology
from ps_cluster.report.closing_table import points_to_files, print_numbers, print_places
from ps_cluster.report.facts import histogram_bars
from ps_cluster.report.summary import EndedRun, refresh_evaluation, write_summary
from ps_cluster.runs import checkpoints
from ps_cluster.runs.leaders import Claim
from ps_cluster.runs.machine_rows import MachineRow, NetworkSummary, UsageRow
from ps_cluster.runs.result_rows import PatienceExhausted, ProgressRow, Summary, TimeLimitReached
from ps_cluster.runs.rows import ScalingRow
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.runs.update_samples import RecomputedRow
from tests.helpers.data import only_named, pack_images, random_images
from tests.helpers.rows import progress_row, score_row

NOTHING_RECOMPUTED = {"updates": 0, "of": 391, "workers": {}, "largest_deviations": {}, "unchecked": []}
RESULT = {
    "outcome": "completed",
    "train_seconds": 16.1,
    "examples_per_second": 3100.0,
    "goodput": 1.0,
    "rolled_back_seconds": 0.0,
    "interrupted_seconds": 0.0,
    "updates": {
        "scheduled": 391, "applied": 391, "duplicated": 0, "lost": 0, "rolled_back": 0, "replays_refused": 1,
        "mixed": 0,
    },
    "proof": {
        "holds": True, "problems": [],
        "shards": [{"index": 0, "rows": 391, "steps": 391, "version": 391, "accepted": 391, "refused": 1, "dropped": 0}],
    },
    "gradients": {"scheduled": 391, "applied": 391, "dropped": 0, "per_update": 1},
    "staleness": {"mean": 1.98, "p50": 2, "p95": 3, "max": 5, "histogram": {"0": 3, "2": 380, "5": 8}},
    "workers": [
        {"index": 0, "pid": 100, "updates": 130, "examples": 16640},
        {"index": 1, "pid": 101, "updates": 60, "examples": 7680},
        {"index": 1, "pid": 102, "updates": 71, "examples": 9088},
        {"index": 2, "pid": 103, "updates": 130, "examples": 16640},
    ],
    "parameter_servers": [{"index": 0, "parameters": 122570, "table_parameters": None, "pushed_bytes": 7, "pulled_bytes": 8}],
}  # fmt: skip


USAGE = {
    "cpu_seconds": 61.5,
    "peak_memory_bytes": 3_000_000_000,
    "processes": [{"type": "chief", "index": 0, "pid": 99, "cpu_seconds": 5.5, "peak_pss_bytes": 700_000_000}],
}


MACHINE = {"processor": "Some EPYC", "cores": 2}


@pytest.fixture
def run_dir(tmp_path):
    """A run whose worker 1 was started again, before any evaluation."""
    run_dir = RunDir.create(tmp_path / "run")
    overrides = {"data.dataset": "cifar10", "model.name": "tutorial_cnn", "model.precision": "bfloat16"}
    write_whole(run_dir.config, build_config(None, overrides).to_yaml())
    write_pointer(run_dir.dataset, only_named("cifar10"))
    write_cluster(run_dir, {"chief": [99], "ps": [98], "worker": [100, 102, 103], "evaluator": [97]})
    write_json(run_dir.training_result, RESULT)
    return run_dir


def write_cluster(run_dir: RunDir, pids: dict[str, list[int]]) -> None:
    tasks = [
        {"type": kind, "index": index, "pid": pid, "address": f"127.0.0.1:{40000 + pid}"}
        for kind, row in pids.items()
        for index, pid in enumerate(row)
    ]
    write_json(run_dir.cluster, {"launcher": {"pid": 1}, "tasks": tasks})


def change_settings(run_dir: RunDir, values: dict) -> None:
    write_whole(run_dir.config, load_config(run_dir.config).with_values(values).to_yaml())


ONE_SCORE = {
    "validation_accuracy": None, "augmented_test_accuracy": None, "test_error": None, "validation_error": None,
    "validation_loss": None, "metrics": {}, "validation_metrics": {}, "compiled": {}, "validation_compiled": {},
}  # fmt: skip


def reshape(run_dir: RunDir, mode: str, members: dict[str, list[int]], **result) -> None:
    """Make it a run in another mode, with the pids `members` and another result."""
    overrides = {"data.dataset": "cifar10", "model.precision": "bfloat16", "mode.name": mode}
    write_whole(run_dir.config, build_config(None, overrides).to_yaml())
    write_cluster(run_dir, members)
    write_json(run_dir.training_result, RESULT | {"parameter_servers": [], "staleness": {}} | result)


LIFE = "7@1234"
BEGAN = time.monotonic() - 27.0


def timed_row(
    applied: int, monotonic: float = BEGAN, life: str = LIFE, staleness: dict | None = None, **times
) -> ProgressRow:
    """Return a row of a training at 20 updates a second, or at the speed of `times`."""
    seconds, examples = applied / 20, applied * 128
    first = {"seconds": seconds, "first_update": 0.1, "last_update": seconds, "resumed_update": 0.1}
    first["stood"] = [[0.1, seconds]]
    workers = [{"index": 0, "pid": 100, "updates": applied, "examples": examples}]
    known = {"scheduled": applied + 8, "examples": examples, "monotonic": monotonic, "life": life, "workers": workers}
    known["staleness"] = staleness
    return progress_row(applied, train_seconds=seconds, times=first | times, **known)


def score(run_dir: RunDir, step: int, accuracy: float | None, **more) -> None:
    append_row(run_dir.evaluation, score_row(step, accuracy, **{"train_seconds": 8.0, "examples": step * 128} | more))


def write(run_dir: RunDir, **changes) -> dict:
    ended = EndedRun(
        outcome="completed",
        wall_seconds=27.0,
        began=BEGAN,
        life=LIFE,
        restarts={Task("worker", 1): 1},
        usage=UsageRow.model_validate(USAGE),
        machine=MachineRow(**MACHINE),
        network=NetworkSummary(private=True),
    )
    return write_summary(run_dir, replace(ended, **changes)).model_dump(mode="json")


def closing_table(summary: dict, run_dir: RunDir, width: int = 100) -> str:
    output = io.StringIO()
    console, ended = Console(file=output, width=width), Summary.model_validate(summary)
    print_numbers(ended, console)
    print_places(ended, run_dir, console)
    return output.getvalue()


def words(summary: dict, run_dir: RunDir, width: int = 100) -> str:
    """Return the closing table on one line."""
    return " ".join(closing_table(summary, run_dir, width).split())


def test_summary_has_the_names_that_other_programs_read(run_dir):
    score(run_dir, 195, 0.60)
    score(run_dir, 391, 0.71)
    append_row(run_dir.progress, timed_row(391, BEGAN + 20, seconds=13.0, resumed_update=0.2))
    summary = write(run_dir)
    assert json.loads(run_dir.summary.read_text()) == summary
    assert (summary["schema"], summary["outcome"], summary["mode"], summary["seed"]) == (2, "completed", "async", 0)
    assert (summary["dataset"], summary["dataset_kind"]) == ("cifar10", "real")
    assert (summary["model"], summary["precision"]) == ("tutorial_cnn", "bfloat16")
    passed_on = ("updates", "gradients", "staleness", "proof", "goodput", "rolled_back_seconds", "interrupted_seconds")
    expected = {name: RESULT[name] for name in passed_on}
    expected["proof"] = expected["proof"] | {"recomputed": NOTHING_RECOMPUTED}
    assert {name: summary[name] for name in passed_on} == expected
    assert {name: summary[name] for name in USAGE} == USAGE and summary["machine"] == MACHINE
    assert (summary["straggler"], summary["staleness_method"], summary["simulate_workers"]) == ("none", "none", None)
    assert [summary[f"{name}_seconds"] for name in ("train", "wall")] == [16.1, 27.0]
    assert summary["startup_seconds"] == pytest.approx(7.2)
    assert summary["examples_per_second"] == 3100.0
    assert summary["parameter_servers"] == [
        {"index": 0, "pid": 98, "address": "127.0.0.1:40098", "restarts": 0} | RESULT["parameter_servers"][0]
    ]
    assert summary["evaluation"] == {
        "test_accuracy": 0.71, "test_loss": 0.9, **ONE_SCORE,
        "step": 391, "best_test_accuracy": 0.71, "best_test_error": None, "best_step": 391, "best_chosen_on": "test",
        "best_validation_accuracy": None, "best_validation_error": None, "epochs_not_scored": [],
        "monitor": "accuracy", "monitor_mode": "max", "best_value": 0.71, "best_metrics": {}, "best_compiled": {},
        "history": [
            {"step": 195, "test_accuracy": 0.60, "test_loss": 0.9, **ONE_SCORE, "train_seconds": 8.0, "examples": 24960},
            {"step": 391, "test_accuracy": 0.71, "test_loss": 0.9, **ONE_SCORE, "train_seconds": 8.0, "examples": 50048},
        ],
    }  # fmt: skip


def test_the_closing_table_says_which_metric_chose_and_why_a_run_was_stopped_early(run_dir):
    change_settings(run_dir, {"evaluation.monitor": "auc", "evaluation.patience": 2})
    for step, auc in ((195, 0.8), (300, 0.7), (391, 0.75)):
        score(run_dir, step, 0.6, metrics={"auc": auc, "f1": 0.5})
    early = PatienceExhausted(step=391, patience=2, monitor="auc", examples="test", best_step=195, best_value=0.8)
    summary = write(run_dir, outcome="stopped", early_stop=early)
    found = summary["evaluation"]
    chose = [found[name] for name in ("monitor", "monitor_mode", "best_step", "best_value")]
    assert chose == ["auc", "max", 195, 0.8]
    assert found["best_metrics"] == {"auc": 0.8, "f1": 0.5} and found["metrics"] == {"auc": 0.75, "f1": 0.5}
    assert summary["early_stop"] == early.model_dump()
    text = words(summary, run_dir)
    assert "test metrics auc 0.75 · f1 0.5 at step 391" in text
    assert "best model step 195, which has the largest test auc: 0.8" in text
    assert "stopped early test auc has not become better in 2 scored checkpoints in a row up to step 391" in text


def test_worker_that_was_started_again_is_one_row_and_two_processes(run_dir):
    summary = write(run_dir)
    worker = summary["workers"][1]
    assert {name: worker[name] for name in ("index", "pid", "address", "updates", "examples", "restarts")} == {
        "index": 1, "pid": 102, "address": "127.0.0.1:40102", "updates": 131, "examples": 16768, "restarts": 1
    }  # fmt: skip
    assert [process["pid"] for process in worker["processes"]] == [101, 102]
    assert len(summary["workers"]) == 3 and summary["worker_processes"] == 4
    assert sum(worker["updates"] for worker in summary["workers"]) == summary["updates"]["applied"]


def test_killed_run_is_summed_up_from_its_progress(run_dir):
    run_dir.training_result.unlink()
    staleness = {"counts": [25, 0, 75], "sum": 150}
    append_row(run_dir.progress, timed_row(100, stood=[[0.1, 3.53]], interrupted=0.47, staleness=staleness))
    summary = write(run_dir, outcome="failed")
    assert summary["updates"] == {
        "scheduled": 108, "applied": 100, "duplicated": None, "lost": None, "rolled_back": 0,
        "replays_refused": None, "mixed": None,
    }  # fmt: skip
    assert (summary["rolled_back_seconds"], summary["interrupted_seconds"]) == pytest.approx((1.0, 0.47))
    assert summary["goodput"] == pytest.approx(1 - 1.47 / 4.9)
    assert summary["proof"] is None, "nobody held the journals against the parameter servers"
    assert summary["gradients"] == dict.fromkeys(("scheduled", "applied", "dropped", "per_update"))
    assert summary["staleness"] == {"mean": 1.5, "p50": None, "p95": None, "max": None, "histogram": {}}
    assert "staleness mean 1.50" in (text := words(summary, run_dir)) and "median" not in text
    assert (summary["train_seconds"], summary["examples_per_second"]) == (5.0, None)
    assert summary["workers"][0]["updates"] == 100
    assert "failed" in closing_table(summary, run_dir)


def test_rolled_back_updates_are_counted_over_all_starts_of_the_chief(run_dir):
    for applied in (100, 250, 200, 300, 290, 391):
        append_row(run_dir.progress, timed_row(applied))
    assert write(run_dir)["updates"]["rolled_back"] == 60


def test_start_up_ends_with_the_first_update_since_the_command_began_and_counts_it_once(run_dir):
    rows = (
        timed_row(100, BEGAN + 900, life="an earlier one"),  # before the machine, and its clock, began anew
        timed_row(100, BEGAN + 3, seconds=5.0, resumed_update=None),
        timed_row(105, BEGAN + 9, seconds=9.0, resumed_update=7.5),
        timed_row(102, BEGAN + 15, seconds=15.0, resumed_update=14.0),  # its leader was started again
    )
    for row in rows[:2]:
        append_row(run_dir.progress, row)
    assert write(run_dir)["startup_seconds"] is None
    for row in rows[2:]:
        append_row(run_dir.progress, row)
    assert write(run_dir)["startup_seconds"] == 7.5


def test_a_proof_that_does_not_hold_fails_a_run_that_completed(run_dir):
    problems = ["shard 0: 391 gradients were accepted, but there are 390 rows", "and more"]
    proof = {"holds": False, "problems": problems, "shards": []}
    write_json(run_dir.training_result, RESULT | {"proof": proof})
    summary = write(run_dir, outcome="completed")
    assert summary["outcome"] == "failed" and summary["proof"] == proof | {"recomputed": NOTHING_RECOMPUTED}
    assert "FAILS: shard 0: 391 gradients were accepted, but there are 390 rows" in closing_table(summary, run_dir)


def test_an_update_that_was_computed_again_with_another_result_fails_a_run_that_completed(run_dir):
    disagrees = RecomputedRow(update=3, workers=[0], deviations={"weights": 9.0}, problems=["3.000 times as far"])
    for row in (RecomputedRow(update=2, workers=[1], deviations={"weights": 0.5}), disagrees):
        append_row(run_dir.recomputed, row)
    summary = write(run_dir, outcome="completed")
    found = {"updates": 2, "workers": {"0": 1, "1": 1}, "largest_deviations": {"weights": 9.0}}
    assert summary["outcome"] == "failed" and summary["proof"]["problems"] == ["3.000 times as far"]
    assert summary["proof"]["recomputed"] == NOTHING_RECOMPUTED | found
    assert "FAILS: 3.000 times as far" in closing_table(summary, run_dir)


def test_run_that_never_trained_has_a_summary_all_the_same(run_dir):
    for path in (run_dir.training_result, run_dir.cluster):
        path.unlink()
    summary = write(run_dir, outcome="failed", restarts={})
    assert (summary["workers"], summary["parameter_servers"], summary["train_seconds"]) == ([], [], 0.0)
    assert (summary["sessions"], summary["session_train_seconds"]) == (1, 0.0)
    assert summary["evaluation"]["history"] == [] and summary["evaluation"]["test_accuracy"] is None
    assert "not measured" in closing_table(summary, run_dir)


@pytest.mark.parametrize(
    ("changes", "warning"),
    [
        ({"outcome": "diverged", "learned": False, "bad_losses": 7}, "diverged: weights are NaN or infinite, and"),
        ({"learned": False, "guess": 0.1}, "not better than guessing, which has accuracy 10.00%: nothing was learned"),
        ({"outcome": "nan_loss", "learned": True, "bad_losses": 391}, "the loss was NaN or infinite in every step: no"),
        ({"too_few_examples": 6}, "6 test images are too few to tell whether the model is better than guessing"),
        ({"learned": True, "bad_losses": 7}, "the loss was NaN or infinite in 7 of 391 updates"),
        ({"learned": None}, ""),
    ],
)
def test_closing_table_warns_of_numbers_that_are_not_those_of_a_training_that_works(run_dir, changes, warning):
    text = words(write(run_dir) | changes, run_dir)
    assert ("WARNING" in text) is bool(warning) and warning in text
    assert "--resume" not in text


@pytest.mark.parametrize(
    ("accuracy", "examples", "dataset", "says"),
    [
        (0.752, 150_000, "cifar10", "74.7% after 150,000 images (async, 5 runs), and so does this run"),
        (0.707, 150_000, "cifar10", "(async, 5 runs); this run is 4.0 points worse"),
        (0.787, 151_000, "cifar10", "(async, 5 runs); this run is 4.0 points better"),
        (0.707, 25_600, "cifar10", "(async, 5 runs); this model has trained on 25,600 images"),
        (0.747, 150_000, "cifar100", ""),
    ],
)
def test_closing_table_says_whether_the_score_is_what_the_network_usually_reaches(
    run_dir, accuracy, examples, dataset, says
):
    score(run_dir, 391, accuracy, examples=examples)
    text = words(write(run_dir) | {"dataset": dataset}, run_dir)
    assert says in text and ("usual score tutorial_cnn usually reaches" in text) is bool(says)


def test_a_score_without_a_finite_loss_is_never_the_best_one(run_dir):
    score(run_dir, 391, 0.9, test_loss=None)
    evaluation = write(run_dir)["evaluation"]
    assert evaluation["test_accuracy"] == 0.9 and evaluation["best_step"] != 391
    score(run_dir, 391, None)
    assert "not a finite number at step 391" in words(write(run_dir), run_dir)


def test_best_score_and_last_score_are_told_apart(run_dir):
    score(run_dir, 300, 0.75)
    score(run_dir, 391, 0.71)
    summary = write(run_dir)
    assert (summary["evaluation"]["test_accuracy"], summary["evaluation"]["step"]) == (0.71, 391)
    assert (summary["evaluation"]["best_test_accuracy"], summary["evaluation"]["best_step"]) == (0.75, 300)
    text = words(summary, run_dir)
    assert "71.00% at step 391 · best 75.00% at step 300, chosen on test images" in text


def test_the_best_score_is_chosen_on_images_held_out_where_there_are_any(run_dir):
    score(run_dir, 200, 0.74, validation_accuracy=0.70)
    score(run_dir, 300, 0.72, validation_accuracy=0.73)
    score(run_dir, 391, 0.71, validation_accuracy=0.69, validation_loss=1.2)
    summary = write(run_dir)
    found = summary["evaluation"]
    assert (found["best_step"], found["best_test_accuracy"], found["best_chosen_on"]) == (300, 0.72, "validation")
    assert (found["validation_accuracy"], found["validation_loss"]) == (0.69, 1.2)
    assert found["best_validation_accuracy"] == 0.73
    text = words(summary, run_dir)
    assert "validation accuracy 69.00% at step 391 · best 73.00% at step 300" in text
    assert "test accuracy 71.00% at step 391 · 72.00% at step 300, the best model on held-out images" in text


def pack(run_dir, tmp_path, examples=1000):
    images, labels = random_images(examples, seed=1)
    dataset = pack_images(
        tmp_path / "packed", "cifar10", tuple("abcdefghij"), (images, labels, images[:20], labels[:20])
    )
    write_pointer(run_dir.dataset, dataset)


@pytest.mark.parametrize(
    ("scored_at", "lacking", "says"),
    [
        ((0, 1000, 2100, 3050), [], None),
        ((1000, 3900, 4000, 5100), [2], "epoch 2: no checkpoint was written, or it was removed"),
        ((1000, 10_000), [2, 3, 4, 5, 6, 7, 8, 9], "epochs 2, 3, 4, 5, 6, 7 and 2 more: no checkpoint"),
    ],
)
def test_epochs_whose_score_was_asked_for_and_is_not_there_are_named(run_dir, tmp_path, scored_at, lacking, says):
    pack(run_dir, tmp_path)
    for step, examples in enumerate(scored_at):
        score(run_dir, step, 0.5, examples=examples)
    assert write(run_dir)["evaluation"]["epochs_not_scored"] == []
    change_settings(run_dir, {"checkpoints.every_epochs": 1.0})
    summary = write(run_dir)
    assert summary["evaluation"]["epochs_not_scored"] == lacking
    text = words(summary, run_dir, width=200)
    assert says in text if says else "not scored epoch" not in text


def test_a_training_of_few_updates_that_learned_nothing_is_told_what_to_try(run_dir, tmp_path):
    pack(run_dir, tmp_path, examples=180)
    change_settings(run_dir, {"training.epochs": 10.0})
    score(run_dir, 14, 0.1)
    summary = write(run_dir)
    assert summary["few_updates"] == "an epoch has 1.4 updates: try --batch-size 16"
    text = words(summary, run_dir, width=200)
    assert "nothing was learned. An epoch has 1.4 updates: try --batch-size 16. docs/" in text


def test_closing_table_says_that_the_last_step_is_not_scored_yet_and_how_it_will_be(run_dir):
    score(run_dir, 300, 0.75)
    checkpoints.mark_ended(run_dir.checkpoints, last_step=391, outcome="completed")
    text = closing_table(write(run_dir), run_dir)
    assert "75.00% at step 300" in text and "step 391 has not been scored yet" in " ".join(text.split())
    assert f"python cli.py evaluate --checkpoint-dir {run_dir.root}\n" in text
    score(run_dir, 391, 0.71)
    text = closing_table(write(run_dir), run_dir)
    assert "71.00% at step 391" in text and "not been scored" not in text and "evaluate" not in text


def test_printed_commands_quote_paths_with_spaces(run_dir):
    root = run_dir.root.with_name("my run")
    run_dir.root.rename(root)
    moved = RunDir(root)
    checkpoints.save(moved.snapshots, checkpoints.Checkpoint(1, {}), keep=1)
    moved.tensorboard.mkdir(exist_ok=True)
    lines = closing_table(write(moved, outcome="stopped"), moved).splitlines()
    commands = [shlex.split(line) for line in lines if line.startswith((" continue", " curves"))]
    assert [command[-1] for command in commands] == [str(moved.tensorboard), str(root)]


def test_only_the_lines_below_the_numbers_point_to_files(run_dir):
    for file in (run_dir.best_model, run_dir.results_page, run_dir.tensorboard / "events"):
        write_whole(file, "")
    checkpoints.save(run_dir.snapshots, checkpoints.Checkpoint(1, {}), keep=1)
    checkpoints.mark_ended(run_dir.checkpoints, last_step=391, outcome="stopped")
    lines = closing_table(write(run_dir, outcome="stopped"), run_dir).splitlines()
    labels = [line[1:16].rstrip() for line in lines if points_to_files(line)]
    assert labels == ["run directory", "best model", "results", "curves", "score it", "continue"]
    assert lines[-6:] == [line for line in lines if points_to_files(line)]
    assert points_to_files(f"[ 0:00] run directory {run_dir.root}") and not points_to_files("[ 0:00] training")


@pytest.mark.parametrize(("outcome", "goes_on"), [("completed", False), ("stopped", True), ("failed", True)])
def test_closing_table_of_a_run_that_is_not_complete_names_the_command_that_goes_on(run_dir, outcome, goes_on):
    assert "--resume" not in closing_table(write(run_dir, outcome=outcome), run_dir), "there is nothing to go on from"
    checkpoints.save(run_dir.snapshots, checkpoints.Checkpoint(1, {}), keep=1)
    text = closing_table(write(run_dir, outcome=outcome), run_dir)
    assert (f"python cli.py run --resume {run_dir.root}\n" in text) == goes_on


def test_the_command_that_goes_on_names_the_code_that_the_run_needs(run_dir):
    settings = read_yaml(run_dir.config)
    settings["model"]["name"], settings["mode"]["name"] = "/mine/net work.keras", "/mine/mode.py:Toy"
    checkpoints.save(run_dir.snapshots, checkpoints.Checkpoint(1, {}), keep=1)
    summary = write(run_dir, outcome="stopped")
    run_dir.config.write_text(dump_yaml(settings))
    text = closing_table(summary, run_dir)
    assert f"run --resume {run_dir.root} --code /mine/mode.py --code '/mine/net work.keras'\n" in text


def test_a_run_whose_time_is_over_continues_with_more_seconds(run_dir):
    checkpoints.save(run_dir.snapshots, checkpoints.Checkpoint(1, {}), keep=1)
    text = closing_table(write(run_dir, outcome="stopped", early_stop=TimeLimitReached(max_seconds=60.0)), run_dir)
    assert "stopped early  it has trained for 60 s (training.max_seconds)" in text
    assert f"run --resume {run_dir.root} --max-seconds SECONDS\n" in text


def test_seconds_of_the_last_session_and_of_all_are_on_lines_of_their_own(run_dir):
    (line,) = lines_with(" s training", closing_table(write(run_dir), run_dir))
    assert "16.1 s training" in line and "27.0 s in all" in line
    append_row(run_dir.progress, timed_row(200, life="an earlier one"))
    resumed = timed_row(200, BEGAN + 3, seconds=10.0, resumed_update=None)
    append_row(run_dir.progress, resumed.model_copy(update={"train_seconds": 10.0}))
    append_row(run_dir.progress, timed_row(391))
    summary = write(run_dir)
    assert (summary["sessions"], round(summary["session_train_seconds"], 3)) == (2, 6.1)
    whole, mine = lines_with(" s training", closing_table(summary, run_dir))
    assert whole.split(maxsplit=1)[1].strip() == "16.1 s training over 2 sessions"
    assert mine.startswith("since the last resume: 6.1 s training · ") and "27.0 s in all" in mine


def lines_with(part: str, text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if part in line]


def test_scores_that_come_later_complete_the_summary_and_change_nothing_else(run_dir):
    before = write(run_dir)
    score(run_dir, 391, 0.71)
    after = refresh_evaluation(run_dir).model_dump(mode="json")
    assert after["evaluation"]["step"] == 391
    assert {**after, "evaluation": None} == {**before, "evaluation": None}
    assert json.loads(run_dir.summary.read_text()) == after


def test_a_guess_that_is_known_only_when_scores_come_later_is_in_the_summary_and_in_the_warning(run_dir, tmp_path):
    assert write(run_dir)["guess"] is None, "its data set was not on this machine"
    pack(run_dir, tmp_path)
    score(run_dir, 391, 0.1)
    summary = refresh_evaluation(run_dir).model_dump(mode="json")
    assert summary["learned"] is False and summary["guess"] > 0.1
    assert f"not better than guessing, which has accuracy {summary['guess']:.2%}" in words(summary, run_dir, width=200)


def test_closing_table_shows_the_evidence_of_several_processes(run_dir):
    text = closing_table(write(run_dir), run_dir)
    assert "4 distinct worker processes did the work (3 workers, 1 started again)" in text
    shown = ("127.0.0.1:40102", "391 scheduled", "1 arrived a second time, and were refused", "holds: 391 rows agree")
    assert all(expected in text for expected in (*shown, str(run_dir.root)))


def changed(*numbers):
    """Changes of the number of workers, one every 100 updates."""
    pairs = enumerate(itertools.pairwise(numbers), start=1)
    return [
        ScalingRow(applied=100 * place, train_seconds=5.0 * place, before=before, workers=after)
        for place, (before, after) in pairs
    ]


@pytest.mark.parametrize(
    ("numbers", "told"),
    [
        ((3,), []),
        ((3, 5, 1), ["workers        3 → 5 at update 100 · 5 → 1 at update 200"]),
        ((1, 2, 3, 4, 5, 6), [
            "workers        2 earlier · 3 → 4 at update 300 · 4 → 5 at update 400 · 5 → 6 at update 500",
        ]),
    ],
)  # fmt: skip
def test_closing_table_shows_in_one_row_how_the_number_of_workers_changed_if_it_did(run_dir, numbers, told):
    summary = write(run_dir, scaled=changed(*numbers))
    assert lines_with("workers ", closing_table(summary, run_dir)) == told


OPEN = "not isolated: whoever reaches the ports can run code as you"


@pytest.mark.parametrize(
    ("changes", "says", "word"),
    [
        ({"dataset": "synthetic", "dataset_kind": "synthetic"}, "SYNTHETIC", "SYNTHETIC"),
        ({"network": NetworkSummary(private=False, notice=OPEN)}, OPEN, "isolated"),
        (
            {"gradients": {"scheduled": 1173, "applied": 782, "dropped": 391, "per_update": 2}},
            "1,173 scheduled · 782 applied · 391 dropped, because they came too late · 2 applied per update on average",
            "dropped",
        ),
        (
            {"goodput": 0.75, "rolled_back_seconds": 1.5, "interrupted_seconds": 2.5},
            "1.5 s were rolled back and 2.5 s had no update: goodput 75.0%",
            "goodput",
        ),
    ],
)
def test_the_closing_table_has_some_facts_only_where_there_is_something_to_say(run_dir, changes, says, word):
    summary = write(run_dir)
    assert says in words(summary | changes, run_dir) and word not in words(summary, run_dir)


def test_synchronous_run_has_workers_and_no_parameter_servers(run_dir):
    workers = [{"index": i, "pid": 200 + i, "updates": 130, "examples": 16640} for i in range(2)]
    reshape(run_dir, "sync", {"worker": [200, 201], "evaluator": [202]}, workers=workers)
    summary = write(run_dir, restarts={})
    assert [(worker["index"], worker["pid"], worker["updates"]) for worker in summary["workers"]] == [
        (0, 200, 130), (1, 201, 130)
    ]  # fmt: skip
    assert summary["parameter_servers"] == [] and summary["mode"] == "sync"
    text = closing_table(summary, run_dir)
    assert " sync " in text and "2 distinct worker processes did the work (2 workers)" in text
    assert "ps 0" not in text and "staleness" not in text and "chief" not in text


def test_single_process_is_the_one_worker_of_its_summary(run_dir):
    workers = [{"index": 0, "pid": pid, "updates": 195, "examples": 24960} for pid in (300, 301)]
    reshape(run_dir, "single", {"chief": [301], "evaluator": [302]}, workers=workers)
    summary = write(run_dir, restarts={Task("chief", 0): 1})
    (worker,) = summary["workers"]
    assert {name: worker[name] for name in ("index", "pid", "updates", "restarts", "address")} == {
        "index": 0, "pid": 301, "updates": 390, "restarts": 1, "address": "127.0.0.1:40301"
    }  # fmt: skip
    text = closing_table(summary, run_dir)
    assert "2 distinct processes did the work (no cluster, 1 started again)" in text
    assert [line.split()[:3] for line in text.splitlines() if "40301" in line] == [["chief", "301", "390"]]
    assert "worker 0" not in text and "ps 0" not in text


def test_closing_table_names_the_settings_that_differ_and_that_no_other_row_has(run_dir):
    assert lines_with("settings", closing_table(write(run_dir), run_dir)) == [
        "settings       all other settings have their defaults"
    ]
    overrides = {"data.dataset": "mnist", "cluster.straggler": "1:5x", "training.epochs": 2.0, "training.seed": 3}
    overrides |= {"mode.simulate_workers": 16, "staleness.method": "gap_aware"}
    write_whole(run_dir.config, build_config(None, overrides).to_yaml())
    summary = write(run_dir)
    assert summary["settings"] == overrides
    assert (summary["straggler"], summary["simulate_workers"], summary["staleness_method"]) == ("1:5x", 16, "gap_aware")
    (line,) = lines_with("settings", closing_table(summary, run_dir, width=200))
    shown = {part.partition("=")[0] for part in line.split(maxsplit=1)[1].split(" · ")}
    assert shown == overrides.keys() - {"data.dataset", "training.seed"}


@pytest.mark.parametrize(
    ("histogram", "bars"),
    [({}, ""), ({"0": 5}, "█"), ({"0": 1, "1": 70, "3": 35}, "▁█ ▅"), ({str(v): 1 for v in range(48)}, "█" * 24)],
)
def test_histogram_is_drawn_with_a_bar_for_each_value_and_never_too_wide(histogram, bars):
    assert histogram_bars(histogram) == bars


def test_a_leader_on_several_machines_writes_the_same_summary_and_fails_where_the_proof_does(run_dir, capsys):
    topology = ClusterTopology({"chief": ["a:1"], "ps": ["b:2"], "worker": ["c:0", "c:1", "c:2"]})
    config = load_config(run_dir.config).with_values({"evaluation.draw_results": False})
    view, claimed = SimpleNamespace(notice=print), Claim(run_dir.leaders, 2)
    leader = OneTask(
        Task("chief", 0), topology, config, run_dir, None, TaskOptions(), view, (), claim=claimed, began_s=BEGAN
    )
    leader.write_workers({})
    for holds, code, outcome in ((True, 0, "completed"), (False, FAILED_FOR_GOOD, "failed")):
        proof = RESULT["proof"] | {"holds": holds, "problems": [] if holds else ["row 7 is missing"]}
        write_json(run_dir.training_result, RESULT | {"proof": proof})
        assert leader.write_ending("completed", None) == code
        summary = Summary.model_validate_json(run_dir.summary.read_text())
        assert (summary.outcome, summary.leaders, summary.restarts["chief-0"]) == (outcome, 2, 1)
        assert [server.address for server in summary.parameter_servers] == ["b:2"]
        assert [worker.address for worker in summary.workers] == ["c:0", "c:1", "c:2"]
        assert summary.proof.holds is holds and summary.updates.applied == RESULT["updates"]["applied"]
    assert "row 7 is missing" in capsys.readouterr().err
