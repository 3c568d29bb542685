"""Measure images per second of PyTorch's DistributedDataParallel (gloo), or of one process in mode single.

    python -m ps_cluster.tools.bench.ddp RUN_DIR [compiled]

With `compiled` the network is compiled (torch.compile), which needs a C++ compiler. With `cluster.pin_workers` each
process has a core of its own. Images, network, precision and batch size per worker are those of the other arms. The
program needs only torch, numpy, pydantic and PyYAML. The last line of the output is `arms.Measured`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from pydantic import AliasPath, BaseModel, Field
from torch import multiprocessing, nn

from ps_cluster.data.packed import PackedDataset, load_pointed
from ps_cluster.data.sets.cifar import PIXEL_MEAN, PIXEL_STD
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.system.lifetime import die_with_parent

Activation = Callable[[], nn.Module]
Batch = tuple[torch.Tensor, ...]

COMPILED = "compiled"
WARM_UP_STEPS = 10
SIDE = 32
# glibc returns large blocks to the system after every step, and gets them again by page faults. PyTorch's tuning guide
# preloads another malloc against that. These environment variables tell glibc's own malloc to keep the blocks.
KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}


class DdpConfig(BaseModel):
    """The settings that every workload has. Their aliases are their keys in the config.yaml of a run.

    `RunConfig` can't be used here, because the environment of PyTorch lacks packages that `RunConfig` imports.
    """

    mode: str = Field(validation_alias=AliasPath("mode", "name"))
    workers: int = Field(validation_alias=AliasPath("cluster", "workers"))
    intra_op_threads: int = Field(validation_alias=AliasPath("cluster", "intra_op_threads"))
    pin_workers: bool | str = Field(validation_alias=AliasPath("cluster", "pin_workers"))
    seed: int = Field(validation_alias=AliasPath("training", "seed"))
    batch_size_per_worker: int = Field(validation_alias=AliasPath("training", "batch_size_per_worker"))
    steps: int = Field(validation_alias=AliasPath("training", "steps"))
    learning_rate: float = Field(validation_alias=AliasPath("optimizer", "learning_rate"))


class ImageConfig(DdpConfig):
    """The settings of training on images."""

    crop_padding_pixels: int = Field(validation_alias=AliasPath("data", "augmentation", "crop_padding_pixels"))
    flip: str = Field(validation_alias=AliasPath("data", "augmentation", "flip"))
    network: str = Field(validation_alias=AliasPath("model", "name"))
    precision: str = Field(validation_alias=AliasPath("model", "precision"))
    activation: str = Field(validation_alias=AliasPath("model", "activation"))
    momentum: float = Field(validation_alias=AliasPath("optimizer", "momentum"))
    label_smoothing: float = Field(validation_alias=AliasPath("training", "label_smoothing"))


class Work(NamedTuple):
    """The work of a process: a network, its update rule, a function for the loss of a batch (a scalar), and endless batches."""

    network: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[nn.Module, Batch], torch.Tensor]
    batches: Iterator[Batch]


Config = TypeVar("Config", bound=DdpConfig)
MakeWork = Callable[[PackedDataset, Config, int, int], Work]
"""Returns the work of a process, from the data, the settings, the rank of the process and the number of processes."""


def train(
    rank: int, processes: int, run_dir: RunDir, config: Config, make_work: MakeWork[Config], compiled: bool
) -> None:
    """Train in one of several processes. Rank 0 prints the rate of all processes together."""
    die_with_parent()
    if config.pin_workers is True:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, [cores[rank % len(cores)]])
    torch.set_num_threads(config.intra_op_threads)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # Otherwise gloo takes the interface of the machine's host name.
    meeting_point = f"file://{run_dir.root / 'rendezvous'}"
    dist.init_process_group("gloo", meeting_point, timedelta(seconds=60), world_size=processes, rank=rank)
    work = make_work(load_pointed(run_dir.dataset), config, rank, processes)
    if compiled:
        work.network.compile()
    rate = processes * measure(work, config, processes)
    dist.destroy_process_group()
    if rank == 0:
        print(f"{trainable(work.network):,} trainable parameters")
        print(json.dumps({"examples_per_second": rate}), flush=True)
    # gloo's threads may abort a process while the interpreter shuts down ("terminate called without an active
    # exception"). The rate has been printed by then.
    os._exit(0)


def measure(work: Work, config: DdpConfig, processes: int) -> float:
    """Return this process's examples/s, from the end of all warm-ups until all processes have done all steps."""
    network = work.network
    if processes > 1:  # Each process keeps its own normalisation statistics, which saves a broadcast in each step.
        network = nn.parallel.DistributedDataParallel(
            network, broadcast_buffers=False, gradient_as_bucket_view=True, static_graph=True
        )

    def run(steps: int) -> None:
        for batch in islice(work.batches, steps):
            work.loss(network, batch).backward()
            work.optimizer.step()
            work.optimizer.zero_grad()

    run(WARM_UP_STEPS)
    dist.barrier()
    started = time.perf_counter()
    run(config.steps)
    dist.barrier()
    return config.steps * config.batch_size_per_worker / (time.perf_counter() - started)


