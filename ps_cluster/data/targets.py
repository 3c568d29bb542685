"""Say what the examples that users bring are trained for, and on which of them: targets, and what is tested on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ps_cluster.config.datasets import MOST_CLASSES, Contents
from ps_cluster.config.objectives import TARGET, Rows
from ps_cluster.files.values import Malformed, one_line

MOST_WITH_GAPS = 100  # different whole numbers that are taken for classes, though some between them are missing


class Targets(NamedTuple):
    """Targets as they are packed.

    Attributes:
      train, test: [N, ...]; test is None where none were given.
      classes: names of the classes or labels.
    """

    train: np.ndarray
    test: np.ndarray | None
    objective: str
    classes: tuple[str, ...] = ()


def targets_of(train: np.ndarray, test: np.ndarray | None, objective: str = "auto") -> Targets:
    """Return targets [N] or [N, k] for an objective; "auto": classification for one-hot rows and for 0.0 and 1.0 alone,
    regression for other floats, multi-label for other rows of 0 and 1, else classification.

    Raises:
      Malformed: they do not fit the objective, or there is nothing to learn.
    """
    train, test = _flat(train), None if test is None else _flat(test)
    if objective == "auto":
        objective = _objective(train)
    return _OBJECTIVES[objective](train, test)


def classes_by_name(train: np.ndarray, test: np.ndarray | None) -> Targets:
    """Return labels of targets [N] that are names or numbers: all that are different, sorted, are the classes."""
    names = np.unique(train)
    if len(names) == 1:
        raise Malformed(f"all training examples are of one class, '{_shown(names[0])}': there is nothing to tell apart")
    if len(names) > MOST_CLASSES:
        raise Malformed(f"the targets have {len(names):,} different texts, of at most {MOST_CLASSES:,} classes")
    if test is not None and len(strange := np.setdiff1d(test, names)):
        raise Malformed(f"the test targets have the class '{_shown(strange[0])}', which no training example has")
    dtype = smallest(len(names))
    labels = np.searchsorted(names, train).astype(dtype)
    test_labels = None if test is None else np.searchsorted(names, test).astype(dtype)
    return Targets(labels, test_labels, "classification", tuple(_shown(name) for name in names))


def _flat(targets: np.ndarray) -> np.ndarray:
    targets = np.asarray(targets)
    return targets[:, 0] if targets.ndim == 2 and targets.shape[1] == 1 else targets


def _objective(train: np.ndarray) -> str:
    if train.ndim == 1 and (train.dtype.kind != "f" or is_binary(train)) or _is_one_hot(train):
        return "classification"
    if train.ndim == 2 and train.dtype.kind in "iubf" and np.isin(train, (0, 1)).all():
        return "multi-label"
    if train.dtype.kind == "f":
        return "regression"
    raise Malformed(
        f"the targets are {train.dtype} {list(train.shape[1:])}: say by data.objective what they are, or give one class each"
    )


def _classes(train: np.ndarray, test: np.ndarray | None) -> Targets:
    if train.dtype.kind in "US":
        return classes_by_name(_as_text(train), None if test is None else _as_text(test))
    places = train.shape[1] if _is_one_hot(train) else 0  # of a class that comes nowhere there is a place all the same
    train, test = _whole(train, "training"), None if test is None else _whole(test, "test")
    found = np.unique(train)
    if len(found) > MOST_CLASSES:
        raise Malformed(
            f"the labels are {len(found):,} different whole numbers, of at most {MOST_CLASSES:,} classes: give "
            "data.objective=regression if they are numbers to predict"
        )
    if not places and (found[0] != 0 or found[-1] != len(found) - 1):
        return _numbered_otherwise(found, train, test)
    highest = max(int(found[-1]), places - 1)
    if len(found) == 1:
        raise Malformed(f"all training examples are of one class, {highest}: there is nothing to tell apart")
    counts = np.bincount(train, minlength=places)
    if not counts.all():
        empty = int(np.argmin(counts))
        raise Malformed(f"no training example is of class {empty}, of 0 to {highest}: leave its place out")
    if test is not None and (test.min() < 0 or test.max() > highest):
        strange = int(test.min() if test.min() < 0 else test.max())
        raise Malformed(f"the test targets have the class {strange}, which no training example has")
    dtype = smallest(highest + 1)
    names = tuple(str(label) for label in range(highest + 1))
    return Targets(train.astype(dtype), None if test is None else test.astype(dtype), "classification", names)


def _numbered_otherwise(found: np.ndarray, train: np.ndarray, test: np.ndarray | None) -> Targets:
    """Return labels of whole numbers that do not go from 0 without gaps, such as 1 to 10: each number names a class.

    Raises:
      Malformed: there are so many, with gaps, that they may be numbers to predict.
    """
    first, last = int(found[0]), int(found[-1])
    if len(found) > MOST_WITH_GAPS and last - first >= len(found):
        raise Malformed(
            f"the labels are {len(found):,} different whole numbers from {first} to {last}: number the classes from 0 without "
            "gaps, or give data.objective=regression if they are numbers to predict"
        )
    return classes_by_name(train, test)


def _as_text(targets: np.ndarray) -> np.ndarray:
    """Return texts; bytes are taken for UTF-8, and those that are none stand as in Python's source."""
    return np.char.decode(targets, "utf-8", "backslashreplace") if targets.dtype.kind == "S" else targets


