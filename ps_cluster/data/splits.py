"""Recognise the splits of a data set by their names, and choose those to train and to test on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from ps_cluster.files.values import Malformed

TRAIN = "train"
TESTS = ("test", "validation", "valid", "val")
NO_LABEL = -1  # the data sets of Hugging Face and TensorFlow have this number where a label is not published

# Names that people give to the split to train on, and to splits to test on, best first. Capitals do not matter.
_TRAIN_NAMES = (TRAIN, "training")
_TEST_NAMES = (TESTS[0], "testing", *TESTS[1:], "dev", "eval")


def is_split(name: str) -> bool:
    """Return whether `name` is a usual name of a split, such as "train" or "dev"."""
    return name.lower() in (*_TRAIN_NAMES, *_TEST_NAMES)


class SplitNames(NamedTuple):
    """The names of the splits of a data set."""

    train: str
    test: str | None = None  # the split to test on, if there is one
    unused: tuple[str, ...] = ()  # further splits that could be tested on
    not_splits: tuple[str, ...] = ()  # names that are not names of splits

    @property
    def notes(self) -> tuple[str, ...]:
        """A line about each name that is not used."""
        tests = (f"'{name}' is not used: '{self.test}' has the examples to test on" for name in self.unused)
        not_splits = (
            f"'{name}' is not used: it is neither '{self.train}' nor the name of a test split"
            for name in self.not_splits
        )
        return (*tests, *not_splits)


def splits_in(names: Iterable[str]) -> SplitNames | None:
    """Return the names of splits among `names`; None if none of them is the name of a split to train on."""
    there = sorted(names, key=lambda name: (name != name.lower(), name))  # train before Train
    trains, tests = (
        [name for wanted in usual for name in there if name.lower() == wanted] for usual in (_TRAIN_NAMES, _TEST_NAMES)
    )
    return SplitNames(trains[0], tests[0] if tests else None, tuple(tests[1:])) if trains else None


class TestSplit(NamedTuple):
    """The split that was chosen to test on."""

    test: str | None  # its name, if there is one
    notes: tuple[str, ...] = ()  # lines about splits that are not used, because they have no labels


def choose_test_split(names: Iterable[str], is_labelled: Callable[[str], bool]) -> TestSplit:
    """Choose the first of the splits test, validation, valid and val whose examples have labels.

    `names`: the names of all splits. Raises Malformed if there is no split to train on.
    """
    there = list(names)
    if TRAIN not in there:
        raise Malformed(f"there is no split '{TRAIN}' among {', '.join(there)}")
    notes: list[str] = []
    for name in TESTS:
        if name in there and is_labelled(name):
            return TestSplit(name, tuple(notes))
        if name in there:
            notes.append(f"the split '{name}' is not used: its examples have no labels")
    return TestSplit(None, tuple(notes))


def check_all_labelled(split: str, without: int, examples: int) -> None:
    """Raise Malformed if examples of a split have no label. `without`: how many of its `examples` have no label."""
    if without:
        raise Malformed(
            f"in the split '{split}', {without:,} of {examples:,} examples have no label (it is missing, or "
            f"{NO_LABEL}): remove these examples"
        )
