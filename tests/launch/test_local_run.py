"""What a run, or one task of a cluster on several machines, checks and leaves before anything starts."""

import errno
import json
import os
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
from click.testing import CliRunner

from ps_cluster.cli.main import main
from ps_cluster.config import build_config, load_config, recipe, resolve
from ps_cluster.config.objectives import ArrayField
from ps_cluster.config.tasks import Task
from ps_cluster.data.packed import write_pointer
from ps_cluster.errors import RunFailed, UserError
from ps_cluster.files.writing import write_json, write_whole
from ps_cluster.launch import local_run, workspace
from ps_cluster.launch import one_task as by_hand
from ps_cluster.launch.cluster_files import from_tf_config
from ps_cluster.launch.one_task import TaskOptions
from ps_cluster.report.progress import make_lines
from ps_cluster.runs import checkpoints
from ps_cluster.runs.checkpoints import CheckpointMeta, ProgressState, TallyState
from ps_cluster.runs.ledger import COLUMNS, COUNTS
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.runs.step_set import StepsState
from ps_cluster.runs.times import TrainingTimes
from ps_cluster.training.agreement import CompatibilityFingerprint
from ps_cluster.training.resuming import newest_checkpoint
from tests.helpers.data import only_named, pack_images
from tests.helpers.ledgers import rows_of, state, write_journal


class QuietView:
    def notice(self, line):
        pass


CHIEF, PS, WORKERS = {"chief": ["a:1"]}, {"ps": ["b:2", "c:3"]}, {"worker": ["d:4", "e:5"]}
CLUSTERS = {"async": CHIEF | PS | WORKERS, "sync": WORKERS, "single": CHIEF}


def resumable(config, step, applied):
    """Return a checkpoint from which training can be resumed, and whose shards have applied the first updates."""
    arrays = {
        "accepted_steps": np.zeros([config.shards, 1], np.int64),
        "waiting": np.zeros([0, 1 + len(COLUMNS)]),
        "counts": np.full([config.shards, len(COUNTS)], applied, np.int64),
    }
    steps = StepsState(below=applied, count=applied)
    tally = TallyState(staleness={"0": applied} if applied else {})
    progress = ProgressState(scheduled=steps, applied=steps, tally=tally, mixed=0)
    settings = config.model_dump(mode="json")
    meta = CheckpointMeta(config=settings, train_seconds=1.0, times=TrainingTimes(), progress=progress)
    return state(step, arrays, meta)


@pytest.fixture
def one_task(tmp_path):
    """one_task(mode, cluster, type, index) → what the task gets: config, run_dir, dataset, topology, task."""
    dataset = only_named("synthetic", tmp_path, 100, 10)
    found = []

    class NoLoop:
        """Replaces the loop, and notes what the task's process would get."""

        def __init__(self, decisions, run_dir, view, requests, work):
            config = load_config(run_dir.of_task(work.task).config)
            found.extend((config, run_dir, dataset, work.topology, work.task))
            call.resumed = work.resumes

        def run(self):
            return 0

    def call(mode, cluster, kind, index=0, *, resume="auto", min_workers=None, values=None):
        given = {"mode.name": mode, "model.precision": "float32", "data.dataset": "synthetic"}
        topology, task = from_tf_config(json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}}))
        config = resolve(None, given | (values or {}), topology.size).config
        by_hand.run_one_task(
            config, call.root, topology, task,
            options=TaskOptions(resume, min_workers=min_workers), view=make_lines(), notify=call.said.append,
            resolve=lambda settings, notify: dataset, loop=NoLoop, port_free_within_s=0.3,
        )  # fmt: skip
        return found

    call.root, call.said = tmp_path / "run", []
    return call


@pytest.mark.parametrize(("mode", "workers", "parameter_servers"), [("async", 2, 2), ("sync", 2, 1), ("single", 3, 1)])
def test_cluster_has_the_size_that_tf_config_says_and_the_configuration_the_rest(
    one_task, mode, workers, parameter_servers
):
    kind = "chief" if "chief" in CLUSTERS[mode] else "worker"
    config, run_dir, _, topology, task = one_task(mode, CLUSTERS[mode], kind)
    assert (config.cluster.workers, config.cluster.parameter_servers) == (workers, parameter_servers)
    assert load_config(run_dir.config) == config and task == topology.leader


