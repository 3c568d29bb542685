"""Measure the costs of a step from a finished run: wall seconds from its ledger, CPU seconds from its summary."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pydantic import ValidationError

from ps_cluster.config import RunConfig, load_config
from ps_cluster.config.optimizer_rules import RULES
from ps_cluster.config.tasks import CHIEF, PS, WORKER
from ps_cluster.errors import UserError
from ps_cluster.files.json_files import read_json
from ps_cluster.files.json_rows import read_rows
from ps_cluster.files.values import first_error
from ps_cluster.runs import ledger_csv
from ps_cluster.runs.phases import phase_seconds, phase_times
from ps_cluster.runs.result_rows import ProgressRow, Summary
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.system.machine import processor_of
from ps_cluster.tools.simulate.costs import Costs, TableCosts
from ps_cluster.training.modes.asynchronous import Async

COLD_STEPS = 8  # first steps of each worker, in which TensorFlow still builds graphs
WIRE_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}
ROW_NUMBER_BYTES = 8  # in each direction: pulls and pushes name each row by its number


def bytes_per_parameter(config: RunConfig) -> float:
    """Return how many bytes are sent for one parameter: the mean of the bytes in a push and the bytes in a pull."""
    pushed: float = WIRE_BYTES.get(config.cluster.wire, WIRE_BYTES[config.wire])
    if config.cluster.wire == "top_k":
        pushed = 8 * config.cluster.top_k_share  # each number is sent with its index
    mean = (pushed + WIRE_BYTES[config.wire]) / 2
    return mean if mean % 1 else int(mean)


@dataclass(frozen=True)
class FinishedRun:
    """The configuration, summary and ledger of a finished run."""

    root: Path
    config: RunConfig
    summary: Summary
    rows: np.ndarray  # the ledger, a structured array of ledger.ROW
    starts: int  # how often its leader started

    @property
    def parameters(self) -> int:
        """The number of weights outside of embedding tables."""
        servers = self.summary.parameter_servers
        return sum((server.parameters or 0) - (server.table_parameters or 0) for server in servers)

    @property
    def tables(self) -> TableCosts | None:
        """The costs of the network's embedding tables; None without tables."""
        weights = sum(server.table_parameters or 0 for server in self.summary.parameter_servers)
        if not weights or self.summary.tables is None:
            return None
        rows, values = (count / len(self.rows) for count in (self.summary.tables.rows, self.summary.tables.row_values))
        return TableCosts(
            values_per_step=values,
            bytes_per_step=ROW_NUMBER_BYTES * rows + WIRE_BYTES[self.config.wire] * values,
            weights=weights,
            slots=len(RULES[self.config.optimizer.rule].update.slot_names),
        )

    @property
    def processor(self) -> str:
        return processor_of(self.summary.machine)

    def cpu_seconds(self, task_type: str, startup: float) -> float:
        """Return the CPU seconds of all processes of a task type, without their start-up."""
        took = [process.cpu_seconds for process in self.summary.processes if process.type == task_type]
        return max(0.0, sum(seconds or 0.0 for seconds in took) - startup * len(took))


def read_run(root: Path) -> FinishedRun:
    """Return the run in `root`. Raises UserError if this run has not ended, or if its summary lacks a value."""
    run_dir = RunDir.open(root)
    try:
        rows, summary = ledger_csv.read_csv(run_dir.updates), read_json(run_dir.summary, Summary)
    except FileNotFoundError as error:
        raise UserError(f"run directory '{root}' holds no {run_dir.summary.name}: its run has not ended") from error
    for name, there in (("processes", summary.processes), ("parameter_servers", summary.parameter_servers)):
        if not there:
            raise UserError(f"{run_dir.summary.name} in '{root}': {name} is missing: nothing to calibrate from")
    if summary.train_seconds <= 0:
        raise UserError(
            f"{run_dir.summary.name} in '{root}': train_seconds: got {summary.train_seconds:g}: it has to be above 0"
        )
    starts = sum(row.phase == "connecting" for row in read_rows(run_dir.progress, ProgressRow))
    return FinishedRun(root, load_config(run_dir.config), summary, rows, starts)