def image_work(dataset: PackedDataset, config: ImageConfig, rank: int, processes: int) -> Work:
    """Return the work of a process that trains on images like those of CIFAR-10, by SGD with Nesterov momentum."""
    network = build(config.network, config.activation)
    weights = [weight for weight in network.parameters() if weight.requires_grad]
    optimizer = torch.optim.SGD(weights, config.learning_rate, momentum=config.momentum, nesterov=True, fused=True)

    def loss(network: nn.Module, batch: Batch) -> torch.Tensor:
        images, labels = batch
        with torch.autocast("cpu", torch.bfloat16, enabled=config.precision == "bfloat16"):
            scores = network(images)
        return nn.functional.cross_entropy(scores.float(), labels, label_smoothing=config.label_smoothing)

    return Work(network, optimizer, loss, batches(dataset, config, rank, processes))


def batches(dataset: PackedDataset, config: ImageConfig, rank: int, processes: int) -> Iterator[Batch]:
    """Yield the batches of process `rank`, without end.

    A batch has normalised images, float32 [B, 3, 32, 32], and their labels, int64 [B]. As in `ps_cluster/data`, one
    gather operation reads all pixels of a batch.

    Args:
      dataset: data with at least `processes` batches.
    """
    size, furthest = config.batch_size_per_worker, config.crop_padding_pixels
    pixels, labels = dataset.inputs("train")["image"].reshape(-1, 3), dataset.target("train").astype(np.int64)
    draw = np.random.default_rng([config.seed, rank])
    for epoch, ids in ids_of_batches(len(labels), config, rank, processes):
        shifts = draw.integers(-furthest, furthest + 1, [2, size])
        # "alternating" mirrors one half in even epochs and the other half in odd ones; otherwise chance decides.
        coins = ids + epoch if config.flip == "alternating" else draw.integers(0, 2, size)
        images = np.take(pixels, sources(ids, shifts, coins % 2 == 1), axis=0)
        yield normalised(images), torch.from_numpy(labels[ids])


