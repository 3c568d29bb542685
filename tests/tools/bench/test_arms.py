"""The ways to train that are measured side by side."""

import sys
from dataclasses import replace

import pytest

from ps_cluster.config import build_config
from ps_cluster.config.objectives import ArrayField, ExampleSpec
from ps_cluster.errors import UserError
from ps_cluster.tools.bench import arms
from tests.helpers.data import only_named

CASE = build_config(overrides={"training.steps": 60, "cluster.workers": 3})


@pytest.mark.parametrize(
    ("name", "mode", "updates"),
    [
        ("single", "async", 60),
        ("cluster", "async", 60),
        ("sync", "sync", 20),
        ("per_variable", "async", 60),
        ("limit", "async", 60),
        ("ddp", "sync", 20),
        ("torch_single", "single", 60),
    ],
)
def test_every_arm_trains_the_same_images_in_its_own_mode(name, mode, updates):
    config = arms.ARMS[name].config(CASE)
    assert (config.mode.name, config.training.steps) == (mode, updates)
    assert config.total_steps(50_000) == 60


def test_an_arm_of_another_mode_leaves_out_what_only_the_measured_one_has():
    case = CASE.with_values({"mode.name": "bounded", "mode.max_staleness": 2})
    assert arms.ARMS["sync"].config(case).mode.model_dump() == {"name": "sync"}
    assert arms.ARMS["cluster"].config(case).mode.model_dump() == case.mode.model_dump()


def test_arms_are_chosen_in_the_order_of_their_names_and_once():
    assert [arm.name for arm in arms.choose(["sync", "single", "sync"])] == ["sync", "single"]


@pytest.mark.parametrize("name", ["horovod", "empty"])
def test_an_unknown_arm_is_refused_with_those_that_there_are(name):
    with pytest.raises(
        UserError, match=f"--arms: got '{name}'.*single, cluster, sync, per_variable.*'empty' and 'tables'"
    ):
        arms.choose(["single", name])


def python_that(folder, line):
    """Return a program that runs a line of shell, whatever it should do."""
    python = folder / "python"
    python.write_text(f"#!/bin/sh\n{line}\n")
    python.chmod(0o755)
    return python


def test_pytorch_runs_in_the_python_it_was_given_which_is_tried_once(tmp_path):
    python = python_that(tmp_path, f"echo tried >> {tmp_path}/tries")
    single, ddp, cores = arms.choose(["single", "ddp", "ddp_cores"], ddp_python=python)
    assert (single.python, ddp.python, cores.python) == (sys.executable, str(python), str(python))
    assert (tmp_path / "tries").read_text() == "tried\n"


@pytest.mark.parametrize("line", ["exec sleep 60", "exit 1"])
def test_a_python_that_can_not_import_pytorch_in_time_is_refused(tmp_path, line):
    message = (
        "--ddp-python: got '.*': it can't import torch within 0.2 s: ddp needs --ddp-python, a Python that has torch"
    )
    with pytest.raises(UserError, match=message):
        arms.with_torch([arms.SINGLE, arms.DDP], python_that(tmp_path, line), timeout_s=0.2)


def test_straggler_adds_a_slowed_arm_behind_each_that_can_be_slow():
    chosen = arms.with_straggler(arms.choose(["single", "cluster", "sync"]), "2:5x", workers=3)
    assert [arm.name for arm in chosen] == ["single", "cluster", "cluster+straggler", "sync", "sync+straggler"]
    slow = chosen[4]
    assert slow.same_without_stragglers == "sync" and slow.ideal_share == pytest.approx(2.2 / 3)
    config = slow.config(CASE)
    assert (config.mode.name, config.training.steps, config.cluster.straggler) == ("sync", 20, "2:5x")
    four = replace(arms.SYNC, values={"mode.name": "sync", "cluster.workers": 4})
    assert arms.with_straggler([four], "2:5x", workers=3)[1].ideal_share == pytest.approx(3.2 / 4), "of its own workers"


@pytest.mark.parametrize(
    ("model", "shape", "classes", "message"),
    [
        ("mine.py:build", (32, 32, 3), 10, "--models: got 'mine.py:build': arm ddp can train only tutorial_cnn, "),
        ("airbench", (28, 28, 1), 10, "--dataset: got examples 'image uint8 \\[28, 28, 1\\]' with 10 outputs"),
        ("airbench", (32, 32, 3), 100, "--dataset: got examples 'image .*' with 100 outputs: arm ddp takes"),
    ],
)
def test_pytorch_refuses_by_name_what_it_does_not_know(model, shape, classes, message):
    names = tuple(map(str, range(classes)))
    spec = ExampleSpec({"image": ArrayField("uint8", shape)}, ArrayField("uint8", ()), classes=names)
    with pytest.raises(UserError, match=message):
        arms.DDP.check(model, spec)
    arms.CLUSTER.check(model, spec)
    arms.DDP.check("airbench", only_named().spec)
