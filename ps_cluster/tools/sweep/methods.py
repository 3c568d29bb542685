"""The search space of a sweep: which settings vary, and over which values. Optuna is passed in."""

from __future__ import annotations

import json
import math
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from ps_cluster.config.layers import known_keys
from ps_cluster.errors import UserError, did_you_mean
from ps_cluster.files import values as plain_numbers
from ps_cluster.files.values import Malformed
from ps_cluster.files.yaml_files import parse_yaml

if TYPE_CHECKING:
    from ps_cluster.tools.sweep.plan import TrialBook

MOST_VALUES = 100  # of one setting
MOST_SETTINGS = 20
_RANGE = re.compile(r"(?P<low>[^:,\s]+?)\.\.(?P<high>[^:,\s]+?)(?P<log>:log)?(?::(?P<points>\d+))?")
_HOW = "write LOW..HIGH, LOW..HIGH:log, LOW..HIGH:5 (five of them), or values with commas"

Values = Mapping[str, Any]  # dotted key → value


class Axis(ABC):
    """The values of one setting."""

    @abstractmethod
    def suggest(self, trial: Any, key: str) -> Any:
        """Return the label that Optuna's `trial` has for this setting; the first call draws it."""

    @abstractmethod
    def ends(self) -> Sequence[Any]:
        """Return the values that are checked before the first trial: all, or the ends of a range."""

    def points(self) -> Sequence[Any]:
        """Return the values of a grid. Raises ValueError for a range that does not say how many."""
        return self.ends()

    def label(self, value: Any) -> Any:
        """Return a value as Optuna keeps it."""
        return value

    def value(self, label: Any) -> Any:
        """Return the value of a label."""
        return label


@dataclass(frozen=True)
class Listed(Axis):
    """Some values, of any type. Optuna keeps their JSON, since it takes no lists or sections."""

    values: tuple[Any, ...]

    def suggest(self, trial: Any, key: str) -> Any:
        return trial.suggest_categorical(key, [self.label(value) for value in self.values])

    def ends(self) -> Sequence[Any]:
        return self.values

    def label(self, value: Any) -> Any:
        return json.dumps(value)

    def value(self, label: Any) -> Any:
        return json.loads(label)


@dataclass(frozen=True)
class Interval(Axis):
    """All numbers from `low` to `high`; whole ones if both are. `log`: drawn evenly in their logarithm."""

    low: float
    high: float
    log: bool = False

    @property
    def is_whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    def suggest(self, trial: Any, key: str) -> Any:
        suggest = trial.suggest_int if self.is_whole else trial.suggest_float
        return suggest(key, self.low, self.high, log=self.log)

    def ends(self) -> Sequence[Any]:
        return self.low, self.high

    def points(self) -> Sequence[Any]:
        raise ValueError(f"a grid needs the number of values: write {self.low:g}..{self.high:g}{':log' * self.log}:5")

    def split(self, points: int) -> Listed:
        """Return so many of its numbers, evenly spaced; whole ones are rounded, and none comes twice."""
        if not 2 <= points <= MOST_VALUES:
            raise ValueError(f"{points} values: from 2 to {MOST_VALUES} can be taken")
        low, high = (math.log(end) if self.log else end for end in (self.low, self.high))
        between = (low + (high - low) * place / (points - 1) for place in range(1, points - 1))
        # The ends are taken as they are written, and the others have no more digits than are worth reading.
        inner = (float(f"{math.exp(place) if self.log else place:.6g}") for place in between)
        numbers = (self.low, *(round(number) if self.is_whole else number for number in inner), self.high)
        return Listed(tuple(dict.fromkeys(numbers)))


