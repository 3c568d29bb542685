"""Act as another user of this machine for a while, and make a folder that all users reach."""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

import pytest

SOMEBODY, SOMEBODY_ELSE = 54321, 54322


@contextlib.contextmanager
def as_user(uid):
    """Run the block as user `uid`; skip the test where that is not allowed."""
    if os.geteuid():
        pytest.skip("only root can be another user for a while")
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def common():
    """Yield a folder that every user can reach and write to, like /tmp."""
    folder = Path(tempfile.mkdtemp(prefix="ps_cluster-test-"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)
