"""One task of a cluster on several machines: what must fit before it begins."""

import itertools
import json
import shutil

import numpy as np
import pytest

from ps_cluster.cluster import start
from ps_cluster.config import build_config, load_config
from ps_cluster.data.packed import PackedDataset, write_packed, write_pointer
from ps_cluster.errors import UserError
from ps_cluster.rows.checkpoint import Meta, ProgressState, StepsState, TallyState
from ps_cluster.run_dir import RunDir, write_json
from ps_cluster.training import checkpoints
from ps_cluster.training.ledger import COLUMNS, COUNTS
from ps_cluster.training.training_clock import Times


class QuietView:
    def notice(self, line):
        pass


CHIEF, PS, WORKERS = {"chief": ["a:1"]}, {"ps": ["b:2", "c:3"]}, {"worker": ["d:4", "e:5"]}
CLUSTERS = {"async": CHIEF | PS | WORKERS, "sync": WORKERS, "single": CHIEF}


@pytest.fixture
def one_task(tmp_path, monkeypatch):
    """one_task(mode, cluster, type, index) → what the task was given: config, run_dir, dataset, topology, task."""
    dataset = PackedDataset("synthetic", "synthetic", tmp_path, 100, 10, ("a",))
    monkeypatch.setattr(start, "resolve_data", lambda *_, notify: dataset)
    monkeypatch.setattr(start, "end_with", lambda body, *_: body())
    told = []
    monkeypatch.setattr(start, "run_task", lambda *arguments, resume: told.extend(arguments))

    def call(mode, cluster, kind, index=0, *, resume=False, values=None):
        given = {"training.mode": mode, "model.precision": "float32", "data.dataset": "synthetic"}
        config = build_config(None, given | (values or {}))
        tf_config = json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})
        start.run_one_task(config, call.root, tf_config, resume=resume, notify=pytest.fail)
        return told

    call.root = tmp_path / "run"
    return call


@pytest.mark.parametrize(("mode", "workers", "parameter_servers"), [("async", 2, 2), ("sync", 2, 1), ("single", 3, 1)])
def test_cluster_has_the_size_that_tf_config_says_and_the_configuration_the_rest(
    one_task, mode, workers, parameter_servers
):
    kind = "chief" if "chief" in CLUSTERS[mode] else "worker"
    config, run_dir, _, topology, task = one_task(mode, CLUSTERS[mode], kind)
    assert (config.cluster.workers, config.cluster.parameter_servers) == (workers, parameter_servers)
    assert load_config(run_dir.config) == config and task == topology.leader


def test_several_machines_may_have_more_tasks_than_one(one_task):
    many = CHIEF | {"ps": [f"ps{i}:1" for i in range(20)], "worker": [f"worker{i}:1" for i in range(500)]}
    config = one_task("async", many, "worker", 499)[0]
    assert (config.cluster.workers, config.cluster.parameter_servers) == (500, 20)


@pytest.mark.parametrize(("mode", "shape"), itertools.permutations(CLUSTERS, 2))
def test_mode_must_fit_the_cluster(one_task, mode, shape):
    kind = next(iter(CLUSTERS[shape]))
    with pytest.raises(UserError, match=f"training.mode: got '{mode}', whose cluster has") as error:
        one_task(mode, CLUSTERS[shape], kind)
    assert str(error.value).endswith(f"that of TF_CONFIG has {', '.join(CLUSTERS[shape])}")
    assert not one_task.root.exists(), "nothing is done for a run that can't be"


@pytest.mark.parametrize(
    ("mode", "leader", "other"), [("async", "chief", ("worker", 0)), ("sync", "worker", ("worker", 1))]
)
def test_leader_alone_needs_a_directory_without_checkpoints(one_task, mode, leader, other):
    config = one_task(mode, CLUSTERS[mode], leader)[0]
    arrays = {"seen": np.zeros([config.slices, 8], np.int64), "waiting": np.zeros([0, 1 + len(COLUMNS)])}
    arrays["counts"] = np.zeros([config.slices, len(COUNTS)], np.int64)
    none = StepsState(below=0, count=0)
    progress = ProgressState(scheduled=none, applied=none, tally=TallyState(), mixed=0)
    meta = Meta(config=config.model_dump(mode="json"), train_seconds=1.0, times=Times(), progress=progress)
    checkpoints.save(RunDir(one_task.root).checkpoints, checkpoints.Checkpoint(1, arrays, meta), keep=1)
    one_task(mode, CLUSTERS[mode], *other)
    one_task(mode, CLUSTERS[mode], leader, resume=True)
    with pytest.raises(UserError, match="training.seed: got 9"):
        one_task(mode, CLUSTERS[mode], leader, resume=True, values={"training.seed": 9})
    assert load_config(RunDir(one_task.root).config) == config, "what the run was still stands"
    with pytest.raises(UserError, match="holds checkpoints"):
        one_task(mode, CLUSTERS[mode], leader)


