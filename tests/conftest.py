import os
import signal

import hypothesis
import pytest

from ps_cluster.catalogue.doors import TRUSTED
from tests.helpers.bad_input import Commands

# The same examples in every run: a test that has passed does not fail on another day.
hypothesis.settings.register_profile("tests", max_examples=100, deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("tests")

# What the tests start keeps its compiled modules: some 500 processes import the same ones.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Where the tests run under nohup all that they start would ignore it; those that test it set it themselves.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
# In the background of a shell the same is true of Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def cache_of_the_tests(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PS_CLUSTER_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def trusts_nothing_of_other_tests():
    before = os.environ.get(TRUSTED)
    yield
    os.environ.pop(TRUSTED, None) if before is None else os.environ.update({TRUSTED: before})


@pytest.fixture(scope="session")
def commands():
    """A process that runs commands of the command line with bounded memory and time."""
    commands = Commands()
    yield commands
    commands.close()