@pytest.mark.parametrize("name", ["workers", "parameter_servers"])
def test_settings_for_another_cluster_are_refused_by_name(one_task, name):
    topology, task = from_tf_config(json.dumps({"cluster": CLUSTERS["async"], "task": {"type": "chief", "index": 0}}))
    given = {"model.precision": "float32", "data.dataset": "synthetic"}
    config = resolve(None, given, topology.size).config.with_values({f"cluster.{name}": 3})
    with pytest.raises(
        UserError, match=f"cluster.{name}: got 3, but the cluster of TF_CONFIG has 2: leave this setting out"
    ):
        by_hand.run_one_task(
            config, one_task.root, topology, task, options=TaskOptions(wait_s=1), view=make_lines(), notify=print
        )


def test_the_leader_leaves_what_readers_of_a_run_need_before_training(one_task):
    _, run_dir, dataset, _, _ = one_task("async", CLUSTERS["async"], "chief")
    cluster = json.loads(run_dir.cluster.read_text())
    assert cluster["launcher"] is None
    assert {(task["type"], task["index"]): task["address"] for task in cluster["tasks"]} == {
        ("chief", 0): "a:1", ("ps", 0): "b:2", ("ps", 1): "c:3", ("worker", 0): "d:4", ("worker", 1): "e:5"
    }  # fmt: skip
    assert [task["pid"] for task in cluster["tasks"]] == [os.getpid(), None, None, None, None]
    assert json.loads(run_dir.dataset.read_text())["directory"] == str(dataset.directory)


def test_what_depends_on_the_number_of_workers_is_that_of_tf_config(monkeypatch):
    """The straggler and the backup workers do not fit the default of three workers, and the rate was found for five."""
    configs = []
    monkeypatch.setattr(by_hand, "run_one_task", lambda config, *_, **__: configs.append(config))
    rates = {"learning_rate": 0.07, "momentum": 0.1}
    found = recipe.FoundRates(mode="sync-ps", workers=5, batch_size_per_worker=128, optimizer=rates)
    monkeypatch.setattr(recipe, "found_rates", lambda *_: (found,))
    cluster = CHIEF | {"ps": ["b:2"], "worker": [f"w{index}:1" for index in range(5)]}
    tf_config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 4}})
    settings = ("--set", "cluster.straggler=4:2x", "--set", "mode.backup_workers=4")
    options = ("--run-dir", "run", "--mode", "sync-ps", "--model", "tutorial_cnn", "--batch-size", "128", *settings)
    result = CliRunner().invoke(main, ["task", *options], env={"TF_CONFIG": tf_config})
    assert result.exit_code == 0, result.stderr
    assert configs[0].gradients_per_update == 1 and configs[0].optimizer.learning_rate == 0.07


# The real command, with the code {code} in place of the task's process.
BY_HAND = """
import sys
from functools import partial
from pathlib import Path
from ps_cluster.cli.main import main
from ps_cluster.launch import one_task
from tests.helpers.data import only_named
dataset = only_named("synthetic", Path("/data"), 100, 10)
given = dict(task_argv=(sys.executable, "-c", {code!r}), resolve=lambda settings, notify: dataset)
one_task.run_one_task = partial(one_task.run_one_task, **given)
main(["task", "--run-dir", "run", "--mode", "single", "--dataset", "synthetic", "--precision", "float32"])
"""
ENDS = {
    "sys.exit(75)": 75,
    "os.kill(os.getppid(), signal.SIGTERM); time.sleep(60)": 143,
}


