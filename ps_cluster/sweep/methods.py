"""The methods of a sweep: how the next trial is drawn, and which trials are stopped early. Optuna does both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ps_cluster.errors import UserError
from ps_cluster.sweep.space import Space

if TYPE_CHECKING:
    from ps_cluster.sweep.trial_book import TrialBook

REDUCTION = 3  # successive halving keeps one trial in so many at each rung
RUNGS = 2  # before the end: after 1/9 and 1/3 of a trial
STAGES: int = REDUCTION**RUNGS  # equal parts of a trial, with a checkpoint after each
MOST_TRIALS = 1000
TRIALS = 20


class SearchMethod:
    """A way to choose trials.

    Attributes:
      name: by which it is chosen. says: in a few words.
      halves: whether trials are stopped at rungs.
      learns: whether a trial depends on how good the ones before it were.
    """

    name = ""
    says = ""
    halves = False
    learns = False

    def count(self, space: Space, wanted: int | None) -> int:
        """Return the number of trials. Raises UserError where it can't be `wanted`."""
        return TRIALS if wanted is None else wanted

    def prepare(self, book: TrialBook, space: Space) -> None:
        """Put into a book what shall be tried first."""

    def sampler(self, seed: int) -> Any:
        """Return Optuna's sampler for one trial; `seed` differs from trial to trial."""
        from optuna.samplers import RandomSampler

        return RandomSampler(seed=seed)

    def stage(self, done: float) -> int:
        """Return the number of stages that are over when this share of a trial is done."""
        return round(STAGES * done)

    def pruner(self) -> Any:
        """Return Optuna's pruner, which counts in stages."""
        from optuna.pruners import NopPruner

        return NopPruner()


class RandomSearch(SearchMethod):
    name = "random"
    says = "draw each trial at random"


class GridSearch(SearchMethod):
    """All combinations. They are put into the study's queue: Optuna's GridSampler can't be used with ask and tell.

    (Its `after_trial` calls `Study.stop`, which raises there: https://github.com/optuna/optuna/issues/4121.)
    """

    name = "grid"
    says = "try all combinations"

    def count(self, space: Space, wanted: int | None) -> int:
        size = space.size_of_grid()
        if wanted is not None:
            raise UserError(f"--trials: got {wanted}: a grid tries all its {size:,} combinations: leave it out")
        if size > MOST_TRIALS:
            raise UserError(f"--vary: {size:,} combinations: a grid has at most {MOST_TRIALS:,}; take --method random")
        return size

    def prepare(self, book: TrialBook, space: Space) -> None:
        book.queue(space)


class HalvingSearch(SearchMethod):
    """Asynchronous successive halving: Li et al. 2020, "A System for Massively Parallel Hyperparameter Tuning"."""

    name = "halving"
    says = (
        f"draw at random, and stop at {' and '.join(f'1/{REDUCTION**n}' for n in range(RUNGS, 0, -1))} all but the best"
    )
    halves = True

    def pruner(self) -> Any:
        from optuna.pruners import SuccessiveHalvingPruner

        return SuccessiveHalvingPruner(min_resource=1, reduction_factor=REDUCTION)


class ParzenSearch(SearchMethod):
    """Tree-structured Parzen estimator: Bergstra et al. 2011, "Algorithms for Hyper-Parameter Optimization"."""

    name = "tpe"
    says = "draw near what was good so far"
    learns = True

    def sampler(self, seed: int) -> Any:
        from optuna.samplers import TPESampler

        return TPESampler(seed=seed, constant_liar=True)  # so trials that run at once differ


SEARCH_METHODS = {method.name: method for method in (RandomSearch(), GridSearch(), HalvingSearch(), ParzenSearch())}
