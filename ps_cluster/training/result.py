"""Put together the leader's result of a training, the content of training.json."""

from __future__ import annotations

from collections.abc import Sequence

from ps_cluster.config import RunConfig
from ps_cluster.runs.result_rows import (
    Gradients,
    KeyedUse,
    Proof,
    ServerSize,
    TrainingOutcome,
    TrainingResult,
    Updates,
)
from ps_cluster.training.run_progress import RunProgress


def training_result(
    config: RunConfig,
    progress: RunProgress,
    outcome: TrainingOutcome,
    *,
    proof: Proof | None = None,
    duplicated: int | None = None,
    keyed: Sequence[KeyedUse] = (),
    parameter_servers: Sequence[ServerSize] = (),
) -> TrainingResult:
    """Return the result of a training. Each keyword argument is the value of the field of the same name."""
    times, tally = progress.clock.times, progress.tally
    scheduled, applied, counts = progress.scheduled_updates.count, progress.applied, progress.counts_of_shards
    return TrainingResult(
        outcome=outcome,
        bad_losses=tally.bad_losses,
        train_seconds=times.seconds if times.last_update is None else times.last_update,
        rolled_back_seconds=times.rolled_back,
        interrupted_seconds=times.interrupted,
        goodput=times.goodput,
        examples_per_second=tally.examples_per_second(times.last_update, config.chosen_mode.late_workers(config)),
        updates=Updates(
            scheduled=scheduled,
            applied=applied,
            duplicated=duplicated,
            lost=scheduled - applied,
            replays_refused=max(of_shard.refused for of_shard in counts),
            mixed=progress.mixed,
        ),
        gradients=Gradients(
            scheduled=scheduled * config.steps_per_update,
            applied=tally.gradients,
            dropped=max(of_shard.dropped for of_shard in counts),
            per_update=config.gradients_per_update,
        ),
        tables=tally.tables,
        keyed=list(keyed),
        proof=proof,
        staleness=tally.staleness_summary(),
        workers=tally.workers(),
        parameter_servers=list(parameter_servers),
    )
