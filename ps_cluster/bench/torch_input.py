"""The training images of one PyTorch process: as in `ps_cluster/data`, a batch is one gather of pixels."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np
import torch

from ps_cluster.data.packed import PackedDataset
from ps_cluster.data.pixels import PIXEL_MEAN, PIXEL_STD

SIDE = 32
Batch = tuple[torch.Tensor, torch.Tensor]


def batches(dataset: PackedDataset, config: dict, rank: int, processes: int) -> Iterator[Batch]:
    """Endless batches of the share that `rank` has of every epoch: images, as `normalised` has them, and int64 labels.

    Args:
      dataset: of at least `processes` batches.
      config: its `training` says the batch size and the seed, its `data.augmentation` the largest shift and the flip.
    """
    training, augmentation = config["training"], config["data"]["augmentation"]
    seed, size, furthest = training["seed"], training["batch_size_per_worker"], augmentation["crop_padding_pixels"]
    pixels, labels = dataset.images("train").reshape(-1, 3), dataset.labels("train").astype(np.int64)
    draw = np.random.default_rng([seed, rank])
    for epoch in count():
        order = np.random.default_rng([seed, processes, epoch]).permutation(len(labels))  # the same in every process
        share = order[rank::processes]
        for ids in share[: len(share) // size * size].reshape(-1, size):
            shifts = draw.integers(-furthest, furthest + 1, [2, size])
            # alternating: half of the images in even epochs, the others in odd ones; else a coin each time
            coins = ids + epoch if augmentation["flip"] == "alternating" else draw.integers(0, 2, size)
            images = np.take(pixels, sources(ids, shifts, coins % 2 == 1), axis=0)
            yield normalised(images), torch.from_numpy(labels[ids])


def sources(ids: np.ndarray, shifts: np.ndarray, mirrored: np.ndarray) -> np.ndarray:
    """int64 [B, 32, 32]: the pixels of the images `ids` that `augment.crop_and_flip` would take, by their place in all.

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
    """float32 [B, 3, 32, 32] in channels_last out of uint8 [B, 32, 32, 3], which lies in memory the same way."""
    pixels = torch.from_numpy(images).to(torch.float32)
    return pixels.sub_(torch.tensor(PIXEL_MEAN)).div_(torch.tensor(PIXEL_STD)).permute(0, 3, 1, 2)


def _reflected(positions: np.ndarray) -> np.ndarray:
    positions = np.abs(positions)
    return np.minimum(positions, 2 * (SIDE - 1) - positions)
