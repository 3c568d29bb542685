import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[1]


LAUNCHER_SIDE = (
    "ps_cluster.bench.throughput", "ps_cluster.chaos.chaos_run", "ps_cluster.cluster.launcher",
    "ps_cluster.cluster.local_run", "ps_cluster.cluster.one_task", "ps_cluster.comparison.plan",
    "ps_cluster.comparison.train_all", "ps_cluster.reporting.trace", "ps_cluster.simulation.simulation_run",
    "ps_cluster.ensemble.assembling", "ps_cluster.sweep.sweeping",
)  # fmt: skip


def imported_by(code: str) -> set[str]:
    """The modules that are loaded after `code`."""
    told = subprocess.run(
        [sys.executable, "-c", f"import sys; {code}; print(*sys.modules)"],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        check=True,
    )
    return set(told.stdout.decode().split())


def test_nothing_the_launcher_imports_pulls_in_tensorflow():
    assert not {"tensorflow", "keras"} & imported_by(f"import {', '.join(LAUNCHER_SIDE)}")


def test_the_objects_of_every_kind_are_read_without_tensorflow():
    """Most of them are in one file with their graph code."""
    loaded = imported_by(
        "from ps_cluster.config.sections import CHOSEN; from ps_cluster.chaos.kinds import FAULTS; "
        "[kinds.own for kinds in (FAULTS, *(choice.kinds for choice in CHOSEN.values()))]"
    )
    homes = ("models.networks.airbench", "training.modes.bounded", "training.methods.gap_aware", "training.rules.adam")
    assert {f"ps_cluster.{home}" for home in (*homes, "training.schedules.cosine", "chaos.kinds.link")} <= loaded
    assert not loaded & {"tensorflow", "keras"}


def test_help_waits_for_nothing_that_only_a_command_at_work_needs():
    """All commands are imported for it."""
    loaded = imported_by(
        "from ps_cluster.commands.main import COMMANDS, main; [main.get_command(None, c) for c in COMMANDS]"
    )
    assert {f"ps_cluster.commands.{name}" for name in ("run", "simulate", "chaos")} <= loaded
    assert not loaded & {*LAUNCHER_SIDE, "tensorflow", "keras", "matplotlib", "optuna", "ssl"}


def test_the_entry_of_a_task_imports_tensorflow_only_when_it_needs_it():
    code = "import ps_cluster.cluster.task, ps_cluster.cluster.server, sys; assert 'tensorflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=PROJECT, check=True)
