import os
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from rich.console import Console

from ps_cluster.config import build_config, load_config, registry
from ps_cluster.config.objectives import ExampleSpec
from ps_cluster.config.objectives import Field as ArrayField
from ps_cluster.data.packed import write_packed
from ps_cluster.errors import RunFailed, UserError
from ps_cluster.launch import network_check
from ps_cluster.launch.network_check import NetworkFacts
from ps_cluster.tools.bench import arms, throughput
from tests.doors import toy_data
from tests.helpers.data import only_named
from tests.helpers.processes import assert_none_left, wait_until

TOYS = Path(__file__).parents[1] / "doors"
TARGET = ArrayField("uint8", ())
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


def test_arms_are_measured_in_the_order_they_were_asked_for_and_once():
    assert [arm.name for arm in arms.choose(["sync", "single", "sync"])] == ["sync", "single"]


def test_unknown_arm_is_told_with_those_that_there_are():
    with pytest.raises(UserError, match="--arms: got 'horovod'.*single, cluster, sync, per_variable"):
        arms.choose(["single", "horovod"])


def test_pytorch_runs_in_the_environment_it_was_given(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 0\n")
    python.chmod(0o755)
    single, ddp = arms.choose(["single", "ddp"], ddp_python=python)
    assert (single.python, ddp.python) == (sys.executable, str(python))


def test_configuration_of_an_arm_is_read_back_whole_from_json(tmp_path):
    (tmp_path / "config.yaml").write_text(CASE.model_dump_json())
    assert load_config(tmp_path / "config.yaml") == CASE


def test_straggler_adds_a_slowed_arm_behind_each_that_can_be_slow():
    chosen = arms.with_straggler(arms.choose(["single", "cluster", "sync"]), "2:5x", workers=3)
    assert [arm.name for arm in chosen] == ["single", "cluster", "cluster+straggler", "sync", "sync+straggler"]
    slow = chosen[4]
    assert slow.slowed == "sync" and slow.ideal == pytest.approx(2.2 / 3)
    config = slow.config(CASE)
    assert (config.mode.name, config.training.steps, config.cluster.straggler) == ("sync", 20, "2:5x")


def test_the_ideal_of_an_arm_with_workers_of_its_own_counts_those():
    arm = replace(arms.SYNC, name="sync_four", values={"mode.name": "sync", "cluster.workers": 4})
    _, slow = arms.with_straggler([arm], "2:5x", workers=3)
    assert slow.ideal == pytest.approx(3.2 / 4)


def test_what_a_slowed_arm_keeps_is_told_beside_the_ideal():
    chosen = arms.with_straggler([arms.CLUSTER], "2:5x", workers=3)
    found = throughput.figures(chosen, {"cluster": [300.0, 100.0, 100.0], "cluster+straggler": [220.0, 55.0, 66.0]})
    assert found["cluster+straggler_to_cluster"]["values"] == pytest.approx([2.2 / 3, 0.55, 0.66])
    assert found["cluster+straggler_to_ideal"]["values"] == pytest.approx([1, 0.75, 0.9])
    console = Console(record=True, width=100)
    throughput.print_table(chosen, [{"model": "airbench", "precision": "float32"} | found], "images", console)
    last = console.export_text().splitlines()[-1]
    assert last == "airbench float32: cluster+straggler 0.66 (0.55–0.73) of cluster: 0.90 (0.75–1.00) of the ideal 0.73"


def test_a_killed_benchmark_leaves_no_arm_behind(tmp_path):
    """The arm is a module that says when it is there and sleeps."""
    (tmp_path / "sleeper.py").write_text(
        "import pathlib, sys, time\npathlib.Path(sys.argv[2]).touch()\ntime.sleep(60)\n"
    )
    code = (
        "import sys; from pathlib import Path; from ps_cluster.tools.bench import throughput\n"
        "from ps_cluster.tools.bench.arms import BenchArm\n"
        "from ps_cluster.config import build_config; from tests.helpers.data import only_named\n"
        "arm = BenchArm('sleeper', 'sleeper', arguments=(sys.argv[1],))\n"
        "throughput.run_arm(arm, build_config(), only_named(train=1, test=1))\n"
    )
    told = tmp_path / "there"
    path = os.pathsep.join([str(tmp_path), str(arms.IMPORT_FOLDER)])
    bench = subprocess.Popen(
        [sys.executable, "-c", code, told], env=os.environ | {"PYTHONPATH": path, "TMPDIR": str(tmp_path)}
    )
    try:
        wait_until(told.exists)
    finally:
        bench.kill()
        bench.wait()
    assert_none_left(tmp_path)


@pytest.mark.parametrize("key", ["optimizer.momentum", "schedule.kind", "data.augmentation.hue_delta"])
def test_what_only_some_arms_would_follow_is_refused(key):
    packed = only_named("synthetic", Path("."), 1, 1)
    with pytest.raises(UserError, match=f"--set {key}: got 0.5: all arms have one update rule, and crop and flip"):
        throughput.cases(["airbench"], ["float32"], packed, {key: 0.5})


def cases(models, packed, **values):
    return throughput.cases(models, ["float32"], packed, values)


@pytest.mark.parametrize(("model", "steps"), [("tutorial_cnn", 625), ("cifar_tf_cnn", 195), ("airbench", 140)])
def test_the_packages_networks_keep_their_number_of_images_on_images_like_those_of_cifar10(model, steps):
    (case,) = cases([model], only_named("synthetic", Path("."), 1, 1))
    assert (case.training.steps, case.training.batch_size_per_worker) == (steps, 128)


def test_other_networks_and_other_examples_are_left_to_a_short_run_unless_their_updates_are_given(monkeypatch):
    # There are no examples to build it for.
    monkeypatch.setattr(network_check, "check_network", lambda *_: NetworkFacts())
    images = only_named("synthetic", Path("."), 1, 1)
    digits = replace(images, name="mnist", spec=ExampleSpec({"image": ArrayField("uint8", (28, 28, 1))}, TARGET))
    own = f"{TOYS}/toy_network.py:build"
    assert [case.training.steps for case in (*cases([own], images), *cases(["tutorial_cnn"], digits))] == [None, None]
    (given,) = cases([own], images, **{"training.steps": 70})
    assert given.training.steps == 70


def test_a_regression_is_measured_without_label_smoothing_which_it_can_not_have(regression_case):
    case, _ = regression_case
    assert (case.training.label_smoothing, case.data.dataset) == (0.0, f"{TOYS}/toy_data.py:load")


@pytest.fixture(scope="module")
def regression_case(tmp_path_factory):
    """A case, and its data."""
    name = registry.named_by_user(f"{TOYS}/toy_data.py:load", Path.cwd())
    packed = write_packed(tmp_path_factory.mktemp("regression") / "packed", name, "real", toy_data.load())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network_check, "check_network", lambda *_: NetworkFacts())  # which builds it, in another process
        (case,) = cases([f"{TOYS}/toy_table_network.py:build"], packed, **{"training.steps": 32})
    return case, packed


