"""What a step costs, and the cluster it is to run on: all that the simulation knows of the real thing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ps_cluster.catalogue.modes import MODES, Waits
from ps_cluster.config.stragglers import Stragglers
from ps_cluster.errors import UserError
from ps_cluster.files.validation import first_error
from ps_cluster.files.writing import write_whole
from ps_cluster.files.yaml_files import dump_yaml, read_yaml
from ps_cluster.installation import CONFIG_FOLDER

COSTS_FOLDER = CONFIG_FOLDER / "simulate"

Seconds = Annotated[float, Field(ge=0, le=1e6)]
Variation = Annotated[float, Field(ge=0, le=10)]
"""Coefficient of variation: standard deviation over mean."""

_DELAYS = ("pull_delay_seconds", "push_delay_seconds", "step_gap_seconds")


class Costs(BaseModel):
    """Of one step of one worker. Seconds are wall seconds on a free machine, but for those called cpu."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)

    measured_on: str
    processor: str  # as `machine.processor_of` names it: on another one all seconds are others
    parameters: int = Field(ge=1, le=10**12)
    bytes_per_parameter: float = Field(gt=0, le=8)  # on the wire
    images_per_step: int = Field(ge=1, le=10**9)
    steps_per_dispatch: Literal["auto"] | Annotated[int, Field(ge=1, le=1000)]  # as in the configuration

    compute_seconds: float = Field(gt=0, le=1e6)  # from the parameters' arrival at the worker to the gradient
    compute_cv: Variation
    worker_cpu_seconds: Seconds  # all that the worker's process takes in a step, its share of pull and push included

    pull_fixed_seconds: Seconds  # of the parameter server's processor, for each request
    pull_seconds_per_parameter: Seconds
    push_fixed_seconds: Seconds
    apply_seconds_per_parameter: Seconds
    server_cv: Variation  # of these four together

    pull_delay_seconds: Seconds  # of a pull, in no queue: calls, packing, waking up
    push_delay_seconds: Seconds
    step_gap_seconds: Seconds  # between two steps
    dispatch_delay_seconds: Seconds  # that a new dispatch adds to it, beside what the chief's processor takes
    chief_seconds: Seconds  # of the chief's processor, for each dispatch
    chief_background_cores: float = Field(
        ge=0, lt=1
    )  # that the chief takes all the time: it looks, and writes progress

    # What a gradient takes in a round of sync-ps beside what it takes in mode async.
    round_push_seconds: (
        Seconds  # of the parameter server's processor: it is added up, and the last one closes the round
    )
    round_worker_cpu_seconds: Seconds
    startup_cpu_seconds: Seconds  # of each process before its first step; only for calibrating by CPU seconds

    def pull_seconds(self, servers: int) -> float:
        """Of one parameter server's processor for a pull, where `servers` share the parameters."""
        return self.pull_fixed_seconds + self.pull_seconds_per_parameter * self.parameters / servers

    def push_seconds(self, servers: int) -> float:
        """Of one parameter server's processor for a push, the update included."""
        return (
            self.push_fixed_seconds
            + self.round_push_seconds
            + self.apply_seconds_per_parameter * self.parameters / servers
        )

    @property
    def wire_bytes(self) -> float:
        """Of all parameters, one way."""
        return self.bytes_per_parameter * self.parameters

    @property
    def delay_seconds(self) -> float:
        """Of every step's delays."""
        return sum(getattr(self, name) for name in _DELAYS)

    def of_mode(self, mode: str) -> Costs:
        """The costs of a step in this mode."""
        if MODES[mode].waits is not Waits.IN_ROUNDS:
            return self.model_copy(update={"round_push_seconds": 0.0, "round_worker_cpu_seconds": 0.0})
        return self

    def with_delays_times(self, factor: float) -> Costs:
        """The same work with every step's delays so many times as long."""
        return self.model_copy(update={name: factor * getattr(self, name) for name in _DELAYS})


@dataclass(frozen=True)
class Network:
    """Every machine has one link of this rate in each direction; the switch between them is never short of it."""

    link_bytes_per_second: float
    latency_seconds: float

    def seconds(self, size_bytes: float) -> float:
        """That a link is busy with so many bytes."""
        return size_bytes / self.link_bytes_per_second


@dataclass(frozen=True)
class Cluster:
    """What is simulated.

    `cores`: of the one machine that all processes share; None gives each process its own. `pinned`:
    there each worker keeps to a part of them.
    """

    workers: int
    servers: int
    network: Network
    mode: str = "async"
    backup_workers: int = 0
    stragglers: Stragglers = Stragglers()
    cores: int | None = None
    pinned: bool = False
    seed: int = 0

    @property
    def waits(self) -> Waits:
        """For what a worker may have to wait."""
        return MODES[self.mode].waits

    @property
    def gradients_per_update(self) -> int:
        """Gradients that one update averages."""
        return self.workers - self.backup_workers if MODES[self.mode].averages else 1


def known_costs() -> list[str]:
    """Names that `costs_of` takes."""
    return sorted(path.stem for path in COSTS_FOLDER.glob("*.yaml"))


def costs_of(network: str) -> Costs:
    """The costs in configs/simulate/<network>.yaml."""
    return read_costs(COSTS_FOLDER / f"{network}.yaml")


def read_costs(file: Path) -> Costs:
    """Raises UserError for a file that can't be read, or a value of the wrong type or range."""
    return make_costs(read_yaml(file), str(file))


def make_costs(values: dict[str, Any], origin: str) -> Costs:
    """Raises UserError, which names `origin`, for a value of the wrong type or range."""
    try:
        return Costs.model_validate(values)
    except ValidationError as error:
        raise UserError(first_error(error, origin)) from error


def write_costs(file: Path, costs: Costs) -> None:
    """As YAML that `read_costs` takes."""
    write_whole(file, dump_yaml(costs.model_dump(mode="json")))
