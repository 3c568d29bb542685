"""One class in one place is all that a data set, a mode, a rule, a fault … takes: as docs/extending.md shows.

tests/doors/test_doors.py trains with them.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).parents[2]
TOYS = {
    "ps_cluster/data/sets/toy.py": "toy_images.py",
    "ps_cluster/models/networks/toy.py": "toy_recipe.py",
    "ps_cluster/training/modes/toy.py": "toy_mode.py",
    "ps_cluster/server/staleness/toy.py": "toy_method.py",
    "ps_cluster/server/update_rules/toy.py": "toy_rule.py",
    "ps_cluster/training/learning_rate.py": "toy_schedule.py",
    "ps_cluster/tools/chaos/kinds/toy.py": "toy_fault.py",
}
IN_PACKAGE = '\n\nToy.name = "toy"\nTOY = Toy()\n'
EXAMPLES = {place: (Path(__file__).parent / toy).read_text() + IN_PACKAGE for place, toy in TOYS.items()}
CHOICES = dict.fromkeys(
    ("data.dataset", "model.name", "mode.name", "staleness.method", "optimizer.rule", "schedule.kind"), "toy"
)
TOLD = """
import json, sys
from ps_cluster.tools.chaos.kinds import FAULTS
from ps_cluster.cli.options import (CONFIG_OPTIONS)
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
    """project(files): a copy of the package with these examples added, and nothing else changed."""

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


def test_a_new_class_of_each_kind_is_found_with_its_settings_and_keeps_tensorflow_out_of_the_launcher(project):
    found = json.loads(run_in(project(EXAMPLES), "-c", TOLD, json.dumps(CHOICES)))
    assert len(EXAMPLES) == len(CHOICES) + 1
    assert [values for values in found["chosen"].values() if isinstance(values, str)] == []
    assert found["chosen"]["model.name"]["name"] == "toy"
    assert found["chosen"]["mode.name"] == {"name": "toy", "every": 2}
    assert "toy" in found["faults"] and "--every" in found["options"]
    assert not found["tensorflow"]
