"""Without a private network, a run says so and continues. If the network is required, the run is refused."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from ps_cluster.cli.main import main
from ps_cluster.errors import UserError
from ps_cluster.system import private_network
from ps_cluster.system.private_network import network_for
from tests.helpers import listening_cluster
from tests.helpers.data import LETTERS, pack_images, random_images
from tests.helpers.namespaces import as_ordinary_user, refused, skip_unless_allowed

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).parents[2]
REFUSES = (sys.executable, "-c", "import sys; sys.exit('private network: unshare: Operation not permitted')")
RUNNING = {"sweep": "ps_cluster.tools.sweep.sweep_run", "ensemble": "ps_cluster.tools.sweep.ensemble_run"}
SENDS_ONE_OF_TWO = "import socket, sys; socket.send_fds(socket.socket(fileno=int(sys.argv[2])), [b'2'], [0])"


@pytest.mark.parametrize(
    ("setting", "helper", "says"),
    [
        ("auto", REFUSES, ("not isolated: ", "allows no private network: unshare: Operation not permitted")),
        ("off", ("/absent",), ("not isolated, because cluster.isolation is off",)),
    ],
)
def test_where_the_system_refuses_or_isolation_is_off_the_run_says_so_in_one_line(tmp_path, setting, helper, says):
    notices = []
    with network_for(setting, tmp_path, tmp_path, notices.append, namespace_argv=helper) as network:
        assert not network.isolated and network.inside(("a", "b")) == ("a", "b")
    (line,) = map(str, notices)
    assert all(part in line for part in (*says, "open to")) and "\n" not in line


@pytest.mark.parametrize(
    ("helper", "says"),
    [
        (REFUSES, "unshare: Operation not permitted"),
        ((sys.executable, "-c", "import os; os.abort()"), "exit code -6"),
        ((sys.executable, "-c", "import time; time.sleep(60)"), "timed out after 0.5 seconds"),
        (("/absent/python",), "No such file"),
        ((sys.executable, "-c", SENDS_ONE_OF_TWO), "too many files are open"),
    ],
)
def test_where_it_is_required_a_refusal_is_the_users_error_of_one_line(tmp_path, monkeypatch, helper, says):
    monkeypatch.setattr(private_network, "_NAMESPACE_WITHIN_S", 0.5 if "timed" in says else 20)
    with pytest.raises(UserError) as refusal, network_for("require", tmp_path, tmp_path, pytest.fail, helper):
        pytest.fail("it went on")
    line = str(refusal.value)
    assert "cluster.isolation: got 'require'" in line and says in line and "\n" not in line


def test_a_command_that_starts_several_runs_says_once_where_they_will_be(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise private_network.Unavailable("private network")

    monkeypatch.setattr(private_network, "new_namespaces", refuse)
    packed = pack_images(tmp_path / "packed", "synthetic", LETTERS, (*random_images(20), *random_images(20)))
    for module in RUNNING.values():
        monkeypatch.setattr(importlib.import_module(module), "resolve_data", lambda *_, notify: packed)
    common = ("--dataset", "synthetic", "--steps", "1")
    for name, started, words in (
        ("sweep", "SweepRun", ("--vary", "training.seed=1,2", "--method", "grid")),
        ("ensemble", "train_members", ("--members", "2")),
    ):
        module = importlib.import_module(RUNNING[name])
        monkeypatch.setattr(module, started, lambda *_, **__: sys.exit(9))
        runs = CliRunner().invoke(main, [name, *words, *common, "--output", str(tmp_path / name)])
        assert runs.exit_code == 9 and runs.output.count("not isolated: ") == 1, runs.output
        require = ("--output", str(tmp_path / f"{name}-2"), "--set", "cluster.isolation=require")
        refusal = CliRunner().invoke(main, [name, *words, *common, *require])
        assert refusal.exit_code == 2 and "cluster.isolation: got 'require'" in refusal.stderr


def test_a_folder_that_could_not_be_written_inside_is_found_before_the_run_starts(tmp_path):
    """An administrator of a container may write into what belongs to others; inside a user namespace he may not."""
    if os.geteuid():
        pytest.skip("needs an administrator: only he may write into what belongs to others")
    skip_unless_allowed(as_ordinary_user)
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, 12345, 12345)
    argv = [sys.executable, listening_cluster.__file__, "launch", str(theirs), str(tmp_path), "require"]
    ended = subprocess.run(
        argv, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(PROJECT)}, preexec_fn=as_ordinary_user
    )
    assert ended.returncode == 1 and f"tasks inside it could not use '{theirs}'" in ended.stderr


def test_a_run_that_requires_it_where_the_system_refuses_leaves_nothing_behind(tmp_path):
    argv = [sys.executable, str(PROJECT / "cli.py"), "run", "--isolation", "require", "--dataset", "synthetic"]
    ended = subprocess.run(refused([*argv, "--run-dir", str(tmp_path / "new/run")]), capture_output=True, text=True)
    assert ended.returncode == 2 and ended.stderr.count("\n") == 1, ended.stderr
    assert ended.stderr.startswith(
        "Error: cluster.isolation: got 'require', but this system allows no private network: "
    )
    assert list(tmp_path.iterdir()) == []
