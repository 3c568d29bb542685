"""Tell which trials a sweep would train, without starting any."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from ps_cluster.cluster import memory
from ps_cluster.config import build_config
from ps_cluster.sweep.methods import SEARCH_METHODS
from ps_cluster.sweep.space import Space, Values
from ps_cluster.sweep.sweep_plan import Sweep, checked_space
from ps_cluster.sweep.sweep_view import listed
from ps_cluster.sweep.trial_book import TrialBook, check_installed


def lines(sweep: Sweep, at_once: int) -> Iterator[str]:
    """Yield a line for each trial that can be known, then how many there are and what they take.

    Raises:
      UserError: Optuna is missing, or a setting does not fit.
    """
    check_installed()
    space, method = checked_space(sweep), SEARCH_METHODS[sweep.method]
    count = method.count(space, sweep.trials)
    if method.learns:
        yield f"the trials of {method.name} depend on the scores of those before: they can't be known"
    else:
        for number, values in enumerate(_drawn(sweep, space, count)):
            yield f"trial {number}: {listed(values)}"
    configs = (build_config(None, {**sweep.settings, **values}) for values in space.samples())
    expected = memory.expected(configs, min(at_once, count))
    yield f"trials: {count}, {at_once} at once, by {method.name}; memory expected: {expected}; nothing was started"


def _drawn(sweep: Sweep, space: Space, count: int) -> Iterator[Values]:
    """Yield the values of the trials as a new sweep draws them."""
    method = SEARCH_METHODS[sweep.method]
    with TemporaryDirectory() as folder:
        book = TrialBook(Path(folder) / "journal", method, space, seed=sweep.seed, smaller_is_better=False)
        method.prepare(book, space)
        for _ in range(count):
            yield book.draw().values