@pytest.mark.parametrize("name", ["data.dataset", "model.precision"])
def test_machines_are_not_left_to_choose_for_themselves(one_task, name):
    with pytest.raises(UserError, match=f"{name}: got 'auto': machines may come to different ones"):
        one_task("async", CLUSTERS["async"], "worker", values={name: "auto"})
    assert not one_task.root.exists()


def test_a_run_that_can_not_start_leaves_the_runs_beside_it_alone(tmp_path, monkeypatch):
    root = tmp_path / "runs" / "first"

    def fails(*_, **__):
        RunDir.create(tmp_path / "runs" / "second")
        raise UserError("no data")

    monkeypatch.setattr(start, "resolve_data", fails)
    with pytest.raises(UserError, match="no data"):
        start.start_run(build_config(), root, view=QuietView())
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["second"]
    assert RunDir(tmp_path / "runs" / "second").launcher_log.is_file()


@pytest.mark.parametrize(
    ("last_step", "summary", "complete"),
    [
        (10, {"outcome": "completed", "evaluation": {"step": 10}}, True),
        (9, {"outcome": "completed", "evaluation": {"step": 9}}, False),
        (10, {"outcome": "completed", "evaluation": {"step": 8}}, False),
        (10, {"outcome": "completed", "evaluation": None}, False),
        (10, {"outcome": "stopped", "evaluation": {"step": 10}}, False),
        (10, None, False),
        (None, {"outcome": "completed", "evaluation": {"step": 10}}, False),
    ],
)
def test_a_run_is_complete_when_it_is_trained_scored_and_summed_up(tmp_path, monkeypatch, last_step, summary, complete):
    run_dir = RunDir.create(tmp_path / "run")
    run_dir.config.write_text(build_config(None, {"training.steps": 10}).to_yaml())
    dataset = PackedDataset("synthetic", "synthetic", tmp_path, 100, 10, ("a",))
    monkeypatch.setattr(start.sources, "of_run", lambda *_, **__: dataset)
    monkeypatch.setattr(start, "run_local", lambda *_, **__: "goes on")
    monkeypatch.setattr(start, "newest_checkpoint", lambda *_: None)
    monkeypatch.setattr(start, "check_journals", lambda *_: None)
    if last_step:
        checkpoints.mark_ended(run_dir.checkpoints, last_step=last_step, outcome="completed")
    if summary:
        write_json(run_dir.summary, summary)
    assert start.resume_run(run_dir.root, view=QuietView()) == (0 if complete else "goes on")


def test_a_run_goes_on_with_its_packed_data_where_the_archive_has_gone(tmp_path, monkeypatch):
    images, labels = np.zeros([2, 32, 32, 3], np.uint8), np.zeros([2], np.uint8)
    dataset = write_packed(tmp_path / "packed", "cifar10", tuple("abcdefghij"), (images, labels, images, labels))
    run_dir = RunDir.create(tmp_path / "run")
    run_dir.config.write_text(build_config(None, {"data.data_dir": str(tmp_path / "gone")}).to_yaml())
    write_pointer(run_dir.dataset, dataset)
    monkeypatch.setattr(start, "run_local", lambda config, run_dir, dataset, **_: dataset)
    monkeypatch.setattr(start, "newest_checkpoint", lambda *_: None)
    monkeypatch.setattr(start, "check_journals", lambda *_: None)
    assert start.resume_run(run_dir.root, view=QuietView()) == dataset
    shutil.rmtree(dataset.directory)
    with pytest.raises(UserError, match="gone' does not exist"):
        start.resume_run(run_dir.root, view=QuietView())
