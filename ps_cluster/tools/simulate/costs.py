"""The input of the simulation: what a step costs, and the cluster that it runs on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ps_cluster.config import RunConfig, load_config
from ps_cluster.config.modes import MODES, Mode, Waits
from ps_cluster.config.schema import Stragglers
from ps_cluster.errors import UserError
from ps_cluster.files.json_files import read_json
from ps_cluster.files.json_rows import read_rows
from ps_cluster.files.values import first_error
from ps_cluster.files.yaml_files import read_yaml
from ps_cluster.installation import CONFIG_FOLDER
from ps_cluster.runs import proof
from ps_cluster.runs.phases import phase_times
from ps_cluster.runs.result_rows import ProgressRow, Summary
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.system.machine import processor_of
from ps_cluster.training.modes.asynchronous import Async
from ps_cluster.training.modes.local_steps import LocalMode
from ps_cluster.training.modes.sync import Sync
from ps_cluster.training.modes.sync_ps import SyncPs


def can_simulate(mode: Mode) -> bool:
    """Return whether the simulation knows how a mode's workers and servers take turns."""
    return isinstance(mode, Async | Sync | SyncPs | LocalMode)


COSTS_FOLDER = CONFIG_FOLDER / "simulate"

Seconds = Annotated[float, Field(ge=0, le=1e6)]
Variation = Annotated[float, Field(ge=0, le=10)]
"""Coefficient of variation: standard deviation over mean."""

_DELAYS = ("pull_delay_seconds", "push_delay_seconds", "step_gap_seconds")


class Costs(BaseModel):
    """Costs of one step of one worker. Seconds are wall seconds on a free machine, except for fields named cpu."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)

    measured_on: str
    processor: str  # as `machine.processor_of` names it; on another processor all seconds differ
    parameters: int = Field(ge=1, le=10**12)
    bytes_per_parameter: float = Field(gt=0, le=8)  # on the wire
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
    dispatch_delay_seconds: Seconds  # added to it by a new dispatch, beside the chief's CPU time
    chief_seconds: Seconds  # of the chief's CPU, for each dispatch
    chief_background_cores: float = Field(ge=0, lt=1)  # that the chief always uses, to look and to write progress

    # Extra cost of a gradient in a round of sync-ps, beside those in mode async.
    round_push_seconds: Seconds  # of the parameter server's CPU: gradients are added up, the last one closes the round
    startup_cpu_seconds: Seconds  # of each process before its first step; only used to calibrate by CPU seconds

    def pull_seconds(self, servers: int) -> float:
        """Return the CPU seconds of one parameter server for a pull, if `servers` share the parameters."""
        return self.pull_fixed_seconds + self.pull_seconds_per_parameter * self.parameters / servers

    def push_seconds(self, servers: int) -> float:
        """Return the CPU seconds of one parameter server for a push, the update included."""
        return (
            self.push_fixed_seconds
            + self.round_push_seconds
            + self.apply_seconds_per_parameter * self.parameters / servers
        )

    @property
    def wire_bytes(self) -> float:
        """Bytes of all parameters, one way."""
        return self.bytes_per_parameter * self.parameters

    @property
    def delay_seconds(self) -> float:
        """Sum of the delays of a step."""
        return float(sum(getattr(self, name) for name in _DELAYS))

    def of_mode(self, mode: str) -> Costs:
        """Return the costs of a step in this mode."""
        if MODES[mode].promise.waits is not Waits.IN_ROUNDS:
            return self.model_copy(update={"round_push_seconds": 0.0})
        return self

    def with_local_steps(self, steps: int) -> Costs:
        """Return the costs of a period: so many steps, each with an update of the worker's own, and one exchange."""
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
        return self.model_copy(update={name: factor * getattr(self, name) for name in _DELAYS})


@dataclass(frozen=True)
class Links:
    """A network with one link of this rate per machine and direction. The switch is never the bottleneck."""

    link_bytes_per_second: float
    latency_seconds: float

    def seconds(self, size_bytes: float) -> float:
        """Return how many seconds a link is busy with `size_bytes`."""
        return size_bytes / self.link_bytes_per_second


