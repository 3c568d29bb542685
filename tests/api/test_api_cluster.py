"""The Python API on real clusters: its page and the examples, run as a user runs them."""

import json
import os
import re
import subprocess
import sys

import pytest

import ps_cluster
from tests.helpers.processes import assert_none_left
from tests.helpers.real_cluster import PROJECT

pytestmark = pytest.mark.cluster
EXAMPLES = {
    "custom_loss.py": r"\d+% waited no longer than the network said",
    "keras_callbacks.py": r"after epoch 3 [^Z]*stopped after \d+ scored epochs; restored AUC (0\.9\d\d), best \1\n",
    "keras_fit.py": r"the spiral of (9[7-9]\.\d|100\.0)% of new points was found",
    "own_images.py": r"one picture of each class: {'circle': '\w+', 'cross': '\w+', 'square': '\w+'}",
    "text.py": r"the plot was not good: does not praise",
    "text_transformer.py": r"test accuracy (9\d|100)\.\d%",
}
SEPARATOR = "--- the next example ---\n"
ONE_AFTER_THE_OTHER = f"""
import os, runpy, sys

folder, examples = os.getcwd(), sys.argv[1:]
for number, path in enumerate(examples):
    print({SEPARATOR!r}, end="", flush=True)
    os.mkdir(f"{{folder}}/{{number}}")
    os.chdir(f"{{folder}}/{{number}}")
    sys.argv = [path, "--small"]
    runpy.run_path(path, run_name="__main__")
"""
# Runs the code cells of a notebook one after the other, as a notebook does, so no file contains their functions. The cell that
# compares is left out, because tests/end_to_end/test_compare.py trains a comparison.
CELLS = """
import json, pathlib, sys

for cell in json.loads(pathlib.Path(sys.argv[1]).read_text())["cells"]:
    if cell["cell_type"] == "code" and "ps_cluster.compare" not in "".join(cell["source"]):
        exec(compile("".join(cell["source"]), "<cell>", "exec"))
"""


def python(folder, *arguments, script=None):
    """Run a script in an empty folder; return what it printed."""
    told = subprocess.run(
        [sys.executable, *arguments],
        input=script,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        timeout=560,
    )
    assert told.returncode == 0, f"{told.stdout[-3000:]}\n{told.stderr[-3000:]}"
    assert_none_left(folder)
    return told.stdout


def snippets(text):
    """Return the Python code of a page, one text for each block."""
    return re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)


def test_the_script_of_the_readme_trains_from_standard_input_where_no_file_has_its_code(tmp_path):
    section = (PROJECT / "README.md").read_text().partition("## Your own model")[2]
    told = python(tmp_path, "-", script=snippets(section)[0])
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert ps_cluster.Result(run_dir).summary["proof"]["holds"]
    assert re.search(r"^0\.9\d* \d\.\d+$", told, re.M), "the script prints the training accuracy and the mean staleness"


@pytest.mark.exhaustive
@pytest.mark.timeout(600)  # two trainings
def test_the_page_of_the_api_runs_as_it_is_from_standard_input(tmp_path):
    """As in a notebook, no file contains the functions, and there is no `__main__` guard.

    The page's comparison is left to tests/end_to_end/test_compare.py, and how it gets there to tests/api/test_compare.py.
    """
    page = (PROJECT / "docs" / "python-api.md").read_text().partition("\n## Compare\n")[0]
    told = python(tmp_path, "-", script="\n\n".join(snippets(page)))
    trained, stopped = map(ps_cluster.Result, sorted((tmp_path / "runs").iterdir()))
    assert (trained.outcome, stopped.outcome) == ("completed", "stopped")
    assert trained.summary["updates"]["applied"] == len(trained.ledger) == 500
    assert stopped.summary["proof"]["holds"] and stopped.history[-1]["step"] == len(stopped.ledger)
    assert stopped.history[-1]["test_accuracy"] > 0.6
    assert (trained.run_dir / "curves.png").is_file()
    assert "options: cluster.workers: got 0: Input should be greater than or equal to 1" in told


