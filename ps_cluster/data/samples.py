"""Draw examples of each class of a packed data set of images, as they are and as training varies them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

import numpy as np

from ps_cluster.config.datasets import Augmentation, DataSet, DataSettings
from ps_cluster.config.objectives import OBJECTIVES
from ps_cluster.config.registry import import_object
from ps_cluster.data.packed import PackedDataset
from ps_cluster.files.values import Malformed

_AT_ONCE = 16  # images that are varied together: large ones take much memory as float32

Vary = Callable[[np.ndarray, int], np.ndarray]
"""Returns the images of some training examples, int64 [B], in an epoch: [B, H, W, C]."""


@dataclass(frozen=True)
class Sample:
    """An image, uint8 [H, W, C], and variations of it."""

    image: np.ndarray
    varied: tuple[np.ndarray, ...]


@dataclass(frozen=True)
class Group:
    """A class, a label or a range of the target.

    Attributes:
      train_ids: indices of its training examples, int64 [M]. test_examples: how many it has to test on.
      samples: some of the training examples, once they are drawn.
    """

    name: str
    train_ids: np.ndarray
    test_examples: int
    samples: tuple[Sample, ...] = ()

    @property
    def train_examples(self) -> int:
        return len(self.train_ids)


def groups_of(dataset: PackedDataset) -> list[Group]:
    """Return the classes, labels or ranges of the target, without samples."""
    objective, spec = OBJECTIVES[dataset.spec.objective], dataset.spec
    train, test = (objective.groups(dataset.target(split), spec) for split in ("train", "test"))
    return [Group(name, ids, len(of_test)) for (name, ids), (_, of_test) in zip(train, test)]


def with_samples(
    dataset: PackedDataset, groups: Sequence[Group], vary: Vary | None, *, samples: int, variations: int, seed: int
) -> list[Group]:
    """Return groups of a data set of images with random samples of each.

    Args:
      vary: how training varies images; None: not at all.
      variations: how many of each sample.
    """
    draw = np.random.default_rng(seed)
    chosen = [np.sort(draw.choice(one.train_ids, min(samples, one.train_examples), replace=False)) for one in groups]
    ids = np.concatenate(chosen)
    epochs = [np.clip(np.rint(vary(ids, epoch)), 0, 255).astype(np.uint8) for epoch in range(variations) if vary]
    drawn = (
        Sample(image, tuple(of_epoch[place] for of_epoch in epochs))
        for place, image in enumerate(_images(dataset, ids))
    )
    return [replace(group, samples=tuple(islice(drawn, len(mine)))) for group, mine in zip(groups, chosen)]


def variation(kind: DataSet, settings: DataSettings, dataset: PackedDataset) -> Callable[[int], Vary] | None:
    """Return a function that makes a `Vary` for a seed; None where training takes the images as they are.

    TensorFlow is imported when that function is called.
    """
    if kind.augment is None or getattr(settings, "augmentation", None) == Augmentation():
        return None

    def make(seed: int) -> Vary:
        import tensorflow as tf

        from ps_cluster.data.batches import Batch

        augment = import_object(kind.augment)
        (name,) = dataset.spec.inputs

        def vary(ids: np.ndarray, epoch: int) -> np.ndarray:
            parts = []
            for start in range(0, len(ids), _AT_ONCE):
                part = ids[start : start + _AT_ONCE]
                step = tf.constant(epoch * len(ids) + start, tf.int64)  # another one for each part: other draws
                batch = Batch(seed, step, tf.constant(part, tf.int64), tf.fill([len(part)], tf.cast(epoch, tf.int64)))
                images = tf.constant(_images(dataset, part))
                parts.append(augment({name: images}, batch, dataset.spec, settings)[name].numpy())
            return np.concatenate(parts)

        return vary

    return make


def _images(dataset: PackedDataset, ids: np.ndarray) -> np.ndarray:
    (images,) = dataset.inputs("train").values()
    return images[ids]


# Choose the examples that are held out to test on, where users bring none.

_SEED = 0


class Split(NamedTuple):
    """Which examples are trained on and which tested on: sorted ids; and a line that says so."""

    train: np.ndarray
    test: np.ndarray
    note: str


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
    wanted = np.minimum(most, exact.astype(int))
    missing = max(1, round(share * int(counts.sum()))) - int(wanted.sum())
    first = np.argsort(np.where(most > wanted, wanted - exact, np.inf), kind="stable")
    more = first[: max(0, min(missing, int((most > wanted).sum())))]
    wanted[more] += 1
    return wanted


# Choose the split to test on, among those that a library's folder has.

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