@pytest.mark.parametrize(
    ("model", "examples", "classes", "told"),
    [
        (
            "mine.py:build",
            "image uint8 [32, 32, 3]",
            10,
            "--models: got 'mine.py:build': arm ddp has only tutorial_cnn, ",
        ),
        (
            "airbench",
            "image uint8 [28, 28, 1]",
            10,
            "--dataset: got examples of image uint8 \\[28, 28, 1\\] and 10 outputs",
        ),
        (
            "airbench",
            "image uint8 [32, 32, 3]",
            100,
            "--dataset: got examples of image .* and 100 outputs: arm ddp takes",
        ),
    ],
)
def test_pytorch_refuses_by_name_what_it_does_not_know(model, examples, classes, told):
    shape = tuple(map(int, re.findall(r"\d+", examples.partition("[")[2])))
    spec = ExampleSpec({"image": ArrayField("uint8", shape)}, TARGET, classes=tuple(map(str, range(classes))))
    assert f"{spec}" == examples
    with pytest.raises(UserError, match=told):
        arms.DDP.check(model, spec)
    arms.CLUSTER.check(model, spec)
    arms.DDP.check("airbench", only_named().spec)


def test_one_process_trains_by_the_loss_of_the_objective(regression_case, monkeypatch):
    import tensorflow as tf  # the other tests here need none

    from ps_cluster.tools.bench import keras_arms

    case, regression = regression_case
    monkeypatch.chdir(regression.directory)
    model, optimizer = keras_arms.keras_model(case, regression)
    model.set_weights([np.zeros_like(weights) for weights in model.get_weights()])
    step = keras_arms.keras_step(case, regression, model, optimizer)
    first, *_, last = [float(step(tf.constant(number, tf.int64))) for number in range(9)]
    assert 0.7 < first < 1.4, "of an output of 0, the mean: about one squared standard deviation"
    assert last < first


def test_the_limit_needs_all_of_every_gradient(regression_case, monkeypatch):
    import tensorflow as tf

    from ps_cluster.tools.bench import limit
    from ps_cluster.training.building import make_network
    from ps_cluster.training.step import TrainStep

    case, regression = regression_case
    monkeypatch.chdir(regression.directory)
    network, start = make_network(case, regression, "/device:CPU:0")
    step = TrainStep(case, network, regression.spec, train_examples=regression.train_examples)
    vectors = tf.cast(start.weights, case.wire), tf.constant(start.statistics)
    results = [step(tf.constant(number, tf.int64), *vectors) for number in range(8, 8 + limit.STEPS_PER_CALL)]
    sums = [np.sum(np.asarray(one.gradient, np.float64)) + np.sum(one.fresh) + float(one.metric) for one in results]
    assert float(limit.several(step)(tf.constant(8, tf.int64), *vectors)) == pytest.approx(sum(sums), rel=1e-3)


