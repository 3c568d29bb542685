"""The training images of one PyTorch process. As in `ps_cluster/data`, a batch is one gather of pixels."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np
import torch

from ps_cluster.data.packed import PackedDataset
from ps_cluster.data.sets.cifar10 import PIXEL_MEAN, PIXEL_STD

SIDE = 32
Batch = tuple[torch.Tensor, torch.Tensor]


def batches(dataset: PackedDataset, config: dict, rank: int, processes: int) -> Iterator[Batch]:
    """Yield batches of the share of `rank` in every epoch, without end: images as in `normalised`, and int64 labels.

    Args:
      dataset: with at least `processes` batches.
      config: `training` has batch size and seed, `data.augmentation` the largest shift and the flip.
    """
    training, augmentation = config["training"], config["data"]["augmentation"]
    seed, size, furthest = training["seed"], training["batch_size_per_worker"], augmentation["crop_padding_pixels"]
    pixels, labels = dataset.inputs("train")["image"].reshape(-1, 3), dataset.target("train").astype(np.int64)
    draw = np.random.default_rng([seed, rank])
    for epoch in count():
        order = np.random.default_rng([seed, processes, epoch]).permutation(len(labels))  # equal in every process
        share = order[rank::processes]
        for ids in share[: len(share) // size * size].reshape(-1, size):
            shifts = draw.integers(-furthest, furthest + 1, [2, size])
            # alternating: one half in even epochs, the other in odd ones; else at random each time
            coins = ids + epoch if augmentation["flip"] == "alternating" else draw.integers(0, 2, size)
            images = np.take(pixels, sources(ids, shifts, coins % 2 == 1), axis=0)
            yield normalised(images), torch.from_numpy(labels[ids])


def sources(ids: np.ndarray, shifts: np.ndarray, mirrored: np.ndarray) -> np.ndarray:
    """Return int64 [B, 32, 32]: indices of the pixels that `augment.crop_and_flip` would take for images `ids`.

    Args:
      ids: int64 [B].
      shifts: int64 [2, B], rows and columns.
      mirrored: bool [B].
    """
    line = np.arange(SIDE)
    across = np.where(mirrored[:, None], SIDE - 1 - line, line)
    rows, columns = (_reflected(axis + shift[:, None]) for axis, shift in zip((line, across), shifts))
    return (SIDE * (SIDE * ids[:, None] + rows))[:, :, None] + columns[:, None, :]


def normalised(images: np.ndarray) -> torch.Tensor:
    """Return float32 [B, 3, 32, 32] in channels_last from uint8 [B, 32, 32, 3], which has the same memory layout."""
    pixels = torch.from_numpy(images).to(torch.float32)
    return pixels.sub_(torch.tensor(PIXEL_MEAN)).div_(torch.tensor(PIXEL_STD)).permute(0, 3, 1, 2)


def _reflected(positions: np.ndarray) -> np.ndarray:
    positions = np.abs(positions)
    return np.minimum(positions, 2 * (SIDE - 1) - positions)
