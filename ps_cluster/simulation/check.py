"""Compare the simulation with a real run on this machine."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ps_cluster.catalogue.modes import MODES
from ps_cluster.cluster.pinning import keeps_to_cores
from ps_cluster.config.stragglers import parse_stragglers
from ps_cluster.errors import UserError
from ps_cluster.simulation.calibration import WIRE_BYTES, FinishedRun
from ps_cluster.simulation.costs import Costs, Links, SimulatedCluster
from ps_cluster.simulation.prediction import predict


@dataclass(frozen=True)
class Compared:
    """One quantity, predicted and measured."""

    name: str
    predicted: float
    measured: float

    @property
    def error(self) -> float | None:
        """Error relative to the measured value; None where that is 0."""
        return self.predicted / self.measured - 1 if self.measured else None

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"relative_error": self.error}


def check(costs: Costs, run: FinishedRun, cores: int) -> list[Compared]:
    """Predict `run`, whose processes shared `cores`, and compare.

    Raises:
      UserError: the run's mode or steps differ from those of `costs`, or the run measured nothing.
    """
    _refuse_other_work(costs, run)
    config = run.config
    predicted = predict(costs, _cluster_of(run, cores))
    measured = run.summary
    if not measured.examples_per_second:
        raise UserError(f"run directory '{run.root}': examples_per_second: got none: nothing to check against")
    found = [Compared("examples/s", predicted.examples_per_second, measured.examples_per_second)]
    if config.mode_kind.is_stale and measured.staleness.mean is not None:
        found.append(Compared("mean staleness", predicted.staleness_mean, measured.staleness.mean))
    return found


def _cluster_of(run: FinishedRun, cores: int) -> SimulatedCluster:
    config = run.config
    return SimulatedCluster(
        workers=config.training_workers,
        servers=config.cluster.parameter_servers,
        network=Links(float("inf"), 0.0),
        mode=config.mode.name,
        backup_workers=config.mode_kind.late_workers(config),
        stragglers=parse_stragglers(config.cluster.straggler),
        cores=cores,
        pinned=keeps_to_cores(config),
        seed=config.training.seed,
    )


def _refuse_other_work(costs: Costs, run: FinishedRun) -> None:
    kind = run.config.mode_kind
    if not kind.is_simulated or not kind.has_parameter_servers:
        known = " or ".join(mode.name for mode in MODES if mode.is_simulated and mode.has_parameter_servers)
        raise UserError(f"--check '{run.root}': mode.name: got '{kind.name}': {known} needed")
    if kind.delay(run.config):
        workers = kind.emulated_workers(run.config)
        raise UserError(f"--check '{run.root}': mode.simulate_workers: got {workers}: it needs null")
    for name, costed, done in (
        ("parameters", costs.parameters, run.parameters),
        ("examples a step", costs.examples_per_step, run.config.examples_per_step),
        ("bytes of a parameter on the wire", costs.bytes_per_parameter, WIRE_BYTES[run.config.wire]),
        ("cluster.steps_per_dispatch", costs.steps_per_dispatch, run.config.cluster.steps_per_dispatch),
    ):
        if costed != done:
            raise UserError(f"--check '{run.root}': {name}: got {done}, but the costs are of {costed}")
