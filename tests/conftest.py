import fcntl
import os
import re
import shutil
import signal
import sys
import tempfile
from functools import cache
from pathlib import Path

import hypothesis
import pytest

from ps_cluster.config import build_config
from ps_cluster.data import sources
from ps_cluster.process_variables import TRUSTED_FILES
from tests.helpers.bad_input import Commands, make_folder
from tests.helpers.processes import assert_none_left, of_run
from tests.helpers.real_cluster import end_started

# The same examples in every run: a test that has passed does not fail on another day.
hypothesis.settings.register_profile("tests", max_examples=100, deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("tests")

# Compiled modules are kept, because some 500 processes that the tests start import the same ones. Otherwise pytest would
# also compile the tests anew in each of its processes, which takes 8 s each.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Under nohup, every process that the tests start would ignore SIGHUP. Tests of this signal set the handler themselves.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
# In the background of a shell, they would ignore Ctrl-C in the same way.
signal.signal(signal.SIGINT, signal.default_int_handler)

OF_WHOLE_FILE = re.compile(r"^pytestmark = .*\bpytest\.mark\.slow\b", re.MULTILINE)


@cache
def is_slow(path: Path) -> bool:
    """Return whether a whole file of tests is marked as slow, without importing it."""
    return OF_WHOLE_FILE.search(path.read_text()) is not None


def pytest_ignore_collect(collection_path, config):
    # Each of pytest's processes would take 4 s to import these files.
    if "not slow" in config.option.markexpr and collection_path.suffix == ".py" and is_slow(collection_path):
        return True
    return None


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--exhaustive"):
        left_out = [item for item in items if item.get_closest_marker("exhaustive")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("exhaustive")]
    real = {item.path for item in items if item.get_closest_marker("cluster")}
    # pytest hands out files in this order. Long files come first, because a long one at the end would leave a core idle.
    items.sort(key=lambda item: (item.path not in real, not is_slow(item.path)))


# A test may be skipped if its reason contains one of these phrases: they name what a machine or its user may lack. With
# `--known-skips` any other skip fails the run, so that no test is left out unnoticed.
KNOWN_SKIPS = (
    # programs and data
    ": apt-get install ", ": make test-extras", "no PyTorch here: ", "needs the extra ", "pandas is an extra",
    "the library is installed", "could not import 'tf2onnx'", "there is no unshare(1), ", "(package iproute2)",
    "no C compiler", "chromium is not installed", "no real CIFAR-10 at ", "MNIST is one file",
    "the whole history is not here",
    # rights
    "only root can ", "which only root may", "root may write everywhere", "needs an administrator: ",
    "an administrator of this system is always allowed ", "this user may not mount: ",
    "this user may not make a control group",
    # the system
    "this system does not allow it: ", "this kernel's firewall does not allow it: ", "hosts on this machine: ",
    "no control group that limits ", "a process can't be moved into ", "no /dev/net/tun here", "only one user",
    "without a second core, ", "reads Linux's accounting of memory",
)  # fmt: skip


def pytest_addoption(parser):
    parser.addoption("--exhaustive", action="store_true", help="Run the tests marked as exhaustive, too.")
    parser.addoption("--known-skips", action="store_true", help="Fail where a test is skipped for another reason.")


def pytest_sessionfinish(session):
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not session.config.getoption("--known-skips"):
        return
    # The representation of a skip is (path, line, reason).
    reasons = {report.nodeid: report.longrepr[2] for report in reporter.stats.get("skipped", ())}
    unknown = {name: why for name, why in reasons.items() if not any(known in why for known in KNOWN_SKIPS)}
    for name, why in unknown.items():
        reporter.write_line(f"skipped for a reason that tests/conftest.py does not know: {name}: {why}")
    if unknown and not session.exitstatus:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session", autouse=True)
def cache_of_the_tests(request, tmp_path_factory):
    """Share one cache among pytest's processes. The first of them packs the generated set before any task needs it."""
    own = tmp_path_factory.getbasetemp()
    cache = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "cache"
    cache.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PS_CLUSTER_CACHE", str(cache))
        if any(item.get_closest_marker("cluster") for item in request.session.items):
            with (cache / "lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                generated = build_config(overrides={"data.dataset": "synthetic"})
                sources.resolve(generated.data, cache, notify=lambda line: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def temporary_folder(tmp_path_factory):
    """Return the folder for temporary files of the processes that the tests start. This process keeps the usual one."""
    tempfile.gettempdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("temporary")))
        yield Path(os.environ["TMPDIR"])


@pytest.fixture(autouse=True)
def leaves_no_temporary_file(request, temporary_folder):
    """Check that the commands of a test of real processes leave no temporary file, whichever process was killed."""
    yield
    left = sorted(path.name for path in temporary_folder.iterdir())
    for path in temporary_folder.iterdir():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    if request.node.get_closest_marker("cluster"):
        assert left == []


@pytest.fixture(autouse=True)
def leaves_no_process(request, leaves_no_temporary_file):
    """End what a test has started, also if it fails. A test of real processes leaves none in its folder."""
    folder = request.getfixturevalue("tmp_path") if request.node.get_closest_marker("cluster") else None
    yield
    end_started()
    if folder is not None:
        try:
            assert_none_left(folder)
        finally:
            for process in of_run(folder):
                process.kill()


@pytest.fixture(autouse=True)
def trusts_nothing_of_other_tests():
    before = os.environ.get(TRUSTED_FILES)
    yield
    os.environ.pop(TRUSTED_FILES, None) if before is None else os.environ.update({TRUSTED_FILES: before})


@pytest.fixture(scope="session")
def commands(tmp_path_factory):
    """Return a process that runs commands of the command line with bounded memory and time."""
    commands = Commands(tmp_path_factory.mktemp("cache-of-commands"))
    yield commands
    commands.close()


@pytest.fixture(scope="module")
def bad_folder(tmp_path_factory):
    """Return a working directory with bad files, for all tests of a module. Each test checks that it stays unchanged."""
    return make_folder(tmp_path_factory.mktemp("bad") / "here")