def calibrate(run: FinishedRun, base: Costs) -> Costs:
    """Return the costs of a step, measured in a run of mode async.

    Some costs can't be measured in a single run of this mode, so they are taken from `base`: the costs per parameter,
    the chief's cost per dispatch (its message with a worker's next steps), the cost of a round, and that of the
    start-up.

    Raises:
      UserError: the run has another mode, was resumed or restarted, or has too few steps, or a cost is out of range.
    """
    if run.config.mode.name != Async.name:
        raise UserError(
            f"run directory '{run.root}': mode.name: got '{run.config.mode.name}': give a run of mode {Async.name}"
        )
    if run.starts > 1:  # the CPU seconds are those of the last launcher only, or include steps that were rolled back
        raise UserError(
            f"run directory '{run.root}': its training began {run.starts} times: take a run that was neither resumed "
            "nor restarted"
        )
    walls = _wall_seconds(run)
    of_worker, of_servers, of_chief = (
        run.cpu_seconds(kind, base.startup_cpu_seconds) / len(run.rows) for kind in (WORKER, PS, CHIEF)
    )  # CPU seconds of a step
    servers = len(run.summary.parameter_servers)
    share = (run.parameters + (run.tables.values_per_step if run.tables else 0)) / servers
    # The CPU seconds of a server are split in proportion to the wall seconds of pull and push.
    pull, push = (of_servers / servers * wall / (walls.pull + walls.push) for wall in (walls.pull, walls.push))
    of_pull, of_apply = base.pull_seconds_per_parameter * share, base.apply_seconds_per_parameter * share
    dispatching = base.chief_seconds * len(np.unique(run.rows["scheduled_time"]))
    background = (of_chief * len(run.rows) - dispatching) / run.summary.train_seconds
    try:
        return Costs(
            measured_on=_about(run, servers),
            processor=run.processor,
            parameters=run.parameters,
            bytes_per_parameter=bytes_per_parameter(run.config),
            tables=run.tables,
            examples_per_step=run.config.examples_per_step,
            steps_per_dispatch=run.config.cluster.steps_per_dispatch,
            compute_seconds=walls.compute,
            compute_cv=walls.compute_cv,
            worker_cpu_seconds=of_worker,
            pull_fixed_seconds=max(0.0, pull - of_pull),
            pull_seconds_per_parameter=base.pull_seconds_per_parameter,
            push_fixed_seconds=max(0.0, push - of_apply),
            apply_seconds_per_parameter=base.apply_seconds_per_parameter,
            server_cv=walls.push_cv,
            pull_delay_seconds=max(0.0, walls.pull - pull),
            push_delay_seconds=max(0.0, walls.push - push),
            step_gap_seconds=walls.step_gap,
            dispatch_delay_seconds=max(0.0, walls.dispatch_gap - walls.step_gap - base.chief_seconds),
            chief_seconds=base.chief_seconds,
            chief_background_cores=max(0.0, background),
            round_push_seconds=base.round_push_seconds,
            startup_cpu_seconds=base.startup_cpu_seconds,
        )
    except ValidationError as error:
        raise UserError(first_error(error, str(run.root))) from error


def _about(run: FinishedRun, servers: int) -> str:
    workers, model = run.config.training_workers, run.config.model
    about = f"{run.root.name}: {model.name}, {model.precision}, workers {workers}, ps {servers}, steps {len(run.rows)}"
    if workers == 1:
        return about
    return f"{about}; these times include waits of the workers for each other: take a run with --workers 1"


class WallSeconds(NamedTuple):
    """The mean wall seconds of each phase of a step, and the coefficients of variation of computing and pushing.

    `step_gap` is the time between two steps of the same dispatch, `dispatch_gap` that between two dispatches.
    """

    pull: float
    compute: float
    compute_cv: float
    push: float
    push_cv: float
    step_gap: float
    dispatch_gap: float


def _wall_seconds(run: FinishedRun) -> WallSeconds:
    steps = [_steps_of(run.rows[run.rows["pid"] == pid]) for pid in np.unique(run.rows["pid"])]
    if not any(len(within) and len(between) for _, within, between in steps):
        raise UserError(f"run directory '{run.root}': {len(run.rows)} steps are too few to calibrate from")
    phases, step_gaps, dispatch_gaps = (np.concatenate(parts, axis=-1) for parts in zip(*steps, strict=True))
    pull, compute, push = phases
    return WallSeconds(
        pull=float(pull.mean()),
        compute=float(compute.mean()),
        compute_cv=float(compute.std() / compute.mean()),
        push=float(push.mean()),
        push_cv=float(push.std() / push.mean()),
        step_gap=float(step_gaps.mean()),
        dispatch_gap=float(dispatch_gaps.mean()),
    )


def _steps_of(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the seconds of one worker's steps and of the gaps between them, as three arrays.

    The first array, [3, steps], has the seconds of pull, compute and push. The second array, [k], has the gaps within a
    dispatch, and the third array, [m], the gaps between two dispatches.
    """
    rows = np.sort(rows, order="asked_time")[COLD_STEPS:]
    times, seconds = phase_times(rows), phase_seconds(rows)
    gaps, between = times[0, 1:] - times[-1, :-1], np.diff(rows["scheduled_time"]) != 0
    return np.stack([seconds.pulls, seconds.computes, seconds.pushes + seconds.applies]), gaps[~between], gaps[between]
