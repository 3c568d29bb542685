import subprocess
import sys
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.helpers.real_cluster import PROJECT

LAUNCHER_SIDE = (
    "ps_cluster.tools.bench.throughput", "ps_cluster.tools.chaos.chaos_run", "ps_cluster.launch.launcher",
    "ps_cluster.launch.local_run", "ps_cluster.launch.one_task", "ps_cluster.tools.compare.comparison_run",
    "ps_cluster.report.trace", "ps_cluster.tools.simulate.simulation_run",
    "ps_cluster.tools.sweep.ensemble_run", "ps_cluster.tools.sweep.sweep_run",
)  # fmt: skip


def imported_by(code: str) -> set[str]:
    """Return the modules that are loaded after `code` has run."""
    told = subprocess.run(
        [sys.executable, "-c", f"import sys; {code}; print(*sys.modules)"],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        check=True,
    )
    return set(told.stdout.decode().split())


def test_nothing_the_launcher_imports_pulls_in_tensorflow():
    """The entry of a task does not import it either: it does so only when it needs it."""
    modules = (*LAUNCHER_SIDE, "ps_cluster.launch.task", "ps_cluster.tools.compare.comparison_report")
    assert not {"tensorflow", "keras"} & imported_by(f"import {', '.join(modules)}")


def test_the_objects_of_every_kind_are_read_without_tensorflow():
    """Most of these objects are defined in one file with their graph code."""
    loaded = imported_by(
        "from ps_cluster.config.sections import CHOICES; from ps_cluster.tools.chaos.kinds import FAULTS; "
        "[kinds.own for kinds in (FAULTS, *(choice.kinds for choice in CHOICES))]"
    )
    homes = ("models.networks", "training.modes.waiting", "server.staleness", "server.update_rules", "training.step")
    assert {f"ps_cluster.{home}" for home in (*homes, "tools.chaos.kinds.disks")} <= loaded
    assert not loaded & {"tensorflow", "keras"}


def test_the_settings_of_a_run_are_checked_without_tensorflow():
    overrides = {"data.dataset": "cifar10", "evaluation.augment_last": True, "mode.name": "sync"}
    loaded = imported_by(f"from ps_cluster.config import build_config; build_config(overrides={overrides})")
    assert "ps_cluster.config" in loaded
    assert not loaded & {"tensorflow", "keras"}


def test_help_waits_for_nothing_that_only_a_command_at_work_needs():
    """Help imports all commands."""
    loaded = imported_by(
        "from ps_cluster.cli.main import COMMANDS, main; [main.get_command(None, c) for c in COMMANDS]"
    )
    assert {f"ps_cluster.{name}" for name in ("cli.run", "tools.simulate.command", "tools.chaos.command")} <= loaded
    assert not loaded & {*LAUNCHER_SIDE, "tensorflow", "keras", "matplotlib", "optuna", "ssl"}


# Imports the arms of PyTorch while only these top-level modules can be found. A mock stands in for PyTorch.
_WITH_FEW_MODULES = """
import sys
from unittest import mock

class Few:
    def find_spec(self, name, path=None, target=None):
        first = name.partition(".")[0]
        if first not in {*sys.stdlib_module_names, "ps_cluster", *sys.argv[1:]} and not first.startswith("_sysconfig"):
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)

sys.meta_path.insert(0, Few())
for name in ("torch", "torch.distributed", "torch.multiprocessing", "torch.nn"):
    sys.modules[name] = mock.MagicMock(__path__=[], __spec__=None)
import ps_cluster.tools.bench.ddp
"""


def test_the_arms_of_pytorch_import_no_more_than_their_environment_has():
    lines = (PROJECT / "benchmarks" / "requirements-ddp.txt").read_text().splitlines()
    wanted = [Requirement(line) for line in lines if line and not line.startswith("#")]
    there = {"torch"}
    while wanted:
        one = wanted.pop()
        if canonicalize_name(one.name) in there or (one.marker and not one.marker.evaluate({"extra": ""})):
            continue
        there.add(canonicalize_name(one.name))
        wanted += map(Requirement, metadata.requires(one.name) or ())
    owned = metadata.packages_distributions().items()
    modules = [name for name, owners in owned if there & set(map(canonicalize_name, owners))]
    argv = [sys.executable, "-c", _WITH_FEW_MODULES, *modules]
    ended = subprocess.run(argv, capture_output=True, text=True, cwd=PROJECT)
    assert ended.returncode == 0, ended.stderr