def _whole(targets: np.ndarray, split: str) -> np.ndarray:
    """Return whole numbers [N], also of rows with a single 1 at the place of the class."""
    if targets.dtype.kind not in "iubf":
        raise Malformed(f"the {split} targets are {targets.dtype}: classes are whole numbers from 0, or text")
    if _is_one_hot(targets):
        classes: np.ndarray = targets.argmax(1)
        return classes
    if targets.ndim != 1:
        raise Malformed(f"the {split} targets have shape {list(targets.shape[1:])}: a class is one whole number")
    if targets.dtype.kind == "f" and not (wrong := np.isfinite(targets) & (targets % 1 == 0)).all():
        raise Malformed(f"a {split} target is {targets[~wrong][0]}, which is no class: give data.objective=regression")
    if targets.dtype.kind in "uf" and targets.dtype.itemsize > 2 and (large := targets >= 2**63).any():
        raise Malformed(
            f"a {split} target is {targets[large][0]}: number the classes from 0 to at most {MOST_CLASSES - 1:,}"
        )
    return targets.astype(np.int64)


def _is_one_hot(targets: np.ndarray) -> bool:
    """Return whether targets are rows of at least two places with a single 1, as Keras's `to_categorical` makes them."""
    is_rows = targets.ndim == 2 and targets.shape[1] > 1 and targets.dtype.kind in "iubf"
    return bool(is_rows and np.isin(targets, (0, 1)).all() and (targets.sum(1) == 1).all())


def is_binary(targets: np.ndarray) -> bool:
    """Return whether targets [N] are 0 and 1 alone, and both: labels, whatever their dtype."""
    return bool(np.isin(targets, (0, 1)).all() and targets.any() and not targets.all())


def _labels(train: np.ndarray, test: np.ndarray | None) -> Targets:
    for split, targets in (("training", train), ("test", test)):
        if targets is not None and (targets.ndim != 2 or not np.isin(targets, (0, 1)).all()):
            raise Malformed(f"the {split} targets of a multi-label task are rows of 0 and 1, one for each label")
    names = tuple(str(label) for label in range(train.shape[1]))
    return Targets(train.astype(np.uint8), None if test is None else test.astype(np.uint8), "multi-label", names)


def _numbers(train: np.ndarray, test: np.ndarray | None) -> Targets:
    for split, targets in (("training", train), ("test", test)):
        if targets is not None and targets.dtype.kind not in "iubf":
            raise Malformed(f"the {split} targets are {targets.dtype}: a regression takes numbers")
        if targets is not None and not np.isfinite(targets).all():
            raise Malformed(f"a {split} target is {targets[~np.isfinite(targets)][0]}, no finite number")
    if train.min() == train.max():
        raise Malformed(f"all training targets are {train.min()}: there is nothing to learn")
    return Targets(_as_floats(train), None if test is None else _as_floats(test), "regression")


def _as_floats(targets: np.ndarray) -> np.ndarray:
    return targets.astype(np.float64 if targets.dtype.itemsize > 4 else np.float32)


def _shown(name: str) -> str:
    return one_line(str(name), 200)


def smallest(classes: int) -> type[np.generic]:
    """Return the dtype of the labels of so many classes."""
    return np.uint8 if classes <= 2**8 else np.uint16


