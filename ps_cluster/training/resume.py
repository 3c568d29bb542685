"""What a run may go on from. No TensorFlow, so that it is known before anything is started or written."""

from __future__ import annotations

from collections.abc import Callable

from pydantic import ValidationError

from ps_cluster.config import RunConfig
from ps_cluster.errors import UserError
from ps_cluster.run_dir import RunDir
from ps_cluster.training import checkpoints, journal, step_set
from ps_cluster.training.checkpoints import Checkpoint
from ps_cluster.training.journal import JournalDamaged
from ps_cluster.training.ledger import COLUMNS, COUNTS


def newest_checkpoint(
    config: RunConfig, run_dir: RunDir, train_examples: int, notify: Callable[[str], None]
) -> Checkpoint:
    """Return the newest checkpoint or snapshot that can be read, where a training with `config` can go on from it.

    Raises:
      UserError: there is none, or it is of other work.
    """
    found = checkpoints.load_newest_good(run_dir.states, notify)
    if found is None:
        raise UserError(f"run directory '{run_dir.root}' holds no checkpoint to resume from")
    _check_same_work(config, _config_of(found, run_dir))
    begun = step_set.from_json(found.meta["progress"]["scheduled"]).end
    if begun > (total := config.total_updates(train_examples)):
        raise UserError(
            f"training.steps, training.epochs: {total} updates in all, but {begun} of the run in '{run_dir.root}' were "
            "begun: resume it with as many or more"
        )
    return found


def check_journals(found: Checkpoint, run_dir: RunDir) -> None:
    """Raise UserError where the journals lack rows of what was applied when the checkpoint was written."""
    for index, rows in enumerate(found.arrays["counts"][:, COUNTS.index("accepted")].tolist()):
        try:
            journal.check(run_dir.journal(index), rows)
        except JournalDamaged as error:
            do = "put it back, or begin anew in another run directory"
            raise UserError(f"the checkpoint of step {found.step} can't be resumed: {error}: {do}") from error


def _config_of(found: Checkpoint, run_dir: RunDir) -> RunConfig:
    earlier = UserError(
        f"run directory '{run_dir.root}' is of an earlier version, with another configuration or ledger: "
        "it can't be resumed; begin anew in another run directory"
    )
    try:
        config = RunConfig.model_validate(found.meta["config"])
    except ValidationError as error:
        raise earlier from error
    if "seen" not in found.arrays or found.arrays["waiting"].shape[-1] != 1 + len(COLUMNS):
        raise earlier
    return config


def _check_same_work(config: RunConfig, before: RunConfig) -> None:
    """The ledger's step ids mean the same, and its slices are the same ones, only where these are equal."""
    works = [
        {
            "training.mode": c.training.mode,
            "training.batch_size_per_worker": c.training.batch_size_per_worker,
            "training.seed": c.training.seed,
            "data.dataset": c.data.dataset,
            "elastic.local_steps": c.elastic.local_steps,
            "steps of an update": c.steps_per_update,
            "cluster.parameter_servers": c.slices,
        }
        for c in (before, config)
    ]
    for name, value in works[0].items():
        if value != works[1][name]:
            raise UserError(f"{name}: got {works[1][name]}, but the checkpoint to resume from was made with {value}")
