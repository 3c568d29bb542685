"""Another user of this machine, for a while, and a folder that all of them reach."""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

import pytest

SOMEBODY, SOMEBODY_ELSE = 54321, 54322


@contextlib.contextmanager
def as_user(uid):
    """This process is `uid` for as long as the block lasts; skips the test where it may not."""
    if os.geteuid():
        pytest.skip("only root can be another user for a while")
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def common():
    """A folder that every user reaches and may write to, as /tmp is."""
    folder = Path(tempfile.mkdtemp(prefix="ps_cluster-test-"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)
