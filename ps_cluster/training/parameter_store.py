"""The parameter store: one flat vector in contiguous slices over the parameter servers, and the only ways in and out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from ps_cluster.config import RunConfig
from ps_cluster.errors import UserError
from ps_cluster.training.ledger import rows_of
from ps_cluster.training.slice import Slice, Start

_BY_SLICE = ("seen", "counts")  # arrays of a snapshot that have a row for each slice
_NO_ROWS = np.iinfo(np.int64).max  # the number of a row that will never be


@dataclass(frozen=True)
class Ledgers:
    """The news out of the ledgers on the parameter servers."""

    rows: list[np.ndarray]  # of each slice: a structured array [k] of ROW, in the order of acceptance
    counts: np.ndarray  # int64 [ps, len(COUNTS)]


@dataclass(frozen=True)
class Pulled:
    """Parameters as they were at one version of each slice."""

    weights: tf.Tensor  # wire dtype [n], or [vectors, n] where a slice gives several
    statistics: tf.Tensor  # float32 [m]
    versions: tf.Tensor  # int64 [ps]


class ParameterStore:
    """All slices as one store. Pulls and pushes are built into a worker's graph; the rest is called by the chief."""

    def __init__(
        self,
        devices: Sequence[str],
        start: Start,
        *,
        config: RunConfig,
        total_steps: int,
        kind: type[Slice] = Slice,
    ):
        """Creates the variables on `devices`, a slice each.

        Args:
          total_steps: step ids are 0 .. total_steps - 1.
          kind: what a slice does with pulls and pushes.
        """
        parts = start.split(len(devices))
        self.slices = [kind(device, part, config, total_steps) for device, part in zip(devices, parts)]
        self._weight_lengths = [len(part.weights) for part in parts]
        self._statistic_lengths = [len(part.statistics) for part in parts]

    def pull(self, worker: tf.Tensor, needed: Sequence = ()) -> Pulled:
        """Return what `worker` (int64 []) is given, once everything `needed` is done."""
        weights, statistics, versions = zip(*(part.pull(worker, needed) for part in self.slices))
        return Pulled(tf.concat(weights, -1), tf.concat(statistics, 0), tf.concat(versions, 0))

    def push(self, step: tf.Tensor, versions: tf.Tensor, gradient: tf.Tensor, fresh: tf.Tensor, row: tf.Tensor):
        """Sends one step's result to every slice; each applies its part once.

        Args:
          step: int64 [], the step id. versions: int64 [ps], as pulled.
          gradient: wire dtype [n]. fresh: float32 [m], what the step adds to the statistics that are kept.
          row: float64 [len(WORKER_COLUMNS)].
        Returns:
          int32 [ps]: APPLIED, REFUSED where the slice had this step already, or DROPPED where it came too late.
        """
        gradients = tf.split(gradient, self._weight_lengths)
        fresh_parts = tf.split(fresh, self._statistic_lengths)
        pushed = [
            part.push(step, versions[index], gradients[index], fresh_parts[index], row)
            for index, part in enumerate(self.slices)
        ]
        return tf.stack(pushed)

    def tick(self, seconds: float, *, last_step: int) -> None:
        """Tell the slices now and then that time has passed; where workers wait, it lets them try again.

        Args:
          seconds: since the last tick. last_step: the last step id that is handed out; NO_END while more may come.
        """
        for part in self.slices:
            part.tick(tf.constant(seconds, tf.float64), tf.constant(last_step, tf.int64))

    def read_ledgers(self, firsts: Sequence[int]) -> Ledgers:
        """Return the rows of each slice from its number in `firsts` on, and what it counts."""
        answers = [part.read_ledger(tf.constant(first, tf.int64)) for part, first in zip(self.slices, firsts)]
        return Ledgers([rows_of(rows.numpy()) for rows, _ in answers], np.stack([c.numpy() for _, c in answers]))

    def snapshot(self, firsts: Sequence[int]) -> tuple[dict[str, np.ndarray], Ledgers]:
        """Return arrays for a checkpoint, each slice at one version of its own (no barrier between them), and its new rows.

        "weights" [n], "statistics" [m] and the slots "slot_…" [..., n] whole; "seen" int64 [ps, window], the steps that
        are open and accepted; "counts" int64 [ps, len(COUNTS)]. The rows, from each slice's number in `firsts` on, are
        of just the same moment.
        """
        states, rows = zip(*(part.snapshot(first) for part, first in zip(self.slices, firsts)))
        arrays = {
            name: np.stack([s[name] for s in states])
            if name in _BY_SLICE
            else np.concatenate([s[name] for s in states], axis=-1)
            for name in states[0]
        }
        return arrays, Ledgers([rows_of(own) for own in rows], arrays["counts"])

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """The reverse of `snapshot`.

        Raises:
          UserError: it is of another network, optimizer or number of parameter servers.
        """
        own, _ = self.snapshot([_NO_ROWS] * len(self.slices))
        expected = {name: _size(name, array) for name, array in own.items()}
        given = {name: _size(name, array) for name, array in arrays.items()}
        if given != expected:
            raise UserError(
                f"the checkpoint does not fit this configuration: it holds {given}, expected are {expected}"
            )
        for index, part in enumerate(self.slices):
            part.restore(
                {
                    name: array[index] if name in _BY_SLICE else np.array_split(array, len(self.slices), axis=-1)[index]
                    for name, array in arrays.items()
                }
            )


def _size(name: str, array: np.ndarray) -> tuple[int, ...]:
    """Return what must be equal for a checkpoint to fit: the number of slices, or how vectors lie and how long they are."""
    return array.shape[:1] if name in _BY_SLICE else (array.ndim, array.shape[-1])