@dataclass(frozen=True)
class SimulatedCluster:
    """The cluster to simulate.

    `cores`: of the one machine that all processes share; None gives each process a machine of its own. `pinned`: each
    worker on the one machine keeps to some of its cores.
    """

    workers: int
    servers: int
    network: Links
    mode: str = "async"
    backup_workers: int = 0
    stragglers: Stragglers = Stragglers()
    cores: int | None = None
    pinned: bool = False
    seed: int = 0

    @property
    def waits(self) -> Waits:
        """The event that a worker may have to wait for."""
        return MODES[self.mode].promise.waits

    @property
    def gradients_per_update(self) -> int:
        """Number of gradients that one update averages."""
        return self.workers - self.backup_workers if MODES[self.mode].averages else 1


def known_costs() -> list[str]:
    """Return the names that `costs_of` takes."""
    return sorted(path.stem for path in COSTS_FOLDER.glob("*.yaml"))


def costs_of(network: str) -> Costs:
    """Return the costs in configs/simulate/<network>.yaml."""
    return read_costs(COSTS_FOLDER / f"{network}.yaml")


def read_costs(file: Path) -> Costs:
    """Return the costs in a file. Raises UserError for an unreadable file or a value of the wrong type or range."""
    return make_costs(read_yaml(file), str(file))


def make_costs(values: dict[str, Any], origin: str) -> Costs:
    """Return costs of these values. Raises UserError, naming `origin`, for a value of the wrong type or range."""
    try:
        return Costs.model_validate(values)
    except ValidationError as error:
        raise UserError(first_error(error, origin)) from error


# Measure costs from a finished run: wall seconds from its ledger, CPU seconds from its summary.

WIRE_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}


def bytes_per_parameter(config: RunConfig) -> float:
    """Return the mean bytes of a parameter in a push and a pull."""
    sent_with_place = 8
    pushed: float = WIRE_BYTES.get(config.cluster.wire, WIRE_BYTES[config.wire])
    if config.cluster.wire == "top_k":
        pushed = sent_with_place * config.cluster.top_k_share
    mean = (pushed + WIRE_BYTES[config.wire]) / 2
    return mean if mean % 1 else int(mean)


COLD_STEPS = 8  # first steps of each worker, in which TensorFlow still builds graphs


@dataclass(frozen=True)
class FinishedRun:
    """Configuration, summary and ledger of a finished run."""

    root: Path
    config: RunConfig
    summary: Summary
    rows: np.ndarray  # of ledger.ROW
    starts: int  # number of times its leader started

    @property
    def parameters(self) -> int:
        return sum(server.parameters or 0 for server in self.summary.parameter_servers)

    @property
    def processor(self) -> str:
        return processor_of(self.summary.machine)

    @property
    def dispatches(self) -> int:
        return len(np.unique(self.rows["scheduled_time"]))

    def cpu_seconds(self, kind: str, startup: float) -> float:
        """Return the CPU seconds of all processes of a kind ("worker", "ps", "chief"), without their start-up."""
        took = [process.cpu_seconds for process in self.summary.processes if process.type == kind]
        return max(0.0, sum(seconds or 0.0 for seconds in took) - startup * len(took))


def read_run(root: Path) -> FinishedRun:
    """Return the run in `root`. Raises UserError where no training has ended, or its files lack what is needed."""
    run_dir = RunDir.open(root)
    try:
        rows, summary = proof.read_csv(run_dir.updates), read_json(run_dir.summary, Summary)
    except FileNotFoundError as error:
        raise UserError(f"run directory '{root}' holds no {run_dir.summary.name}: nothing to calibrate from") from error
    for name in ("processes", "parameter_servers"):
        if not getattr(summary, name):
            raise UserError(f"{run_dir.summary.name} in '{root}': {name}: got none: nothing to calibrate from")
    if summary.train_seconds <= 0:
        raise UserError(
            f"{run_dir.summary.name} in '{root}': train_seconds: got {summary.train_seconds:g}: it needs more"
        )
    starts = sum(row.phase == "connecting" for row in read_rows(run_dir.progress, ProgressRow))
    return FinishedRun(root, load_config(run_dir.config), summary, rows, starts)


