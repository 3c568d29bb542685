"""A package that pip has really installed adds a kind of each through its entry points."""

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
    "ps_cluster.networks": "toy_network:build",
    "ps_cluster.modes": "toy_mode:Toy",
    "ps_cluster.staleness_methods": "toy_method:Toy",
    "ps_cluster.optimizer_rules": "toy_rule:Toy",
    "ps_cluster.schedules": "toy_schedule:Toy",
    "ps_cluster.faults": "toy_fault:Toy",
    "ps_cluster.datasets": "toy_data:load",
    "ps_cluster.formats": "toy_format:Toy",
}
FORMAT = """
from pathlib import Path
from ps_cluster.config.datasets import DataSet
from ps_cluster.config.datasets import DataFormat
from ps_cluster_toys import toy_data

class ToysAt(DataSet):
    def __init__(self, path):
        self.path = path

    def read(self, source, settings):
        return toy_data.load()

class Toy(DataFormat):
    name = "toy"
    looks_for = "a .toy file"
    endings = (".toy",)
    Settings = DataSet.Settings

    def dataset(self, path):
        return ToysAt(path)
"""
# Prints kind → class of the object named "toy", as a process of a user finds it.
NAMED = """
import json
from ps_cluster.config.datasets import DATASETS
from ps_cluster.config.datasets import DATA_FORMATS
from ps_cluster.config.modes import MODES
from ps_cluster.config.networks import NETWORKS
from ps_cluster.config.optimizer_rules import RULES
from ps_cluster.config.schedules import SCHEDULES
from ps_cluster.config.staleness_methods import METHODS
from ps_cluster.tools.chaos.kinds import FAULTS
kinds = (NETWORKS, MODES, METHODS, RULES, SCHEDULES, FAULTS, DATASETS, DATA_FORMATS)
print(json.dumps([kind["toy"].name for kind in kinds if "toy" in kind.names]))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder in which pip has installed a package with the toys beside this file."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("target")
    package = source / "ps_cluster_toys"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "toy_format.py").write_text(FORMAT)
    for module in {value.partition(":")[0] for value in TOYS.values()} - {"toy_format"}:
        shutil.copy(Path(__file__).parent / f"{module}.py", package)
    points = "\n".join(
        f'[project.entry-points."{group}"]\ntoy = "ps_cluster_toys.{value}"' for group, value in TOYS.items()
    )
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        f'[project]\nname = "ps-cluster-toys"\nversion = "1"\n{points}\n'
    )
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation")
    subprocess.run([*pip, "--target", str(target), str(source)], check=True, capture_output=True, timeout=120)
    return target


def python(installed, *arguments):
    found = os.environ | {"PYTHONPATH": os.pathsep.join([str(PROJECT), str(installed)])}
    ended = subprocess.run(
        [sys.executable, *arguments], env=found, cwd=PROJECT, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_each_kind_is_found_by_the_name_that_the_package_gives_it(installed):
    assert json.loads(python(installed, "-c", NAMED)) == ["toy"] * len(TOYS)


def test_the_command_takes_what_is_installed_by_name_and_data_by_its_path(installed, tmp_path):
    (tmp_path / "here.toy").touch()
    chosen = ("--dataset", tmp_path / "here.toy", "--model", "toy", "--staleness-method", "toy")
    rules = ("--set", "optimizer.rule=toy", "--set", "schedule.kind=toy", "--dry-run")
    told = python(installed, "cli.py", "run", *map(str, chosen), *rules)
    assert f'dataset: "toy:{tmp_path}/here.toy"' in told and "nothing was started" in told
