"""What can be measured side by side: each arm a module that trains the run directory it is given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ps_cluster.config import RunConfig
from ps_cluster.errors import UserError


@dataclass(frozen=True)
class Arm:
    """A module that trains the run directory it is given and prints `{"examples_per_second": …}` as its last line."""

    name: str
    module: str
    arguments: tuple[str, ...] = ()  # of the module, behind the run directory
    values: Mapping[str, Any] = field(default_factory=dict)  # dotted key → value: what it sets in the configuration
    baseline: str = "single"  # the arm that its rate is held against

    def config(self, case: RunConfig) -> RunConfig:
        """`case` as this arm trains it: the same images, however many of them an update takes."""
        changed = case.with_values(self.values)
        return changed.with_values({"training.steps": max(1, case.training.steps // changed.steps_per_update)})


SINGLE = Arm("single", "benchmarks.single")
CLUSTER = Arm("cluster", "benchmarks.cluster")
SYNC = Arm("sync", "benchmarks.cluster", values={"training.mode": "sync"})
PER_VARIABLE = Arm("per_variable", "benchmarks.cluster", arguments=("--per-variable",))

DEFAULT = (SINGLE, CLUSTER, SYNC, PER_VARIABLE)
ARMS = {arm.name: arm for arm in DEFAULT}


def choose(names: Iterable[str]) -> list[Arm]:
    """The arms of these names, in this order; raises UserError for an unknown one."""
    names = list(dict.fromkeys(names))
    if unknown := [name for name in names if name not in ARMS]:
        raise UserError(f"--arms: got '{unknown[0]}': there are {', '.join(ARMS)}")
    return [ARMS[name] for name in names]
