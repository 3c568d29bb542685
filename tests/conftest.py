import signal

import pytest

from tests.helpers.bad_input import Commands

# Where the tests run under nohup all that they start would ignore it; those that test it set it themselves.
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session", autouse=True)
def cache_of_the_tests(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PS_CLUSTER_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def commands():
    """A process that runs commands of the command line with bounded memory and time."""
    commands = Commands()
    yield commands
    commands.close()
