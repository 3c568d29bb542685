"""Rows of a ledger, and journals of them."""

from pathlib import Path

import numpy as np

from ps_cluster.rows.base import MOST_INDEX
from ps_cluster.training.journal import Journal
from ps_cluster.training.ledger import ROW, WHOLE


def rows_of(steps, **columns) -> np.ndarray:
    """A row for each of `steps`. `columns`: by name, a value for all rows or one for each; the others are 0."""
    rows = np.zeros(len(steps), ROW)
    for name, values in ({"step": steps} | columns).items():
        rows[name] = values
    return rows


def random_rows(count: int, seed: int = 0) -> np.ndarray:
    """Rows of the steps 0, 1, …, every other field a number of its own."""
    table = np.random.default_rng(seed).uniform(0, MOST_INDEX - 1, size=[count, len(ROW.names)])
    for column, name in enumerate(ROW.names):
        if name in WHOLE:
            table[:, column] = np.floor(table[:, column])
    table[:, 0] = np.arange(count)
    return table.view(ROW).reshape(-1)


def write_journal(path: Path, rows: np.ndarray) -> Path:
    """`path` holds `rows` and nothing else."""
    path.parent.mkdir(parents=True, exist_ok=True)
    journal = Journal(path)
    journal.append(rows)
    journal.flush()
    journal.close()
    return path