@dataclass(frozen=True)
class Space:
    """The settings that vary, by dotted key."""

    axes: Mapping[str, Axis]

    def drawn(self, trial: Any) -> dict[str, Any]:
        """Return the values of Optuna's `trial`; those that it lacks are drawn."""
        return {key: axis.value(axis.suggest(trial, key)) for key, axis in self.axes.items()}

    def labels(self, values: Values) -> dict[str, Any]:
        return {key: self.axes[key].label(value) for key, value in values.items()}

    def values(self, labels: Values) -> dict[str, Any]:
        return {key: axis.value(labels[key]) for key, axis in self.axes.items()}

    def size_of_grid(self) -> int:
        """Return the number of combinations. Raises UserError where a range does not say how many values it has."""
        return math.prod(len(self._points(key)) for key in self.axes)

    def grid(self) -> Iterator[Values]:
        """Yield all combinations; the last setting varies first."""
        for combination in product(*map(self._points, self.axes)):
            yield dict(zip(self.axes, combination))

    def samples(self) -> Iterator[Values]:
        """Yield combinations to check before the first trial: each value of each setting, beside the first of others."""
        first = {key: axis.ends()[0] for key, axis in self.axes.items()}
        yield first
        for key, axis in self.axes.items():
            yield from ({**first, key: value} for value in axis.ends()[1:])

    def _points(self, key: str) -> Sequence[Any]:
        try:
            return self.axes[key].points()
        except ValueError as error:
            raise UserError(f"--vary {key}: {error}") from error


def read_space(given: Mapping[str, Any]) -> Space:
    """Return the space of dotted key → text as of `--vary`, or a list of values. Raises UserError for another."""
    if not given:
        raise UserError("--vary: nothing varies: give a setting, e.g. --vary optimizer.learning_rate=0.01..1:log")
    if len(given) > MOST_SETTINGS:
        raise UserError(f"--vary: {len(given)} settings: at most {MOST_SETTINGS} can vary at once")
    return Space({key: _axis(key, values) for key, values in given.items()})


def parse_varied(texts: Sequence[str]) -> dict[str, str]:
    """Return key → values of texts like "optimizer.learning_rate=0.01..1:log". Raises UserError for another form."""
    found: dict[str, str] = {}
    for text in texts:
        key, separator, values = (part.strip() for part in text.partition("="))
        if not separator or not re.fullmatch(r"\w+(\.\w+){1,9}", key):
            hint = did_you_mean(key, known_keys())
            raise UserError(f"--vary {text!r:.300}: {hint}Write it as section.key=values, and for the values {_HOW}")
        if found.setdefault(key, values) != values:
            raise UserError(f"--vary {key}: got {found[key]!r:.80} and {values!r:.80}: give one of them")
    return found


def _axis(key: str, given: Any) -> Axis:
    try:
        if isinstance(given, str):
            found = _RANGE.fullmatch(given.strip())
            return _interval(found) if found else _listed(parse_yaml(f"[{given}]"))
        return _listed(given)
    except ValueError as error:  # Malformed too
        raise UserError(f"--vary {key}: got {given!r:.200}: {error}") from error


def _listed(given: Any) -> Listed:
    values = tuple(given) if isinstance(given, list) else (given,)
    if len({json.dumps(value) for value in values}) < max(2, len(values)) or len(values) > MOST_VALUES:
        raise Malformed(f"from 2 to {MOST_VALUES} different values are needed: {_HOW}")
    return Listed(values)


def _interval(found: re.Match[str]) -> Axis:
    low, high = (_number(found[name]) for name in ("low", "high"))
    log = bool(found["log"])
    if max(abs(low), abs(high)) > sys.float_info.max:
        raise Malformed("a number is too large")
    if low >= high:
        raise Malformed("the first number must be the smaller one")
    if log and low <= 0:
        raise Malformed(f"a logarithmic range must begin above 0, not at {low:g}")
    interval = Interval(low, high, log)
    return interval if found["points"] is None else interval.split(int(found["points"]))


def _number(text: str) -> float:
    return plain_numbers.whole(text) if plain_numbers.is_whole(text) else plain_numbers.decimal(text)


# The methods of a sweep: how the next trial is drawn, and which trials are stopped early. Optuna does both.

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
