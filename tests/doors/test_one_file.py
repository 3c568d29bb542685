"""One class in one place is all that a data set, a mode, a rule, a fault … takes: as in docs/extending.md."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ps_cluster.config import build_config, registry
from ps_cluster.tools.chaos.kinds import FAULTS
from tests.helpers.processes import assert_none_left
from tests.helpers.real_cluster import summary_of

PROJECT = Path(__file__).parents[2]
EXAMPLE = re.compile(
    r"^In `my.py`, or (?:at the end of|in a new file) `(ps_cluster/\S+\.py)`:\n\n```python\n(.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
EXAMPLES = dict(EXAMPLE.findall((PROJECT / "docs" / "extending.md").read_text()))
CHOICES = {"data.dataset": "gratings", "model.name": "one_layer", "mode.name": "clipped", "staleness.method": "root",
           "optimizer.rule": "signs",
           "schedule.kind": "halving"}  # fmt: skip
TOLD = """
import json, sys
from ps_cluster.tools.chaos.kinds import FAULTS
from ps_cluster.config.options import CONFIG_OPTIONS
from ps_cluster.config import build_config
from ps_cluster.errors import UserError

def chosen(key, name):
    try:
        return getattr(build_config(None, {key: name}), key.partition(".")[0]).model_dump()
    except UserError as error:
        return str(error)

print(json.dumps({
    "chosen": {key: chosen(key, name) for key, name in json.loads(sys.argv[1]).items()},
    "faults": FAULTS.names,
    "options": [*CONFIG_OPTIONS],
    "tensorflow": "tensorflow" in sys.modules,
}))
"""


@pytest.fixture
def project(tmp_path):
    """project(files): a copy of the package with these examples of docs/extending.md added, and nothing else changed."""

    def copy(files):
        ignored = shutil.ignore_patterns("__pycache__")
        for folder in ("ps_cluster", "configs"):
            shutil.copytree(PROJECT / folder, tmp_path / folder, ignore=ignored)
        shutil.copy(PROJECT / "cli.py", tmp_path)
        for file in files:
            with (tmp_path / file).open("a") as end:
                end.write(EXAMPLES[file])
        return tmp_path

    return copy


def run_in(folder, *arguments):
    environment = os.environ | {"PYTHONPATH": str(folder)}
    done = subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, timeout=280)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def told_in(folder):
    return json.loads(run_in(folder, "-c", TOLD, json.dumps(CHOICES)))


def test_a_new_class_of_each_kind_is_found_with_its_settings_and_keeps_tensorflow_out_of_the_launcher(project):
    found = told_in(project(EXAMPLES))
    assert [values for values in found["chosen"].values() if isinstance(values, str)] == []
    assert found["chosen"]["model.name"]["name"] == "one_layer"
    assert found["chosen"]["mode.name"] == {"name": "clipped", "longest": 1.0}
    assert "pause worker" in found["faults"] and "--longest" in found["options"]
    assert not found["tensorflow"]


def test_each_is_also_taken_from_a_file_of_the_users(tmp_path, monkeypatch):
    monkeypatch.delenv(registry.TRUSTED, raising=False)
    keys = {name: key for key, name in CHOICES.items()} | {"pause worker": None}
    for number, text in enumerate(EXAMPLES.values()):
        file = tmp_path / f"my{number}.py"
        file.write_text(text)
        registry.trust(file)
        (kind,) = re.findall(r"^[A-Z_]+ = (\w+)\(\)$", text, re.M)
        key = keys[re.search(r'^    name = "(.*)"$', text, re.M)[1]]
        path = f"{file}:{kind}"
        if key is None:
            assert FAULTS[path].victims == ("worker",)
        else:
            section, name = key.split(".")
            assert getattr(getattr(build_config(None, {key: path}), section), name) == path


def test_without_them_their_names_are_unknown(project):
    found = told_in(project(()))
    assert all("There are" in error for error in found["chosen"].values()) and len(EXAMPLES) == len(CHOICES) + 1
    assert "pause worker" not in found["faults"] and "--longest" not in found["options"]


@pytest.mark.cluster
@pytest.mark.parametrize(
    "options",
    [
        ("--staleness-method", "root", "--set", "optimizer.rule=signs", "--set", "optimizer.learning_rate=0.001"),
        ("--mode", "clipped", "--longest", "0.5", "--set", "schedule.kind=halving"),
    ],
    ids=lambda options: options[1],
)
def test_they_train(project, options):
    folder = project(EXAMPLES)
    fixed = (
        "--dataset",
        "gratings",
        "--workers",
        "2",
        "--steps",
        "20",
        "--no-evaluator",
        "--run-dir",
        "run",
        "--model",
        "one_layer",
    )
    run_in(folder, "cli.py", "run", *fixed, *options)
    assert_none_left(folder / "run")
    summary = summary_of(folder / "run")
    assert summary["updates"]["applied"] == 20 and summary["proof"]["holds"] and summary["model"] == "one_layer"
    assert (summary["dataset"], summary["dataset_kind"]) == ("gratings", "synthetic")
