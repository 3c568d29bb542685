"""The parameter store: one flat vector, cut into contiguous slices over the parameter servers; its pulls and pushes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ps_cluster.catalogue.lazily import tf
from ps_cluster.config import RunConfig
from ps_cluster.errors import UserError
from ps_cluster.run.ledger import rows_of
from ps_cluster.training.slice import Slice, Start

_BY_SLICE = ("seen", "counts")  # arrays of a snapshot that have a row for each slice
_NO_ROWS = np.iinfo(np.int64).max  # a row number that is never reached


@dataclass(frozen=True)
class Ledgers:
    """New rows and the counters of the ledgers on the parameter servers."""

    rows: list[np.ndarray]  # of each slice: a structured array [k] of ROW, in the order of acceptance
    counts: np.ndarray  # int64 [ps, len(COUNTS)]


@dataclass(frozen=True)
class Pulled:
    """Parameters, each slice at one version."""

    weights: tf.Tensor  # wire dtype [n], or [vectors, n] where a slice returns several vectors
    statistics: tf.Tensor  # float32 [m]
    versions: tf.Tensor  # int64 [ps]


class ParameterStore:
    """All slices as one store. Workers' graphs contain its pulls and pushes; the chief calls the rest."""

    def __init__(
        self,
        devices: Sequence[str],
        start: Start,
        *,
        config: RunConfig,
        total_steps: int,
        kind: type[Slice] = Slice,
    ):
        """Create the variables, one slice on each of `devices`.

        Args:
          total_steps: step ids are 0 .. total_steps - 1.
          kind: the class of the slices, which decides what pulls and pushes do.
        """
        parts = start.split(len(devices))
        self.slices = [kind(device, part, config, total_steps) for device, part in zip(devices, parts)]
        self._weight_lengths = [len(part.weights) for part in parts]
        self._statistic_lengths = [len(part.statistics) for part in parts]

    def pull(self, worker: tf.Tensor, needed: Sequence = ()) -> Pulled:
        """Return the parameters for `worker` (int64 []), read after everything `needed` is done."""
        weights, statistics, versions = zip(*(part.pull(worker, needed) for part in self.slices))
        return Pulled(tf.concat(weights, -1), tf.concat(statistics, 0), tf.concat(versions, 0))

    def push(self, step: tf.Tensor, versions: tf.Tensor, gradient: tf.Tensor, fresh: tf.Tensor, row: tf.Tensor):
        """Send one step's result to every slice; each applies its part once.

        Args:
          step: int64 [], the step id. versions: int64 [ps], as pulled.
          gradient: wire dtype [n]. fresh: float32 [m], what the step adds to the kept share of the statistics.
          row: float64 [len(WORKER_COLUMNS)].
        Returns:
          int32 [ps]: APPLIED, REFUSED (the slice had this step already) or DROPPED (it came too late).
        """
        gradients = tf.split(gradient, self._weight_lengths)
        fresh_parts = tf.split(fresh, self._statistic_lengths)
        pushed = [
            part.push(step, versions[index], gradients[index], fresh_parts[index], row)
            for index, part in enumerate(self.slices)
        ]
        return tf.stack(pushed)

    def tick(self, seconds: float, *, last_step: int) -> None:
        """Tell the slices that time has passed, and let waiting workers try again.

        Args:
          seconds: since the last tick. last_step: the last step id that is handed out; NO_END while more may come.
        """
        for part in self.slices:
            part.tick(tf.constant(seconds, tf.float64), tf.constant(last_step, tf.int64))

    def read_ledgers(self, firsts: Sequence[int]) -> Ledgers:
        """Return the rows of each slice from row number `firsts[slice]` on, and its counters."""
        answers = [part.read_ledger(tf.constant(first, tf.int64)) for part, first in zip(self.slices, firsts)]
        return Ledgers([rows_of(rows.numpy()) for rows, _ in answers], np.stack([c.numpy() for _, c in answers]))

    def snapshot(self, firsts: Sequence[int]) -> tuple[dict[str, np.ndarray], Ledgers]:
        """Return arrays for a checkpoint and the new rows. Each slice is at one version of its own (no barrier).

        "weights" [n], "statistics" [m] and the slots "slot_…" [..., n] are whole; "seen" int64 [ps, window] has the
        steps that are open and accepted; "counts" int64 [ps, len(COUNTS)]. The rows, from row number `firsts[slice]`
        on, are read at the same moment.
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
        """Put the arrays of a `snapshot` back.

        Raises:
          UserError: they are of another network, optimizer or number of parameter servers.
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
    """Return what must be equal for a checkpoint to fit: the number of slices, or the rank and length of vectors."""
    return array.shape[:1] if name in _BY_SLICE else (array.ndim, array.shape[-1])
