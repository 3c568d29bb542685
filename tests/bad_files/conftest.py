"""A sound run to damage. Nothing is trained, scored or drawn in it."""

import shutil

import pytest

from ps_cluster.config.objectives import OBJECTIVES
from ps_cluster.evaluation import evaluator
from ps_cluster.evaluation.scorer import Scored, SplitScores
from ps_cluster.launch import local_run
from ps_cluster.report import drawing
from tests.bad_files.run_files import write_run


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A folder with a run and the cache with its data."""
    root = tmp_path_factory.mktemp("sound")
    write_run(root / "run", root / "cache")
    return root


@pytest.fixture
def place(tmp_path, sound, monkeypatch):
    """A copy of it to damage, as the working directory; nothing is trained, scored or drawn in it."""
    shutil.copytree(sound / "run", tmp_path / "run")
    shutil.copytree(sound / "cache/packed-2/synthetic.2", tmp_path / "run/packed")
    monkeypatch.setenv("PS_CLUSTER_CACHE", str(sound / "cache"))
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(local_run, "run_local", lambda *_, **__: 0)
    monkeypatch.setattr(drawing, "draw_results", lambda *_: None)
    monkeypatch.setattr(evaluator, "Scorer", NoScorer)
    monkeypatch.setattr(evaluator, "EvaluationWriter", NoWriter)
    monkeypatch.setattr(evaluator, "Insight", NoWriter)
    yield tmp_path
    shutil.rmtree(tmp_path)


class NoScorer:
    test_examples, unit = 20, "images"
    objective = OBJECTIVES["classification"]

    def __init__(self, *_):
        pass

    def score(self, checkpoint, *, augmented):
        return Scored(SplitScores(0.5, 1.0))

    def save_model(self, path):
        path.write_bytes(b"a model")


class NoWriter:
    def __init__(self, *_):
        pass

    def write(self, *_):
        pass

    write_hyper_parameters = write

    def close(self):
        pass
