"""Create rows of a ledger, and journals that contain them."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ps_cluster.runs.checkpoints import Checkpoint, CheckpointMeta
from ps_cluster.runs.journal import CountedWork, Journal, JournalPart
from ps_cluster.runs.ledger import COLUMNS, COUNTS, ROW, WHOLE
from ps_cluster.runs.rows import MOST_INDEX


def rows_of(steps, **columns) -> np.ndarray:
    """Return a row for each of `steps`. `columns`: name → a value for all rows, or one per row. Other columns are 0."""
    rows = np.zeros(len(steps), ROW)
    for name, values in ({"step": steps} | columns).items():
        rows[name] = values
    return rows


def csv_of(rows: np.ndarray) -> str:
    """Return the text of an updates.csv that holds `rows`."""
    lines = [",".join(f"{value:.6f}" for value in row) for row in rows.tolist()]
    return "\n".join([",".join(COLUMNS), *lines]) + "\n"


def random_rows(count: int, seed: int = 0) -> np.ndarray:
    """Return rows of the steps 0, 1, …, with different random numbers in the other fields."""
    table = np.random.default_rng(seed).uniform(0, MOST_INDEX - 1, size=[count, len(ROW.names)])
    for column, name in enumerate(ROW.names):
        if name in WHOLE:
            table[:, column] = np.floor(table[:, column])
    table[:, 0] = np.arange(count)
    return table.view(ROW).reshape(-1)


def write_journal(path: Path, rows: np.ndarray, checksum: int = 0) -> list[JournalPart]:
    """Write a journal with exactly `rows` to `path`, and return it as the history of a shard.

    `checksum`: the checksum of the last row of the previous leader.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    journal = Journal(path, checksum)
    journal.append(rows)
    journal.flush()
    journal.close()
    return [journal.piece]


def state(step: int, arrays: Mapping[str, np.ndarray], meta: CheckpointMeta) -> Checkpoint:
    """Return a state which says that the rows of its shards are in the journals of leader 0."""
    accepted = arrays["counts"][:, COUNTS.index("accepted")].tolist() if "counts" in arrays else [0]
    own = CountedWork(step=step, rows=accepted, checksums=[0] * len(accepted))
    return Checkpoint(step, arrays, meta.model_copy(update={"leaders": [own]}))
