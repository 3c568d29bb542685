"""Check what a run can be resumed from. No TensorFlow, so that it is known before anything is started or written."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from pydantic import ValidationError

from ps_cluster.catalogue.datasets import DATASETS
from ps_cluster.config import RunConfig, fitted
from ps_cluster.errors import UserError
from ps_cluster.files.malformed import Malformed
from ps_cluster.run import checkpoints, journal, step_set
from ps_cluster.run.checkpoints import ACCEPTED_STEPS, Checkpoint, CheckpointError, StatesUnreadable
from ps_cluster.run.journal import JournalDamaged
from ps_cluster.run.ledger import COLUMNS, COUNTS, check_values, rows_of
from ps_cluster.run.reslicing import LEDGER, is_even
from ps_cluster.run.rows.checkpoint import MOST_OPEN, ProgressState
from ps_cluster.run.run_dir import RunDir


def newest_checkpoint(
    config: RunConfig, run_dir: RunDir, train_examples: int, notify: Callable[[str], None]
) -> Checkpoint:
    """Return the newest readable checkpoint or snapshot, after checking that `config` can go on from it.

    It may have another number of slices than `config`; then it is even (run/reslicing.py).

    Raises:
      UserError: there is none, or it is of a run with other settings.
    """
    found = newest_for(config.slices, run_dir, notify)
    if found is None:
        do = "begin another" if run_dir.has_trained else f"begin it again with --run-dir {run_dir.root}"
        raise UserError(f"run directory '{run_dir.root}' holds no checkpoint to resume from: {do}")
    before, progress = _state_of(found, run_dir)
    _check_same_work(config, before)
    begun = _begun(found, progress, before, run_dir)
    if begun > (total := config.total_updates(train_examples)):
        raise UserError(
            f"training.steps, training.epochs: {total} updates in all, but {begun} of the run in '{run_dir.root}' were "
            "begun: resume it with as many or more"
        )
    steps = found.arrays[ACCEPTED_STEPS]
    if steps.max() - steps[:, 0].min() > config.ledger_window:
        raise UserError(
            f"cluster.workers: got {config.cluster.workers}: the open steps of the run in '{run_dir.root}' are farther apart "
            f"than the {config.ledger_window:,} of the ledger of so many: resume it with as many workers as before"
        )
    return found


def newest_for(slices: int, run_dir: RunDir, notify: Callable[[str], None]) -> Checkpoint | None:
    """Return the newest readable checkpoint or snapshot that can be cut into so many slices; None without one.

    Raises:
      StatesUnreadable: the system refuses to read one.
    """

    def check(found: Checkpoint) -> None:
        arrays = found.arrays
        if arrays.keys() >= LEDGER and len(arrays["counts"]) != slices and not is_even(arrays):
            raise CheckpointError(
                f"checkpoint of step {found.step}: its {len(arrays['counts'])} parameter servers had not applied the same "
                f"steps, so {slices} can't go on from it"
            )

    return checkpoints.load_to_go_on(run_dir.states, notify, check)


def check_journals(found: Checkpoint, run_dir: RunDir, slices: int) -> None:
    """Raise UserError where the journals lack rows of gradients that the checkpoint counts.

    Args:
      slices: that training goes on with. Where they are fewer, the journals of the others are not needed.
    """
    for index, rows in enumerate(found.arrays["counts"][:slices, COUNTS.index("accepted")].tolist()):
        try:
            journal.check(run_dir.journal(index), rows)
        except JournalDamaged as error:
            do = "put it back, or begin anew in another run directory"
            raise UserError(f"the checkpoint of step {found.step} can't be resumed: {error}: {do}") from error
        except OSError as error:
            raise StatesUnreadable(
                f"'{run_dir.journal(index)}' can't be read ({error.strerror}): see to the disk"
            ) from error


def _state_of(found: Checkpoint, run_dir: RunDir) -> tuple[RunConfig, ProgressState]:
    """Return configuration and progress of a checkpoint. Raises UserError where another version has written it."""
    earlier = UserError(
        f"run directory '{run_dir.root}' is of an earlier version, with another configuration or ledger: "
        "it can't be resumed; begin anew in another run directory"
    )
    try:
        config = fitted(found.meta.config)
    except ValidationError as error:
        raise earlier from error
    if found.meta.progress is None or found.meta.times is None or not found.arrays.keys() >= LEDGER:
        raise earlier
    if [found.arrays[name].shape[1] for name in ("counts", "waiting")] != [len(COUNTS), 1 + len(COLUMNS)]:
        raise earlier
    return config, found.meta.progress


def _begun(found: Checkpoint, progress: ProgressState, config: RunConfig, run_dir: RunDir) -> int:
    """Return how many updates were begun. Raises UserError where the checkpoint's numbers contradict each other."""
    counts = found.arrays["counts"]
    scheduled, applied = step_set.from_state(progress.scheduled), progress.applied
    gradients = sum(progress.tally.staleness.values())
    waiting = found.arrays["waiting"]
    whole = (
        counts.shape[0] == len(found.arrays[ACCEPTED_STEPS]) == config.slices
        and counts.min(initial=0) >= 0
        and found.arrays[ACCEPTED_STEPS].shape[1] > 0
        and (found.arrays[ACCEPTED_STEPS][:, 0] <= applied.below).all()
        and len(waiting) <= MOST_OPEN
        and np.isin(waiting[:, 0], np.arange(config.slices)).all()
        and _are_rows(waiting[:, 1:])
        and applied.count <= counts[:, COUNTS.index("accepted")].min()
        and abs(gradients - applied.count) <= MOST_OPEN
        and abs(scheduled.first_missing - gradients // config.gradients_per_update) <= MOST_OPEN
        and abs(scheduled.end * config.steps_per_update - applied.below) <= MOST_OPEN
    )
    if not whole:
        raise UserError(
            f"the checkpoint of step {found.step} can't be resumed: what it says of its updates does not add up: remove "
            f"it from '{run_dir.root}' to resume an older one"
        )
    return scheduled.end


def _are_rows(table: np.ndarray) -> bool:
    try:
        check_values(rows_of(table))
    except Malformed:
        return False
    return True


def _check_same_work(config: RunConfig, before: RunConfig) -> None:
    """Raise UserError where a setting differs that gives step ids and slices their meaning."""
    works = [
        {
            "mode.name": c.mode.name,
            "batches of a step": c.batches_per_step,
            "training.batch_size_per_worker": c.training.batch_size_per_worker,
            "training.seed": c.training.seed,
            "training.sample": c.training.sample,
            "data.dataset": c.data.dataset,
            **{f"data.{name}": value for name, value in DATASETS[c.data.dataset].own_settings(c.data).items()},
            "evaluation.validation_examples": c.evaluation.validation_examples,
            "steps of an update": c.steps_per_update,
            **({"cluster.workers": c.slices} if c.mode_kind.shares_steps else {}),  # each has weights of its own
        }
        for c in (before, config)
    ]
    for name, value in works[0].items():
        if value != works[1].get(name):
            raise UserError(
                f"{name}: got {works[1].get(name)}, but the checkpoint to resume from was made with {value}"
            )