@pytest.mark.slow
@pytest.mark.parametrize(("body", "code"), ENDS.items())
def test_a_task_leaves_no_lock_and_no_process_behind_however_it_ends(tmp_path, body, code):
    environment = os.environ | {
        "TF_CONFIG": json.dumps({"cluster": CHIEF, "task": {"type": "chief", "index": 0}}),
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    begin = "import os, signal, sys, time; assert os.path.isfile('.lock'); open('pid', 'w').write(str(os.getpid())); "
    argv = [sys.executable, "-c", BY_HAND.format(code=begin + body)]
    ended = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert ended.returncode == code, ended.stdout + ended.stderr
    assert (tmp_path / "run" / "config.yaml").is_file() and not (tmp_path / "run" / ".lock").exists()
    assert not psutil.pid_exists(int((tmp_path / "run" / "pid").read_text()))


@pytest.mark.parametrize(("mode", "shape"), [("async", "sync"), ("sync", "single"), ("single", "async")])
def test_mode_must_fit_the_cluster(one_task, mode, shape):
    kind = next(iter(CLUSTERS[shape]))
    with pytest.raises(UserError, match=f"mode.name: got '{mode}', whose cluster has") as error:
        one_task(mode, CLUSTERS[shape], kind)
    assert str(error.value).endswith(f"the cluster of TF_CONFIG has {', '.join(CLUSTERS[shape])}")
    assert not one_task.root.exists(), "nothing is done for a run that can't be"


@pytest.mark.parametrize(
    ("mode", "leader", "other"), [("async", "chief", ("worker", 0)), ("sync", "worker", ("worker", 1))]
)
@pytest.mark.parametrize("folder", ["checkpoints", "snapshots"])
def test_a_task_goes_on_if_there_is_a_state_and_its_leader_refuses_what_can_not_be(
    one_task, mode, leader, other, folder
):
    config = one_task(mode, CLUSTERS[mode], leader)[0]
    assert not one_task.resumed and all(line.startswith("not isolated") for line in one_task.said)
    with pytest.raises(UserError, match="--resume: got 'always', but run directory .* holds no checkpoint"):
        one_task(mode, CLUSTERS[mode], leader, resume="always")
    one_task(mode, CLUSTERS[mode], *other, resume="always")
    assert one_task.resumed, "the others take the option as it is"
    checkpoints.save(one_task.root / folder, resumable(config, step=1, applied=0), keep=1)
    for resume in ("auto", "always"):
        one_task(mode, CLUSTERS[mode], leader, resume=resume)
        assert one_task.resumed and one_task.said.pop().endswith("training continues from step 1")
    one_task(mode, CLUSTERS[mode], *other, resume="never")
    assert not one_task.resumed
    leaders = list(RunDir(one_task.root).leaders.iterdir())
    with pytest.raises(UserError, match="training.seed: got 9"):
        one_task(mode, CLUSTERS[mode], leader, values={"training.seed": 9})
    assert list(RunDir(one_task.root).leaders.iterdir()) == leaders, "a leader that is at work is not superseded by it"
    assert load_config(RunDir(one_task.root).config) == config, "what the run was still stands"
    with pytest.raises(UserError, match="--resume: got 'never', but run directory .* holds checkpoints or snapshots"):
        one_task(mode, CLUSTERS[mode], leader, resume="never")


@pytest.mark.parametrize(
    ("outcome", "step", "stays"), [("completed", 8, True), ("completed", 7, False), ("stopped", 8, False)]
)
def test_a_leader_removes_the_mark_of_an_ended_training_that_it_continues(one_task, outcome, step, stays):
    """An evaluator that starts before the leader trains would take the mark for the end of the whole training."""
    config = one_task("single", CLUSTERS["single"], "chief", values={"training.steps": 8})[0]
    folder = RunDir(one_task.root).checkpoints
    checkpoints.save(folder, resumable(config, step=step, applied=step), keep=1)
    checkpoints.mark_ended(folder, last_step=step, outcome=outcome)
    one_task("single", CLUSTERS["single"], "chief", values={"training.steps": 8})
    assert (checkpoints.ended(folder) is not None) == stays


def test_work_that_can_not_be_read_is_not_begun_anew(one_task):
    damaged = checkpoints.path_of(one_task.root / "snapshots", 7)
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(b"half a file")
    with pytest.raises(UserError, match="holds no checkpoint to resume from"):
        one_task("single", CLUSTERS["single"], "chief")
    assert damaged.read_bytes() == b"half a file" and str(damaged) in one_task.said[0]


def test_fewer_workers_are_enough_only_where_the_mode_can_do_without_one(one_task):
    one_task("async", CLUSTERS["async"], "chief", min_workers=1)
    one_task("sync", CLUSTERS["sync"], "worker", min_workers=2)
    with pytest.raises(UserError, match="--min-workers: got 1: mode sync keeps its number of workers"):
        one_task("sync", CLUSTERS["sync"], "worker", min_workers=1)
    with pytest.raises(UserError, match="--min-workers: got 3; the cluster has 2 of type worker"):
        one_task("async", CLUSTERS["async"], "chief", min_workers=3)
    with pytest.raises(UserError, match="--min-workers: got 1; the cluster has 0 of type worker"):
        one_task("single", CLUSTERS["single"], "chief", min_workers=1)


@pytest.mark.parametrize(
    ("words", "resume"), [((), "auto"), (("--resume",), "always"), (("--resume", "never"), "never")]
)
def test_the_command_takes_resume_with_and_without_a_value_and_a_cluster_file(tmp_path, monkeypatch, words, resume):
    calls = []
    monkeypatch.setattr(by_hand, "run_one_task", lambda *given, **options: calls.append((given, options)))
    monkeypatch.chdir(tmp_path)
    Path("cluster.yaml").write_text("worker: [c:3, d:4]")
    options = ("--cluster", "cluster.yaml", "--type", "worker", "--index", "1", "--mode", "sync", *words)
    environment = {"TF_CONFIG": json.dumps({"cluster": CHIEF, "task": {"type": "chief", "index": 0}})}
    result = CliRunner().invoke(main, ["task", "--run-dir", "run", *options, "--seed", "1"], env=environment)
    assert result.exit_code == 0 and "TF_CONFIG is not used: --cluster replaces it" in result.output
    ((config, _, topology, task), told), *_ = calls
    assert (config.cluster.workers, topology.cluster, str(task)) == (2, {"worker": ["c:3", "d:4"]}, "worker-1")
    assert told["options"] == TaskOptions(resume, 600.0, None)


@pytest.mark.parametrize(
    ("kind", "number", "code"),
    [
        (UserError, errno.ESTALE, 75),
        (UserError, errno.EACCES, 2),
        (RunFailed, errno.ESTALE, 75),
        (RunFailed, errno.EACCES, 1),
        (OSError, errno.ESTALE, 75),
        (OSError, errno.EACCES, 1),
    ],
)
def test_a_run_directory_that_is_away_for_a_moment_is_tried_again_by_a_scheduler(
    monkeypatch, tmp_path, kind, number, code
):
    def run_one_task(*_, **__):
        try:
            raise OSError(number, os.strerror(number))
        except OSError as error:
            raise kind(f"run directory 'run' can't be written: {error.strerror}") from error

    monkeypatch.setattr(by_hand, "run_one_task", run_one_task)
    environment = {"TF_CONFIG": json.dumps({"cluster": CHIEF, "task": {"type": "chief", "index": 0}})}
    result = CliRunner().invoke(main, ["task", "--run-dir", str(tmp_path / "run"), "--mode", "single"], env=environment)
    again = "; run the same command again to continue" * (code == 75)
    assert result.stderr == f"Error: run directory 'run' can't be written: {os.strerror(number)}{again}\n"
    assert result.exit_code == code


def test_a_leader_whose_states_can_not_be_read_just_now_is_tried_again_by_a_scheduler(monkeypatch, tmp_path):
    def refuse(*_):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    dataset = only_named("synthetic", tmp_path, 100, 10)
    monkeypatch.setattr(by_hand, "run_one_task", partial(by_hand.run_one_task, resolve=lambda *_: dataset))
    monkeypatch.setattr(checkpoints, "open_tensors", refuse)
    monkeypatch.setattr(checkpoints, "READ_AGAIN_AFTER_S", ())
    checkpoints.save(RunDir.create(tmp_path / "run").checkpoints, resumable(build_config(), 3, 3), keep=1)
    options = ("--mode", "single", "--dataset", "synthetic", "--precision", "float32")
    environment = {"TF_CONFIG": json.dumps({"cluster": CHIEF, "task": {"type": "chief", "index": 0}})}
    result = CliRunner().invoke(main, ["task", "--run-dir", str(tmp_path / "run"), *options], env=environment)
    assert result.exit_code == 75 and "Stale file handle" in result.stderr


@pytest.mark.parametrize("name", ["data.dataset", "model.precision"])
def test_machines_are_not_left_to_choose_for_themselves(one_task, name):
    with pytest.raises(UserError, match=f"{name}: got 'auto': machines may choose different values"):
        one_task("async", CLUSTERS["async"], "worker", values={name: "auto"})
    assert not one_task.root.exists()


def run_with(tmp_path, settings):
    """Return a run directory with these settings."""
    run_dir = RunDir.create(tmp_path / "run")
    run_dir.config.write_text(build_config(None, settings).to_yaml())
    return run_dir


def let_resumed_runs_find(monkeypatch, dataset):
    monkeypatch.setattr(local_run.sources, "resolve_for_run", lambda *_, **__: dataset)


def test_a_new_run_is_a_folder_in_runs_whatever_code_is_chosen():
    for model, name in (("my.py:build", "build"), ("/mine/first.keras", "first"), ("airbench", "airbench")):
        root = local_run.new_root("/mine/mode.py:Toy", model)
        assert root.parent == Path("runs") and root.name.endswith(f"-Toy-{name}")


@pytest.mark.parametrize(
    ("changes", "settings", "told"),
    [
        (
            {"objective": "regression", "classes": ()},
            {"training.label_smoothing": 0.1},
            "training.label_smoothing: got 0.1: objective regression has no labels",
        ),
        (
            {"inputs": {"image": ArrayField("uint8", (28, 28, 1))}},
            {"data.augmentation.hue_delta": 0.1},
            "need 3 channels",
        ),
        (
            {"inputs": {"image": ArrayField("uint8", (8, 9, 3))}},
            {"data.augmentation.crop_padding_pixels": 8},
            "data.augmentation.crop_padding_pixels: got 8: it has to be at most 7 for images of 8x9 pixels",
        ),
        ({"inputs": {"row": ArrayField("float32", (7,))}}, {}, "'airbench' takes images"),
    ],
)
def test_settings_that_do_not_fit_the_examples_are_refused_and_leave_nothing(tmp_path, changes, settings, told):
    dataset = only_named()
    dataset = replace(dataset, spec=replace(dataset.spec, **changes))
    config = build_config(None, settings)
    with pytest.raises(UserError, match=told):
        local_run.start_run(config, tmp_path / "run", view=QuietView(), resolve=lambda *_: dataset)
    assert not (tmp_path / "run").exists()


def test_a_name_may_be_used_again_where_nothing_was_trained_and_the_old_logs_are_gone(tmp_path, monkeypatch):
    dataset, old_logs = only_named("synthetic", tmp_path, 100, 10), []

    def fails(config, run_dir, *_, **__):
        old_logs.append(run_dir.log(Task("chief", 0)).is_file())
        run_dir.config.write_text(config.to_yaml())
        run_dir.log(Task("chief", 0)).write_text("why")
        return 1

    monkeypatch.setattr(local_run, "run_local", fails)
    config = build_config(None, {"data.dataset": "synthetic"})
    start = partial(local_run.start_run, config, tmp_path / "run", view=QuietView(), resolve=lambda *_: dataset)
    assert [start() for _ in range(2)] == [1, 1]
    assert old_logs == [False, False] and (tmp_path / "run/logs/chief-0.log").read_text() == "why"
    with pytest.raises(UserError, match="holds no checkpoint to resume from: begin it again with --run-dir"):
        newest_checkpoint(config, RunDir((tmp_path / "run").resolve()), dataset, print)


def test_a_run_that_is_made_anew_begins_in_an_empty_folder(tmp_path, monkeypatch):
    run_dir = RunDir.create(tmp_path / "run")
    (run_dir.metrics / "left over").touch()
    (run_dir.root / "link").symlink_to(tmp_path / "elsewhere")
    dataset = only_named("synthetic", tmp_path, 100, 10)
    monkeypatch.setattr(local_run, "run_local", lambda *_, **__: sorted(path.name for path in run_dir.root.rglob("*")))
    left = local_run.start_run(build_config(), run_dir.root, view=QuietView(), anew=True, resolve=lambda *_: dataset)
    assert left == [".lock", "checkpoints", "errors", "launcher.log", "logs", "metrics"]


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [("workers", 9, "cluster.workers: got 9"), ("parameter_servers", 5, "cluster.parameter_servers: got 5")],
)
def test_a_run_that_goes_on_must_fit_this_machine_like_a_new_one(tmp_path, monkeypatch, key, value, says):
    """It may have begun on several machines (`task`), or its config.yaml was changed."""
    run_dir = run_with(tmp_path, {f"cluster.{key}": value})
    monkeypatch.setattr(local_run, "run_local", lambda *_, **__: pytest.fail("it went on"))
    for go in (
        lambda: local_run.resume_run(run_dir.root, view=QuietView()),
        lambda: local_run.start_run(load_config(run_dir.config), tmp_path / "new", view=QuietView()),
    ):
        with pytest.raises(UserError, match=says):
            go()


