"""Define the input of the simulation: the costs of a step, and the cluster to simulate."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ps_cluster.config.modes import MODES, Mode, Waits
from ps_cluster.config.stragglers import Stragglers
from ps_cluster.errors import UserError
from ps_cluster.files.values import first_error
from ps_cluster.files.yaml_files import read_yaml
from ps_cluster.installation import CONFIG_FOLDER
from ps_cluster.training.modes.asynchronous import Async
from ps_cluster.training.modes.local_steps import LocalMode
from ps_cluster.training.modes.sync import Sync
from ps_cluster.training.modes.sync_ps import SyncPs

SHIPPED_COSTS = CONFIG_FOLDER / "simulate" / "tutorial_cnn.yaml"

Seconds = Annotated[float, Field(ge=0, le=1e6)]
Variation = Annotated[float, Field(ge=0, le=10)]
"""Coefficient of variation: standard deviation over mean."""


def can_simulate(mode: Mode) -> bool:
    """Return whether a mode can be simulated."""
    return isinstance(mode, Async | Sync | SyncPs | LocalMode)


class TableCosts(BaseModel):
    """The costs of a network's embedding tables. A step moves only the distinct rows that its batch uses."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)

    values_per_step: float = Field(gt=0, le=1e12)  # the numbers in the distinct rows of a step, on average
    bytes_per_step: float = Field(gt=0, le=1e13)  # on the wire, one way: these numbers, and the indices of their rows
    weights: int = Field(ge=1, le=10**13)  # in all rows of all tables
    slots: int = Field(ge=0, le=10)  # the number of slots of the update rule; each is as large as the tables

    def server_bytes(self, mode: str, servers: int) -> int:
        """Return the bytes of memory for tables on one of `servers` parameter servers.

        A server holds its table rows in float32, their optimizer slots and, if the mode averages gradients, the sums of
        the gradients of a round.
        """
        return 4 * self.weights * (1 + self.slots + MODES[mode].averages) // servers


