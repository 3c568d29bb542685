"""Measure images per second of PyTorch's DistributedDataParallel (gloo), or of one process in mode single.

    python -m ps_cluster.tools.bench.ddp RUN_DIR [compiled]

With `compiled` the network is compiled (torch.compile), which needs a C++ compiler. With `cluster.pin_workers` each process
has a core of its own. Images, network, precision and batch size per worker are those of the other arms. The environment
has only torch, numpy and pydantic, so the configuration has to be JSON. Prints {"examples_per_second": …} as its last line.
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
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import multiprocessing, nn

from ps_cluster.data.packed import PackedDataset, load_pointed
from ps_cluster.data.sets import PIXEL_MEAN, PIXEL_STD
from ps_cluster.runs.run_dir import RunDir

COMPILED = "compiled"
WARM_UP_STEPS = 10
# glibc returns large blocks to the system after every step, which costs page faults again. PyTorch's tuning guide
# preloads another malloc for that; environment variables at the start of a process tell glibc's own not to.
KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
TIMEOUT_S = 500.0  # less than the bench allows an arm, so that this program ends its own processes


def main(root: Path, *, compiled: bool) -> None:
    run_dir = RunDir.open(root)
    config = json.loads(run_dir.config.read_text())
    processes = 1 if config["mode"]["name"] == "single" else config["cluster"]["workers"]
    os.environ.update(KEEP_MEMORY)
    deadline = time.monotonic() + TIMEOUT_S
    context = multiprocessing.spawn(train, (processes, run_dir, config, compiled), nprocs=processes, join=False)
    try:
        while not context.join(max(0.0, deadline - time.monotonic())):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {TIMEOUT_S:.0f} s")
    finally:
        for process in context.processes:
            process.kill()
            process.join()


def train(rank: int, processes: int, run_dir: RunDir, config: dict[str, Any], compiled: bool) -> None:
    """Train in one process. Rank 0 prints the rate of all."""
    if config["cluster"]["pin_workers"] is True:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, [cores[rank % len(cores)]])
    torch.set_num_threads(config["cluster"]["intra_op_threads"])
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # else gloo takes the interface of the machine's host name, if there is one
    meeting_point = f"file://{run_dir.root / 'rendezvous'}"
    dist.init_process_group("gloo", meeting_point, timedelta(seconds=60), world_size=processes, rank=rank)
    network = build(config["model"]["name"], config["model"]["activation"])
    if compiled:
        network.compile()
    dataset = load_pointed(run_dir.dataset)
    rate = processes * measure(network, batches(dataset, config, rank, processes), config, processes)
    dist.destroy_process_group()
    if rank == 0:
        print(f"{trainable(network):,} trainable parameters")
        print(json.dumps({"examples_per_second": rate}), flush=True)
    # gloo's threads may abort a process while the interpreter shuts down ("terminate called without an active
    # exception"). The rate is printed by then.
    os._exit(0)


def measure(network: nn.Module, stream: Iterator[Batch], config: dict[str, Any], processes: int) -> float:
    """Return this process's images/s, from the end of everyone's warm-up to everyone's last step."""
    weights = [weight for weight in network.parameters() if weight.requires_grad]
    rule = config["optimizer"]
    optimizer = torch.optim.SGD(weights, rule["learning_rate"], momentum=rule["momentum"], nesterov=True, fused=True)
    if processes > 1:  # each process keeps its own normalisation statistics, which saves a broadcast a step
        network = nn.parallel.DistributedDataParallel(
            network, broadcast_buffers=False, gradient_as_bucket_view=True, static_graph=True
        )
    training, bfloat16 = config["training"], config["model"]["precision"] == "bfloat16"
    run(network, optimizer, islice(stream, WARM_UP_STEPS), training["label_smoothing"], bfloat16)
    dist.barrier()
    started = time.perf_counter()
    run(network, optimizer, islice(stream, training["steps"]), training["label_smoothing"], bfloat16)
    dist.barrier()
    examples: int = training["steps"] * training["batch_size_per_worker"]
    return examples / (time.perf_counter() - started)


def run(
    network: nn.Module, optimizer: torch.optim.Optimizer, stream: Iterator[Batch], smoothing: float, bfloat16: bool
) -> None:
    """Take one step for each batch. `bfloat16` computes in bfloat16, with weights and gradients in float32."""
    for images, labels in stream:
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            scores = network(images)
        loss = nn.functional.cross_entropy(scores.float(), labels, label_smoothing=smoothing)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


# The training images of one PyTorch process. As in `ps_cluster/data`, a batch is one gather of pixels.