def test_a_run_that_goes_on_asks_first_for_the_private_network_that_it_requires(tmp_path, monkeypatch):
    run_dir = run_with(tmp_path, {"cluster.isolation": "require"})
    monkeypatch.setattr(local_run.sources, "resolve_for_run", lambda *_, **__: pytest.fail("it looked for the data"))

    def refuses(setting, root):
        assert (setting, root) == ("require", run_dir.root)
        raise UserError("no private network")

    monkeypatch.setattr(local_run.private_network, "check_isolation", refuses)
    with pytest.raises(UserError, match="no private network"):
        local_run.resume_run(run_dir.root, view=QuietView())


@pytest.fixture
def unchecked(monkeypatch):
    """Read no checkpoint and no journal."""
    monkeypatch.setattr(local_run, "newest_checkpoint", lambda *_: None)
    monkeypatch.setattr(local_run, "check_journals", lambda *_: None)


def test_a_run_that_goes_on_has_every_folder_and_setting_that_a_new_one_has(tmp_path, monkeypatch, unchecked):
    """Someone may have kept only config.yaml and the checkpoints, or written "auto" into it."""
    run_dir = RunDir(tmp_path / "run")
    run_dir.checkpoints.mkdir(parents=True)
    run_dir.config.write_text(build_config(None, {"data.dataset": "auto"}).to_yaml())
    let_resumed_runs_find(monkeypatch, only_named("synthetic", tmp_path, 100, 10))
    monkeypatch.setattr(local_run, "run_local", lambda config, *_, **__: config)
    config = local_run.resume_run(run_dir.root, view=QuietView())
    assert config.data.dataset == "synthetic" and config.model.precision != "auto"
    assert run_dir.launcher_log.is_file() and run_dir.errors.is_dir() and run_dir.metrics.is_dir()