@pytest.mark.exhaustive
@pytest.mark.parametrize("of_keras", [True, False], ids=["fit", "train"])
def test_every_example_runs_and_ends_with_what_it_promises(of_keras, tmp_path):
    """All examples run in one process, each in an empty folder, so that Keras is imported only once."""
    examples = sorted((PROJECT / "examples").glob("*.py"))
    assert [path.name for path in examples] == sorted(EXAMPLES)
    chosen = [path for path in examples if path.name.startswith("keras_") == of_keras]
    told = python(tmp_path, "-", *chosen, script=ONE_AFTER_THE_OTHER)
    for path, part in zip(chosen, told.split(SEPARATOR)[1:], strict=True):
        assert re.search(EXAMPLES[path.name], part), f"{path.name}:\n{part[-3000:]}"


@pytest.mark.exhaustive
def test_the_cells_of_the_notebook_train_and_fit(tmp_path):
    notebook = PROJECT / "examples" / "first_steps.ipynb"
    cells = json.loads(notebook.read_text())["cells"]
    assert len(cells) <= 12 and "generated" in "".join(cells[0]["source"])
    assert all(cell["outputs"] == [] for cell in cells if cell["cell_type"] == "code"), "commit it without outputs"
    told = python(tmp_path, "-", notebook, script=CELLS)
    trained, fitted = map(ps_cluster.Result, sorted((tmp_path / "runs").iterdir()))
    for run in (trained, fitted):
        assert run.summary["proof"]["holds"] and run.history[-1]["test_accuracy"] > 0.95
    assert re.search(r"^mean staleness \d\.\d\d, at most \d+; the proof holds: True$", told, re.M)
    assert re.search(r"^(9[5-9]|100)\.\d% of new points are told right; after each epoch: \[0\.9", told, re.M)


TEXTS_AND_ONE_HOT = """
import keras, numpy as np, tensorflow as tf
import ps_cluster

class Block(keras.layers.Layer):
    def __init__(self, width):
        super().__init__()
        self.inner = keras.layers.Dense(width, activation="relu")

    def call(self, x):
        return self.inner(x)

draw = np.random.default_rng(0)
colour, size = draw.choice(["red", "green", "blue"], 1000), draw.normal(size=1000).astype("float32")
kind = keras.utils.to_categorical(1 * (colour == "red") + (size > 0), 3)
price = 3 * size[:, None]

lookup = keras.layers.StringLookup(vocabulary=["red", "green", "blue"], output_mode="one_hot")
inputs = {"colour": keras.Input((1,), dtype="string", name="colour"), "size": keras.Input((1,), name="size")}
hidden = Block(32)(keras.layers.concatenate([lookup(inputs["colour"]), inputs["size"]]))
outputs = [keras.layers.Dense(3, "softmax", name="kind")(hidden), keras.layers.Dense(1, name="price")(hidden)]
model = keras.Model(inputs, outputs)
losses = {"kind": "categorical_crossentropy", "price": "mse"}
model.compile("adam", losses, metrics={"kind": ["accuracy", keras.metrics.AUC(name="auc")], "price": "mae"})

y = {"kind": kind, "price": price}
data = tf.data.Dataset.from_tensor_slices(({"colour": colour, "size": size}, y)).shuffle(1000).batch(10)
fitted = ps_cluster.fit(model, data, validation_data=data, epochs=3, workers=2, verbose=2)
history = fitted.history
names = ["loss", "kind_loss", "price_loss", "kind_accuracy", "kind_auc", "price_mae"]
print("epochs:", fitted.epoch, [score["step"] for score in fitted.result.history])
print("missing:", [name for name in names for name in (name, f"val_{name}") if name not in history])
print("the same:", model.evaluate(data, return_dict=True, verbose=0)["loss"] - history["val_loss"][-1])
"""


@pytest.mark.exhaustive
@pytest.mark.timeout(200)
def test_fit_trains_on_a_stream_of_texts_with_one_hot_targets_and_a_layer_without_config(tmp_path):
    """The examples of the run have another form than those on which the caller's model is measured."""
    told = python(tmp_path, "-c", TEXTS_AND_ONE_HOT)
    assert "missing: []" in told
    assert "epochs: [0, 1, 2] [100, 200, 300]" in told, "an epoch of 100 updates, which take less than a checkpoint"
    assert abs(float(told.partition("the same: ")[2])) < 1e-3
