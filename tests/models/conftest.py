import pytest


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Run each test in an empty working folder, where workers keep the file of their identity, and tests write users' code."""
    monkeypatch.chdir(tmp_path)