@pytest.mark.parametrize(
    ("last_step", "summary", "complete"),
    [
        (10, {"outcome": "completed", "evaluation": {"step": 10}}, True),
        (9, {"outcome": "completed", "evaluation": {"step": 9}}, False),
        (10, {"outcome": "completed", "evaluation": None}, False),
        (10, {"outcome": "stopped", "evaluation": {"step": 10}}, False),
        (10, None, False),
        (None, {"outcome": "completed", "evaluation": {"step": 10}}, False),
    ],
)
def test_a_run_is_complete_when_it_is_trained_scored_and_summed_up(
    tmp_path, monkeypatch, unchecked, last_step, summary, complete
):
    run_dir = run_with(tmp_path, {"training.steps": 10})
    let_resumed_runs_find(monkeypatch, only_named("synthetic", tmp_path, 100, 10))
    monkeypatch.setattr(local_run, "run_local", lambda *_, **__: "goes on")
    if last_step:
        checkpoints.mark_ended(run_dir.checkpoints, last_step=last_step, outcome="completed")
    if summary:
        write_json(run_dir.summary, summary)
    assert local_run.resume_run(run_dir.root, view=QuietView()) == (0 if complete else "goes on")


def test_a_damaged_summary_is_gone_before_the_evaluator_would_stumble_over_it(half_done):
    half_done.run_dir.summary.write_text("{")
    assert "the summary can't be used, and will be replaced" in half_done() and half_done.went_on
    assert not half_done.run_dir.summary.exists()


