"""Commands of docs/from-examples.md are run as pasted, with fewer steps, and have to learn.

Of its five parts those are left out that train as others do: a session is tests/api/test_api_cluster.py, an evaluator that
is started by hand in tests/end_to_end/test_cluster.py.
"""

import contextlib
import json
import os
import re
import shlex
from pathlib import Path

import keras
import numpy as np
import portpicker
import pytest
from click.testing import CliRunner
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util

from ps_cluster.cli.main import main
from tests.helpers.digits import digits, write_as_keras
from tests.helpers.finished_runs import ledger_rows
from tests.helpers.real_cluster import PROJECT, pasted, summary_of

DATA = Path(os.environ.get("PS_CLUSTER_TEST_DATA", PROJECT.parent / "shared" / "data"))
CIFAR10 = DATA / "cifar-10-python.tar.gz"
PAGE = (PROJECT / "docs" / "from-examples.md").read_text()
EXAMPLES = re.findall(r"^## (.*)$", PAGE, re.M)
LIMIT_S = 150
STEPS = {"steps 150": "steps 50", "steps 100": "steps 50"}


def script(example: str, title: str) -> str:
    """Return the commands of a part of an example's section, as a user pastes them all at once."""
    section = PAGE.partition(f"\n## {example}\n")[2].partition("\n## ")[0]
    blocks = re.findall(
        r"^```\n(.*?)^```", section.partition(f"\n### {title}\n")[2].partition("\n### ")[0], re.M | re.S
    )
    assert blocks, f"'{example}' has no commands below '{title}'"
    commands = "\n".join(blocks)
    for of_the_page, here in STEPS.items():
        commands = commands.replace(of_the_page, here)
    return commands


@pytest.fixture(scope="module")
def data_of_keras(tmp_path_factory):
    """Return an environment in which Keras has downloaded MNIST and, if this machine has it, CIFAR-10. Nothing is packed."""
    home = tmp_path_factory.mktemp("keras")
    (home / "datasets").mkdir()
    write_as_keras(home / "datasets", digits())
    if CIFAR10.is_file():
        (home / "datasets" / CIFAR10.name).symlink_to(CIFAR10)
    return {"KERAS_HOME": str(home), "PS_CLUSTER_CACHE": str(home / "cache"), "PYTHONPATH": str(PROJECT)}


def with_data(commands: str) -> str:
    """Return commands that use the grey digits of MNIST if this machine has no CIFAR-10."""
    if CIFAR10.is_file():
        return commands
    return re.sub(r"flip=random,hue=\S+", "flip=random", commands.replace("--dataset cifar10", "--dataset mnist"))


def curve(run_dir: Path, which: str, tag: str) -> list[float]:
    """Return a curve from TensorBoard's files, read as TensorBoard does. `which`: "training" or "evaluation"."""
    events = EventAccumulator(str(run_dir / "tensorboard" / which)).Reload()
    return [float(tensor_util.make_ndarray(event.tensor_proto)) for event in events.Tensors(tag)]


def assert_learned(run_dir: Path, better_than: float) -> None:
    """Assert that the run has learned: the loss has fallen, and the accuracy is higher than guessing reaches."""
    loss = [float(row["loss"]) for row in ledger_rows(run_dir)]
    accuracy = curve(run_dir, "evaluation", "test_accuracy")
    assert np.mean(loss[-10:]) < np.mean(loss[:10]) - 0.2 and accuracy[-1] > better_than
    assert curve(run_dir, "training", "loss")[-1] < loss[0], "a short training may have a single point"
    scores = [json.loads(line) for line in (run_dir / "metrics" / "evaluation.jsonl").read_text().splitlines()]
    assert scores[-1]["test_accuracy"] == pytest.approx(accuracy[-1])


def on_free_ports(commands: str) -> str:
    """Return commands with free ports, because another program may use those of the page."""
    ports = {port: str(portpicker.pick_unused_port()) for port in re.findall(r"127\.0\.0\.1:(\d+)", commands)}
    return re.sub(r"(127\.0\.0\.1):(\d+)", lambda match: f"{match[1]}:{ports[match[2]]}", commands)


