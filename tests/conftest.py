import fcntl
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import hypothesis
import pytest

from ps_cluster.config import build_config
from ps_cluster.config.user_code import TRUSTED
from ps_cluster.data import sources
from tests.helpers.bad_input import Commands

# The same examples in every run: a test that has passed does not fail on another day.
hypothesis.settings.register_profile("tests", max_examples=100, deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("tests")

# What the tests start keeps its compiled modules: some 500 processes import the same ones. So do the tests themselves,
# which pytest compiles anew in each of its processes otherwise: 8 s each.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Where the tests run under nohup all that they start would ignore it; those that test it set it themselves.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
# In the background of a shell the same is true of Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)


# Files whose tests take long: processes are started, or networks trained. `make test-quick` leaves them out. In other files
# a test that takes more than about a second of a processor is marked `slow` itself.
SLOW = {
    ".": "bombs package parsers planted_modules private_names quiet_import untrusted_files",
    "api": "networks_sent",
    "tools/compare": "comparison_report regression_report",
    "data": "synthetic",
    "tools/deploy": "slurm_script workload_kinds",
    "doors": "installed_package one_file",
    "evaluation": "evaluator export predict scorer",
    "files": "json_files",
    "launch": "event_loop launcher network_check task",
    "models": "against_keras fused_layers networks own_network_page",
    "report": "results terminal",
    "tools/sweep": "joining",
    "system": "firewall fork_server isolation isolation_refused",
    "tools/bench": "one_process running",
    "tools/chaos": "hosts",
    "tools/simulate": "training",
    "training": "bounded clock_lag elastic proof_of_modes staged_step statistics waiting wide_step",
}
SLOW_FILES = {
    Path(__file__).parent / folder / f"test_{name}.py" for folder, names in SLOW.items() for name in names.split()
}


def pytest_ignore_collect(collection_path, config):
    # To import them takes every one of pytest's processes 4 s.
    return True if "not slow" in config.option.markexpr and collection_path in SLOW_FILES else None


def pytest_collection_modifyitems(items):
    assert all(path.is_file() for path in SLOW_FILES), "SLOW names a file that is gone"
    real = {item.path for item in items if item.get_closest_marker("cluster")}
    for item in items:
        if item.path in SLOW_FILES:
            item.add_marker("slow")
    # Files are handed out in this order. The long ones come first: at the end one of them would leave a core idle.
    items.sort(key=lambda item: (item.path not in real, item.path not in SLOW_FILES))


@pytest.fixture(scope="session", autouse=True)
def cache_of_the_tests(request, tmp_path_factory):
    """All of pytest's processes share a cache, and the first packs the generated set, before some tasks at once do so."""
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
    """Return the folder for temporary files of all that the tests start. This process keeps its own."""
    tempfile.gettempdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("temporary")))
        yield Path(os.environ["TMPDIR"])


@pytest.fixture(autouse=True)
def leaves_no_temporary_file(request, temporary_folder):
    """Every command that a test of real processes starts leaves nothing in the temporary folder, whoever is killed."""
    yield
    left = sorted(path.name for path in temporary_folder.iterdir())
    for path in temporary_folder.iterdir():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    if request.node.get_closest_marker("cluster"):
        assert left == []


@pytest.fixture(autouse=True)
def trusts_nothing_of_other_tests():
    before = os.environ.get(TRUSTED)
    yield
    os.environ.pop(TRUSTED, None) if before is None else os.environ.update({TRUSTED: before})


@pytest.fixture(scope="session")
def commands(tmp_path_factory):
    """A process that runs commands of the command line with bounded memory and time."""
    commands = Commands(tmp_path_factory.mktemp("cache-of-commands"))
    yield commands
    commands.close()