def test_a_summary_stays_where_only_the_mark_of_the_ended_training_is_damaged(half_done):
    write_json(half_done.run_dir.summary, {"outcome": "completed", "evaluation": {"step": 6}})
    (half_done.run_dir.checkpoints / checkpoints.ENDED).write_text("{")
    assert (
        "the file that marks the end of training can't be used, and will be replaced" in half_done()
        and half_done.went_on
    )
    assert half_done.run_dir.summary.exists()


def test_a_damaged_summary_stays_where_the_run_is_not_resumed(half_done):
    half_done.run_dir.summary.write_text("{")
    for checkpoint in checkpoints.newest_first(half_done.run_dir.states):
        checkpoint.write_bytes(b"half a file")
    assert "holds no checkpoint to resume from" in half_done()
    assert half_done.run_dir.summary.exists() and not half_done.went_on


def test_a_run_goes_on_with_its_packed_data_where_the_archive_has_gone(tmp_path, monkeypatch, unchecked):
    images, labels = np.zeros([2, 32, 32, 3], np.uint8), np.zeros([2], np.uint8)
    dataset = pack_images(tmp_path / "packed", "cifar10", tuple("abcdefghij"), (images, labels, images, labels))
    run_dir = run_with(tmp_path, {"data.data_dir": str(tmp_path / "gone")})
    write_pointer(run_dir.dataset, dataset)
    monkeypatch.setattr(local_run, "run_local", lambda config, run_dir, dataset, **_: dataset)
    assert local_run.resume_run(run_dir.root, view=QuietView()) == dataset
    shutil.rmtree(dataset.directory)
    with pytest.raises(UserError, match="gone' does not exist"):
        local_run.resume_run(run_dir.root, view=QuietView())


