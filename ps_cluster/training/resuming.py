"""Check whether a run can be resumed from a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
from pydantic import ValidationError

from ps_cluster.config import fitted
from ps_cluster.config.samples import WorkerParts
from ps_cluster.config.schema import RunConfig
from ps_cluster.data.packed import PackedDataset
from ps_cluster.errors import UserError
from ps_cluster.files.values import Malformed
from ps_cluster.notices import Notify
from ps_cluster.runs import checkpoints, journal, step_set
from ps_cluster.runs.checkpoint_arrays import ACCEPTED_STEPS, COUNTERS, LEDGER, WAITING
from ps_cluster.runs.checkpoints import Checkpoint, CheckpointError, ProgressState, StatesUnreadable
from ps_cluster.runs.journal import JournalDamaged
from ps_cluster.runs.ledger import COLUMNS, COUNTS, check_values, counts_of, rows_of
from ps_cluster.runs.resharding import is_aligned
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.runs.step_set import MOST_OPEN, StepSet
from ps_cluster.training.agreement import facts_of_data, text_of


def newest_checkpoint(config: RunConfig, run_dir: RunDir, dataset: PackedDataset, notify: Notify) -> Checkpoint:
    """Return the newest readable checkpoint or snapshot.

    This function checks that a run with `config` and `dataset` can continue from it.

    The checkpoint may have another number of shards than `config`. In this case all its shards have applied the same
    steps (runs/resharding.py).

    Raises:
      UserError: there is no checkpoint, or it belongs to a run with other settings or data.
    """
    checkpoint = newest_for(config.shards, run_dir, notify)
    if checkpoint is None:
        do = "begin a new run" if run_dir.has_trained else f"begin it again with --run-dir {run_dir.root}"
        raise UserError(f"run directory '{run_dir.root}' holds no checkpoint to resume from: {do}")
    before, progress = _state_of(checkpoint, run_dir)
    _check_same(_work(before), _work(config))
    _check_same(checkpoint.meta.data or {}, facts_of_data(dataset))
    begun = _begun(checkpoint, progress, before, run_dir)
    if begun > (total := config.total_updates(dataset.train_examples)):
        raise UserError(
            f"training.steps, training.epochs: {total} updates in all, but {begun} updates of the run in "
            f"'{run_dir.root}' have begun: resume it with at least {begun}"
        )
    steps = checkpoint.arrays[ACCEPTED_STEPS]
    if steps.max() - steps[:, 0].min() > config.ledger_window:
        raise UserError(
            f"cluster.workers: got {config.cluster.workers}: with this number of workers, a ledger has room for "
            f"{config.ledger_window:,} steps from the first unfinished step on, but the run in '{run_dir.root}' has accepted "
            "later steps: resume the run with as many workers as before"
        )
    return checkpoint


def newest_for(shards: int, run_dir: RunDir, notify: Notify) -> Checkpoint | None:
    """Return the newest readable checkpoint or snapshot that can be cut into `shards` shards; None if there is none.

    Raises:
      StatesUnreadable: the system refuses to read a state.
    """

    def check(found: Checkpoint) -> None:
        arrays = found.arrays
        if arrays.keys() >= LEDGER and len(arrays[COUNTERS]) != shards and not is_aligned(arrays):
            raise CheckpointError(
                f"checkpoint of step {found.step}: its {len(arrays[COUNTERS])} parameter servers had not applied the "
                f"same steps, so {shards} parameter servers can't continue from it"
            )

    return checkpoints.load_to_resume(run_dir.states, notify, check)


def check_journals(found: Checkpoint, run_dir: RunDir, shards: int) -> None:
    """Raise UserError if the journals (the ledgers' copies on disk) lack rows that the checkpoint counts.

    Args:
      shards: the number of shards with which training continues.
    """
    for index in range(shards):
        try:
            journal.check_lengths(journal.history_of(run_dir, found.meta.leaders, index))
        except JournalDamaged as error:
            do = "put it back, or begin anew in another run directory"
            raise UserError(f"the checkpoint of step {found.step} can't be resumed: {error}: {do}") from error
        except OSError as error:
            raise StatesUnreadable(
                f"'{error.filename or run_dir.journals}' can't be read ({error.strerror}): check the disk"
            ) from error


def _state_of(found: Checkpoint, run_dir: RunDir) -> tuple[RunConfig, ProgressState]:
    """Return configuration and progress of a checkpoint. Raises UserError if another version of the package wrote it."""
    earlier = UserError(
        f"run directory '{run_dir.root}' was written by an earlier version, with another configuration or ledger: "
        "it can't be resumed; begin anew in another run directory"
    )
    try:
        config = fitted(found.meta.config)
    except ValidationError as error:
        raise earlier from error
    if found.meta.progress is None or found.meta.times is None or not found.arrays.keys() >= LEDGER:
        raise earlier
    if [found.arrays[name].shape[1] for name in (COUNTERS, WAITING)] != [len(COUNTS), 1 + len(COLUMNS)]:
        raise earlier
    return config, found.meta.progress


def _begun(found: Checkpoint, progress: ProgressState, config: RunConfig, run_dir: RunDir) -> int:
    """Return how many updates had begun at a checkpoint. Raises UserError if its numbers contradict each other."""
    scheduled = step_set.from_state(progress.scheduled)
    if (first := next(_contradictions(found, progress, scheduled, config, run_dir), None)) is not None:
        raise UserError(
            f"the checkpoint of step {found.step} can't be resumed: its numbers of updates contradict each other "
            f"({first}): remove it from '{run_dir.root}' to resume an older one"
        )
    return scheduled.end


def _contradictions(
    found: Checkpoint, progress: ProgressState, scheduled: StepSet, config: RunConfig, run_dir: RunDir
) -> Iterator[str]:
    """Yield contradictions between numbers of a checkpoint. Use only the first: later checks rely on earlier ones."""
    leaders, applied, steps = found.meta.leaders, progress.applied, found.arrays[ACCEPTED_STEPS]
    table, waiting = found.arrays[COUNTERS], found.arrays[WAITING]
    counts = counts_of(table)
    if not leaders:
        yield "it names no leader"
    # For a shard that an earlier leader did not have, the rows of shard 0 count, because they are the same.
    rows = [sum(part.rows for part in journal.history_of(run_dir, leaders, index)) for index in range(len(counts))]
    if rows != (accepted := [of_shard.accepted for of_shard in counts]):
        yield f"the journals have {rows} rows, and the shards have accepted {accepted} gradients"
    lengths = [len(counts), len(leaders[-1].rows), len(steps), config.shards]
    if len(set(lengths)) > 1:
        yield f"counters, journals, accepted steps and configuration have {lengths} shards"
    if table.min(initial=0) < 0:
        yield f"a counter is negative, {table.min()}"
    if not steps.shape[1] or (steps[:, 0] > applied.below).any():
        yield (
            f"a shard's record of accepted steps is empty, or begins above step {applied.below}, although step "
            f"{applied.below} is not applied"
        )
    if len(waiting) > MOST_OPEN:
        yield f"{len(waiting)} rows wait for other shards, and at most {MOST_OPEN} can wait"
    if not np.isin(waiting[:, 0], np.arange(config.shards)).all():
        yield f"a waiting row belongs to none of the {config.shards} shards"
    if not _are_rows(waiting[:, 1:]):
        yield "a row of the ledger that waits for other shards has an impossible value"
    if applied.count > min(accepted):
        yield f"{applied.count} steps are applied, but a shard has accepted only {min(accepted)}"
    if abs((gradients := sum(progress.tally.staleness.values())) - applied.count) > MOST_OPEN:
        yield f"{applied.count} steps are applied, but the staleness of {gradients} steps is recorded"
    if abs(scheduled.first_missing - (version := min(of_shard.version for of_shard in counts))) > MOST_OPEN:
        yield (
            f"update {scheduled.first_missing} is the first that was not handed out, but the lowest version of a shard is "
            f"{version}"
        )
    if abs(scheduled.end * config.steps_per_update - applied.below) > MOST_OPEN:
        yield f"{scheduled.end} updates were handed out, but step {applied.below} is the first that is not applied"


def _are_rows(table: np.ndarray) -> bool:
    try:
        check_values(rows_of(table))
    except Malformed:
        return False
    return True


def _work(config: RunConfig) -> dict[str, Any]:
    """Return name → value of all settings that decide which gradient belongs to a step id, and how it is applied."""
    training, shards = config.training, isinstance(config.sample, WorkerParts)
    return {
        # The first difference is reported, so settings that determine other settings come first: another network may also
        # have a recipe with another label smoothing.
        "mode.name": config.mode.name,
        **{
            f"model.{name}": value
            for name, value in config.model.model_dump(mode="json", exclude={"precision"}).items()
        },
        "number of batches in a step": config.batches_per_step,
        "whether a step may have fewer batches": config.chosen_mode.takes_fewer_batches(config),
        "training.batch_size_per_worker": training.batch_size_per_worker,
        "training.seed": training.seed,
        "training.sample": training.sample,
        "training.label_smoothing": training.label_smoothing,
        "training.class_weights": training.class_weights,
        **{f"data.{name}": value for name, value in config.data.model_dump(mode="json", exclude={"data_dir"}).items()},
        "schedule.image_scales": config.schedule.model_dump(mode="json")["image_scales"],
        "evaluation.validation_examples": config.evaluation.validation_examples,
        "steps of an update": config.steps_per_update,
        "gradients of an update": config.gradients_per_update,
        "largest number of gradients of an update": config.most_gradients_per_update,
        # In these cases each worker holds a part of the weights, or of the data.
        **({"cluster.workers": config.cluster.workers} if config.chosen_mode.shares_steps or shards else {}),
    }


def _check_same(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for name in before:
        was, is_now = text_of(before[name]), text_of(now[name]) if name in now else "nothing"
        if was != is_now:
            raise UserError(f"{name}: got {is_now}, but the checkpoint to resume from was made with {was}")


def check_network(found: Checkpoint, layout: Sequence[str]) -> None:
    """Raise UserError if the network's variables differ from those of the checkpoint, or have another order.

    Args:
      layout: path and shape of each variable.
    """
    for number, (before, now) in enumerate(zip_longest(found.meta.network or layout, layout, fillvalue="nothing"), 1):
        if before != now:
            raise UserError(
                f"model.name: variable {number} of the network is {now}, but in the checkpoint of step "
                f"{found.step} it is {before}: resume the run with the network that it began with"
            )
