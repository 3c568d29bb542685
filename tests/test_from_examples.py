"""The commands of docs/from-examples/: those of "Try it" are run as pasted, all others are read and checked."""

import json
import re
import subprocess
from pathlib import Path

import portpicker
import pytest

from ps_cluster.cluster.topology import from_tf_config
from tests.helpers.command_lines import assert_sound
from tests.helpers.digits import digits, write_as_keras
from tests.helpers.real_cluster import PROJECT, pasted, summary_of

FOLDER = PROJECT / "docs" / "from-examples"
PAGES = sorted(path.stem for path in FOLDER.glob("*.md") if path.stem != "README")
LIMIT_S = 150
# In place of the programs: print TF_CONFIG and the words, each ended by NUL, and an empty line behind the last.
ONLY_SAY = """
python() { printf '%s\\0' "${TF_CONFIG-}" "$@" $'\\n'; }
tensorboard() { :; }
"""


def script(page: str, title: str) -> str:
    """Return the commands of a section of a page, as one who pastes them all has them."""
    section = (FOLDER / f"{page}.md").read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```\n(.*?)^```", section, re.M | re.S)
    assert blocks, f"{page}.md has no commands below '{title}'"
    return "\n".join(blocks)


def said(commands: str, folder: Path) -> list[list[str]]:
    """Return TF_CONFIG and the words of each call of python."""
    told = subprocess.run(["bash", "-ec", ONLY_SAY + commands], cwd=folder, capture_output=True, text=True, check=True)
    return [call.split("\0") for call in told.stdout.split("\0\n\0")[:-1]]


@pytest.fixture(scope="module")
def digits_of_keras(tmp_path_factory):
    """An environment in which Keras has downloaded MNIST, and nothing is packed yet."""
    home = tmp_path_factory.mktemp("keras")
    (home / "datasets").mkdir()
    write_as_keras(home / "datasets", digits())
    return {"KERAS_HOME": str(home), "PS_CLUSTER_CACHE": str(home / "cache")}


def on_free_ports(commands: str) -> str:
    """Return commands with free ports in place of those of the page, which another program may have."""
    ports = {port: str(portpicker.pick_unused_port()) for port in re.findall(r"127\.0\.0\.1:(\d+)", commands)}
    return re.sub(r"(127\.0\.0\.1):(\d+)", lambda match: f"{match[1]}:{ports[match[2]]}", commands)


def test_the_list_of_pages_names_each_once():
    assert sorted(re.findall(r"\(([\w-]+)\.md\)", (FOLDER / "README.md").read_text())) == PAGES
    assert len(PAGES) == 5


@pytest.mark.parametrize("page", PAGES)
def test_every_command_in_earnest_is_one_that_the_program_takes(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    calls = said(script(page, "In earnest"), tmp_path)
    assert calls
    for tf_config, program, *words in calls:
        assert program == "cli.py"
        assert_sound(words)
        if tf_config:
            assert words[0] == "task"
            from_tf_config(tf_config)
    assert not list(tmp_path.iterdir())


@pytest.mark.cluster
def test_three_distinct_workers_are_proven(tmp_path):
    told = pasted(script("one-machine", "Try it"), tmp_path)
    summary = summary_of(tmp_path / "runs" / "three")
    workers = summary["workers"]
    assert len({worker["pid"] for worker in workers}) == len({worker["address"] for worker in workers}) == 3
    for worker in workers:
        assert f"{worker['index']} {worker['pid']} {worker['address']} {20 * 128}\n" in told
    assert summary["updates"]["applied"] == 20 and summary["proof"]["holds"]


@pytest.mark.cluster
def test_an_evaluator_apart_scores_what_two_parameter_servers_have_left(tmp_path):
    told = pasted(script("master-ps-evaluator", "Try it"), tmp_path)
    assert "step 20: test accuracy" in told
    servers = summary_of(tmp_path / "runs" / "separate")["parameter_servers"]
    assert len({server["pid"] for server in servers}) == 2


@pytest.mark.cluster
def test_two_tasks_with_a_platforms_tf_config_train_together_on_mnist(tmp_path, digits_of_keras):
    pasted(on_free_ports(script("managed-platform", "Try it")), tmp_path, digits_of_keras)
    trained = json.loads((tmp_path / "runs" / "job" / "metrics" / "training.json").read_text())
    assert trained["updates"]["applied"] == 20
    assert len({worker["pid"] for worker in trained["workers"]}) == 2
    assert (tmp_path / "runs" / "job" / "config.yaml").read_text().count("dataset: mnist\n") == 1


def test_mnist_is_found_where_keras_keeps_it(tmp_path, digits_of_keras):
    told = pasted(script("mnist-tf-config", "Try it"), tmp_path, digits_of_keras)
    assert "60000 + 10000 examples" in told and "worker-0, worker-1" in told


def test_a_cluster_is_shown_as_a_picture_and_as_tf_config(tmp_path):
    told = pasted(script("course-chapter", "Try it"), tmp_path)
    assert "<svg" in (tmp_path / "cluster.svg").read_text()
    assert '"task": {"type": "ps", "index": 1}' in told