def calibrate(run: FinishedRun, base: Costs) -> Costs:
    """Return the costs of a step, measured in a run of mode async.

    One run can't tell the costs per parameter, per dispatch and of start-up: they are taken from `base`.

    Raises:
      UserError: the run is of another mode, started more than once, or is too short.
    """
    if run.config.mode.name != Async.name:
        raise UserError(f"run directory '{run.root}': mode.name: got '{run.config.mode.name}': it needs {Async.name}")
    if run.starts > 1:  # the CPU seconds are those of the last launcher only, or include steps that were rolled back
        raise UserError(
            f"run directory '{run.root}': its training began {run.starts} times: take one that was not resumed"
        )
    walls = _wall_seconds(run)
    cpu = {
        kind: run.cpu_seconds(kind, base.startup_cpu_seconds) / len(run.rows) for kind in ("worker", "ps", "chief")
    }  # of a step
    servers = len(run.summary.parameter_servers)
    share = run.parameters / servers
    # The CPU seconds of a server are split as pull and push took wall seconds.
    pull, push = (cpu["ps"] / servers * walls[name] / (walls["pull"] + walls["push"]) for name in ("pull", "push"))
    of_pull, of_apply = base.pull_seconds_per_parameter * share, base.apply_seconds_per_parameter * share
    dispatching = base.chief_seconds * run.dispatches
    background = (cpu["chief"] * len(run.rows) - dispatching) / run.summary.train_seconds
    measured = {
        "measured_on": _about(run, servers),
        "processor": run.processor,
        "parameters": run.parameters,
        "bytes_per_parameter": bytes_per_parameter(run.config),
        "examples_per_step": run.config.examples_per_step,
        "steps_per_dispatch": run.config.cluster.steps_per_dispatch,
        "compute_seconds": walls["compute"],
        "compute_cv": walls["compute_cv"],
        "worker_cpu_seconds": cpu["worker"],
        "pull_fixed_seconds": max(0.0, pull - of_pull),
        "push_fixed_seconds": max(0.0, push - of_apply),
        "server_cv": walls["push_cv"],
        "pull_delay_seconds": max(0.0, walls["pull"] - pull),
        "push_delay_seconds": max(0.0, walls["push"] - push),
        "step_gap_seconds": walls["step_gap"],
        "dispatch_delay_seconds": max(0.0, walls["dispatch_gap"] - walls["step_gap"] - base.chief_seconds),
        "chief_background_cores": max(0.0, background),
    }
    return make_costs(base.model_dump() | measured, str(run.root))


def _about(run: FinishedRun, servers: int) -> str:
    workers, model = run.config.training_workers, run.config.model
    told = f"{run.root.name}: {model.name}, {model.precision}, workers {workers}, ps {servers}, steps {len(run.rows)}"
    return told if workers == 1 else f"{told}; the workers' waiting for each other is in the times: take a run with 1"


def _wall_seconds(run: FinishedRun) -> dict[str, float]:
    """Return means over all workers, and two coefficients of variation."""
    steps = [_steps_of(run.rows[run.rows["pid"] == pid]) for pid in np.unique(run.rows["pid"])]
    if not any(len(within) and len(between) for _, within, between in steps):
        raise UserError(f"run directory '{run.root}': {len(run.rows)} steps are too few to calibrate from")
    phases, step_gaps, dispatch_gaps = (np.concatenate(parts, axis=-1) for parts in zip(*steps, strict=True))
    pull, compute, push = phases
    return {
        "pull": float(pull.mean()),
        "compute": float(compute.mean()),
        "compute_cv": float(compute.std() / compute.mean()),
        "push": float(push.mean()),
        "push_cv": float(push.std() / push.mean()),
        "step_gap": float(step_gaps.mean()),
        "dispatch_gap": float(dispatch_gaps.mean()),
    }


def _steps_of(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return one worker's seconds [3, steps] of pull, compute, push; of gaps within a dispatch; of gaps between two."""
    rows = np.sort(rows, order="asked_time")[COLD_STEPS:]
    times = phase_times(rows)
    _, pull, compute, _, push, apply = np.diff(times, axis=0)
    gaps, between = times[0, 1:] - times[-1, :-1], np.diff(rows["scheduled_time"]) != 0
    return np.stack([pull, compute, push + apply]), gaps[~between], gaps[between]
