"""Decide which worker holds which part of a network (modes layers and width)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

from ps_cluster.config import RunConfig
from ps_cluster.config.tasks import WORKER, Task
from ps_cluster.errors import UserError
from ps_cluster.models.stages import Block, balanced
from ps_cluster.training.devices import CPU, accelerator_of, device_name, task_name
from ps_cluster.training.modes.layers import PlacementEntry


def first_blocks(blocks: Sequence[Block], places: Sequence[PlacementEntry], workers: int) -> list[int]:
    """Return the index of each worker's first block. A block is a group of layers that can't be cut apart.

    Args:
      places: the first layer of each worker; if empty, the blocks are balanced by their numbers of weights.

    Raises:
      ValueError: a worker would have no weights, or a layer does not exist. The message names the setting and its value.
    """
    most = sum(block.weights > 0 for block in blocks)
    if workers > most:
        raise ValueError(
            f"cluster.workers: got {workers}: the network can be cut into at most {most} parts that have weights: "
            f"take at most {most}"
        )
    if not places:
        return balanced(blocks, workers)
    firsts = _asked_for(blocks, places)
    for worker in range(workers):
        until = firsts.get(worker + 1, len(blocks)) if worker + 1 < workers else len(blocks)
        if worker not in firsts or not sum(block.weights for block in blocks[firsts[worker] : until]):
            raise ValueError(
                f"mode.placement: worker {worker} would have no weights: place some of these layers on it: "
                f"{_with_weights(blocks)}"
            )
    return [firsts[worker] for worker in range(workers)]


def _asked_for(blocks: Sequence[Block], places: Sequence[PlacementEntry]) -> dict[int, int]:
    """Return each worker's first block by the user's `places`: worker → number of the block. Worker 0 has block 0."""
    number = {layer: index for index, block in enumerate(blocks) for layer in block.layers}
    workers: dict[int, int] = {}
    for place in places:
        if place.layer not in number:
            raise ValueError(
                f"mode.placement: got '{place.layer}': the network has no such layer; it has {_with_weights(blocks)}"
            )
        block = number[place.layer]
        if workers.setdefault(block, place.worker) != place.worker:
            together = ", ".join(blocks[block].layers)
            raise ValueError(f"mode.placement: got '{place.layer}={place.worker}': {together} can't be cut apart")
    firsts = {0: 0}
    for block, worker in sorted(workers.items()):
        if worker < max(firsts):
            raise ValueError(
                f"mode.placement: got '{blocks[block].layers[0]}={worker}': the layers before it are on worker "
                f"{max(firsts)}, and a step goes through the workers once, in order"
            )
        firsts.setdefault(worker, block)
    return firsts


def _with_weights(blocks: Sequence[Block]) -> str:
    return ", ".join(layer for block in blocks if block.weights for layer in block.layers)


def devices_of(config: RunConfig, asked: Mapping[int, str], existing: Sequence[str]) -> list[str]:
    """Return the name of the device on which each worker computes.

    A worker for which the user asks for no device computes on its GPU. It computes on its processor if it has no GPU,
    or if the run does not use GPUs.

    Args:
      asked: worker → the device that the user asks for, e.g. "GPU:0".
      existing: the names of all devices of the cluster.

    Raises:
      UserError: a worker does not have the device that the user asks for.
    """
    for worker, device in asked.items():
        task = Task(WORKER, worker)
        if device_name(task, device) not in existing:
            own = ", ".join(
                name.rpartition("/device:")[2] for name in existing if name.startswith(f"{task_name(task)}/")
            )
            raise UserError(
                f"mode.placement: got '{device}' for worker {worker}, which has only {own}: name a device that this "
                "worker has (workers see GPUs only with --gpus auto)"
            )
    usual = [
        device_name(Task(WORKER, worker), accelerator_of(config) or CPU) for worker in range(config.cluster.workers)
    ]
    return [
        device_name(Task(WORKER, worker), asked[worker])
        if worker in asked
        else device
        if device in existing
        else device_name(Task(WORKER, worker))
        for worker, device in enumerate(usual)
    ]


def names_of_all_devices() -> list[str]:
    """Return the names of the devices of all tasks to which this process is connected."""
    return [device.name for device in tf.config.list_logical_devices()]
