"""Make rows of a ledger, and journals with them."""

from pathlib import Path

import numpy as np

from ps_cluster.run.journal import Journal
from ps_cluster.run.ledger import ROW, WHOLE
from ps_cluster.run.rows.base import MOST_INDEX


def rows_of(steps, **columns) -> np.ndarray:
    """Return a row for each of `steps`. `columns`: by name, one value for all rows or one per row; others are 0."""
    rows = np.zeros(len(steps), ROW)
    for name, values in ({"step": steps} | columns).items():
        rows[name] = values
    return rows


def random_rows(count: int, seed: int = 0) -> np.ndarray:
    """Return rows of the steps 0, 1, …, with different random numbers in the other fields."""
    table = np.random.default_rng(seed).uniform(0, MOST_INDEX - 1, size=[count, len(ROW.names)])
    for column, name in enumerate(ROW.names):
        if name in WHOLE:
            table[:, column] = np.floor(table[:, column])
    table[:, 0] = np.arange(count)
    return table.view(ROW).reshape(-1)


def write_journal(path: Path, rows: np.ndarray) -> Path:
    """Write a journal with exactly `rows` to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    journal = Journal(path)
    journal.append(rows)
    journal.flush()
    journal.close()
    return path
