import pytest


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Run each test in an empty folder, where a worker writes and finds who it is, and users' files may be."""
    monkeypatch.chdir(tmp_path)
