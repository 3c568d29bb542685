"""Act as another user of this machine for a while, and create a folder that all users can reach."""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from ps_cluster.config import merging
from ps_cluster.installation import CONFIG_FOLDER

SOMEBODY, SOMEBODY_ELSE = 54321, 54322


@contextlib.contextmanager
def as_user(uid):
    """Run the block as user `uid`. Skip the test if that is not allowed."""
    if os.geteuid():
        pytest.skip("only root can be another user for a while")
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def common(monkeypatch):
    """Yield a folder that every user can reach and write to, like /tmp.

    The default configuration is read from a copy, because other users may not be able to enter the folder of the
    checkout.
    """
    above = Path(tempfile.mkdtemp(prefix="ps_cluster-test-"))
    above.chmod(0o755)
    monkeypatch.setattr(merging, "CONFIG_FOLDER", shutil.copytree(CONFIG_FOLDER, above / "configs"))
    folder = above / "common"
    folder.mkdir()
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(above)
