"""The arms that can be measured side by side: each is a module that trains the run directory it is given."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ps_cluster.config import RunConfig, build_config
from ps_cluster.config.cluster_settings import parse_stragglers
from ps_cluster.config.objectives import ExampleSpec
from ps_cluster.config.sections import CHOSEN, flat, listed, nested, switched_off
from ps_cluster.errors import UserError, did_you_mean
from ps_cluster.files.yaml_files import read_yaml
from ps_cluster.installation import IMPORT_FOLDER
from ps_cluster.system.machine import allowance

TORCH_NETWORKS = ("tutorial_cnn", "cifar_tf_cnn", "resnet_small", "airbench")  # as in torch_networks.py
TORCH_EXAMPLES, TORCH_CLASSES = "image uint8 [32, 32, 3]", 10
DEFAULTS = Path("configs") / "default.yaml"
# What settings are called in checkouts from before their sections followed what is chosen in them.
_EARLIER = {
    "mode.name": "training.mode", "mode.max_staleness": "training.max_staleness",
    "mode.max_clock_lag": "training.max_clock_lag", "mode.backup_workers": "training.backup_workers",
    "mode.simulate_workers": "training.simulate_workers", "mode.local_steps": "elastic.local_steps",
    "mode.beta": "elastic.beta", "staleness.method": "training.staleness_method",
    "staleness.strength": "delay_compensation.strength", "staleness.decay": "delay_compensation.decay",
}  # fmt: skip


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
        """Return `config` as settings of the arm's project. A None becomes its own value; a default that it lacks is left out.

        Raises:
          UserError: its project lacks a setting that is not the default here.
        """
        given = config.model_dump(mode="json")
        if self.project == IMPORT_FOLDER:
            return given
        chosen = {f"{section}.{key}": given[section][key] for section, (key, _) in CHOSEN.items()}
        defaults = flat(build_config().with_values(chosen).model_dump(mode="json"))
        found = flat(read_yaml(self.project / DEFAULTS))
        for key, value in flat(given).items():
            known = key if key in found else _EARLIER.get(key, key)
            if known in found:
                found[known] = found[known] if value is None else value
            elif value != defaults.get(key):
                raise UserError(f"{key}: got {value!r}: '{self.project}' has no such setting")
        return nested(found)


SINGLE = BenchArm("single", "ps_cluster.tools.bench.single")
CLUSTER = BenchArm("cluster", "ps_cluster.tools.bench.cluster", can_be_slow=True)
SYNC = BenchArm("sync", "ps_cluster.tools.bench.cluster", values={"mode.name": "sync"}, can_be_slow=True)
PER_VARIABLE = BenchArm(
    "per_variable", "ps_cluster.tools.bench.cluster", arguments=("ps_cluster.tools.bench.per_variable",)
)
DDP = BenchArm("ddp", "ps_cluster.tools.bench.ddp", values={"mode.name": "sync"}, torch=True)
TORCH_SINGLE = BenchArm(
    "torch_single",
    "ps_cluster.tools.bench.ddp",
    values={"mode.name": "single", "cluster.intra_op_threads": allowance().threads},
    torch=True,
)

DEFAULT = (SINGLE, CLUSTER, SYNC, PER_VARIABLE)
ARMS = {arm.name: arm for arm in (*DEFAULT, DDP, TORCH_SINGLE)}


def choose(names: Iterable[str], ddp_python: Path | None = None) -> list[BenchArm]:
    """Return the arms of these names, in this order, each with its Python.

    Raises:
      UserError: an unknown name, or `ddp_python` is needed and has no PyTorch.
    """
    names = list(dict.fromkeys(names))
    if unknown := [name for name in names if name not in ARMS]:
        raise UserError(f"--arms: got '{unknown[0]}': {did_you_mean(unknown[0], ARMS)}there are {', '.join(ARMS)}")
    return [_with_torch(ARMS[name], ddp_python) if ARMS[name].torch else ARMS[name] for name in names]


def with_straggler(chosen: list[BenchArm], straggler: str, workers: int) -> list[BenchArm]:
    """Return `chosen`, each arm that can have slow workers followed by a copy with `straggler`.

    Raises:
      UserError: no arm can have slow workers, or `straggler` is no plain factor.
    """
    ideal = _ideal(straggler, workers)
    if not any(arm.can_be_slow for arm in chosen):
        able = " or ".join(arm.name for arm in ARMS.values() if arm.can_be_slow)
        raise UserError(f"--straggler: got '{straggler}': --arms has to name {able}")
    return [one for arm in chosen for one in (arm, *([_slowed(arm, straggler, ideal)] if arm.can_be_slow else []))]


def _slowed(arm: BenchArm, straggler: str, ideal: float) -> BenchArm:
    values = {**arm.values, "cluster.straggler": straggler}
    return replace(arm, name=f"{arm.name}+straggler", values=values, slowed=arm.name, ideal=ideal)


def _ideal(straggler: str, workers: int) -> float:
    """Return the share of throughput left if no worker waits for slow ones: 2.2 / 3 if one of three is 5x slower."""
    try:
        slow = parse_stragglers(straggler).slow
    except ValueError as error:
        raise UserError(f"--straggler: {error}") from error
    if not slow or any(one.extra_s for one in slow):
        raise UserError(f"--straggler: got '{straggler}': say how many times slower, e.g. 2:5x")
    return (workers - len(slow) + sum(1 / one.factor for one in slow)) / workers


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
