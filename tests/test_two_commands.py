"""Two commands on one folder, and folders of other users, as the command line meets them.

tests/end_to_end/test_compare.py has two commands that are really there.
"""

import os
import shutil
import subprocess
import sys

import matplotlib.font_manager  # noqa: F401  # a user without a home would look for all fonts again
import numpy as np
import pytest
from click.testing import CliRunner

from ps_cluster.cli.main import main
from ps_cluster.config import build_config
from ps_cluster.runs.run_dir import RunDir
from tests.helpers.users import SOMEBODY, SOMEBODY_ELSE, as_user, common  # noqa: F401

CHIEF = '{"cluster": {"chief": ["a:1"]}, "task": {"type": "chief", "index": 0}}'
TASK_OPTIONS = ("--dataset", "synthetic", "--precision", "float32", "--mode", "single")
COMMANDS = {
    "run": ("run", "--dataset", "synthetic", "--run-dir"),
    "run --resume": ("run", "--resume"),
    "compare": ("compare", "--dataset", "synthetic", "--output"),
    "sweep": ("sweep", "--vary", "training.seed=0,1", "--dataset", "synthetic", "--output"),
    "ensemble": ("ensemble", "--dataset", "synthetic", "--output"),
    "chaos": ("chaos", "--run-dir"),
    "task": ("task", *TASK_OPTIONS, "--run-dir"),
}
EVERY_COMMAND = pytest.mark.parametrize("command", COMMANDS)
HOLDER = "import sys, time; from ps_cluster.files.locks import *\nwith sole_use(Path(sys.argv[1]), 'folder', print): print(flush=True); time.sleep(600)"  # noqa: E501


def refused(command, folder):
    """Run a command that is refused with exit code 2, and return its error line."""
    result = CliRunner().invoke(main, [*COMMANDS[command], str(folder)], env={"TF_CONFIG": CHIEF})
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert result.stderr.startswith("Error: ") and result.stderr.count("\n") == 1
    return result.stderr


def content(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    """Return a run directory that another process works in, and its pid."""
    run_dir = RunDir.create(tmp_path_factory.mktemp("held") / "run")
    run_dir.config.write_text(build_config().to_yaml())
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(run_dir.root)], stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        yield run_dir.root, holder.pid
        holder.kill()


@EVERY_COMMAND
def test_a_folder_that_another_command_works_in_is_left_alone(held, command):
    folder, pid = held
    before = content(folder)
    assert f"'{folder}' is in use by '-c {folder}' (pid {pid}, since" in refused(command, folder)
    assert content(folder) == before


@EVERY_COMMAND
def test_a_folder_of_another_user_is_refused_with_his_name(common, command):  # noqa: F811
    folder = common / "folder"
    with as_user(SOMEBODY):
        folder.mkdir()
        (folder / "config.yaml").write_text(build_config().to_yaml())
    folder.chmod(0o777)
    with as_user(SOMEBODY_ELSE):
        line = refused(command, folder)
    assert f"'{folder}' belongs to another user (uid {SOMEBODY}), who could change the files in it" in line
    assert [path.name for path in folder.iterdir()] == ["config.yaml"]


@EVERY_COMMAND
def test_a_way_through_the_link_of_another_user_is_refused(common, command):  # noqa: F811
    with as_user(SOMEBODY_ELSE):
        (common / "mine").mkdir()
        (common / "mine" / "config.yaml").write_text(build_config().to_yaml())
    with as_user(SOMEBODY):
        (common / "link").symlink_to("mine")
    common.chmod(0o755)  # in a sticky folder that everybody may write to, the system itself would refuse the link
    with as_user(SOMEBODY_ELSE):
        assert f"is reached through '{common}/link', a link that another user" in refused(command, common / "link")
    assert [path.name for path in (common / "mine").iterdir()] == ["config.yaml"]


@pytest.mark.parametrize("trusted", ["run --resume", "compare"])
def test_what_another_user_put_into_a_folder_that_all_may_write_to_is_not_trusted(common, trusted):  # noqa: F811
    folder = common / "folder"
    with as_user(SOMEBODY_ELSE):
        folder.mkdir()
    arrays = {
        f"{name}_{split}": np.arange(9, dtype=np.float32)[:, None] for name in "xy" for split in ("train", "test")
    }
    np.savez(common / "few.npz", **arrays)
    np.load(common / "few.npz").close()  # numpy imports modules for it that the other user may not be able to read
    words = {
        "run --resume": ("run", "--resume", folder),
        "compare": ("compare", "--dataset", common / "few.npz", "--model", "mlp", "--output", folder),
    }
    folder.chmod(0o777)
    with as_user(SOMEBODY):
        for name in ("config.yaml", "comparison.yaml"):
            (folder / name).write_text(build_config().to_yaml())
    with as_user(SOMEBODY_ELSE):
        os.environ["PS_CLUSTER_CACHE"], before = str(common / "cache"), os.environ["PS_CLUSTER_CACHE"]
        try:
            result = CliRunner().invoke(main, list(map(str, words[trusted])))
        finally:
            os.environ["PS_CLUSTER_CACHE"] = before
    assert (
        result.exit_code == 2
        and f"yaml' belongs to another user (uid {SOMEBODY}): if you trust it, copy" in result.stderr
    )
    assert f"everybody on this machine may write to '{folder}'" in result.stdout


@pytest.mark.parametrize("name", ["metrics", "logs", "checkpoints", "snapshots", "best", "tensorboard", "tasks", "tmp"])
def test_a_folder_of_the_run_that_is_the_link_of_another_user_is_refused(tmp_path, name):
    if os.geteuid():
        pytest.skip("only root can give a link to somebody else")
    run_dir = RunDir.create(tmp_path / "run")
    run_dir.config.write_text(build_config().to_yaml())
    shutil.rmtree(run_dir.root / name, ignore_errors=True)
    (tmp_path / "elsewhere").mkdir()
    (run_dir.root / name).symlink_to(tmp_path / "elsewhere")
    os.lchown(run_dir.root / name, SOMEBODY, SOMEBODY)
    assert f"'{run_dir.root / name}' is reached through '{run_dir.root / name}'" in refused(
        "run --resume", run_dir.root
    )
    assert list((tmp_path / "elsewhere").iterdir()) == []
