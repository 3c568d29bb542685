"""A process imports no module from the folder that it starts in, which may be a run directory of another person."""

import os
import subprocess
import sys

import pytest

from ps_cluster.api.program import COMMAND
from ps_cluster.data.formats.tfds import READER
from ps_cluster.launch import fork_server_program
from ps_cluster.launch.task import TASK_ARGV
from ps_cluster.system import environment, tensorboard_server
from tests.helpers.planted import plant, run_of

pytestmark = pytest.mark.slow

CHILDREN = {
    "a task": TASK_ARGV,
    "the fork server": fork_server_program.ARGV,
    "TensorBoard": tensorboard_server.ARGV,
    "a command of the API": (*COMMAND, "doctor", "--help"),
    "the reader of TensorFlow Datasets": (sys.executable, "-m", READER),
    "the check of a network": (sys.executable, "-m", "ps_cluster.launch.network_check"),
}


@pytest.mark.parametrize("child", CHILDREN)
def test_no_module_of_the_folder_is_imported(child, tmp_path, monkeypatch):
    plant(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    given = os.environ | {"PYTHONPATH": os.pathsep.join(["", "."])}  # these entries mean the current folder
    subprocess.run(
        CHILDREN[child], cwd=tmp_path, env=environment.for_child(given), stdin=subprocess.DEVNULL,
        capture_output=True, timeout=120,
    )  # fmt: skip
    assert not run_of(tmp_path)


def test_a_planted_module_is_seen_where_the_folder_is_searched(tmp_path):
    plant(tmp_path)
    subprocess.run([sys.executable, "-c", "import psutil"], cwd=tmp_path, check=True)
    assert run_of(tmp_path) == ["psutil"]
