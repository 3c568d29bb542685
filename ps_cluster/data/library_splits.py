"""Choose the split to test on, among the splits that another library has saved."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from ps_cluster.files.values import Malformed

TRAIN = "train"
TESTS = ("test", "validation", "valid", "val")
NO_LABEL = -1  # Hugging Face's and TensorFlow's libraries use it where a label is not published


class TestSplit(NamedTuple):
    """The split to test on."""

    test: str | None  # its name, if there is one
    notes: tuple[str, ...] = ()  # lines about splits that are passed over


def choose_test_split(names: Iterable[str], is_labelled: Callable[[str], bool]) -> TestSplit:
    """Return the first split to test on that has labels. Raises Malformed if there is no split to train on."""
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
    """Raise Malformed if examples have no label. `without`: how many of the `examples` have none."""
    if without:
        raise Malformed(
            f"in the split '{split}', {without:,} of {examples:,} examples have no label (it is missing, or "
            f"{NO_LABEL}): remove these examples"
        )
