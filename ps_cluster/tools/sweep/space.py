"""The search space of a sweep: which settings vary, and over which values."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from ps_cluster.config.schema import known_keys
from ps_cluster.errors import UserError, did_you_mean
from ps_cluster.files import values as plain_numbers
from ps_cluster.files.values import Malformed
from ps_cluster.files.yaml_files import parse_yaml

if TYPE_CHECKING:
    from optuna.trial import BaseTrial

MOST_VALUES = 100  # of one setting
MOST_SETTINGS = 20
_RANGE = re.compile(r"(?P<low>[^:,\s]+?)\.\.(?P<high>[^:,\s]+?)(?P<log>:log)?(?::(?P<points>\d+))?")
_HOW = "write LOW..HIGH, LOW..HIGH:log, LOW..HIGH:5 (five values), or values separated by commas"

Values = Mapping[str, object]  # dotted key → value


@dataclass(frozen=True)
class Choices:
    """A list of values, of any type, for one setting. They are checked before the first trial."""

    values: tuple[object, ...]

    def draw(self, trial: BaseTrial, key: str) -> None:
        """Draw the value of this setting in Optuna's `trial`, unless the trial already has a value.

        The value is stored as JSON, because Optuna's choices can't be lists or dictionaries.
        """
        trial.suggest_categorical(key, list(map(json.dumps, self.values)))


@dataclass(frozen=True)
class Range:
    """A range of numbers for one setting. It has only integers if both its ends are integers.

    `log`: whether the logarithm, instead of the number, is drawn uniformly.
    """

    low: float
    high: float
    log: bool = False

    @property
    def values(self) -> tuple[float, float]:
        """The two ends of the range, which are checked before the first trial."""
        return self.low, self.high

    @property
    def is_integer(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    def draw(self, trial: BaseTrial, key: str) -> None:
        """Draw the value of this setting in Optuna's `trial` as a number, unless the trial already has a value."""
        if self.is_integer:
            trial.suggest_int(key, int(self.low), int(self.high), log=self.log)
        else:
            trial.suggest_float(key, self.low, self.high, log=self.log)

    def split(self, points: int) -> Choices:
        """Return `points` evenly spaced numbers of the range. They are rounded if the range has only integers."""
        if not 2 <= points <= MOST_VALUES:
            raise ValueError(f"{points} values: the number of values has to be between 2 and {MOST_VALUES}")
        low, high = (math.log(end) if self.log else end for end in self.values)
        between = (low + (high - low) * place / (points - 1) for place in range(1, points - 1))
        # The ends stay as they are written. The other numbers get few digits, so that they are easy to read.
        inner = (math.exp(place) if self.log else place for place in between)
        rounded = (round(number) if self.is_integer else float(f"{number:.6g}") for number in inner)
        return Choices(tuple(dict.fromkeys((self.low, *rounded, self.high))))


Axis = Choices | Range


@dataclass(frozen=True)
class Space:
    """A search space: the possible values of each setting that varies, by dotted key."""

    axes: Mapping[str, Axis]

    def drawn(self, trial: BaseTrial) -> dict[str, object]:
        """Return the values of Optuna's `trial`. Values that the trial lacks are drawn first."""
        for key, axis in self.axes.items():
            axis.draw(trial, key)
        return self.from_optuna(trial.params)

    def from_optuna(self, stored: Mapping[str, object]) -> dict[str, object]:
        """Return the values of a trial's settings, from the values that Optuna has `stored` for this trial.

        Optuna stores values of `Choices` as JSON, and numbers as they are.
        """
        found = {key: stored[key] for key in self.axes}
        return {key: json.loads(value) if isinstance(value, str) else value for key, value in found.items()}

    def size_of_grid(self) -> int:
        """Return the number of combinations. Raises UserError if a setting has a `Range` instead of `Choices`."""
        for key, axis in self.axes.items():
            if isinstance(axis, Range):
                low, high = (end if axis.is_integer else f"{end:g}" for end in axis.values)
                how = f"{low}..{high}{':log' * axis.log}:5"
                raise UserError(f"--vary {key}: a grid needs the number of values: write {how}")
        return math.prod(len(axis.values) for axis in self.axes.values())

    def grid(self) -> Iterator[dict[str, str]]:
        """Yield all combinations of a space of `Choices`, as Optuna stores them. The last setting varies fastest."""
        for combination in product(*(axis.values for axis in self.axes.values())):
            yield {key: json.dumps(value) for key, value in zip(self.axes, combination)}

    def samples(self) -> Iterator[Values]:
        """Yield combinations to check before the first trial: each value with the first values of the other settings."""
        first: dict[str, object] = {key: axis.values[0] for key, axis in self.axes.items()}
        yield first
        for key, axis in self.axes.items():
            yield from ({**first, key: value} for value in axis.values[1:])


def read_space(given: Mapping[str, object]) -> Space:
    """Return a search space. Raises UserError if a key or its values are invalid.

    `given`: dotted key → the values of the setting, as in `--vary` (e.g. "0.01..1:log") or as a list.
    """
    if not given:
        raise UserError("--vary: nothing varies: give a setting, e.g. --vary optimizer.learning_rate=0.01..1:log")
    if len(given) > MOST_SETTINGS:
        raise UserError(f"--vary: {len(given)} settings: at most {MOST_SETTINGS} can vary at once")
    return Space({key: _axis(key, values) for key, values in given.items()})


def parse_varied(texts: Sequence[str]) -> dict[str, str]:
    """Return dotted key → values from texts like "optimizer.learning_rate=0.01..1:log". The values stay text.

    Raises UserError for texts of another form.
    """
    found: dict[str, str] = {}
    for text in texts:
        key, separator, values = (part.strip() for part in text.partition("="))
        if not separator or not re.fullmatch(r"\w+(\.\w+){1,9}", key):
            hint = did_you_mean(key, known_keys())
            raise UserError(f"--vary {text!r:.300}: {hint}Write it as section.key=values, and for the values {_HOW}")
        if found.setdefault(key, values) != values:
            raise UserError(f"--vary {key}: got {found[key]!r:.80} and {values!r:.80}: give only one of them")
    return found


def _axis(key: str, given: object) -> Axis:
    try:
        if isinstance(given, str):
            found = _RANGE.fullmatch(given.strip())
            return _range(found) if found else _listed(parse_yaml(f"[{given}]"))
        return _listed(given)
    except ValueError as error:  # including Malformed
        raise UserError(f"--vary {key}: got {given!r:.200}: {error}") from error


def _listed(given: object) -> Choices:
    values = tuple(given) if isinstance(given, list) else (given,)
    if len({json.dumps(value) for value in values}) < max(2, len(values)) or len(values) > MOST_VALUES:
        raise Malformed(f"from 2 to {MOST_VALUES} different values are needed: {_HOW}")
    return Choices(values)


def _range(found: re.Match[str]) -> Axis:
    low, high = (
        plain_numbers.parse_integer(text) if plain_numbers.is_integer(text) else plain_numbers.parse_decimal(text)
        for text in (found["low"], found["high"])
    )
    log = bool(found["log"])
    if max(abs(low), abs(high)) > sys.float_info.max:
        raise Malformed("a number is too large")
    if low >= high:
        raise Malformed("the first number must be the smaller one")
    if log and low <= 0:
        raise Malformed(f"a logarithmic range must begin above 0, not at {low:g}")
    axis = Range(low, high, log)
    return axis if found["points"] is None else axis.split(int(found["points"]))
