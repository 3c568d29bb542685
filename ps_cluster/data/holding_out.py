"""Choose the examples that are held out to test on if users bring no test examples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from ps_cluster.config.datasets import Contents, TargetKind
from ps_cluster.config.objectives import TARGET, FieldValues, target_array
from ps_cluster.data.lazy_rows import IndexableRows, SelectedRows
from ps_cluster.data.targets import Targets
from ps_cluster.files.values import Malformed

_SEED = 0


class HeldOut(NamedTuple):
    """The division of the examples into those to train on, and those that are held out to test on."""

    train: np.ndarray  # sorted ids
    test: np.ndarray  # sorted ids
    note: str  # says what was held out


def hold_out(targets: Targets, share: float) -> HeldOut | None:
    """Choose random examples to hold out, with a fixed seed; return None if there are test targets already.

    For classification, the same share of each class is held out. Raises Malformed if there are too few examples.
    """
    if targets.test is not None:
        return None
    examples, of_each = len(targets.train), ""
    if examples < 2:
        raise Malformed(f"there is only {examples} example: none can be held out to test on")
    order = np.random.default_rng(_SEED).permutation(examples)
    if targets.objective == "classification":
        test, of_each = _held_out_of_each_class(share, order, targets.train), " of each class"
    else:
        test = order[: min(examples - 1, max(1, round(share * examples)))]
    test = np.sort(test)
    train = np.setdiff1d(np.arange(examples), test, assume_unique=True)
    note = (
        f"held out {len(test):,} of {examples:,} examples for testing (data.held_out={share:g}{of_each}, chosen "
        f"with seed {_SEED}), because no test examples were given"
    )
    return HeldOut(train, test, note)


def contents_of(
    targets: Targets,
    held_out: HeldOut | None,
    train: Mapping[str, IndexableRows],
    test: Mapping[str, FieldValues] | None = None,
    *,
    output: str = "",
    others: Mapping[str, Targets] = MappingProxyType({}),
) -> Contents:
    """Put together the contents of a data set from its targets, inputs and weights.

    Args:
      held_out: the result of `hold_out`. If examples are held out, the rows of both splits are selected from `train`
        when the data set is packed.
      train: inputs and weights of the training examples, arrays [N, ...] by name.
      test: inputs and weights of the test examples, in the same form. It is not used if examples are held out.
      output: the name of the output that predicts `targets`, if there are other outputs.
      others: the targets of the other outputs, by the names of these outputs.
    """
    of_outputs = {TARGET: targets, **{target_array(name): one for name, one in others.items()}}
    whole: Mapping[str, IndexableRows] = {**train, **{name: one.train for name, one in of_outputs.items()}}
    if held_out is None:
        tests = {name: one.test for name, one in of_outputs.items() if one.test is not None}
        parts: tuple[Mapping[str, FieldValues], ...] = whole, {**(test or {}), **tests}
    else:
        ids_of_parts = held_out.train, held_out.test
        parts = tuple({name: SelectedRows(rows, ids) for name, rows in whole.items()} for ids in ids_of_parts)
    kinds = {name: TargetKind(one.objective, one.classes) for name, one in others.items()}
    contents = Contents.of(*parts, objective=targets.objective, classes=targets.classes, output=output, others=kinds)
    return contents if held_out is None else replace(contents, notes=(held_out.note,))


def _held_out_of_each_class(share: float, order: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the ids to hold out, in random order: a share of each class, but never all examples of a class."""
    by_class = order[np.argsort(labels[order], kind="stable")]
    counts = np.bincount(labels)
    wanted = _counts_to_hold_out(share, counts)
    if not wanted.any():
        raise Malformed("each class has only one example: none can be held out to test on")
    starts = np.cumsum(counts) - counts
    place_in_class = np.arange(len(labels)) - np.repeat(starts, counts)
    return by_class[place_in_class < np.repeat(wanted, counts)]


def _counts_to_hold_out(share: float, counts: np.ndarray) -> np.ndarray:
    """Return how many examples of each class to hold out: `share` of the class, rounded down, or one more.

    The classes that lose most by rounding get one more, until the sum is `share` of all examples.
    """
    most, exact = np.maximum(counts - 1, 0), share * counts
    wanted: np.ndarray = np.minimum(most, exact.astype(int))
    missing = max(1, round(share * int(counts.sum()))) - int(wanted.sum())
    first = np.argsort(np.where(most > wanted, wanted - exact, np.inf), kind="stable")
    more = first[: max(0, min(missing, int((most > wanted).sum())))]
    wanted[more] += 1
    return wanted
