"""The arms that can be measured side by side: each is a module that trains the run directory it is given.

    python -m ps_cluster.tools.bench.arms RUN_DIR [MODULE ARGUMENTS]

is the arm of a whole local cluster, with this project's tasks or another module's. It prints {"examples_per_second": …} as
its last line.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ps_cluster.config import RunConfig, build_config, load_config
from ps_cluster.config.objectives import ExampleSpec
from ps_cluster.config.schema import parse_stragglers
from ps_cluster.config.sections import CHOSEN, flat, listed, nested, switched_off
from ps_cluster.errors import UserError, did_you_mean
from ps_cluster.files.yaml_files import read_yaml
from ps_cluster.installation import IMPORT_FOLDER
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.system.limits import allowance

if TYPE_CHECKING:
    from ps_cluster.report.progress import ProgressView

ARM_TIMEOUT_S = 600
STEPS_PER_CALL = 4  # of TensorFlow, in arms of one process: so Python costs nothing
TORCH_NETWORKS = ("tutorial_cnn", "cifar_tf_cnn", "airbench")  # as in ddp.py
TORCH_EXAMPLES, TORCH_CLASSES = "image uint8 [32, 32, 3]", 10


@dataclass(frozen=True)
class BenchArm:
    """A module that trains a run directory and prints JSON, `{"examples_per_second": …}`, as its last line."""

    name: str
    module: str
    arguments: tuple[str, ...] = ()  # of the module, after the run directory
    values: Mapping[str, Any] = field(default_factory=dict)  # dotted key → value: its own settings
    slowed: str | None = None  # name of the same arm without slow workers, for an arm with them
    ideal: float | None = None  # share of that arm's rate that an ideal cluster would keep
    can_be_slow: bool = False  # its workers obey cluster.straggler
    torch: bool = False  # it needs a Python with PyTorch, and knows only TORCH_NETWORKS on images like CIFAR-10's
    python: str = sys.executable
    project: Path = IMPORT_FOLDER  # code to run, e.g. another commit's

    def config(self, case: RunConfig) -> RunConfig:
        """Return `case` as this arm trains it: the same examples, whatever number an update takes."""
        mode = self.values.get("mode.name", case.mode.name)
        changed = case.with_values(switched_off(mode) | dict(self.values))
        return changed.with_values({"training.steps": max(1, (case.training.steps or 0) // changed.steps_per_update)})

    def check(self, model: str, spec: ExampleSpec) -> None:
        """Raise UserError for a network or examples that this arm does not know."""
        if not self.torch:
            return
        if model not in TORCH_NETWORKS:
            known = listed(list(TORCH_NETWORKS))
            raise UserError(f"--models: got '{model:.300}': arm {self.name} has only {known} in PyTorch: leave one out")
        if f"{spec}" != TORCH_EXAMPLES or spec.outputs != TORCH_CLASSES or spec.target.shape:
            raise UserError(
                f"--dataset: got examples of {spec} and {spec.outputs} outputs: arm {self.name} takes only "
                f"{TORCH_EXAMPLES} of {TORCH_CLASSES} classes: leave it out"
            )

    def settings(self, config: RunConfig) -> dict[str, Any]:
        """Return `config` as settings of the arm's project: without defaults and without values that it does not know."""
        given = config.model_dump(mode="json")
        if self.project == IMPORT_FOLDER:
            return given
        chosen = {f"{section}.{key}": given[section][key] for section, (key, _) in CHOSEN.items()}
        defaults = flat(build_config().with_values(chosen).model_dump(mode="json"))
        found = flat(read_yaml(self.project / "configs" / "default.yaml"))
        # A setting that the project lacks is its own to refuse, unless nobody has changed it.
        wanted = {key: value for key, value in flat(given).items() if key in found or value != defaults.get(key)}
        return nested({**found, **{key: value for key, value in wanted.items() if value is not None}})


SINGLE = BenchArm("single", "ps_cluster.tools.bench.keras_arms")
CLUSTER = BenchArm("cluster", "ps_cluster.tools.bench.arms", can_be_slow=True)
SYNC = replace(CLUSTER, name="sync", values={"mode.name": "sync"})
PER_VARIABLE = replace(CLUSTER, name="per_variable", arguments=(SINGLE.module, "task"), can_be_slow=False)
DDP = BenchArm("ddp", "ps_cluster.tools.bench.ddp", values={"mode.name": "sync"}, torch=True)
# As many workers as cores, each with one of its own: another setting of those that have nothing but workers.
A_CORE_EACH = {"cluster.workers": allowance().threads, "cluster.pin_workers": True}
SYNC_CORES, DDP_CORES = (
    replace(arm, name=f"{arm.name}_cores", values={**arm.values, **A_CORE_EACH}) for arm in (SYNC, DDP)
)
DDP_COMPILED = replace(DDP_CORES, name="ddp_compiled", arguments=("compiled",))
ALONE = {"mode.name": "single", "cluster.intra_op_threads": allowance().threads}
TORCH_SINGLE = replace(DDP, name="torch_single", values=ALONE)
LIMIT = BenchArm("limit", "ps_cluster.tools.bench.limit")

