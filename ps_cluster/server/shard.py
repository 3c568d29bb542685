"""The slice of a parameter server: what it holds, and how it handles pulls and pushes.

    a worker                         its slice on the parameter server, one critical section for each message
    pull(worker)              ──►    read weights, statistics and version together
                              ◄──    weights, statistics, version                      (one message, see `MessageLayout`)
    push(step, version, …)    ──►    in the ledger already? refuse : apply, count the version, write the ledger's row
                              ◄──    REFUSED, APPLIED or DROPPED

So the staleness of an update is exact, and a step that arrives a second time is refused. A critical section takes only
inputs that have already arrived on the parameter server, so a worker that dies can't leave one half done: TensorFlow
cancels an operation that waits, never one whose inputs are there.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ps_cluster.config import RunConfig
from ps_cluster.config.modes import METHODS
from ps_cluster.config.registry import graph, import_object, tf
from ps_cluster.runs.checkpoints import ACCEPTED_STEPS, ONE_A_SLICE
from ps_cluster.runs.ledger import COLUMNS, WORKER_COLUMNS
from ps_cluster.server.rules import Lookahead, make_rule
from ps_cluster.server.staleness import VersionHistory

# The outcomes of a push.
REFUSED, APPLIED, DROPPED, WAIT = 0, 1, 2, 3
NO_END = 2**40  # more steps or versions than a run can have
_WHOLE_IN_FLOAT64 = 2**52 - 1  # bits of a whole number that float64 keeps


def after(needed: Sequence[Any], value: tf.Tensor | int) -> tf.Tensor:
    """Return `value` once everything `needed` is done."""
    with tf.control_dependencies(needed):
        return tf.identity(value)


def now_after(*needed: Any) -> tf.Tensor:
    """Return the time when everything `needed` is done, float64 [], unix seconds."""
    with tf.control_dependencies(needed):
        return tf.timestamp()


@dataclass(frozen=True)
class InitialState:
    """The initial values of a store, or of a slice of it; vectors in float32.

    weights: [n]. factors: [n], learning-rate factors. statistics: [m]. keep: [m], the share of the statistics s that a
    step keeps: s becomes keep s + fresh.
    """

    weights: np.ndarray
    factors: np.ndarray
    statistics: np.ndarray
    keep: np.ndarray

    def split(self, slices: int) -> list[InitialState]:
        """Return one Start per slice, with contiguous parts of all vectors."""
        parts = (np.array_split(vector, slices) for vector in vars(self).values())
        return [InitialState(*vectors) for vectors in zip(*parts)]

    def cut(self, positions: Sequence[np.ndarray], statistics: Sequence[int]) -> list[InitialState]:
        """Return one Start per slice: with the weights at these positions, int64 [k], and so many statistics."""
        at = np.cumsum(statistics)[:-1]
        parts = [[vector[own] for own in positions] for vector in (self.weights, self.factors)]
        parts += [np.split(vector, at) for vector in (self.statistics, self.keep)]
        return [InitialState(*vectors) for vectors in zip(*parts)]


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


class ParameterShard:
    """A parameter server's contiguous slice of weights and statistics, with its slots, version and ledger.

    Attributes:
      repeats_dropped: whether a worker computes a step again after its push was DROPPED.
      vectors_given: how many vectors of weights a pull returns; more than one come as [vectors, n].
      worker_vectors, worker_slots: as of `Correction`.
    """

    repeats_dropped = False
    vectors_given = 1
    worker_vectors = worker_slots = 0

    def __init__(self, device: str, start: InitialState, config: RunConfig, total_steps: int):
        self._device = device
        self._keep = start.keep  # a constant of the graph, on the parameter server
        self._wire = tf.dtypes.as_dtype(config.wire)
        method = METHODS[config.staleness.method]
        with tf.device(device):
            self._weights = tf.Variable(start.weights)
            self._statistics = tf.Variable(start.statistics)
            self._rule = make_rule(method.optimizer(config), self._weights, start.factors)
            self._method = import_object(method.correction)(config.staleness, self._weights, config.most_workers)
            updates = total_steps // config.steps_per_update
            self._lookahead = Lookahead(config.lookahead, self._weights, updates)
            self._history = VersionHistory([self._weights, self._statistics], config.mode_kind.delay(config))
            self._version = tf.Variable(0, dtype=tf.int64)
            self._refused = tf.Variable(0, dtype=tf.int64)
            self._dropped = tf.Variable(0, dtype=tf.int64)
            self._ledger = ShardLedger(config.ledger_window)
            # Without a unique name it shares its lock with every other section made eagerly on the device.
            self._section = tf.CriticalSection(shared_name=f"slice-{uuid.uuid4()}")
        self.length = len(start.weights)
        statistics = (tf.float32, len(start.statistics))
        self._pull_message = MessageLayout(((self._wire, self.vectors_given * self.length), statistics, (tf.int64, 2)))
        columns = (tf.float64, len(WORKER_COLUMNS))
        self._push_message = MessageLayout(((self._wire, self.length), statistics, (tf.int64, 2), columns))
        self._local = not device.startswith("/job:ps")  # in this process: nothing to send, so nothing to pack

    def admit(self, worker: tf.Tensor, left: tf.Tensor) -> list[tf.Tensor]:
        """Return a tensor to wait for before `worker` (int64 []) pulls: its admission, float64 [], unix s of the ps.

        The list is empty where no worker has to wait.

        Args:
          left: int64 [], how many steps of its dispatch have not ended, with the one that it wants to begin.
        """
        return []

    def tick(self, seconds: tf.Tensor, longest_update_s: tf.Tensor, last_step: tf.Tensor) -> None:
        """Note that `seconds` (float64 []) have passed, and let waiting workers try again. In this class none waits.

        Args:
          longest_update_s: float64 [], the longest that an update of a healthy worker takes.
          last_step: int64 [], the last step id that is handed out; NO_END while more may come.
        """

    def pull(self, worker: tf.Tensor, needed: Sequence[Any] = (), step: tf.Tensor | None = None) -> list[tf.Tensor]:
        """Return [weights in wire dtype, statistics, int64 [2]], read together on the ps after `needed`.

        The last are the version, and 1 if the ledger has `step` (int64 []) already, else 0; without a step 0.
        """
        # One message to the ps, not two.
        asks = worker if step is None else tf.stack([worker, step])

        def read() -> Any:
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

    def push(
        self, step: tf.Tensor, version: tf.Tensor, gradient: tf.Tensor, fresh: tf.Tensor, row: tf.Tensor
    ) -> tf.Tensor:
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
    def read_ledger(self, first: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return (the rows from row number `first` on, float64 [k, columns]; int64 [len(COUNTS)]), read together."""

        def read() -> Any:
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
    def _read_all(self, first: tf.Tensor, closed: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        def read() -> Any:
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


# The base class of slices that make workers wait for each other.
#
# The slice's critical section decides who may go on, so these work with one parameter server only.


class WaitingShard(ParameterShard):
    """A slice where workers wait until another worker, or the passing of time, has changed something."""

    def __init__(self, device: str, start: InitialState, config: RunConfig, total_steps: int):
        super().__init__(device, start, config, total_steps)
        self._changed = Condition(device, self._section)

    def _sent(self, *numbers: tf.Tensor) -> list[tf.Tensor]:
        """Return `numbers` (int64 [] each) copied to the ps, else every retry of a wait would fetch them again."""
        vector = tf.stack(numbers)
        with tf.device(self._device):
            return tf.unstack(tf.identity(vector))

    @graph
    def tick(self, seconds: tf.Tensor, longest_update_s: tf.Tensor, last_step: tf.Tensor) -> tf.Tensor:
        def note() -> tf.Tensor:
            with tf.control_dependencies(self._on_tick(seconds, longest_update_s, last_step)):
                return self._changed.notify_all()

        with tf.device(self._device):
            return self._section.execute(note)

    def _on_tick(self, seconds: tf.Tensor, longest_update_s: tf.Tensor, last_step: tf.Tensor) -> list[tf.Operation]:
        return []


_UNBOUNDED = 2**31 - 1  # elements: an enqueue must never block, because it is in a critical section
_NOWHERE = -1  # in place of a queue's number: in no queue


class Condition:
    """A condition variable on a parameter server: graphs wait there, at no cost, until another graph notifies them.

    It works like `threading.Condition`, with a critical section as the lock. A failed attempt is counted before the
    section is left. Then the graph dequeues an element, which blocks a callback and no thread. `notify_all` enqueues
    one element for each counted attempt, so no change is missed between an attempt and the wait. An element carries no
    state: the graph that gets one tries again.

    Two queues are used in turn. A graph that is counted after a notification dequeues from the other queue, so it can't
    take the element of a slower graph that was counted before.

    TensorFlow 2.21 does not cancel the part of a dead worker's graph that waits on a parameter server. That graph stays
    and gets its own element, so it takes no other graph's.

    Attributes:
      waiting: int32 [], how many graphs wait and were not yet notified.
    """

    def __init__(self, device: str, section: tf.CriticalSection):
        self._section = section
        with tf.device(device):
            self._queues = [tf.queue.FIFOQueue(_UNBOUNDED, tf.bool, []) for _ in range(2)]
            self._turn = tf.Variable(0)
            self.waiting = tf.Variable(0)

    def wait_while(
        self, value: int, attempt: Callable[[], tf.Tensor], needed: Sequence[Any] = (), dtype: str = "int32"
    ) -> tf.Tensor:
        """Run `attempt` in the critical section, and again after each notification while it returns `value`.

        There is no timeout: `notify_all` must be called now and then, as the chief does with each look.

        Args:
          value: the result that means "wait". attempt: returns `dtype` [].
          needed: the outside inputs of the attempt; the section is entered only when all have arrived.
        """

        def counted() -> tuple[tf.Tensor, tf.Tensor]:
            outcome = attempt()
            return outcome, tf.cond(tf.equal(outcome, value), self._count, lambda: tf.constant(_NOWHERE))

        def body(outcome: tf.Tensor, turn: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            with tf.control_dependencies([self._taken(turn)]):
                return self._section.execute(counted)

        # Without `needed`, the section could be entered before the body's captured inputs arrive, and stay held.
        start = after(needed, tf.constant(value, dtype)), tf.constant(_NOWHERE)
        return tf.while_loop(lambda outcome, _: tf.equal(outcome, value), body, start, parallel_iterations=1)[0]

    def _taken(self, turn: tf.Tensor) -> tf.Tensor:
        """Take an element of queue number `turn`. The first attempt is in no queue and goes on at once."""

        def take() -> tf.Tensor:
            return tf.cond(tf.equal(turn, 0), self._queues[0].dequeue, self._queues[1].dequeue)

        return tf.cond(tf.equal(turn, _NOWHERE), lambda: tf.constant(False), take)

    def _count(self) -> tf.Tensor:
        """Count a waiting graph; return the number of the queue from which it takes its element, int32 []."""
        return after([self.waiting.assign_add(1, read_value=False)], self._turn.read_value())

    def notify_all(self) -> tf.Tensor:
        """Let all waiting graphs try again. Call it in the critical section, and let the result depend on it."""
        waiting = self.waiting.read_value()
        return tf.cond(waiting > 0, lambda: self._wake(waiting), lambda: tf.constant(0))

    def _wake(self, waiting: tf.Tensor) -> tf.Tensor:
        turn = self._turn.read_value()
        put = tf.cond(tf.equal(turn, 0), *(lambda queue=queue: _fill(queue, waiting) for queue in self._queues))
        with tf.control_dependencies([put]):
            return after([self._turn.assign(1 - turn, read_value=False)], self.waiting.assign(0))


def _fill(queue: tf.queue.FIFOQueue, count: tf.Tensor) -> tf.Tensor:
    """Fill the queue up to `count` elements. Leftovers in it were for graphs that ended before they took theirs."""
    missing = tf.maximum(count - queue.size(), 0)
    return after([queue.enqueue_many(tf.zeros([missing], tf.bool))], count)


# The part of the ledger on a parameter server: which open steps were accepted, and the newest rows.


class ShardLedger:
    """A window of one slice's ledger. Create it on the slice's device; use it in the slice's critical section.

    Two rings of fixed size suffice, however long the run: the step ids accepted last, at `step % window`, and the rows
    accepted last, at `row number % window`. The chief guarantees that it hands out no step `window` or more above one
    that is still open, and that it reads each row before `window` further rows can come.

    Attributes:
      accepted: int64 [], rows written so far.
    """

    def __init__(self, window: int):
        self._window = window
        self.accepted = tf.Variable(0, dtype=tf.int64)
        self._seen = tf.Variable(tf.zeros([window], tf.int64))  # the step id + 1
        self._rows = tf.Variable(tf.zeros([window, len(COLUMNS)], tf.float64))

    def accepted_steps(self, closed: tf.Tensor) -> tf.Tensor:
        """Return what a snapshot holds beside `accepted`, int64 [1 + k]: `closed`, and the steps above it, each + 1.

        The rows are in the chief's journal.

        Args:
          closed: int64 []; all steps below it were accepted, or never will be.
        """
        seen = self._seen.read_value()
        return tf.concat([closed[None], tf.sort(tf.boolean_mask(seen, seen > closed))], 0)

    def restore(self, accepted_steps: np.ndarray) -> None:
        """Put `accepted_steps` back, of a window of any length; zeros behind the first do not count."""
        closed, above = int(accepted_steps[0]), np.sort(accepted_steps[1:])
        marks = np.concatenate([np.arange(max(0, closed - self._window), closed) + 1, above[above > 0]])
        ring = np.zeros(self._window, np.int64)
        ring[(marks - 1) % self._window] = marks  # where several fall on one place, the last and newest stays
        self._seen.assign(ring)

    def has(self, steps: tf.Tensor) -> tf.Tensor:
        """Return whether each of `steps` (int64 […]) was accepted, bool […]; true also for a step closed long ago."""
        # If a later step has its place, the step was closed before that one was handed out.
        return self._seen.sparse_read(steps % self._window) > steps

    def write(self, rows: tf.Tensor) -> tf.Tensor:
        """Write the rows of accepted steps.

        Args:
          rows: float64 [k, len(COLUMNS)], in the order in which they were accepted; k is at most the window.
        Returns:
          An operation that must run before the critical section is left.
        """
        steps, count = tf.cast(rows[:, 0], tf.int64), tf.shape(rows, tf.int64)[0]
        places = (self.accepted.read_value() + tf.range(count)) % self._window
        written = [
            self._rows.scatter_update(tf.IndexedSlices(rows, places)),
            self._seen.scatter_update(tf.IndexedSlices(steps + 1, steps % self._window)),
        ]
        with tf.control_dependencies(written):
            return self.accepted.assign_add(count, read_value=False)

    def read(self, first: tf.Tensor) -> tf.Tensor:
        """Return the rows from row number `first` (int64 []) on that are in the window, float64 [k, len(COLUMNS)]."""
        end = self.accepted.read_value()
        oldest = tf.maximum(end - self._window, tf.zeros_like(end))
        return self._rows.sparse_read(tf.range(tf.clip_by_value(first, oldest, end), end) % self._window)


# Pack several tensors into one byte vector, so that a pull or push is one transfer, or two with a large tensor.

# A vector of at least this many bytes is sent by itself: packing and unpacking copy it, which costs more than a second
# transfer.
LARGE_BYTES = 2**20


@dataclass(frozen=True)
class MessageLayout:
    """The dtype and length of each vector of a message, in order. Put the longest first, so that it stays aligned."""

    fields: tuple[tuple[tf.DType, int], ...]

    def pack(self, vectors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the tensors to send: large vectors as they are, then the others joined as uint8 [bytes]. No casts."""
        for vector, (dtype, length) in zip(vectors, self.fields, strict=True):
            if vector.dtype != dtype:
                raise TypeError(f"a message field of {dtype.name} [{length}] was given {vector.dtype.name}")
        large = [vector for vector, is_large in zip(vectors, self._large) if is_large]
        small = [vector for vector, is_large in zip(vectors, self._large) if not is_large]
        return [*large, tf.concat([tf.reshape(tf.bitcast(v, tf.uint8), [-1]) for v in small], axis=0)]

    def unpack(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the vectors again, each `dtype [length]`, made by operations on the caller's device."""
        *large, packed = tensors
        whole, parts = iter(large), self._parts(packed)
        return [tf.identity(next(whole)) if is_large else next(parts) for is_large in self._large]

    def _parts(self, packed: tf.Tensor) -> Iterator[tf.Tensor]:
        small = [field for field, is_large in zip(self.fields, self._large) if not is_large]
        parts = tf.split(packed, [dtype.size * length for dtype, length in small])
        for part, (dtype, length) in zip(parts, small):
            yield tf.bitcast(tf.reshape(part, [length, dtype.size]), dtype)

    @property
    def _large(self) -> list[bool]:
        return [dtype.size * length >= LARGE_BYTES for dtype, length in self.fields]