@pytest.fixture
def half_done(tmp_path, monkeypatch):
    """half_done(options) resumes a run of 10 updates after 6 of them, and returns its output.

    `went_on` has the configurations with which it continued.
    """
    run_dir = run_with(tmp_path, {"training.steps": 10})
    config = load_config(run_dir.config)
    write_journal(run_dir.journal(0, 0), rows_of(range(6)))
    checkpoints.save(run_dir.checkpoints, resumable(config, step=6, applied=6), keep=1)
    let_resumed_runs_find(monkeypatch, only_named("synthetic", tmp_path, 2560, 10))
    monkeypatch.setattr(local_run, "run_local", lambda config, *_, **__: call.went_on.append(config) or 0)

    def call(*options):
        return CliRunner().invoke(main, ["run", "--resume", str(run_dir.root), *options]).output

    call.run_dir, call.went_on = run_dir, []
    return call


def test_a_run_goes_on_with_as_many_parameter_servers_as_are_asked_for(half_done):
    assert half_done("--ps", "3") == "" and half_done.went_on[0].cluster.parameter_servers == 3


def test_parameter_servers_of_a_mode_without_any_are_refused(half_done):
    config = build_config(None, {"training.steps": 10, "mode.name": "single"})
    half_done.run_dir.config.write_text(config.to_yaml())
    assert "cluster.parameter_servers: got 3: mode single does not use it" in half_done("--ps", "3")


@pytest.mark.parametrize(
    ("options", "updates"), [((), 10), (("--steps", "12"), 12), (("--epochs", "2"), 20), (("--steps", "6"), 6)]
)
def test_a_run_goes_on_to_its_end_or_to_the_one_that_is_asked_for(half_done, options, updates):
    said = half_done(*options)
    assert [config.total_updates(2560) for config in half_done.went_on] == [updates]
    assert (f"the whole run has {updates} updates now (10 before)" in said) == (updates != 10)


def test_a_run_that_has_come_further_than_is_asked_for_is_left_as_it_was(half_done):
    before = half_done.run_dir.config.read_text()
    assert "5 updates in all, but 6 updates of the run in" in half_done("--steps", "5")
    assert half_done.run_dir.config.read_text() == before and not half_done.went_on


