"""Choose the split to test on, among those that a library's folder has."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from ps_cluster.files.malformed import Malformed

TRAIN = "train"
_TESTS = ("test", "validation", "valid", "val")
NO_LABEL = -1  # Hugging Face's and TensorFlow's libraries have it where a label is secret


class Splits(NamedTuple):
    """The names of the splits to use. `test`: None for none. `notes`: lines about those that are passed over."""

    test: str | None
    notes: tuple[str, ...] = ()


def chosen(names: Iterable[str], is_labelled: Callable[[str], bool]) -> Splits:
    """Return the first split to test on that has labels.

    Raises:
      Malformed: there is no split to train on.
    """
    there = list(names)
    if TRAIN not in there:
        raise Malformed(f"there is no split '{TRAIN}', of {', '.join(there)}")
    notes: list[str] = []
    for name in _TESTS:
        if name in there and is_labelled(name):
            return Splits(name, tuple(notes))
        if name in there:
            notes.append(f"the split '{name}' is not used: its examples have no labels")
    return Splits(None, tuple(notes))


def check_all_labelled(split: str, without: int, examples: int) -> None:
    """Raise Malformed where examples have no label."""
    if without:
        raise Malformed(
            f"the split '{split}' has no label (a missing one, or {NO_LABEL}) in {without:,} of {examples:,} examples: "
            "remove those"
        )