class Costs(BaseModel):
    """The costs of one step of one worker, measured on an idle machine.

    The times of the parameter servers' work, the times of the chief's work, and all fields with `cpu` in their names
    are in CPU seconds. The other times are in wall seconds.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)

    measured_on: str
    processor: str  # as `machine.processor_of` names it; on another processor all seconds differ
    parameters: int = Field(ge=1, le=10**12)  # without those in tables
    bytes_per_parameter: float = Field(gt=0, le=8)  # on the wire
    tables: TableCosts | None = None
    examples_per_step: int = Field(ge=1, le=10**9)
    steps_per_dispatch: Literal["auto"] | Annotated[int, Field(ge=1, le=1000)]  # as in the configuration

    compute_seconds: float = Field(gt=0, le=1e6)  # from the arrival of the parameters at the worker to the gradient
    compute_cv: Variation
    worker_cpu_seconds: Seconds  # of the worker's process in a step, its share of pull and push included

    pull_fixed_seconds: Seconds  # of the parameter server's CPU, for each request
    pull_seconds_per_parameter: Seconds
    push_fixed_seconds: Seconds
    apply_seconds_per_parameter: Seconds
    server_cv: Variation  # of the four costs above together

    pull_delay_seconds: Seconds  # of a pull, outside of any queue: calls, packing, waking up
    push_delay_seconds: Seconds
    step_gap_seconds: Seconds  # between two steps
    dispatch_delay_seconds: (
        Seconds  # added to the gap before the first step of a dispatch, besides the chief's CPU time
    )
    chief_seconds: Seconds  # of the chief's CPU, for each dispatch
    chief_background_cores: float = Field(ge=0, lt=1)  # the share of a core that the chief's periodic check always uses

    # Extra cost of a gradient in a round of sync-ps, in addition to its costs in mode async.
    round_push_seconds: Seconds  # of the parameter server's CPU: gradients are added up, the last one closes the round
    startup_cpu_seconds: Seconds  # of each process before its first step; only used to calibrate by CPU seconds

    def pull_seconds(self, servers: int) -> float:
        """Return the CPU seconds of one parameter server for a pull, if `servers` share the parameters."""
        return self.pull_fixed_seconds + self.pull_seconds_per_parameter * self.moved / servers

    def push_seconds(self, servers: int) -> float:
        """Return the CPU seconds of one parameter server for a push, the update included."""
        return (
            self.push_fixed_seconds + self.round_push_seconds + self.apply_seconds_per_parameter * self.moved / servers
        )

    @property
    def moved(self) -> float:
        """The number of values that a step pulls. It pushes the same number.

        These are all parameters outside of embedding tables, and the values of the table rows that the batch uses.
        """
        return self.parameters + (self.tables.values_per_step if self.tables else 0)

    @property
    def wire_bytes(self) -> float:
        """The bytes that a step sends in each direction: the mean of its pull and its push."""
        return self.bytes_per_parameter * self.parameters + (self.tables.bytes_per_step if self.tables else 0)

    @property
    def delay_seconds(self) -> float:
        """The sum of the delays of a step: of its pull, of its push, and of the gap before the next step."""
        return self.pull_delay_seconds + self.push_delay_seconds + self.step_gap_seconds

    def of_mode(self, mode: str) -> Costs:
        """Return the costs of a step in this mode.

        If the mode has no rounds, `round_push_seconds`, the additional cost of a push in a round, is 0.
        """
        if MODES[mode].synchrony.waits is not Waits.IN_ROUNDS:
            return self.model_copy(update={"round_push_seconds": 0.0})
        return self

    def with_local_steps(self, steps: int) -> Costs:
        """Return the costs of a period: `steps` steps, each with an update on the worker, then one pull and push."""
        if steps == 1:
            return self
        updating = self.apply_seconds_per_parameter * self.parameters
        in_delays = min(max(0.0, self.worker_cpu_seconds - self.compute_seconds), self.delay_seconds)
        computing = self.worker_cpu_seconds - in_delays
        changed = {
            "examples_per_step": steps * self.examples_per_step,
            "compute_seconds": steps * (self.compute_seconds + updating),
            "compute_cv": self.compute_cv / steps**0.5,
            "worker_cpu_seconds": steps * (computing + updating) + in_delays,
        }
        return self.model_copy(update=changed)

    def with_delays_times(self, factor: float) -> Costs:
        """Return the same costs with all delays of a step multiplied by `factor`."""
        changed = {
            "pull_delay_seconds": factor * self.pull_delay_seconds,
            "push_delay_seconds": factor * self.push_delay_seconds,
            "step_gap_seconds": factor * self.step_gap_seconds,
        }
        return self.model_copy(update=changed)


@dataclass(frozen=True)
class Links:
    """A computer network with one link per machine and direction. The switch is never the bottleneck."""

    link_bytes_per_second: float
    latency_seconds: float

    def seconds(self, size_bytes: float) -> float:
        """Return how many seconds a link is busy with `size_bytes`."""
        return size_bytes / self.link_bytes_per_second


@dataclass(frozen=True)
class SimulatedCluster:
    """The cluster to simulate."""

    workers: int
    servers: int
    network: Links
    mode: str = "async"
    backup_workers: int = 0
    stragglers: Stragglers = Stragglers()
    cores: int | None = None  # of the one machine that all processes share; None gives each process its own machine
    pinned: bool = False  # whether each worker on the one machine is pinned to some of its cores
    seed: int = 0

    @property
    def waits(self) -> Waits:
        """The reason for which a worker may have to wait, which depends on the mode."""
        return MODES[self.mode].synchrony.waits

    @property
    def gradients_per_update(self) -> int:
        """Number of gradients that one update averages."""
        return self.workers - self.backup_workers if MODES[self.mode].averages else 1


def read_costs(file: Path) -> Costs:
    """Return the costs in a file. Raises UserError if it can't be read, or a value has the wrong type or range."""
    try:
        return Costs.model_validate(read_yaml(file))
    except ValidationError as error:
        raise UserError(first_error(error, str(file))) from error
