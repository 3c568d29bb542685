"""Read new rows from the parameter servers' ledgers, write them to disk, and count them in the run's progress.

A ledger is a server's table of accepted pushes. A journal is its copy on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ps_cluster.files.tensor_files import Pieces
from ps_cluster.notices import Notify
from ps_cluster.runs.checkpoint_arrays import WAITING
from ps_cluster.runs.journal import Journal, JournalNotWritten, JournalPart
from ps_cluster.runs.ledger import TIME_COLUMNS
from ps_cluster.runs.logs import DISK_REFUSES
from ps_cluster.runs.run_dir import log_line
from ps_cluster.runs.times import TrainingClock
from ps_cluster.server.store import Ledgers, ParameterStore
from ps_cluster.server.vector_on_server import Extent
from ps_cluster.training.run_progress import RunProgress


def without_clock_jumps(ledgers: Ledgers, clock: TrainingClock) -> Ledgers:
    """Return `ledgers` with all times corrected for changes of the machine's clock since the training began.

    `clock`: the clock of the training. It is polled first, so that it knows of changes since the last call.
    """
    clock.poll()
    rows = [of_shard.copy() for of_shard in ledgers.rows]
    for of_shard in rows:
        for name in TIME_COLUMNS:
            of_shard[name] = clock.without_clock_jumps(of_shard[name])
    return Ledgers(rows, ledgers.counts)


class LedgerReader:
    """Reads the new rows of the servers' ledgers. There is only one reader, so that each row is counted once."""

    def __init__(
        self,
        store: ParameterStore,
        progress: RunProgress,
        journals: Sequence[Journal],
        *,
        notify: Notify = log_line,
        on_rows: Callable[[Sequence[np.ndarray]], None] = lambda rows: None,
    ):
        """Create a reader.

        Args:
          journals: the files to which the rows are copied, one for each shard; empty if another process copies them.
          on_rows: called with the new rows of each shard, once they are counted.
        """
        self._store = store
        self._progress = progress
        self._journals = journals
        self._notify = notify
        self._refused = False
        self._on_rows = on_rows

    def poll(self) -> None:
        """Read the new rows of the ledger, and append them to the journals.

        If the disk refuses to write, this is reported once, and training continues.
        """
        self._keep_rows(self._store.read_ledgers(self._progress.positions))

    @property
    def changed_share(self) -> float:
        """The share of all weights that a snapshot would hold now if it left out unchanged rows of embedding tables.

        A row is unchanged if it is as in the last snapshot that holds all rows. Without tables, the share is 1.
        """
        return self._store.changed_share

    def snapshot(self, extent: Extent = Extent.WHOLE) -> dict[str, np.ndarray | Pieces]:
        """Read the arrays of a checkpoint. Return them once all ledger rows that belong to it are on the disk.

        Args:
          extent: how much of the embedding tables to read. See `ParameterStore.snapshot`.

        Raises:
          JournalNotWritten: the disk refuses the rows.
        """
        arrays, ledgers = self._store.snapshot(self._progress.positions, self._progress.lowest_open_step, extent)
        self._keep_rows(ledgers)
        for journal in self._journals:
            journal.flush()
        return arrays | {WAITING: self._progress.waiting}

    @property
    def pieces(self) -> list[JournalPart]:
        """For each journal, its path, the number of rows read so far, and the checksum in the last of these rows."""
        return [journal.piece for journal in self._journals]

    def _keep_rows(self, ledgers: Ledgers) -> None:
        ledgers = without_clock_jumps(ledgers, self._progress.clock)
        self._append(ledgers.rows)
        self._progress.update(ledgers)
        self._on_rows(ledgers.rows)

    def _append(self, rows: Sequence[np.ndarray]) -> None:
        refused = None
        for journal, of_shard in zip(self._journals, rows):
            try:
                journal.append(of_shard)
            except JournalNotWritten as error:
                refused = error
        if refused and not self._refused:
            self._notify(DISK_REFUSES(f"training continues, but: {refused}"))
        self._refused = refused is not None
