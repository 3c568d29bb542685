"""Turn the targets that users bring into packed targets, and guess their objective."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ps_cluster.config.datasets import MOST_CLASSES
from ps_cluster.files.values import Malformed, one_line

MOST_CLASSES_WITH_GAPS = 100  # up to this many different whole numbers are read as classes, even with gaps between them


class Targets(NamedTuple):
    """The targets of a data set, [N, ...], converted to the dtype and shape in which they are packed."""

    train: np.ndarray
    test: np.ndarray | None
    objective: str
    classes: tuple[str, ...] = ()  # the names of the classes or labels, if there are any


def targets_of(train: np.ndarray, test: np.ndarray | None, objective: str = "auto") -> Targets:
    """Convert targets [N] or [N, k] to the dtype and shape in which they are packed for an objective.

    "auto" chooses classification for one-hot rows, and for targets [N] of integers, of texts, or of 0.0 and 1.0 only.
    It chooses multi-label for other rows of 0 and 1, and regression for other floats. Raises Malformed if the targets
    do not fit the objective, or there is nothing to learn.
    """
    train, test = _without_unit_axis(train), None if test is None else _without_unit_axis(test)
    if objective == "auto":
        objective = _guess_objective(train)
    return _OBJECTIVES[objective](train, test)


def classes_by_name(train: np.ndarray, test: np.ndarray | None) -> Targets:
    """Convert targets [N], which are names or numbers of classes, to labels: indices in the sorted distinct values."""
    names = np.unique(train)
    if len(names) == 1:
        raise Malformed(f"all training examples are of one class, '{_shown(names[0])}': there is nothing to tell apart")
    if len(names) > MOST_CLASSES:
        raise Malformed(
            f"the targets have {len(names):,} different values, more than {MOST_CLASSES:,} classes: set "
            "data.objective=regression if they are numbers to predict"
        )
    strange = np.setdiff1d(test, names) if test is not None else names[:0]
    _check_shown_apart([*names, *strange])
    if len(strange):
        raise Malformed(f"the test targets have the class '{_shown(strange[0])}', which no training example has")
    dtype = label_dtype(len(names))
    labels = np.searchsorted(names, train).astype(dtype)
    test_labels = None if test is None else np.searchsorted(names, test).astype(dtype)
    return Targets(labels, test_labels, "classification", tuple(_shown(name) for name in names))


def _check_shown_apart(names: Sequence[str]) -> None:
    """Raise Malformed if two different classes would have the same name, e.g. because they differ only in spaces."""
    by_shown: dict[str, str] = {}
    for name in map(str, names):
        first = by_shown.setdefault(_shown(name), name)
        if first != name:
            raise Malformed(
                f"the classes {first!r:.100} and {name!r:.100} are both shown as '{one_line(name, 100)}': write them the "
                "same way if they are one class, and rename one of them if they are two"
            )


def _without_unit_axis(targets: np.ndarray) -> np.ndarray:
    targets = np.asarray(targets)
    return targets[:, 0] if targets.ndim == 2 and targets.shape[1] == 1 else targets


def _guess_objective(train: np.ndarray) -> str:
    if (train.ndim == 1 and (train.dtype.kind != "f" or is_binary(train))) or _is_one_hot(train):
        return "classification"
    if train.ndim == 2 and train.dtype.kind in "iubf" and np.isin(train, (0, 1)).all():
        return "multi-label"
    if train.dtype.kind == "f":
        return "regression"
    raise Malformed(
        f"the targets are {train.dtype} {list(train.shape[1:])}: set data.objective, or give one class for each example"
    )


def _classification_targets(train: np.ndarray, test: np.ndarray | None) -> Targets:
    if train.dtype.kind in "US":
        return classes_by_name(_as_text(train), None if test is None else _as_text(test))
    places = train.shape[1] if _is_one_hot(train) else 0  # one-hot rows have a column even for a class without examples
    train, test = _as_whole_numbers(train, "training"), None if test is None else _as_whole_numbers(test, "test")
    found = np.unique(train)
    if 1 < len(found) < places:
        empty = np.setdiff1d(np.arange(places), found)[0]
        raise Malformed(
            f"no training example has class {empty} of the classes 0 to {places - 1}: remove its one-hot column"
        )
    first, last = int(found[0]), int(found[-1])
    if len(found) > MOST_CLASSES_WITH_GAPS and last - first >= len(found):
        raise Malformed(
            f"the labels are {len(found):,} different whole numbers from {first} to {last}: number the classes from 0 without "
            "gaps, or set data.objective=regression if they are numbers to predict"
        )
    return classes_by_name(train, test)


def _as_text(targets: np.ndarray) -> np.ndarray:
    """Return targets as texts. Bytes are decoded as UTF-8, and invalid bytes are written as escapes."""
    return np.char.decode(targets, "utf-8", "backslashreplace") if targets.dtype.kind == "S" else targets


def _as_whole_numbers(targets: np.ndarray, split: str) -> np.ndarray:
    """Return classes, which may be one-hot rows, as integers, int64 [N]."""
    if targets.dtype.kind not in "iubf":
        raise Malformed(f"the {split} targets are {targets.dtype}: classes are whole numbers from 0, or text")
    if _is_one_hot(targets):
        classes: np.ndarray = targets.argmax(1)
        return classes
    if targets.ndim != 1:
        raise Malformed(f"the {split} targets have shape {list(targets.shape[1:])}: a class is one whole number")
    if targets.dtype.kind == "f" and not (wrong := np.isfinite(targets) & (targets % 1 == 0)).all():
        raise Malformed(f"a {split} target is {targets[~wrong][0]}, which is no class: set data.objective=regression")
    if targets.dtype.kind in "uf" and targets.dtype.itemsize > 2 and (large := targets >= 2**63).any():
        raise Malformed(
            f"a {split} target is {targets[large][0]}: number the classes from 0 to at most {MOST_CLASSES - 1:,}"
        )
    return targets.astype(np.int64)


def _is_one_hot(targets: np.ndarray) -> bool:
    """Return whether targets are rows of zeros with a single 1, as Keras's `to_categorical` makes them."""
    is_rows = targets.ndim == 2 and targets.shape[1] > 1 and targets.dtype.kind in "iubf"
    return bool(is_rows and np.isin(targets, (0, 1)).all() and (targets.sum(1) == 1).all())


