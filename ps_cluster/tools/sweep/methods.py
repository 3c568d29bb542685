"""The methods of a sweep: how the next trial is drawn, and which trials are stopped early. Optuna does both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ps_cluster.errors import UserError
from ps_cluster.tools.sweep.space import Space

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler

REDUCTION = 3  # successive halving keeps one of three trials at each rung
RUNGS = 2  # before the end: after 1/9 and 1/3 of a trial
STAGES: int = REDUCTION**RUNGS  # equal parts of a trial, with a checkpoint after each
MOST_TRIALS = 1000
TRIALS = 20


@dataclass(frozen=True)
class SearchMethod:
    """A way to choose trials.

    Attributes:
      name: the name by which you choose it.
      summary: what it does, in a few words.
      is_grid: whether all combinations are tried. They are put into the queue of Optuna's study, because Optuna's
        GridSampler can't be used with ask and tell (its `after_trial` calls `Study.stop`, which raises there:
        https://github.com/optuna/optuna/issues/4121).
      halves: whether trials are stopped early at the rungs 1/9 and 1/3 of the training, by asynchronous successive
        halving: Li et al. 2020, "A System for Massively Parallel Hyperparameter Tuning".
      learns: whether a trial depends on the scores of earlier trials, by a tree-structured Parzen estimator: Bergstra
        et al. 2011, "Algorithms for Hyper-Parameter Optimization".
    """

    name: str
    summary: str
    is_grid: bool = False
    halves: bool = False
    learns: bool = False

    def count(self, space: Space, wanted: int | None) -> int:
        """Return the number of trials. Raises UserError if the method can't have the `wanted` number."""
        if not self.is_grid:
            return TRIALS if wanted is None else wanted
        size = space.size_of_grid()
        if wanted is not None:
            raise UserError(f"--trials: got {wanted}: a grid tries all its {size:,} combinations: leave --trials out")
        if size > MOST_TRIALS:
            raise UserError(
                f"--vary: {size:,} combinations: a grid may have at most {MOST_TRIALS:,}; take --method random"
            )
        return size

    def sampler(self, seed: int) -> BaseSampler:
        """Return Optuna's sampler for one trial; `seed` differs from trial to trial."""
        from optuna.samplers import RandomSampler, TPESampler

        # The "constant liar" makes trials that run at once differ.
        return TPESampler(seed=seed, constant_liar=True) if self.learns else RandomSampler(seed=seed)

    def pruner(self) -> BasePruner:
        """Return Optuna's pruner. It counts a trial's training in stages, which are `STAGES` equal parts."""
        from optuna.pruners import NopPruner, SuccessiveHalvingPruner

        return SuccessiveHalvingPruner(min_resource=1, reduction_factor=REDUCTION) if self.halves else NopPruner()


_EARLY = " and ".join(f"1/{REDUCTION**rung}" for rung in range(RUNGS, 0, -1))
SEARCH_METHODS = {
    method.name: method
    for method in (
        SearchMethod("random", "draw each trial at random"),
        SearchMethod("grid", "try all combinations", is_grid=True),
        SearchMethod(
            "halving", f"draw at random, and stop all but the best third at {_EARLY} of the training", halves=True
        ),
        SearchMethod("tpe", "draw near the values that were good so far", learns=True),
    )
}