def ids_of_batches(examples: int, config: DdpConfig, rank: int, processes: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yield, without end, the epoch and the indices of the examples, int64 [B], of each batch of process `rank`.

    B is the batch size per worker. `examples`: the number of training examples, at least `processes` x B.
    """
    size = config.batch_size_per_worker
    for epoch in count():
        order = np.random.default_rng([config.seed, processes, epoch]).permutation(examples)  # equal in all processes
        share = order[rank::processes]
        yield from ((epoch, ids) for ids in share[: len(share) // size * size].reshape(-1, size))


def sources(ids: np.ndarray, shifts: np.ndarray, mirrored: np.ndarray) -> np.ndarray:
    """Return the indices, int64 [B, 32, 32], of the pixels that `augment.crop_and_flip` would take for images `ids`.

    Args:
      ids: the indices of the images, int64 [B].
      shifts: by how many pixels the rows and the columns of each image are shifted, int64 [2, B].
      mirrored: whether left and right of each image are exchanged, bool [B].
    """
    line = np.arange(SIDE)
    across = np.where(mirrored[:, None], SIDE - 1 - line, line)
    places = (np.abs(axis + shift[:, None]) for axis, shift in zip((line, across), shifts, strict=True))
    rows, columns = (np.minimum(place, 2 * (SIDE - 1) - place) for place in places)  # reflected at the borders
    pixels: np.ndarray = (SIDE * (SIDE * ids[:, None] + rows))[:, :, None] + columns[:, None, :]
    return pixels


def normalised(images: np.ndarray) -> torch.Tensor:
    """Return the normalised `images`, uint8 [B, 32, 32, 3], as float32 [B, 3, 32, 32] with the same memory layout."""
    pixels = torch.from_numpy(images).to(torch.float32)
    return pixels.sub_(torch.tensor(PIXEL_MEAN)).div_(torch.tensor(PIXEL_STD)).permute(0, 3, 1, 2)


# The networks have the layers, shapes, padding and trainable parameters of those in `ps_cluster/models/networks/`. Each
# takes normalised images [B, 3, 32, 32], and returns the scores of ten classes.


def tutorial_cnn(activation: Activation) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.MaxPool2d(2), activation(),
        nn.Conv2d(32, 64, 3), nn.MaxPool2d(2), activation(),
        nn.Conv2d(64, 64, 3), activation(), nn.Flatten(),
        nn.Linear(1024, 64), activation(), nn.Linear(64, 10),
    )  # fmt: skip


def cifar_tf_cnn(activation: Activation) -> nn.Module:
    pool = partial(nn.MaxPool2d, 3, 2, ceil_mode=True)  # pads only below and right, as "same" does in TensorFlow
    return nn.Sequential(
        nn.Conv2d(3, 64, 5, padding="same"), pool(), activation(),
        nn.Conv2d(64, 64, 5, padding="same"), pool(), activation(), nn.Flatten(),
        nn.Linear(4096, 512), activation(), nn.Linear(512, 10),
    )  # fmt: skip


class _Airbench(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).float() / 9


def airbench(activation: Activation) -> nn.Module:
    def convolution(inputs: int, outputs: int) -> nn.Module:
        return nn.Conv2d(inputs, outputs, 3, padding="same", bias=False)

    def shift(width: int) -> nn.Module:
        norm = nn.BatchNorm2d(width, momentum=0.4)
        norm.weight.requires_grad_(False)  # The scale stays 1.
        return norm

    layers, inputs = [nn.Conv2d(3, 24, 2), activation()], 24
    for width in (64, 256, 256):
        layers += [convolution(inputs, width), nn.MaxPool2d(2), shift(width), activation()]
        layers += [convolution(width, width), shift(width), activation()]
        inputs = width
    return _Airbench(*layers, nn.MaxPool2d(3), nn.Flatten(), nn.Linear(256, 10, bias=False))


ACTIVATIONS: dict[str, Activation] = {
    "relu": partial(nn.ReLU, inplace=True), "gelu": nn.GELU, "silu": partial(nn.SiLU, inplace=True)
}  # fmt: skip
NETWORKS = {"tutorial_cnn": tutorial_cnn, "cifar_tf_cnn": cifar_tf_cnn, "airbench": airbench}


def build(name: str, activation: str) -> nn.Module:
    """Return a network for ten classes in memory format channels_last, which oneDNN's kernels take without a copy."""
    return NETWORKS[name](ACTIVATIONS[activation]).to(memory_format=torch.channels_last)


def trainable(network: nn.Module) -> int:
    return sum(weight.numel() for weight in network.parameters() if weight.requires_grad)


def main(run_dir: RunDir, kind: type[Config], make_work: MakeWork[Config], *, compiled: bool = False) -> None:
    """Train in all processes with the settings in `run_dir`. Rank 0 prints the rate. `kind`: the class of the settings."""
    config = kind.model_validate_json(run_dir.config.read_text())
    processes = 1 if config.mode == "single" else config.workers
    os.environ.update(KEEP_MEMORY)
    multiprocessing.spawn(train, (processes, run_dir, config, make_work, compiled), nprocs=processes)


if __name__ == "__main__":
    main(RunDir.open(Path(sys.argv[1])), ImageConfig, image_work, compiled=COMPILED in sys.argv[2:])
