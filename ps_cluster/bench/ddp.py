"""Measure images per second of PyTorch's DistributedDataParallel (gloo), or of one process in mode single.

    python -m ps_cluster.bench.ddp RUN_DIR

Images, network, precision and batch size per worker are those of the other arms. The environment has only
torch, numpy and pydantic, so the configuration has to be JSON. Prints {"examples_per_second": …} as its last line.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
from torch import multiprocessing, nn

from ps_cluster.bench import torch_networks
from ps_cluster.bench.torch_input import Batch, batches
from ps_cluster.data.packed import load_pointed
from ps_cluster.run.run_dir import RunDir

WARM_UP_STEPS = 10
# glibc returns large blocks to the system after every step, which costs page faults again. PyTorch's tuning guide
# preloads another malloc for that; environment variables at the start of a process tell glibc's own not to.
KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
TIMEOUT_S = 500.0  # less than the bench allows an arm, so that this program ends its own processes


def main(root: Path) -> None:
    run_dir = RunDir.open(root)
    config = json.loads(run_dir.config.read_text())
    processes = 1 if config["mode"]["name"] == "single" else config["cluster"]["workers"]
    os.environ.update(KEEP_MEMORY)
    deadline = time.monotonic() + TIMEOUT_S
    context = multiprocessing.spawn(train, (processes, run_dir, config), nprocs=processes, join=False)
    try:
        while not context.join(max(0.0, deadline - time.monotonic())):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {TIMEOUT_S:.0f} s")
    finally:
        for process in context.processes:
            process.kill()
            process.join()


def train(rank: int, processes: int, run_dir: RunDir, config: dict) -> None:
    """Train in one process. Rank 0 prints the rate of all."""
    torch.set_num_threads(config["cluster"]["intra_op_threads"])
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # else gloo takes the interface of the machine's host name, if there is one
    meeting_point = f"file://{run_dir.root / 'rendezvous'}"
    dist.init_process_group("gloo", meeting_point, timedelta(seconds=60), world_size=processes, rank=rank)
    network = torch_networks.build(config["model"]["name"], config["model"]["activation"])
    dataset = load_pointed(run_dir.dataset)
    rate = processes * measure(network, batches(dataset, config, rank, processes), config, processes)
    dist.destroy_process_group()
    if rank == 0:
        print(f"{torch_networks.trainable(network):,} trainable parameters")
        print(json.dumps({"examples_per_second": rate}), flush=True)
    # gloo's threads may abort a process while the interpreter shuts down ("terminate called without an active
    # exception"). The rate is printed by then.
    os._exit(0)


def measure(network: nn.Module, stream: Iterator[Batch], config: dict, processes: int) -> float:
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
    return training["steps"] * training["batch_size_per_worker"] / (time.perf_counter() - started)


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


if __name__ == "__main__":
    main(Path(sys.argv[1]))