@pytest.mark.slow
def test_the_limit_is_computed_by_processes_that_end_with_it(regression_case):
    case, regression = regression_case
    assert throughput.measure_once(arms.LIMIT, case, regression) > 0
    assert not [one for one in psutil.process_iter(["cmdline"]) if arms.LIMIT.module in (one.info["cmdline"] or ())]


@pytest.fixture
def scripted_arm(tmp_path, monkeypatch):
    """scripted_arm(code) → run_arm's answer of an arm whose module is `code`."""

    def run(code, **of_arm):
        (tmp_path / "scripted.py").write_text(code)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(arms.IMPORT_FOLDER)]))
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        packed = only_named("synthetic", tmp_path, 1, 1)
        return throughput.run_arm(arms.BenchArm("scripted", "scripted", **of_arm), CASE, packed)

    return run


def test_an_arm_that_fails_is_told_in_one_line_and_leaves_its_files_to_read(scripted_arm, tmp_path):
    with pytest.raises(
        RunFailed, match="arm scripted failed with exit code 1: ValueError: as told; its files: "
    ) as told:
        scripted_arm("raise ValueError('as told')")
    folder = Path(str(told.value).rpartition(": ")[2])
    assert "Traceback" in (folder / "stderr").read_text() and (folder / "run/config.yaml").is_file()


def test_a_python_of_its_own_finds_this_package_and_nothing_that_lies_beside_it(scripted_arm):
    """Installed, numpy lies beside it."""
    found = scripted_arm("import json, os, ps_cluster.tools.bench; print(json.dumps(os.listdir()))", torch=True)
    assert found == ["ps_cluster"]


def test_an_arm_that_does_not_end_is_ended(scripted_arm, tmp_path, monkeypatch):
    monkeypatch.setattr(throughput, "ARM_TIMEOUT_S", 0.5)
    with pytest.raises(RunFailed, match="arm scripted had not ended after 0.5 s"):
        scripted_arm("import time; time.sleep(60)")
    assert_none_left(tmp_path, within_s=0)


def test_a_run_that_was_over_before_it_had_a_rate_is_told(monkeypatch):
    monkeypatch.setattr(throughput, "run_arm", lambda *_: {"examples_per_second": None})
    with pytest.raises(RunFailed, match="give it more training.steps"):
        throughput.measure_once(arms.CLUSTER, CASE, None)


def test_an_arm_that_succeeds_leaves_nothing(scripted_arm, tmp_path):
    assert scripted_arm("print('first'); print('{\"examples_per_second\": 3.5}')") == {"examples_per_second": 3.5}
    assert not list(tmp_path.glob("ps_cluster-bench-*"))


def test_a_ratio_is_taken_within_each_round():
    found = throughput.figures([arms.SINGLE, arms.CLUSTER], {"single": [100.0, 200.0, 50.0], "cluster": [90, 100, 50]})
    assert found["cluster_to_single"]["values"] == [0.9, 0.5, 1.0]
    assert found["cluster_to_single"]["median"] == 0.9
    assert (found["single"]["min"], found["single"]["max"]) == (50, 200)
    assert found.keys() == {"single", "cluster", "cluster_to_single"}


def test_without_the_cluster_the_first_arm_is_held_against_the_others():
    found = throughput.figures([arms.SYNC, arms.SINGLE], {"sync": [90.0], "single": [60.0]})
    assert found["sync_to_single"]["values"] == [1.5]


def test_the_table_has_a_line_for_each_arm_with_the_ratio_of_the_cluster_to_it():
    chosen = [arms.SINGLE, arms.CLUSTER]
    found = throughput.figures(chosen, {"single": [100.0, 200.0, 50.0], "cluster": [90.0, 100.0, 50.0]})
    console = Console(record=True, width=40)  # which cuts nothing off
    throughput.print_table(chosen, [{"model": "cifar_tf_cnn", "precision": "bfloat16"} | found], "examples", console)
    assert "examples/s" in console.export_text(clear=False) and "images" not in console.export_text(clear=False)
    *_, single, cluster = (line.split() for line in console.export_text().splitlines())
    assert single == ["cifar_tf_cnn", "bfloat16", "single", "100", "(50–200)", "0.90", "(0.50–1.00)"]
    assert cluster == ["cifar_tf_cnn", "bfloat16", "cluster", "90", "(50–100)"]


def test_the_code_of_another_checkout_is_given_the_settings_that_it_knows(tmp_path):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "default.yaml").write_text("{mode: {name: async}, training: {seed: 3, gone: 1}}")
    arm = arms.BenchArm("timed_run", "benchmarks.timed_run", project=tmp_path)
    assert arm.settings(build_config()) == {"mode": {"name": "async"}, "training": {"seed": 0, "gone": 1}}
    changed = arm.settings(build_config(overrides={"mode.name": "bounded", "mode.max_clock_lag": 1}))
    assert changed["mode"] == {"name": "bounded", "max_clock_lag": 1}, "it says itself that it has no such setting"
