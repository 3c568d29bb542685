"""Keep everything from which a few sampled updates were computed, so that the evaluator can compute them again.

    chief      reserve ──►                        reserves a buffer for one update, or for the next update of one worker
    worker     pull or exchange ──► keep_given    the weights and statistics that the worker gets for its step
    worker     push ──► keep_change               the gradient, weights and slots before and after, at some positions
    chief      take ──►                           reads everything that was kept, and frees the buffer

A buffer is the memory for one sampled update. Everything is read and kept in the critical section of the shard,
together with the pull or push itself. The weights that a pull returns to a worker are kept completely, because the
gradient can't be computed again from a part of them. For the other vectors a sample of positions is enough, because
most rules update each weight independently. For a rule that needs whole matrices, the sample is a range that has at
least one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ps_cluster.config.equations import Matrix
from ps_cluster.config.lazy import graph, tf
from ps_cluster.runs.update_samples import LARGEST_MATRIX, SampledShard
from ps_cluster.server.kept_rows import KeptRows, RowValues
from ps_cluster.server.table_shard import NOTHING_PUSHED, PushedRows, TableShard

NOT_RESERVED = -2  # the update number of a buffer that is not reserved; no update has this number
_EMPTY, _GIVEN, _CHANGED = 0, 1, 2  # the stages of a buffer

MOST_BUFFERS = 8  # the largest number of buffers
MOST_BYTES = 2**22  # the limit for all buffers together, unless a single buffer needs more
WHOLE_UP_TO = 32_768  # the vectors of shards with at most this many weights are kept completely
ALL_WORKERS = -1  # instead of a worker's number: the update is the mean of a round
ANY_WORKER = -2  # instead of a worker's number: this buffer keeps an update of any worker


@dataclass(frozen=True)
class KeptState:
    """The variables of a shard that a sampled update reads and changes.

    Attributes:
      weights: float32 [n].
      statistics: float32 [m].
      slots: name → float32 [n], [] or [workers, n]. If a slot is [workers, n], only the row of the worker that pushes
        is kept.
      of_pull: the variables, besides weights and statistics, on which the result of a pull depends: name → float32 [n]
        or [workers]. If a variable is [workers], only the value for the worker that pulls is kept.
      tables: the shard's rows of embedding tables. Only the rows that the update reads and changes are kept.
    """

    weights: tf.Variable
    statistics: tf.Variable
    slots: Mapping[str, tf.Variable]
    of_pull: Mapping[str, tf.Variable]
    tables: Sequence[TableShard] = ()


class KeptUpdate(NamedTuple):
    """Everything that the shard has kept of one sampled update, read at the same moment."""

    update: tf.Tensor  # int64 [], the number of the update; NOT_RESERVED if there is none
    stage: tf.Tensor  # int64 [], how far the buffer is filled: _EMPTY, _GIVEN or _CHANGED
    pulled_by: tf.Tensor  # int64 [2], the version that was pulled, and the worker that pulled it
    given: tf.Tensor  # [vectors * n] in the dtype of the wire
    given_statistics: tf.Tensor  # float32 [m]
    at_pull: tf.Tensor  # float32 [1 + vectors, positions], the weights and the vectors of `KeptState.of_pull`
    numbers_at_pull: tf.Tensor  # float32 [numbers]
    before: tf.Tensor  # float32 [2 + slots, positions], the gradient, the weights and the slots
    after: tf.Tensor  # float32 [1 + slots, positions], the weights and the slots
    statistics: tf.Tensor  # float32 [3, m], the step's `fresh`, and the statistics before and after the update
    slot_numbers: tf.Tensor  # float32 [2, numbers], before and after the update
    positions: tf.Tensor  # int64 [positions]
    tables: Sequence[RowValues[tf.Tensor]]  # for each group of tables, the result of `KeptRows.read`


class UpdateSamples:
    """Keeps the inputs and results of sampled updates in buffers. Create it on the shard's device.

    A sampled update is one that the evaluator computes again, to check it. All buffers together take at most
    `MOST_BYTES`, unless a single buffer needs more. In a large shard, a buffer takes about as much memory as two
    vectors of n weights: one for the weights that a pull returned, and another for the kept positions of all other
    vectors. It takes more if a pull returns several vectors, or if a single matrix needs more. Matrices with more than
    `LARGEST_MATRIX` weights are not kept as a whole.

    Attributes:
      buffers: the number of updates that can be kept at a time.
    """

    def __init__(
        self,
        state: KeptState,
        section: tf.CriticalSection,
        *,
        given: int,
        wire: tf.DType,
        device: str,
        matrices: Sequence[Matrix] = (),
    ):
        """Create the variables.

        Args:
          section: the shard's critical section.
          given: the number of weights that a pull returns; a multiple of n if it returns several vectors.
          wire: the dtype in which a pull returns weights.
          device: the name of the shard's device.
          matrices: the positions of the matrices that the shard's rule needs as a whole.
        """
        self._state, self._section, self._device = state, section, device
        self._length, statistics = state.weights.shape[0], state.statistics.shape[0]
        vectors = {name for name, slot in state.slots.items() if slot.shape.rank}
        self._slots, self._numbers = sorted(vectors), sorted(state.slots.keys() - vectors)
        self._of_pull = sorted(name for name, one in state.of_pull.items() if one.shape == state.weights.shape)
        self._pull_numbers = sorted(state.of_pull.keys() - set(self._of_pull))
        vectors_kept = 4 + 2 * len(self._slots) + len(self._of_pull)
        self._count = self._length if self._length <= WHOLE_UP_TO else self._length // vectors_kept
        self._stride = max(1, self._length // max(1, self._count))
        # With matrices, the kept positions are a range that begins at one of `_begins`. The ranges cover all positions.
        self._begins: list[int] = []
        if matrices := [one for one in matrices if one.size <= LARGEST_MATRIX]:
            self._stride, self._count = 1, max(self._count, *(one.size for one in matrices))
            begins = {*range(0, self._length, self._count), *(one.begin for one in matrices)}
            self._begins = sorted({min(begin, self._length - self._count) for begin in begins})
        buffer_bytes = given * wire.size + 4 * (vectors_kept * self._count + 4 * statistics)
        most = 1 if state.tables else MOST_BUFFERS
        self.buffers = int(np.clip(MOST_BYTES // max(1, buffer_bytes), 1, most))

        def for_buffers(*shape: int, dtype: tf.DType = tf.float32) -> tf.Variable:
            return tf.Variable(tf.zeros([self.buffers, *shape], dtype), trainable=False)

        with tf.device(device):
            self._reserved_for = tf.Variable(
                tf.fill([self.buffers], tf.constant(NOT_RESERVED, tf.int64)), trainable=False
            )
            self._awaited = for_buffers(dtype=tf.int64)  # the worker whose next update is to be kept, or ANY_WORKER
            self._offsets, self._stages = for_buffers(dtype=tf.int64), for_buffers(dtype=tf.int64)
            # The version that was pulled, and the worker that pulled it.
            self._pulled_by = for_buffers(2, dtype=tf.int64)
            self._given = for_buffers(given, dtype=wire)
            self._given_statistics = for_buffers(statistics)
            self._at_pull = for_buffers(1 + len(self._of_pull), self._count)  # the weights at the pull, and `of_pull`
            self._numbers_at_pull = for_buffers(len(self._pull_numbers))
            self._before = for_buffers(2 + len(self._slots), self._count)  # gradient, weights, slots
            self._after = for_buffers(1 + len(self._slots), self._count)  # weights, slots
            self._statistics = for_buffers(3, statistics)  # fresh, before, after
            self._slot_numbers = for_buffers(2, len(self._numbers))  # before, after
            self._rows = [KeptRows(table) for table in state.tables]

    # The shard calls these methods in its critical section. Some of them return 0 only so that later operations can
    # depend on this tensor.

    def keep_given(
        self,
        update: tf.Tensor,
        worker: tf.Tensor,
        version: tf.Tensor,
        given: tf.Tensor,
        statistics: tf.Tensor,
        rows: Sequence[tuple[tf.Tensor, tf.Tensor]] = (),
    ) -> tf.Tensor:
        """Keep the values that a worker pulls for an update, if a buffer is reserved for the update.

        Returns 0, int32 [], on which later operations can depend.

        Args:
          update: int64 [], the number of the update.
          worker: int64 [], the worker that pulls.
          version: int64 [], the version that it pulls.
          given: the weights that it gets, [vectors * n] in the dtype in which they are sent.
          statistics: the statistics that it gets, float32 [m].
          rows: for each group of tables, the indices or keys, int64 [u], and the rows, [u * width].
        """
        reserved, awaited = self._reserved_for.read_value(), self._awaited.read_value()
        is_next = (
            tf.equal(awaited, worker)
            & (reserved >= 0)
            & (update >= reserved)
            & tf.equal(self._stages.read_value(), _EMPTY)
        )
        buffer = _first(tf.equal(reserved, update) & tf.equal(awaited, ANY_WORKER) | is_next)

        def keep() -> tf.Tensor:
            positions = self._positions(buffer)
            parts = [self._state.weights, *(self._state.of_pull[name] for name in self._of_pull)]
            numbers = [self._state.of_pull[name].sparse_read(worker) for name in self._pull_numbers]
            given_rows = [
                kept.keep_given(*indices_and_rows) for kept, indices_and_rows in zip(self._rows, rows, strict=True)
            ]
            return _write(
                buffer,
                (self._reserved_for, update),
                (self._awaited, tf.constant(ANY_WORKER, tf.int64)),
                (self._pulled_by, tf.stack([version, worker])),
                (self._given, given),
                (self._given_statistics, statistics),
                (self._at_pull, tf.stack([part.sparse_read(positions) for part in parts])),
                (self._numbers_at_pull, tf.stack(numbers) if numbers else tf.zeros([0])),
                (self._stages, tf.constant(_GIVEN, tf.int64)),
                also=given_rows,
            )

        return tf.cond(buffer >= 0, keep, lambda: tf.constant(0))

    def keep_change(
        self,
        update: tf.Tensor,
        worker: tf.Tensor,
        version: tf.Tensor,
        gradient: tf.Tensor,
        fresh: tf.Tensor,
        change: Callable[[], tf.Tensor],
        rows: PushedRows = NOTHING_PUSHED,
    ) -> tf.Tensor:
        """Run `change`, which applies an update, and return the new version, int64 [].

        If the pull for this update was kept, keep the input and the result of `change` too.

        Args:
          update, worker, version: as for `keep_given`. The version is the one that the worker has pulled.
          gradient: float32 [n], as received.
          fresh: float32 [m], the term that the step adds to the moving statistics (`ParameterShard.update_statistics`).
          change: changes the weights, and returns the new version, int64 [].
          rows: the gradients of rows of embedding tables, as received.
        """
        is_given = tf.equal(self._reserved_for.read_value(), update) & tf.equal(self._stages.read_value(), _GIVEN)
        is_the_same = tf.reduce_all(tf.equal(self._pulled_by.read_value(), tf.stack([version, worker])), axis=1)
        buffer = _first(is_given & is_the_same)
        is_kept = buffer >= 0

        def before() -> tf.Tensor:
            positions = self._positions(buffer)
            return _write(
                buffer,
                (self._before, tf.stack([tf.gather(gradient, positions), *self._parts(positions, worker)])),
                (self._statistics, tf.stack([fresh, self._state.statistics.read_value(), tf.zeros_like(fresh)])),
                (self._slot_numbers, tf.stack([self._numbers_now(), tf.zeros([len(self._numbers)])])),
                also=[kept.keep_before(*pushed) for kept, *pushed in zip(self._rows, *rows, strict=True)],
            )

        def after() -> tf.Tensor:
            fresh, statistics, _ = tf.unstack(self._statistics.sparse_read(buffer))
            numbers, _ = tf.unstack(self._slot_numbers.sparse_read(buffer))
            return _write(
                buffer,
                (self._after, tf.stack(self._parts(self._positions(buffer), worker))),
                (self._statistics, tf.stack([fresh, statistics, self._state.statistics.read_value()])),
                (self._slot_numbers, tf.stack([numbers, self._numbers_now()])),
                (self._stages, tf.constant(_CHANGED, tf.int64)),
                also=[kept.keep_after() for kept in self._rows],
            )

        with tf.control_dependencies([tf.cond(is_kept, before, lambda: tf.constant(0))]):
            changed = change()
        with tf.control_dependencies([changed]):
            kept = tf.cond(is_kept, after, lambda: tf.constant(0))
        with tf.control_dependencies([kept]):
            return tf.identity(changed)

    def _positions(self, buffer: tf.Tensor) -> tf.Tensor:
        """Return the positions of the weights that are kept in a buffer, int64 [count]."""
        indices = self._offsets.sparse_read(buffer) + self._stride * tf.range(self._count, dtype=tf.int64)
        return indices % max(1, self._length)

    def _parts(self, positions: tf.Tensor, worker: tf.Tensor) -> list[tf.Tensor]:
        """Return the weights and all slots at some positions, float32 [count] each."""
        parts = [self._state.weights.sparse_read(positions)]
        for name in self._slots:
            slot = self._state.slots[name]
            has_row_per_worker = slot.shape.rank == 2
            parts.append(
                slot.gather_nd(tf.stack([tf.fill([self._count], worker), positions], axis=1))
                if has_row_per_worker
                else slot.sparse_read(positions)
            )
        return parts

    def _numbers_now(self) -> tf.Tensor:
        """Return the slots that are single numbers, float32 [numbers]."""
        numbers = [tf.cast(self._state.slots[name].read_value(), tf.float32) for name in self._numbers]
        return tf.stack(numbers) if numbers else tf.zeros([0])

    # The chief calls these methods.

    @graph
    def _reserve(self, buffer: tf.Tensor, update: tf.Tensor, worker: tf.Tensor, offset: tf.Tensor) -> tf.Tensor:
        def reserve() -> tf.Tensor:
            variables = self._reserved_for, self._awaited, self._offsets, self._stages
            return _write(buffer, *zip(variables, (update, worker, offset, tf.constant(_EMPTY, tf.int64))))

        with tf.device(self._device):
            return self._section.execute(reserve)

    def reserve(self, buffer: int, update: int, *, worker: int = ANY_WORKER, offset: int) -> None:
        """Reserve a buffer for one update.

        Args:
          update: the number of the update.
          worker: ANY_WORKER, or the number of a worker. In the latter case, the buffer keeps this worker's first update
            whose number is at least `update`.
          offset: a random number. It selects the positions at which vectors are kept, because large vectors are kept
            only in part.
        """
        if self._begins:
            offset = self._begins[offset % len(self._begins)]
        self._reserve(*(tf.constant(value, tf.int64) for value in (buffer, update, worker, offset)))

    @graph
    def _take(self, buffer: tf.Tensor) -> KeptUpdate:
        def take() -> KeptUpdate:
            kept = KeptUpdate(
                update=self._reserved_for.sparse_read(buffer),
                stage=self._stages.sparse_read(buffer),
                pulled_by=self._pulled_by.sparse_read(buffer),
                given=self._given.sparse_read(buffer),
                given_statistics=self._given_statistics.sparse_read(buffer),
                at_pull=self._at_pull.sparse_read(buffer),
                numbers_at_pull=self._numbers_at_pull.sparse_read(buffer),
                before=self._before.sparse_read(buffer),
                after=self._after.sparse_read(buffer),
                statistics=self._statistics.sparse_read(buffer),
                slot_numbers=self._slot_numbers.sparse_read(buffer),
                positions=self._positions(buffer),
                tables=[rows.read() for rows in self._rows],
            )
            with tf.control_dependencies(tf.nest.flatten(kept)):
                nothing = tf.constant(NOT_RESERVED, tf.int64), tf.constant(_EMPTY, tf.int64)
                freed = _write(buffer, *zip((self._reserved_for, self._stages), nothing))
            with tf.control_dependencies([freed]):
                copied: KeptUpdate = tf.nest.map_structure(tf.identity, kept)
                return copied

        with tf.device(self._device):
            taken: KeptUpdate = self._section.execute(take)
            return taken

    def take(self, buffer: int) -> SampledShard | None:
        """Return the update that a buffer holds, and free the buffer. Return None if the update is not complete."""
        kept = self._take(tf.constant(buffer, tf.int64))
        if int(kept.stage) != _CHANGED:
            return None
        (version, worker), (gradient, *state_before) = kept.pulled_by.numpy().tolist(), kept.before.numpy()
        fresh, statistics_before, statistics_after = kept.statistics.numpy()
        numbers_before, numbers_after = kept.slot_numbers.numpy()
        names = ["weights", *self._slots]
        shard = SampledShard(
            update=int(kept.update), worker=worker, version=version, positions=kept.positions.numpy(),
            given=kept.given.numpy().astype(np.float32), given_positions=np.arange(self._length),
            given_statistics=kept.given_statistics.numpy(),
            at_pull=dict(zip(["weights", *self._of_pull], kept.at_pull.numpy()))
            | dict(zip(self._pull_numbers, kept.numbers_at_pull.numpy()[:, None])),
            rows_at_pull=np.zeros(0, np.float32), gradient=gradient,
            before=dict(zip(names, state_before)) | dict(zip(self._numbers, numbers_before[:, None])),
            after=dict(zip(names, kept.after.numpy())) | dict(zip(self._numbers, numbers_after[:, None])),
            fresh=fresh, statistics_before=statistics_before, statistics_after=statistics_after,
        )  # fmt: skip
        first = self._length
        for index, (rows, table, values) in enumerate(zip(self._rows, self._state.tables, kept.tables, strict=True)):
            shard = rows.add_to_record(shard, index, first, values)
            first += table.size
        return shard


def _first(chosen: tf.Tensor) -> tf.Tensor:
    """Return the index of the first chosen buffer, int64 []; -1 if none is chosen. `chosen`: bool [buffers]."""
    return tf.where(tf.reduce_any(chosen), tf.argmax(tf.cast(chosen, tf.int32)), tf.constant(-1, tf.int64))


def _write(buffer: tf.Tensor, *values: tuple[tf.Variable, tf.Tensor], also: Sequence[tf.Operation] = ()) -> tf.Tensor:
    """Write each value into the row `buffer` of its variable, and run the operations `also`.

    Returns 0, int32 [], on which later operations can depend.
    """
    written = [variable.scatter_update(tf.IndexedSlices(value[None], buffer[None])) for variable, value in values]
    with tf.control_dependencies([*written, *also]):
        return tf.constant(0)