def is_binary(targets: np.ndarray) -> bool:
    """Return whether targets [N] contain both 0 and 1, and nothing else. They are then labels, whatever their dtype."""
    return bool(np.isin(targets, (0, 1)).all() and targets.any() and not targets.all())


def _multi_label_targets(train: np.ndarray, test: np.ndarray | None) -> Targets:
    for split, targets in (("training", train), ("test", test)):
        if targets is not None and (targets.ndim != 2 or not np.isin(targets, (0, 1)).all()):
            raise Malformed(f"the {split} targets of a multi-label task must be rows with a 0 or 1 for each label")
    names = tuple(str(label) for label in range(train.shape[1]))
    return Targets(train.astype(np.uint8), None if test is None else test.astype(np.uint8), "multi-label", names)


def _regression_targets(train: np.ndarray, test: np.ndarray | None) -> Targets:
    for split, targets in (("training", train), ("test", test)):
        if targets is not None and targets.dtype.kind not in "iubf":
            raise Malformed(f"the {split} targets are {targets.dtype}: a regression takes numbers")
        if targets is not None and not np.isfinite(targets).all():
            raise Malformed(f"a {split} target is {targets[~np.isfinite(targets)][0]}, which is not a finite number")
    if train.min() == train.max():
        raise Malformed(f"all training targets are {train.min()}: there is nothing to learn")
    return Targets(_as_floats(train), None if test is None else _as_floats(test), "regression")


def _as_floats(targets: np.ndarray) -> np.ndarray:
    return targets.astype(np.float64 if targets.dtype.itemsize > 4 else np.float32)


def _shown(name: str) -> str:
    return one_line(str(name), 200)


def label_dtype(classes: int) -> type[np.generic]:
    """Return the smallest dtype for the labels of `classes` classes."""
    return np.uint8 if classes <= 2**8 else np.uint16


_OBJECTIVES: dict[str, Callable[[np.ndarray, np.ndarray | None], Targets]] = {
    "classification": _classification_targets,
    "multi-label": _multi_label_targets,
    "regression": _regression_targets,
}