def test_the_page_has_five_examples():
    assert len(set(EXAMPLES)) == 5


@pytest.mark.exhaustive
@pytest.mark.cluster
def test_three_distinct_synchronous_workers_learn_cifar10(tmp_path, data_of_keras):
    told = pasted(with_data(script("One machine", "Try it")), tmp_path, data_of_keras)
    summary = summary_of(tmp_path / "runs" / "three")
    workers = summary["workers"]
    assert len({worker["pid"] for worker in workers}) == len({worker["address"] for worker in workers}) == 3
    for worker in workers:
        assert f"{worker['index']} {worker['pid']} {worker['address']} {50 * 128}\n" in told
    assert "3 distinct worker processes did the work" in told
    assert summary["updates"]["applied"] == 50 and summary["proof"]["holds"]
    assert_learned(tmp_path / "runs" / "three", better_than=0.25)


@pytest.mark.exhaustive
@pytest.mark.cluster
def test_two_tasks_with_tf_config_learn_a_part_of_mnist_each_and_leave_a_model_as_h5(tmp_path, data_of_keras):
    commands = on_free_ports(script("MNIST with TF_CONFIG", "Try it"))
    # This process has Keras already, which `evaluate` would import again; tests/end_to_end/test_cluster.py starts one.
    training, evaluate, export = re.split(r"^python cli\.py (?=evaluate)(.*)\n", commands, flags=re.M)
    told = pasted(training, tmp_path, data_of_keras)
    with contextlib.chdir(tmp_path):
        evaluated = CliRunner().invoke(main, shlex.split(evaluate), env=data_of_keras)
    assert evaluated.exit_code == 0, evaluated.output[-3000:]
    pasted(export, tmp_path, data_of_keras)
    assert "60000 + 10000 examples" in told, "the digits were found where Keras keeps them"
    run_dir = tmp_path / "runs" / "digits"
    trained = json.loads((run_dir / "metrics" / "training.json").read_text())
    assert trained["updates"]["applied"] == 60 and len({worker["pid"] for worker in trained["workers"]}) == 2
    assert "sample: shard:worker\n" in (run_dir / "config.yaml").read_text()
    assert_learned(run_dir, better_than=0.7)
    images, labels = (digits()[f"{name}_test"][:2000] for name in "xy")
    outputs = keras.models.load_model(tmp_path / "digits" / "model.h5").predict(images[..., None], verbose=0)
    assert (outputs.argmax(1) == labels).mean() > 0.7


@pytest.mark.exhaustive
@pytest.mark.cluster
def test_a_cluster_is_shown_and_different_networks_learn_a_shard_each_and_answer_together(tmp_path, data_of_keras):
    told = pasted(script("Course chapter", "Try it"), tmp_path, data_of_keras)
    assert "<svg" in (tmp_path / "cluster.svg").read_text()
    assert '"task": {"type": "ps", "index": 1}' in told
    output = tmp_path / "two-shards"
    scores = json.loads((output / "ensemble.json").read_text())
    members = [(member["model"], member["sample"]) for member in scores["members"]]
    assert members == [("tutorial_cnn", "shard:0/2"), ("mlp", "shard:1/2")]
    for member in scores["members"]:
        summary = summary_of(output / member["run"])
        assert summary["outcome"] == "completed" and summary["updates"]["applied"] == 50
        # The evaluator's score and the score in the table are both of the last checkpoint.
        assert summary["evaluation"]["test_accuracy"] == pytest.approx(member["test_accuracy"], abs=1e-3)
        assert_learned(output / member["run"], better_than=0.7)
    assert scores["ensemble"]["test_accuracy"] > 0.8 and "calibration error" in told
    images, labels = (digits()[f"{name}_test"][:2000] for name in "xy")
    probabilities = keras.models.load_model(output / "ensemble.keras").predict(images[..., None], verbose=0)
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)
    assert (probabilities.argmax(1) == labels).mean() == pytest.approx(scores["ensemble"]["test_accuracy"], abs=0.02)
