"""Which tasks of a run see which GPUs of a machine, and what the user is told. The GPUs are names in the environment."""

import sys

import pytest

from ps_cluster.config import build_config
from ps_cluster.config.modes import MODES
from ps_cluster.launch.gpu_choice import is_on_gpus, with_gpus_found
from ps_cluster.launch.local_cluster import LocalCluster
from ps_cluster.launch.task import TASK_ARGV
from ps_cluster.launch.topology import ClusterTopology
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.system.private_network import RunNetwork

TWO = {"CUDA_VISIBLE_DEVICES": "2,5"}


def config_of(mode="async", gpus="auto", **values):
    return build_config(None, {"mode.name": mode, "cluster.gpus": gpus, "optimizer.rule": "sgd"} | values)


class StartsNothing:
    """A supervisor that keeps what it was asked to start."""

    processes = ()

    def __init__(self):
        self.specs = {}

    def start(self, spec):
        self.specs[spec.task.type, spec.task.index] = spec


def specs_of_tasks(tmp_path, config, task_argv=TASK_ARGV):
    """Return (type, index) → the specification of each task that a run would start."""
    supervisor = StartsNothing()
    run_dir = RunDir.create(tmp_path / "run")
    cluster = LocalCluster(config, run_dir, supervisor, RunNetwork(), resume=False, task_argv=task_argv, notify=print)
    cluster.start()
    return supervisor.specs


def visible_of_tasks(tmp_path, config):
    """Return (type, index) → CUDA_VISIBLE_DEVICES of each task that a run would start."""
    return {task: spec.env["CUDA_VISIBLE_DEVICES"] for task, spec in specs_of_tasks(tmp_path, config).items()}


@pytest.mark.parametrize("mode", MODES.names)
def test_in_each_mode_those_who_compute_gradients_get_the_gpus_in_turn_and_no_others(tmp_path, monkeypatch, mode):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", TWO["CUDA_VISIBLE_DEVICES"])
    visible = visible_of_tasks(tmp_path, config_of(mode))
    trainer = MODES[mode].trainer_type
    trains = {task: gpu for task, gpu in visible.items() if task[0] == trainer}
    briefly_locked = ["2"] if trainer == "chief" else ["2", "5", "2"]
    assert trains == {(trainer, index): gpu for index, gpu in enumerate(briefly_locked)}
    assert set(visible.values()) - set(trains.values()) == {"-1"}, "the evaluator, and others if there are any"


def test_a_task_that_sees_a_gpu_is_not_a_fork_because_cuda_does_not_work_in_one(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", TWO["CUDA_VISIBLE_DEVICES"])
    forked = {}
    for gpus in ("auto", "none"):
        specs = specs_of_tasks(tmp_path / gpus, config_of(gpus=gpus))
        forked[gpus] = {kind for (kind, _), spec in specs.items() if spec.forks}
    assert forked == {"auto": {"chief", "ps", "evaluator"}, "none": {"chief", "ps", "worker", "evaluator"}}


def test_a_task_whose_command_is_no_module_is_not_a_fork(tmp_path):
    specs = specs_of_tasks(tmp_path, config_of(gpus="none"), (sys.executable, "a_task.py"))
    assert not any(spec.forks for spec in specs.values())


@pytest.mark.parametrize(("gpus", "visible"), [("none", "2,5"), ("auto", "")])
def test_nobody_sees_a_gpu_that_was_not_asked_for_or_is_not_there(tmp_path, monkeypatch, gpus, visible):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert set(visible_of_tasks(tmp_path, config_of(gpus=gpus)).values()) == {"-1"}


def test_a_task_of_several_machines_looks_at_its_own_machine():
    topology = ClusterTopology.local(("chief", "ps", "worker"), 2, 1, evaluator=False, pick_port=lambda: 1)
    on_gpus = [str(task) for task in topology.tasks if is_on_gpus(config_of(), topology, task, TWO)]
    assert on_gpus == ["worker-0", "worker-1"]
    assert not any(is_on_gpus(config_of(), topology, task, {"CUDA_VISIBLE_DEVICES": "-1"}) for task in topology.tasks)


@pytest.mark.parametrize(
    ("gpus", "there", "becomes", "told"),
    [
        ("none", (), "none", []),
        ("none", ("0",), "none", ["this machine has a GPU, which is not used"]),
        ("none", ("0", "1"), "none", ["this machine has 2 GPUs, which are not used: --gpus auto"]),
        ("auto", ("0",), "auto", []),
        ("auto", (), "none", ["cluster.gpus: got 'auto', but this machine has no GPU to use"]),
    ],
)
def test_gpus_that_are_not_used_or_not_there_are_told_in_one_line(gpus, there, becomes, told):
    lines = []
    assert with_gpus_found(config_of(gpus=gpus), there, lines.append).cluster.gpus == becomes
    assert len(lines) == len(told) and all(line.startswith(start) for line, start in zip(lines, told))


def test_the_setting_of_a_task_stays_that_of_all_tasks():
    assert with_gpus_found(config_of(), (), lambda line: None, replaces=False).cluster.gpus == "auto"