SIDE = 32
Batch = tuple[torch.Tensor, torch.Tensor]


def batches(dataset: PackedDataset, config: dict[str, Any], rank: int, processes: int) -> Iterator[Batch]:
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
    pixels: np.ndarray = (SIDE * (SIDE * ids[:, None] + rows))[:, :, None] + columns[:, None, :]
    return pixels


def normalised(images: np.ndarray) -> torch.Tensor:
    """Return float32 [B, 3, 32, 32] in channels_last from uint8 [B, 32, 32, 3], which has the same memory layout."""
    pixels = torch.from_numpy(images).to(torch.float32)
    return pixels.sub_(torch.tensor(PIXEL_MEAN)).div_(torch.tensor(PIXEL_STD)).permute(0, 3, 1, 2)


def _reflected(positions: np.ndarray) -> np.ndarray:
    positions = np.abs(positions)
    reflected: np.ndarray = np.minimum(positions, 2 * (SIDE - 1) - positions)
    return reflected


# The networks of `ps_cluster/models/networks.py` in PyTorch: same layers, shapes, padding and trainable parameters.
#
# Each takes normalised images `[B, 3, 32, 32]` and returns a score per class.

Activation = Callable[[], nn.Module]
ACTIVATIONS: dict[str, Activation] = {
    "relu": partial(nn.ReLU, inplace=True),
    "gelu": nn.GELU,
    "silu": partial(nn.SiLU, inplace=True),
}


def tutorial_cnn(classes: int, activation: Activation) -> nn.Module:
    """Return the network of `ps_cluster/models/networks.py`."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.MaxPool2d(2), activation(),
        nn.Conv2d(32, 64, 3), nn.MaxPool2d(2), activation(),
        nn.Conv2d(64, 64, 3), activation(), nn.Flatten(),
        nn.Linear(1024, 64), activation(), nn.Linear(64, classes),
    )  # fmt: skip


def cifar_tf_cnn(classes: int, activation: Activation) -> nn.Module:
    """Return the network of `ps_cluster/models/networks.py`."""
    pool = partial(nn.MaxPool2d, 3, 2, ceil_mode=True)  # pads only below and right, as "same" does in TensorFlow
    return nn.Sequential(
        nn.Conv2d(3, 64, 5, padding="same"), pool(), activation(),
        nn.Conv2d(64, 64, 5, padding="same"), pool(), activation(), nn.Flatten(),
        nn.Linear(4096, 512), activation(), nn.Linear(512, classes),
    )  # fmt: skip


class _Airbench(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).float() / 9


def _shift(width: int) -> nn.Module:
    """Return a normalisation whose scale stays 1."""
    norm = nn.BatchNorm2d(width, momentum=0.4)
    norm.weight.requires_grad_(False)
    return norm


def airbench(classes: int, activation: Activation) -> nn.Module:
    """Return the network of `ps_cluster/models/networks.py`."""
    layers, inputs = [nn.Conv2d(3, 24, 2), activation()], 24
    for width in (64, 256, 256):
        layers += [
            nn.Conv2d(inputs, width, 3, padding="same", bias=False),
            nn.MaxPool2d(2),
            _shift(width),
            activation(),
        ]
        layers += [nn.Conv2d(width, width, 3, padding="same", bias=False), _shift(width), activation()]
        inputs = width
    return _Airbench(*layers, nn.MaxPool2d(3), nn.Flatten(), nn.Linear(256, classes, bias=False))


BUILDERS = {
    "tutorial_cnn": tutorial_cnn,
    "cifar_tf_cnn": cifar_tf_cnn,
    "airbench": airbench,
}
# Trainable parameters of the Keras networks for ten classes (tests/models/test_networks.py).
PARAMETERS = {"tutorial_cnn": 122_570, "cifar_tf_cnn": 2_210_122, "airbench": 1_971_640}


def build(name: str, activation: str) -> nn.Module:
    """Return a network for ten classes in channels_last, which oneDNN's kernels take without a copy.

    Raises:
      RuntimeError: its number of trainable parameters differs from the Keras network's.
    """
    network = BUILDERS[name](10, ACTIVATIONS[activation]).to(memory_format=torch.channels_last)
    if trainable(network) != PARAMETERS[name]:
        raise RuntimeError(f"{name} has {trainable(network):,} parameters here and {PARAMETERS[name]:,} in Keras")
    return network


def trainable(network: nn.Module) -> int:
    """Return the number of trainable parameters."""
    return sum(weight.numel() for weight in network.parameters() if weight.requires_grad)


if __name__ == "__main__":
    main(Path(sys.argv[1]), compiled=COMPILED in sys.argv[2:])
