"""Files of other people run no code, and only its user can write to the files of a run (see also data/test_cifar10.py)."""

import os
import pickle
import re
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from ps_cluster.cli.main import main
from ps_cluster.runs import checkpoints
from tests.helpers.real_cluster import PROJECT

pytestmark = pytest.mark.slow

# Calls that would run code from a file, or let an archive write to any path.
UNSAFE = re.compile(
    r"allow_pickle\s*=\s*True|safe_mode\s*=\s*False|enable_unsafe_deserialization|pickle\.loads?\(|yaml\.(unsafe_|full_)?load\("
    r"|\.extractall\(|\.extract\(|unpack_archive\("
)


class Payload:
    """An object that creates a folder when it is unpickled."""

    def __init__(self, folder: Path):
        self._folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self._folder),)


def test_checkpoint_that_holds_a_pickle_is_refused_and_runs_nothing(tmp_path):
    ran, path = tmp_path / "ran", tmp_path / checkpoints.name_of(1, 0)
    path.write_bytes(pickle.dumps(Payload(ran)))
    with pytest.raises(checkpoints.CheckpointError, match="its table would have"):
        checkpoints.load(path)
    assert not ran.exists()
    pickle.loads(path.read_bytes())
    assert ran.exists(), "the payload is harmless in any case: the test proves nothing"


def test_no_line_of_the_program_turns_safe_loading_off_but_that_of_functions_that_the_user_has_named():
    """Untrusted functions are refused earlier (tests/api/test_networks_sent.py). A copied model is inside such a function."""
    sources = [PROJECT / "cli.py", *(PROJECT / "ps_cluster").rglob("*.py"), *(PROJECT / "benchmarks").rglob("*.py")]
    found = [file for file in sources for line in file.read_text().splitlines() if UNSAFE.search(line)]
    assert sorted(found) == [PROJECT / "ps_cluster" / name for name in ("config/user_code.py", "models/by_value.py")]


def test_no_line_follows_a_users_path_in_a_way_that_ends_in_a_traceback():
    """Path.expanduser raises RuntimeError for a user who is not there, and Path.resolve for links that loop."""
    files = (PROJECT / "ps_cluster").rglob("*.py")
    lines = (f"{file}: {line}" for file in files for line in file.read_text().splitlines() if "__file__" not in line)
    assert not [line for line in lines if re.search(r"\.(expanduser|resolve)\(\)", line)]


@pytest.mark.parametrize(("umask", "expected"), [(0o000, 0o644), (0o077, 0o600)])
def test_no_umask_lets_others_write_into_what_a_command_leaves(tmp_path, monkeypatch, umask, expected):
    monkeypatch.setenv("PS_CLUSTER_CACHE", str(tmp_path / "cache"))
    (tmp_path / "rows.csv").write_text("x,target\n" + "1,a\n2,b\n" * 20)
    before = os.umask(umask)
    try:
        done = CliRunner().invoke(main, ["data", "fetch", str(tmp_path / "rows.csv"), "--target", "target"])
    finally:
        os.umask(before)
    assert done.exit_code == 0, done.output
    made = {path: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "cache").rglob("*") if path.is_file()}
    locks = {path: mode for path, mode in made.items() if path.name in (".lock", ".used")}
    assert made and {mode for path, mode in made.items() if path not in locks} == {expected}
    assert set(locks.values()) <= {0o600}, "only the owner may lock"
