"""Choose the split to test on, among those in the folder of a library."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from ps_cluster.files.values import Malformed

TRAIN = "train"
TESTS = ("test", "validation", "valid", "val")
NO_LABEL = -1  # Hugging Face's and TensorFlow's libraries have it where a label is secret


class TestSplit(NamedTuple):
    """The names of the splits to use. `test`: None for none. `notes`: lines about those that are passed over."""

    test: str | None
    notes: tuple[str, ...] = ()


def choose_test_split(names: Iterable[str], is_labelled: Callable[[str], bool]) -> TestSplit:
    """Return the first split to test on that has labels.

    Raises:
      Malformed: there is no split to train on.
    """
    there = list(names)
    if TRAIN not in there:
        raise Malformed(f"there is no split '{TRAIN}', of {', '.join(there)}")
    notes: list[str] = []
    for name in TESTS:
        if name in there and is_labelled(name):
            return TestSplit(name, tuple(notes))
        if name in there:
            notes.append(f"the split '{name}' is not used: its examples have no labels")
    return TestSplit(None, tuple(notes))


def check_all_labelled(split: str, without: int, examples: int) -> None:
    """Raise Malformed where examples have no label."""
    if without:
        raise Malformed(
            f"the split '{split}' has no label (a missing one, or {NO_LABEL}) in {without:,} of {examples:,} examples: "
            "remove those"
        )
