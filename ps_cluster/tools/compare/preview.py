"""Tell which runs a comparison would train, without starting any."""

from __future__ import annotations

from collections.abc import Iterator

from ps_cluster.launch import topology
from ps_cluster.tools.compare.plan import Comparison, planned_runs, training_order


def lines(comparison: Comparison) -> Iterator[str]:
    """Yield a line for each run, in the order of training, with what its learning rate became, then their number.

    Raises:
      UserError: as `planned_runs`.
    """
    runs = training_order(planned_runs(comparison))
    for run in runs:
        rate = run.config.optimizer.learning_rate
        yield f"{run.name}: learning rate {rate:g}{' (scaled)' if run.scaled else ''}"
    expected = topology.expected(run.config for run in runs)
    yield f"runs: {len(runs)}, one after the other; memory expected: {expected}; nothing was started"
