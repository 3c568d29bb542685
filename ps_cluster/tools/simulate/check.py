"""Compare the simulation with a real run on this machine."""

from __future__ import annotations

from dataclasses import dataclass

from ps_cluster.config.modes import MODES
from ps_cluster.config.stragglers import parse_stragglers
from ps_cluster.errors import UserError
from ps_cluster.launch.pinning import keeps_to_cores
from ps_cluster.tools.simulate.calibration import FinishedRun, bytes_per_parameter
from ps_cluster.tools.simulate.costs import Costs, Links, SimulatedCluster, can_simulate
from ps_cluster.tools.simulate.prediction import predict


@dataclass(frozen=True)
class PredictedAndMeasured:
    """A quantity, with its predicted and its measured value."""

    name: str
    predicted: float
    measured: float

    @property
    def error(self) -> float | None:
        """The error relative to the measured value; None if the measured value is 0."""
        return self.predicted / self.measured - 1 if self.measured else None


def check(costs: Costs, run: FinishedRun, cores: int) -> list[PredictedAndMeasured]:
    """Compare `run`, whose processes shared `cores` cores, with a prediction.

    Raises UserError if `run` has a setting that is not simulated, or if `costs` were measured with another network,
    batch size, wire format or number of steps per dispatch.
    """
    config, measured = run.config, run.summary
    costs = costs.with_local_steps(config.batches_per_step)
    if reason := _why_not(costs, run):
        raise UserError(f"--check '{run.root}': {reason}")
    cluster = SimulatedCluster(
        workers=config.training_workers,
        servers=config.cluster.parameter_servers,
        network=Links(float("inf"), 0.0),
        mode=config.mode.name,
        backup_workers=config.chosen_mode.late_workers(config),
        stragglers=parse_stragglers(config.cluster.straggler),
        cores=cores,
        pinned=keeps_to_cores(config),
        seed=config.training.seed,
    )
    predicted = predict(costs, cluster)
    if not measured.examples_per_second:
        raise UserError(f"run directory '{run.root}': examples_per_second: got none: nothing to check against")
    found = [PredictedAndMeasured("examples/s", predicted.examples_per_second, measured.examples_per_second)]
    if config.chosen_mode.synchrony.is_stale and measured.staleness.mean is not None:
        found.append(PredictedAndMeasured("mean staleness", predicted.staleness_mean, measured.staleness.mean))
    return found


def _why_not(costs: Costs, run: FinishedRun) -> str | None:
    """Return why a prediction can't be compared with `run`; None if it can."""
    kind, config = run.config.chosen_mode, run.config
    if not can_simulate(kind) or not kind.has_parameter_servers:
        known = " or ".join(mode.name for mode in MODES if can_simulate(mode) and mode.has_parameter_servers)
        return f"mode.name: got '{kind.name}': give a run of mode {known}"
    if kind.takes_fewer_batches(config):
        return "mode.dynamic_steps: got true: this is not simulated: give a run in which it is false"
    if grace_s := kind.grace_seconds(config):
        return f"mode.grace_seconds: got {grace_s:g}: this is not simulated: give a run in which it is 0"
    if kind.delay(config):
        got = kind.emulated_workers(config)
        return f"mode.simulate_workers: got {got}: this is not simulated: give a run in which it is null"
    for name, costed, done in (
        ("parameters", costs.parameters, run.parameters),
        ("weights in tables", costs.tables and costs.tables.weights, run.tables and run.tables.weights),
        ("examples per step", costs.examples_per_step, config.examples_per_step),
        ("bytes of a parameter on the wire", costs.bytes_per_parameter, bytes_per_parameter(config)),
        ("cluster.steps_per_dispatch", costs.steps_per_dispatch, config.cluster.steps_per_dispatch),
    ):
        if costed != done:
            return f"{name}: got {done}, but the costs were measured with {costed}"
    return None
