"""A run whose network has layers that Keras alone can't load: `predict`, `export` and the Python API build it by its code."""

import json

import keras
import numpy as np
import pytest
from click.testing import CliRunner

import ps_cluster
from ps_cluster.cli.main import main
from ps_cluster.config import build_config
from ps_cluster.config.networks import NETWORKS
from ps_cluster.models import build as networks
from ps_cluster.models.compiled_heads import head_of
from ps_cluster.process_variables import TRUSTED_FILES
from ps_cluster.runs.run_dir import RunDir
from tests.helpers.bad_input import assert_one_line
from tests.helpers.fake_runs import Fake, write_run
from tests.helpers.left_by_runs import CLASSES, SHAPE, leave_run, pack_small_images

CODE = """
import keras

def around(*own):
    keras.utils.set_random_seed(3)
    ends = keras.layers.Flatten(), keras.layers.Dense(3)
    return keras.Sequential([keras.Input((12, 10, 3)), keras.layers.Rescaling(1 / 255), *own, *ends])

def with_a_lambda():
    return around(keras.layers.Lambda(lambda values: values * 2.0))

def of_the_function():
    class Scaled(keras.layers.Layer):
        def build(self, shape):
            self.scale = self.add_weight(shape=(3,), initializer="ones", name="scale")

        def call(self, values):
            return values * self.scale

    return around(Scaled())

def with_an_argument():
    class Times(keras.layers.Layer):
        def __init__(self, factor, **more):
            super().__init__(**more)
            self.factor = factor

        def call(self, values):
            return values * self.factor

        def get_config(self):
            return super().get_config()

    return around(Times(3.0))
"""
NAMES = ("with_a_lambda", "of_the_function", "with_an_argument")
IMAGES = np.random.default_rng(1).integers(0, 256, (5, *SHAPE), np.uint8)


@pytest.fixture(autouse=True)
def trusting_nothing(monkeypatch):
    monkeypatch.setenv(TRUSTED_FILES, "")


@pytest.fixture
def leave(tmp_path):
    """leave(name) → the directory of a run with that network, its code, and the probabilities of its model for `IMAGES`."""

    def leave(name):
        code = tmp_path / "my.py"
        code.write_text(CODE)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(TRUSTED_FILES, "")
            named = NETWORKS.allow_code_of(f"my.py:{name}", tmp_path)
            dataset = pack_small_images(tmp_path / "packed")
            model = networks.build(build_config(None, {"model.name": named}).model, dataset.spec, seed=0)
            draw = np.random.default_rng(2)
            model.set_weights([0.1 * draw.normal(size=one.shape) for one in model.get_weights()])
            saved = head_of(dataset.spec, model=model).finished(model)
            run_dir = leave_run(tmp_path / "run", dataset, saved, **{"model.name": named})
        return run_dir, code, np.asarray(keras.ops.softmax(saved(IMAGES.astype(np.float32))))

    return leave


@pytest.mark.parametrize("name", NAMES)
def test_predict_takes_the_trained_weights_of_any_network_whose_code_is_named(leave, name, tmp_path):
    run_dir, code, answers = leave(name)
    np.save(tmp_path / "images.npy", IMAGES)
    argv = ["predict", str(tmp_path / "images.npy"), "--run", str(run_dir.root), "--format", "json", "--top", "3"]
    told = CliRunner().invoke(main, [*argv, "--code", str(code)])
    assert told.exit_code == 0, told.output
    found = [{one["class"]: one["probability"] for one in row["classes"]} for row in json.loads(told.stdout)]
    assert np.asarray([[row[name] for name in CLASSES] for row in found]) == pytest.approx(answers, abs=1e-5)


def test_export_writes_files_of_keras_of_such_a_network_and_compares_them_with_the_original(leave):
    run_dir, code, _ = leave("with_a_lambda")
    argv = ["export", "--run", str(run_dir.root), "--to", "keras,h5", "--check-examples", "5"]
    done = CliRunner().invoke(main, [*argv, "--code", str(code)])
    assert done.exit_code == 0, done.output
    compared = json.loads((run_dir.root / "export" / "export.json").read_text())["compared"]
    assert [row["compared"]["largest"] < 1e-5 for row in compared] == [True] * 4


def not_yet_run(run_dir, code):
    """Let the run name another file of the same code, which this process has not run. Return that file."""
    other = code.with_name("other.py")
    other.write_text(CODE)
    run_dir.config.write_text(run_dir.config.read_text().replace("my.py", other.name))
    return other


def test_without_its_code_a_run_of_such_a_network_is_told_which_file_to_name(leave, tmp_path):
    run_dir, code, _ = leave("with_a_lambda")
    code = not_yet_run(run_dir, code)
    np.save(tmp_path / "images.npy", IMAGES)
    told = CliRunner().invoke(main, ["predict", str(tmp_path / "images.npy"), "--run", str(run_dir.root)])
    assert_one_line(told.exit_code, told.stderr, [f"add --code '{code}'"])


def test_the_model_of_a_result_is_built_by_the_code_that_the_program_names(leave, tmp_path):
    run_dir, code, answers = leave("of_the_function")
    code = not_yet_run(run_dir, code)
    scored = RunDir(write_run(tmp_path / "scored", Fake({"mode.name": "async"})))
    run_dir.summary.write_bytes(scored.summary.read_bytes())
    with pytest.raises(ps_cluster.UserError, match=r"other.py.* Result\(run_dir, code=\[…\]\)"):
        print(ps_cluster.Result(run_dir.root).model)
    model = ps_cluster.Result(run_dir.root, code=[code]).model
    assert np.asarray(keras.ops.softmax(model(IMAGES.astype(np.float32)))) == pytest.approx(answers, abs=1e-5)