DEFAULT = (SINGLE, CLUSTER, SYNC, PER_VARIABLE, LIMIT)
ARMS = {arm.name: arm for arm in (*DEFAULT, SYNC_CORES, DDP, DDP_CORES, DDP_COMPILED, TORCH_SINGLE)}


def choose(names: Iterable[str], ddp_python: Path | None = None) -> list[BenchArm]:
    """Return the arms of these names, in this order, each with its Python.

    Raises:
      UserError: an unknown name, or `ddp_python` is needed and has no PyTorch.
    """
    names = list(dict.fromkeys(names))
    if unknown := [name for name in names if name not in ARMS]:
        known = f"{', '.join(ARMS)}; by itself also empty"
        raise UserError(f"--arms: got '{unknown[0]}': {did_you_mean(unknown[0], ARMS)}there are {known}")
    return [_with_torch(ARMS[name], ddp_python) if ARMS[name].torch else ARMS[name] for name in names]


def with_straggler(chosen: list[BenchArm], straggler: str, workers: int) -> list[BenchArm]:
    """Return `chosen`, each arm that can have slow workers followed by a copy with `straggler`.

    Raises:
      UserError: no arm can have slow workers, or `straggler` is no plain factor.
    """
    try:
        slow = parse_stragglers(straggler).slow
    except ValueError as error:
        raise UserError(f"--straggler: {error}") from error
    if not slow or any(one.extra_s for one in slow):
        raise UserError(f"--straggler: got '{straggler}': say how many times slower, e.g. 2:5x")
    if not any(arm.can_be_slow for arm in chosen):
        able = " or ".join(arm.name for arm in ARMS.values() if arm.can_be_slow)
        raise UserError(f"--straggler: got '{straggler}': --arms has to name {able}")
    found = []
    for arm in chosen:
        found.append(arm)
        if arm.can_be_slow:
            values, own = {**arm.values, "cluster.straggler": straggler}, arm.values.get("cluster.workers", workers)
            # The share of throughput left if no worker waits for slow ones: 2.2 / 3 if one of three is 5x slower.
            ideal = (own - len(slow) + sum(1 / one.factor for one in slow)) / own
            found.append(replace(arm, name=f"{arm.name}+straggler", values=values, slowed=arm.name, ideal=ideal))
    return found


def _with_torch(arm: BenchArm, python: Path | None) -> BenchArm:
    if python is None:
        raise UserError(f"--arms: {arm.name} needs --ddp-python, a Python that has torch, numpy and pydantic")
    python = python.absolute()  # not resolved: behind the link the virtual environment would not be found
    try:
        subprocess.run([python, "-c", "import torch"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise UserError(
            f"--ddp-python: got '{python}': no Python that can import torch; "
            f"{arm.name} needs one that has torch, numpy and pydantic"
        ) from error
    return replace(arm, python=str(python))


def run_cluster(root: Path, body: Sequence[str], view: ProgressView | None = None) -> RunDir:
    """Run the cluster of `root` to its end; exit if it fails.

    Args:
      body: module that runs one task and its first arguments; empty for the project's own.
    """
    from ps_cluster.data.packed import load_pointed
    from ps_cluster.launch.launcher import TASK_ARGV, run_local
    from ps_cluster.launch.rules import LauncherLimits
    from ps_cluster.report.progress import make_view

    run_dir = RunDir.open(root)
    argv = (sys.executable, "-m", *body) if body else TASK_ARGV
    # The launcher sees no updates of a module that is not the project's own.
    limits = LauncherLimits(standstill_s=ARM_TIMEOUT_S) if body else LauncherLimits()
    config, dataset = load_config(run_dir.config), load_pointed(run_dir.dataset)
    view = view or make_view()
    code = run_local(config, run_dir, dataset, resume=False, view=view, task_argv=argv, limits=limits)
    if code:
        sys.exit(code)
    return run_dir


if __name__ == "__main__":
    summary = json.loads(run_cluster(Path(sys.argv[1]), sys.argv[2:]).summary.read_text())
    print(json.dumps({"examples_per_second": summary["examples_per_second"]}))