@pytest.mark.parametrize(("limit_s", "ended_after_s", "goes_on"), [(60, 60, False), (50, 60, False), (90, 60, True)])
def test_a_run_whose_time_is_over_continues_only_with_more_of_it(half_done, limit_s, ended_after_s, goes_on):
    write_json(half_done.run_dir.summary, {"outcome": "stopped", "early_stop": {"max_seconds": ended_after_s}})
    said = half_done("--max-seconds", f"{limit_s}")
    assert bool(half_done.went_on) == goes_on
    assert (f"training.max_seconds: got {limit_s}: run" in said and "give a larger --max-seconds" in said) != goes_on


def test_a_run_that_was_interrupted_after_its_time_was_over_goes_on_to_its_end(half_done):
    half_done("--max-seconds", "0.001")
    assert len(half_done.went_on) == 1


def test_a_run_that_diverged_is_not_resumed(half_done):
    checkpoints.mark_ended(half_done.run_dir.checkpoints, last_step=6, outcome="diverged")
    assert "can't be resumed: the training diverged: after 6 updates" in half_done() and not half_done.went_on


def test_a_complete_run_says_how_it_gets_more_work(half_done):
    checkpoints.mark_ended(half_done.run_dir.checkpoints, last_step=10, outcome="completed")
    write_json(half_done.run_dir.summary, {"outcome": "completed", "evaluation": {"step": 10}})
    assert "add --epochs or --steps to --resume to train longer" in half_done()
    assert "5 updates in all, but 6 updates of the run in" in half_done("--steps", "5")
    assert not half_done.went_on
    half_done("--steps", "12")
    assert [config.training.steps for config in half_done.went_on] == [12]


@pytest.mark.parametrize(("mode", "kind"), [("async", "ps"), ("async", "chief"), ("sync", "worker")])
def test_a_port_that_another_program_has_is_one_line_before_anything_is_made(one_task, mode, kind):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = f"localhost:{listener.getsockname()[1]}"
        cluster = CLUSTERS[mode] | {kind: [taken, *CLUSTERS[mode][kind][1:]]}
        with pytest.raises(UserError, match=f"TF_CONFIG: cluster.{kind}: '{taken}': {kind}-0 can't listen there"):
            one_task(mode, cluster, kind)
    assert not one_task.root.exists()


def test_a_workspace_is_entered_though_the_disk_is_full_where_there_was_one(tmp_path, monkeypatch):
    run_dir, config, task = RunDir.create(tmp_path / "run"), build_config(), Task("ps", 0)
    monkeypatch.chdir(tmp_path)

    def refuse(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(workspace, "write_whole", refuse)
        with pytest.raises(OSError, match="No space"):
            workspace.enter(run_dir, task, config, only_named(), computes_gradients=False)
    workspace.enter(
        run_dir, task, build_config(overrides={"training.seed": 12345}), only_named(), computes_gradients=False
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(workspace, "write_whole", refuse)
    workspace.enter(run_dir, task, config, only_named(), computes_gradients=False)
    there = CompatibilityFingerprint.from_json(Path(workspace.AGREEMENT).read_text())
    assert there == CompatibilityFingerprint.of(config, only_named())


def test_a_new_run_on_a_small_data_set_says_so_once_and_a_resumed_one_does_not(tmp_path, monkeypatch, unchecked):
    dataset = only_named("cifar10", tmp_path, 2_000, 10)
    let_resumed_runs_find(monkeypatch, dataset)
    monkeypatch.setattr(local_run, "run_local", lambda *_, **__: 0)
    notices = []
    view = QuietView()
    view.notice = notices.append
    config = build_config(overrides={"data.dataset": "cifar10", "model.precision": "float32"})
    local_run.start_run(config, tmp_path / "run", view=view, resolve=lambda *_: dataset)
    write_whole(tmp_path / "run/config.yaml", config.to_yaml())
    (tmp_path / "run/metrics/callbacks.jsonl").write_text("")
    local_run.resume_run(tmp_path / "run", view=view)
    assert len([line for line in notices if "this run makes only 37 updates" in line]) == 1
    assert not RunDir(tmp_path / "run").callbacks.exists()
