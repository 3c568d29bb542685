"""Decide which worker has which part of a network; find out which device each operation came to be on."""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import tensorflow as tf

from ps_cluster.errors import UserError
from ps_cluster.files.writing import write_whole
from ps_cluster.models.cuts import Block, balanced
from ps_cluster.private_names import recorded_graphs
from ps_cluster.training.modes.layers import DEVICE, LayersSettings, Place
from ps_cluster.training.step import StepResult

COLUMNS = ("device", "type", "operation")


@dataclass(frozen=True)
class Part:
    """A worker's share of a network."""

    positions: np.ndarray  # int64 [k], of its weights in the vector of the whole network
    statistics: int  # how many it has, in the order of the network's
    device: str  # that it is asked to compute on
    layers: str


class SplitStep(Protocol):
    """A training step whose weights are in parts."""

    parts: Sequence[Part]

    def by_parts(
        self, step: tf.Tensor, weights: Sequence[tf.Tensor], statistics: Sequence[tf.Tensor]
    ) -> list[StepResult]:
        """Compute a step; return each part's own gradient and statistics, with loss and metric of the whole.

        Args:
          step: int64 []. weights, statistics: of each part.
        """


def first_blocks(blocks: Sequence[Block], places: Sequence[Place], workers: int) -> list[int]:
    """Return the number of each worker's first block.

    Args:
      places: from these layers on; none: by the blocks' numbers of weights.
    Raises:
      ValueError: with the setting and its value, if some worker would have no weights, or no such layer is there.
    """
    most = sum(block.weights > 0 for block in blocks)
    if workers > most:
        raise ValueError(
            f"cluster.workers: got {workers}: the network has {most} parts with weights between which it can be cut: "
            f"take at most {most}"
        )
    if not places:
        return balanced(blocks, workers)
    firsts = _asked_for(blocks, places)
    for worker in range(workers):
        until = firsts.get(worker + 1, len(blocks)) if worker + 1 < workers else len(blocks)
        if worker not in firsts or not sum(block.weights for block in blocks[firsts[worker] : until]):
            raise ValueError(
                f"mode.placement: worker {worker} would have no weights: place some of {_listed(blocks)} there"
            )
    return [firsts[worker] for worker in range(workers)]


def _asked_for(blocks: Sequence[Block], places: Sequence[Place]) -> dict[int, int]:
    """Return worker → its first block, as the user asks for it; worker 0 has the first layers."""
    number = {layer: index for index, block in enumerate(blocks) for layer in block.layers}
    workers: dict[int, int] = {}
    for place in places:
        if place.layer not in number:
            raise ValueError(
                f"mode.placement: got '{place.layer}': the network has no such layer; it has {_listed(blocks)}"
            )
        block = number[place.layer]
        if workers.setdefault(block, place.worker) != place.worker:
            together = ", ".join(blocks[block].layers)
            raise ValueError(f"mode.placement: got '{place.layer}={place.worker}': {together} can't be cut apart")
    firsts = {0: 0}
    for block, worker in sorted(workers.items()):
        if worker < max(firsts):
            raise ValueError(
                f"mode.placement: got '{blocks[block].layers[0]}={worker}': the layers before are on worker "
                f"{max(firsts)}, and a step goes through the workers once, in order"
            )
        firsts.setdefault(worker, block)
    return firsts


def _listed(blocks: Sequence[Block]) -> str:
    return ", ".join(layer for block in blocks if block.weights for layer in block.layers)


def devices_of(settings: LayersSettings, workers: int, there: Sequence[str]) -> list[str]:
    """Return the device that each worker is asked to compute on.

    Args:
      there: the names of all devices of the cluster.
    Raises:
      UserError: a device is not there, and `soft_placement` is off.
    """
    wanted = [device_of(worker, settings.devices.get(worker, DEVICE)) for worker in range(workers)]
    for worker, device in enumerate(wanted):
        if device not in there and not settings.soft_placement:
            own = ", ".join(name.rpartition("/device:")[2] for name in there if name.startswith(f"{task_of(worker)}/"))
            raise UserError(
                f"mode.placement: got '{settings.devices[worker]}' of worker {worker}, which has {own}: ask for what it "
                "has, or give --soft-placement"
            )
    return wanted


def device_of(worker: int, name: str = DEVICE) -> str:
    """Return the whole name of a worker's device."""
    return f"{task_of(worker)}/device:{name}"


def task_of(worker: int) -> str:
    """Return a worker's name in TensorFlow."""
    return f"/job:worker/replica:0/task:{worker}"


@contextlib.contextmanager
def recorded(file: Path) -> Iterator[None]:
    """Write the device of each operation of the functions that run for the first time in the block."""
    with recorded_graphs() as graphs:
        yield
    rows = {(node.device, node.op, node.name) for graph in graphs for node in graph.node if node.device}
    text = io.StringIO()
    csv.writer(text).writerows([COLUMNS, *sorted(rows)])
    write_whole(file, text.getvalue())


def names_of_all_devices() -> list[str]:
    """Return the names of the devices of all tasks that this process is connected to."""
    return [device.name for device in tf.config.list_logical_devices()]
