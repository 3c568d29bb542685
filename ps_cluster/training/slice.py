"""The slice of a parameter server: what it holds, and how it handles pulls and pushes.

A pull or a push is one critical section on the parameter server. A pull reads weights, statistics and version. A push
looks into the ledger, applies the update, counts the version and writes the ledger's row. So the staleness of an update
is exact, and a step that arrives a second time is refused.

A critical section takes only inputs that have already arrived on the parameter server, so a worker that dies can't
leave one half done: TensorFlow cancels an operation that waits, never one whose inputs are there.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ps_cluster.catalogue.imports import find
from ps_cluster.catalogue.lazily import graph, tf
from ps_cluster.catalogue.staleness import METHODS
from ps_cluster.config import RunConfig
from ps_cluster.run.checkpoints import ACCEPTED_STEPS, ONE_A_SLICE
from ps_cluster.run.ledger import WORKER_COLUMNS
from ps_cluster.training.history import History
from ps_cluster.training.lookahead import Lookahead
from ps_cluster.training.slice_ledger import SliceLedger
from ps_cluster.training.update_rules import make_rule
from ps_cluster.training.waiting import after, now_after
from ps_cluster.training.wire import Message

# The outcomes of a push.
REFUSED, APPLIED, DROPPED, WAIT = 0, 1, 2, 3
NO_END = 2**40  # more steps or versions than a run can have
_WHOLE_IN_FLOAT64 = 2**52 - 1  # bits of a whole number that float64 keeps


class Turn(NamedTuple):
    """A step that a worker wants to begin: int64 [] each."""

    step: tf.Tensor
    last_of_dispatch: tf.Tensor  # the last step id of the dispatch that it is in


@dataclass(frozen=True)
class Start:
    """The initial values of a store, or of a slice of it; vectors in float32.

    weights: [n]. factors: [n], learning-rate factors. statistics: [m]. keep: [m], the share of the statistics s that a
    step keeps: s becomes keep s + fresh.
    """

    weights: np.ndarray
    factors: np.ndarray
    statistics: np.ndarray
    keep: np.ndarray

    def split(self, slices: int) -> list[Start]:
        """Return one Start per slice, with contiguous parts of all vectors."""
        parts = (np.array_split(vector, slices) for vector in vars(self).values())
        return [Start(*vectors) for vectors in zip(*parts)]

    def cut(self, positions: Sequence[np.ndarray], statistics: Sequence[int]) -> list[Start]:
        """Return one Start per slice: with the weights at these positions, int64 [k], and so many statistics."""
        at = np.cumsum(statistics)[:-1]
        parts = [[vector[own] for own in positions] for vector in (self.weights, self.factors)]
        parts += [np.split(vector, at) for vector in (self.statistics, self.keep)]
        return [Start(*vectors) for vectors in zip(*parts)]


@dataclass(frozen=True)
class Push:
    """The result of a step, as a worker sends it."""

    step: tf.Tensor  # int64 [], the step id
    version: tf.Tensor  # int64 [], the version that was pulled
    gradient: tf.Tensor  # [n]
    fresh: tf.Tensor  # float32 [m], what the step adds to the kept share of the statistics
    row: tf.Tensor  # float64 [len(WORKER_COLUMNS)]
    entered: tf.Tensor | None = None  # float64 [], unix s: when it entered the critical section

    def value(self, column: str) -> tf.Tensor:
        return self.row[WORKER_COLUMNS.index(column)]

    @property
    def worker(self) -> tf.Tensor:
        return tf.cast(self.value("worker"), tf.int64)


class Slice:
    """A parameter server's contiguous slice of weights and statistics, with its slots, version and ledger.

    Attributes:
      repeats_dropped: whether a worker computes a step again after its push was DROPPED.
      vectors_given: how many vectors of weights a pull returns; more than one come as [vectors, n].
      worker_vectors, worker_slots: as of `Correction`.
    """

    repeats_dropped = False
    vectors_given = 1
    worker_vectors = worker_slots = 0

    def __init__(self, device: str, start: Start, config: RunConfig, total_steps: int):
        self._device = device
        self._keep = start.keep  # a constant of the graph, on the parameter server
        self._wire = tf.dtypes.as_dtype(config.wire)
        method = METHODS[config.staleness.method]
        with tf.device(device):
            self._weights = tf.Variable(start.weights)
            self._statistics = tf.Variable(start.statistics)
            self._rule = make_rule(method.optimizer(config), self._weights, start.factors)
            self._method = find(method.correction)(config.staleness, self._weights, config.most_workers)
            updates = total_steps // config.steps_per_update
            self._lookahead = Lookahead(config.lookahead, self._weights, updates)
            self._history = History([self._weights, self._statistics], config.mode_kind.delay(config))
            self._version = tf.Variable(0, dtype=tf.int64)
            self._refused = tf.Variable(0, dtype=tf.int64)
            self._dropped = tf.Variable(0, dtype=tf.int64)
            self._ledger = SliceLedger(config.ledger_window)
            # Without a unique name it shares its lock with every other section made eagerly on the device.
            self._section = tf.CriticalSection(shared_name=f"slice-{uuid.uuid4()}")
        self.length = len(start.weights)
        statistics = (tf.float32, len(start.statistics))
        self._pull_message = Message(((self._wire, self.vectors_given * self.length), statistics, (tf.int64, 2)))
        columns = (tf.float64, len(WORKER_COLUMNS))
        self._push_message = Message(((self._wire, self.length), statistics, (tf.int64, 2), columns))
        self._local = not device.startswith("/job:ps")  # in this process: nothing to send, so nothing to pack

    def admit(self, worker: tf.Tensor, turn: Turn) -> list[tf.Tensor]:
        """Return a tensor to wait for before `worker` (int64 []) pulls: its admission, float64 [], unix s of the ps.

        The list is empty where no worker has to wait.
        """
        return []

    def tick(self, seconds: tf.Tensor, longest_update_s: tf.Tensor, last_step: tf.Tensor) -> None:
        """Note that `seconds` (float64 []) have passed, and let waiting workers try again. In this class none waits.

        Args:
          longest_update_s: float64 [], the longest that an update of a healthy worker takes.
          last_step: int64 [], the last step id that is handed out; NO_END while more may come.
        """

    def pull(self, worker: tf.Tensor, needed: Sequence = (), step: tf.Tensor | None = None) -> list[tf.Tensor]:
        """Return [weights in wire dtype, statistics, int64 [2]], read together on the ps after `needed`.

        The last are the version, and 1 if the ledger has `step` (int64 []) already, else 0; without a step 0.
        """
        # One message to the ps, not two.
        asks = worker if step is None else tf.stack([worker, step])

        def read():
            worker, *step = tf.unstack(tf.reshape(asks, [-1]))
            (weights, statistics), version = self._given_to(worker)
            with tf.control_dependencies(self._method.on_pull(worker, weights)):
                weights = tf.cast(tf.identity(weights), self._wire)  # a cast to the same dtype is no operation
            is_there = tf.cast(self._has(step[0]), tf.int64) if step else tf.zeros_like(version)
            vectors = [weights, statistics, tf.stack([version, is_there])]
            return vectors if self._local else self._pull_message.pack(vectors)

        # The dependency is on the ps: if `needed` is there too, no message to the worker is necessary.
        with tf.device(self._device), tf.control_dependencies(needed):
            message = self._section.execute(read)
        return message if self._local else self._pull_message.unpack(message)

    def _given_to(self, worker: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Return ([weights float32 [n], statistics float32 [m]], version []) for a worker's pull."""
        return self._history.read(self._version.read_value())

    def push(self, step: tf.Tensor, version: tf.Tensor, gradient: tf.Tensor, fresh: tf.Tensor, row: tf.Tensor):
        """Send one message to the ps and apply it there. Returns int32 []: REFUSED, APPLIED or DROPPED."""
        vectors = [gradient, fresh, tf.stack([step, version]), row]
        message = vectors if self._local else self._push_message.pack(vectors)
        with tf.device(self._device):
            gradient, fresh, ids, row = message if self._local else self._push_message.unpack(message)
            push = Push(ids[0], ids[1], tf.cast(gradient, tf.float32), fresh, row)
            return self._take(push)

    def _take(self, push: Push) -> tf.Tensor:
        return self._section.execute(lambda: self._enter(push))

    def _enter(self, push: Push) -> tf.Tensor:
        """Note the time and receive a push. Call it in the critical section."""
        entered = tf.timestamp()
        with tf.control_dependencies([entered]):
            return self._receive(replace(push, entered=entered))

    def _receive(self, push: Push) -> tf.Tensor:
        """Apply, refuse or drop a push; return the outcome. Call it in the critical section."""
        return tf.cond(self._has(push.step), self._refuse, lambda: self._apply(push))

    def _has(self, step: tf.Tensor) -> tf.Tensor:
        return self._ledger.has(step)

    def _refuse(self) -> tf.Tensor:
        return after([self._refused.assign_add(1, read_value=False)], REFUSED)

    def _drop(self) -> tf.Tensor:
        return after([self._dropped.assign_add(1, read_value=False)], DROPPED)

    def _apply(self, push: Push) -> tf.Tensor:
        stale = self._version.read_value() - push.version
        rate = tf.cast(push.value("learning_rate"), tf.float32)
        gradient, share = self._method.correct(push.gradient, push.worker, stale)
        version = self.update(gradient, rate, push.fresh, share)
        return after([self._record(push, version, stale)], APPLIED)

    def update(
        self, gradient: tf.Tensor, learning_rate: tf.Tensor, fresh: tf.Tensor, share: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Apply one update to the parameters; return the new version. `share`: see `UpdateRule.apply`."""
        before = self._version.read_value()
        weights_before = self._weights.read_value() if self._method.needs_step else None
        # Control dependencies, not the order of these lines, decide when TensorFlow runs them.
        with tf.control_dependencies([gradient] if weights_before is None else [gradient, weights_before]):
            applied = self._rule.apply(gradient, learning_rate, before, share)
        with tf.control_dependencies([applied, self._take_in(fresh)]):
            seen = self._method.after_update(weights_before, learning_rate) if self._method.needs_step else []
            version = self._version.assign_add(1)
        version = after([*seen, *self._lookahead.after_update(version)], version)
        return after(self._history.write(version), version)

    def _take_in(self, fresh: tf.Tensor) -> tf.Operation:
        """Update the statistics s to keep s + fresh.

        This is stable at any staleness, since `fresh` does not depend on the statistics that the step pulled. Adding
        the step's change to newer statistics instead would be a delayed recursion, which diverges.
        """
        return self._statistics.assign(self._keep * self._statistics.read_value() + fresh, read_value=False)

    def _record(self, push: Push, version: tf.Tensor, stale: tf.Tensor) -> tf.Operation:
        """Write the row of an accepted push."""
        known = [tf.cast(value, tf.float64) for value in (push.step, version, stale)]
        own = tf.stack([*known, push.entered, now_after(version)])
        return self._ledger.write(tf.concat([own, push.row], axis=0)[None])

    def write_rows(self, rows: tf.Tensor) -> tf.Operation:
        """Write the rows of whole updates: float64 [updates, workers, columns without the step]."""
        workers = rows.shape[1]
        steps = (rows[:, :, :1] - 1) * workers + tf.range(workers, dtype=tf.float64)[None, :, None]
        return self._ledger.write(tf.reshape(tf.concat([steps, rows], axis=2), [-1, rows.shape[2] + 1]))

    @graph
    def read_ledger(self, first: tf.Tensor):
        """Return (the rows from row number `first` on, float64 [k, columns]; int64 [len(COUNTS)]), read together."""

        def read():
            return self._ledger.read(first), self._counts()

        with tf.device(self._device):
            return self._section.execute(read)

    def _counts(self) -> tf.Tensor:
        return tf.stack([count.read_value() for count in self._counters])

    @property
    def _counters(self) -> tuple[tf.Variable, ...]:
        """The counters, in the order of COUNTS."""
        return self._version, self._rule.applied, self._ledger.accepted, self._refused, self._dropped

    @property
    def _slots(self) -> dict[str, tf.Variable]:
        """The state of rule, method and lookahead by name: vectors [n], rows [workers, n], single numbers []."""
        return self._rule.slots | self._method.slots | self._lookahead.slots

    @property
    def _state(self) -> dict[str, tf.Variable]:
        slots = {
            (f"slot_{name}" if variable.shape.rank else f"{ONE_A_SLICE}{name}"): variable
            for name, variable in self._slots.items()
        }
        return {"weights": self._weights, "statistics": self._statistics, **slots}

    def digest(self) -> tf.Tensor:
        """Return a whole number, float64 [], that tells these weights from others, also from the same in another order."""
        bits = tf.cast(tf.bitcast(self._weights.read_value(), tf.int32), tf.int64)
        odd = 2 * tf.range(self.length, dtype=tf.int64) + 1
        return tf.cast(tf.bitwise.bitwise_and(tf.reduce_sum(bits * odd), _WHOLE_IN_FLOAT64), tf.float64)

    @property
    def state_bytes(self) -> int:
        """The size of its arrays in a checkpoint."""
        return sum(variable.dtype.size * variable.shape.num_elements() for variable in self._state.values())

    @graph
    def _read_all(self, first: tf.Tensor, closed: tf.Tensor):
        def read():
            arrays = {name: variable.read_value() for name, variable in self._state.items()}
            arrays |= {ACCEPTED_STEPS: self._ledger.accepted_steps(closed), "counts": self._counts()}
            return arrays, self._ledger.read(first)

        with tf.device(self._device):
            return self._section.execute(read)

    def snapshot(self, first: int, closed: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Return the whole state at one version, and the rows from row number `first` on, float64 [k, columns].

        Args:
          closed: all steps below it were accepted, or never will be.
        """
        arrays, rows = self._read_all(tf.constant(first, tf.int64), tf.constant(closed, tf.int64))
        return {name: array.numpy() for name, array in arrays.items()}, rows.numpy()

    def _row_of_newcomer(self, state: dict[str, np.ndarray]) -> np.ndarray:
        """Return the initial row, float32 [n], of per-worker slots for a worker that the snapshot does not have."""
        return np.zeros_like(state["weights"])

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Put a snapshot back. Call it before any worker pulls or pushes."""
        for name, variable in self._state.items():
            value = state[name]
            if variable.shape.rank == 2:  # a row for each worker, and their number may have changed
                newcomers = np.tile(self._row_of_newcomer(state), [max(0, variable.shape[0] - len(value)), 1])
                value = np.concatenate([value[: variable.shape[0]], newcomers])
            variable.assign(value)
        self._ledger.restore(state[ACCEPTED_STEPS])
        for counter, count in zip(self._counters, state["counts"], strict=True):
            counter.assign(count)
        self._history.restart(self._version)