_OBJECTIVES: dict[str, Callable[[np.ndarray, np.ndarray | None], Targets]] = {
    "classification": _classes,
    "multi-label": _labels,
    "regression": _numbers,
}


# Choose the examples that are held out to test on, where users bring none.

_SEED = 0


class Split(NamedTuple):
    """Which examples are trained on and which tested on: sorted ids; and a line that says so."""

    train: np.ndarray
    test: np.ndarray
    note: str


def split_of(targets: Targets, share: float) -> Split | None:
    """Return the training examples that are held out, as `hold_out`; None where others were given to test on."""
    if targets.test is not None:
        return None
    labels = targets.train if targets.objective == "classification" else None
    return hold_out(share, len(targets.train), labels)


def contents_of(
    targets: Targets, split: Split | None, train: Mapping[str, Rows], test: Mapping[str, Rows] | None = None
) -> Contents:
    """Return the contents of a data set.

    Args:
      split: of `split_of`. The rows of its two parts are made when they are packed, from those of `train`.
      train, test: inputs and weights, name → [N, ...].
    """
    whole: dict[str, Any] = {**train, TARGET: targets.train}
    if split is None:
        parts = [whole, {**(test or {}), TARGET: targets.test}]
    else:
        parts = [{name: Selected(rows, ids) for name, rows in whole.items()} for ids in (split.train, split.test)]
    contents = Contents.of(*parts, objective=targets.objective, classes=targets.classes)
    return contents if split is None else replace(contents, notes=(split.note,))


class Selected:
    """Some rows of others, in the order of `ids` [N], made when they are asked for: not all have to fit into the memory."""

    def __init__(self, rows: Any, ids: np.ndarray):
        self._rows, self._ids = rows, ids
        self.dtype, self.shape = rows.dtype, (len(ids), *rows.shape[1:])

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, part: slice | np.ndarray) -> np.ndarray:
        rows: np.ndarray = self._rows[self._ids[part]]
        return rows


def hold_out(share: float, examples: int, labels: np.ndarray | None = None) -> Split:
    """Return a split by seed: a share of all examples, of each class the same.

    Args:
      labels: [examples] whole numbers from 0, of a classification; None for other objectives.

    Raises:
      Malformed: there are too few examples.
    """
    if examples < 2:
        raise Malformed(f"there is only {examples} example: none can be held out to test on")
    order = np.random.default_rng(_SEED).permutation(examples)
    if labels is None:
        test = order[: min(examples - 1, max(1, round(share * examples)))]
    else:
        test = _of_each_class(share, order, labels)
    test = np.sort(test)
    train = np.setdiff1d(np.arange(examples), test, assume_unique=True)
    of_each = " of each class" if labels is not None else ""
    note = (
        f"held out {len(test):,} of {examples:,} examples for testing (data.held_out={share:g}{of_each}, by seed "
        f"{_SEED}), because no others were given"
    )
    return Split(train, test, note)


def _of_each_class(share: float, order: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return ids in random order: of each class a share, and one at least is left to train on."""
    by_class = order[np.argsort(labels[order], kind="stable")]
    counts = np.bincount(labels)
    wanted = _wanted(share, counts)
    if not wanted.any():
        raise Malformed("each class has only one example: none can be held out to test on")
    starts = np.cumsum(counts) - counts
    place_in_class = np.arange(len(labels)) - np.repeat(starts, counts)
    return by_class[place_in_class < np.repeat(wanted, counts)]


def _wanted(share: float, counts: np.ndarray) -> np.ndarray:
    """Return how many of each class to hold out: its share rounded down, and one more where the most is cut off."""
    most, exact = np.maximum(counts - 1, 0), share * counts
    wanted: np.ndarray = np.minimum(most, exact.astype(int))
    missing = max(1, round(share * int(counts.sum()))) - int(wanted.sum())
    first = np.argsort(np.where(most > wanted, wanted - exact, np.inf), kind="stable")
    more = first[: max(0, min(missing, int((most > wanted).sum())))]
    wanted[more] += 1
    return wanted


# Choose the split to test on, among those that a library's folder has.

TRAIN = "train"
TESTS = ("test", "validation", "valid", "val")
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
    for name in TESTS:
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
