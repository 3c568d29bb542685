"""Choose random images of each class of a data set, both as they are stored and as training augments them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from ps_cluster.config.augmentation import Augmentation
from ps_cluster.config.datasets import DataSet, DataSettings, ImageSettings
from ps_cluster.config.objectives import OBJECTIVES
from ps_cluster.data.packed import PackedDataset

_AT_ONCE = 16  # images that are varied together: only a few, because large images take much memory as float32

VaryImages = Callable[[np.ndarray, int], np.ndarray]
"""A function of the ids of training examples, int64 [B], and of an epoch.

It returns the images of these examples, [B, H, W, C], varied as in this epoch.
"""


@dataclass(frozen=True)
class VariedImage:
    """An image, uint8 [H, W, C], and variations of it, of the same dtype and shape."""

    image: np.ndarray
    varied: tuple[np.ndarray, ...]


@dataclass(frozen=True)
class ExampleGroup:
    """A group of examples that have the same class, the same label, or a target in the same range."""

    name: str
    train_ids: np.ndarray  # int64 [M], the indices of its training examples
    test_examples: int  # the number of its test examples
    samples: tuple[VariedImage, ...] = ()  # some of its training examples, once they have been drawn

    @property
    def train_examples(self) -> int:
        return len(self.train_ids)


def groups_of(dataset: PackedDataset) -> list[ExampleGroup]:
    """Divide the examples of a data set into groups: one for each class, label or range of the target.

    The `samples` of the groups are empty.
    """
    objective, spec = OBJECTIVES[dataset.spec.objective], dataset.spec
    train, test = (objective.groups(dataset.target(split), spec) for split in ("train", "test"))
    return [ExampleGroup(name, ids, len(of_test)) for (name, ids), (_, of_test) in zip(train, test)]


def with_samples(
    dataset: PackedDataset,
    groups: Sequence[ExampleGroup],
    vary: VaryImages | None,
    *,
    samples: int,
    variations: int,
    seed: int,
) -> list[ExampleGroup]:
    """Return the groups of a data set of images, with random training images as their samples.

    Args:
      vary: the function that varies images; None if training does not vary them.
      samples: the largest number of images to draw for each group.
      variations: the number of variations of each of these images.
      seed: the seed of the draws.
    """
    draw = np.random.default_rng(seed)
    chosen = [np.sort(draw.choice(one.train_ids, min(samples, one.train_examples), replace=False)) for one in groups]
    ids = np.concatenate(chosen)
    epochs = [np.clip(np.rint(vary(ids, epoch)), 0, 255).astype(np.uint8) for epoch in range(variations) if vary]
    drawn = (
        VariedImage(image, tuple(of_epoch[place] for of_epoch in epochs))
        for place, image in enumerate(_images(dataset, ids))
    )
    return [replace(group, samples=tuple(islice(drawn, len(mine)))) for group, mine in zip(groups, chosen)]


def image_variation(kind: DataSet[Any], settings: DataSettings, dataset: PackedDataset, seed: int) -> VaryImages | None:
    """Return a function that varies images as training does, with TensorFlow; None if training does not vary them."""
    varies_nothing = isinstance(settings, ImageSettings) and settings.augmentation == Augmentation()
    if varies_nothing or (augment := kind.augmentation()) is None:
        return None
    import tensorflow as tf

    from ps_cluster.data.batches import Batch

    (name,) = dataset.spec.inputs

    def vary(ids: np.ndarray, epoch: int) -> np.ndarray:
        parts = []
        for start in range(0, len(ids), _AT_ONCE):
            part = ids[start : start + _AT_ONCE]
            step = tf.constant(epoch * len(ids) + start, tf.int64)  # each part has its own step, and so its own draws
            batch = Batch(seed, step, tf.constant(part, tf.int64), tf.fill([len(part)], tf.cast(epoch, tf.int64)))
            images = tf.constant(_images(dataset, part))
            parts.append(augment({name: images}, batch, dataset.spec, settings)[name].numpy())
        return np.concatenate(parts)

    return vary


def _images(dataset: PackedDataset, ids: np.ndarray) -> np.ndarray:
    (images,) = dataset.inputs("train").values()
    chosen: np.ndarray = images[ids]
    return chosen
