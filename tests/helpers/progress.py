"""Create a RunProgress of a small run, and the ledgers from which it learns of updates."""

import numpy as np

from ps_cluster.config import build_config
from ps_cluster.runs.ledger import COUNTS
from ps_cluster.runs.times import TrainingClock
from ps_cluster.server.store import Ledgers
from ps_cluster.training.ledger_reader import without_clock_jumps
from ps_cluster.training.run_progress import RunProgress
from tests.helpers.ledgers import rows_of

WALL = 1_000_000.0
SETTINGS = {
    "mode": "mode.name",
    "backup_workers": "mode.backup_workers",
    "grace_seconds": "mode.grace_seconds",
    "longest_step_seconds": "cluster.longest_step_seconds",
    "ps": "cluster.parameter_servers",
}


class Machine:
    """Its clock, which shows unix time and counts seconds since it was switched on."""

    def __init__(self):
        self.now = 0.0

    def clock(self):
        return TrainingClock(monotonic=lambda: 50 + self.now, wall=lambda: WALL + self.now)


def make_config(steps=4, **settings):
    """Return the settings of a run with 10 examples per step. `settings`: by the names in SETTINGS, or of `training`."""
    overrides = {"training.steps": steps, "training.batch_size_per_worker": 10}
    named = {SETTINGS.get(name, f"training.{name}"): value for name, value in settings.items()}
    return build_config(overrides=overrides | named)


def make_progress(steps=4, machine=None, **settings):
    """Return the progress of a run over 100 training examples. `settings`: see `make_config`."""
    return RunProgress(make_config(steps, **settings), 100, clock=(machine or Machine()).clock())


def applied(*updates, **columns):
    """Return a row for each update (step, version, staleness, worker, pid, seconds after WALL that it was applied)."""
    names = ("step", "version", "staleness", "worker", "pid", "applied_time")
    known = dict(zip(names, map(list, zip(*updates)))) or {"step": []}
    known["applied_time"] = WALL + np.array(known.get("applied_time", []), float)
    known["loss"] = known.get("version", [])
    return rows_of(**{"steps": known.pop("step")}, **({"examples": 10, "metric": 5} | known | columns))


def counts_of(*accepted, **counts):
    """Return the counters of some shards.

    `accepted`: the number of gradients that each shard accepted. `counts`: other counters, the same on each shard.
    """
    known = [{"version": own, "accepted": own} | counts for own in accepted]
    return np.array([[own.get(name, 0) for name in COUNTS] for own in known], np.int64).reshape(-1, len(COUNTS))


def poll(progress, *new, **counts):
    """Let `progress` check ledgers that have the rows `new` of each shard."""
    accepted = [position + len(rows) for position, rows in zip(progress.positions, new)]
    progress.update(without_clock_jumps(Ledgers(list(new), counts_of(*accepted, **counts)), progress.clock))


NO_UPDATE = applied()
