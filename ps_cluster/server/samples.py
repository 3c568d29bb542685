"""Keep everything from which a few sampled updates were computed, so that the evaluator can compute them again.

    chief      reserve ──►                        reserves a buffer for one update, or for the next update of one worker
    worker     pull or exchange ──► keep_given    the weights and statistics that the worker gets for its step
    worker     push ──► keep_change               the gradient, weights and slots before and after, at some positions
    chief      take ──►                           reads everything that was kept, and frees the buffer

A buffer is the memory for one sampled update. Everything is read and kept in the critical section of the shard,
together with the pull or push itself. The weights that a pull returns to a worker are kept completely, because the
gradient can't be computed again from a part of them. For the other vectors a sample of positions is enough
(server/sample_positions.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np

from ps_cluster.config.equations import Matrix
from ps_cluster.config.lazy import graph, tf
from ps_cluster.runs.update_samples import SampledShard
from ps_cluster.server.kept_rows import KeptRows, RowValues
from ps_cluster.server.sample_positions import SamplePositions
from ps_cluster.server.table_shard import NOTHING_PUSHED, PushedRows, TableShard

_FREE, _RESERVED, _GIVEN, _CHANGED = 0, 1, 2, 3  # the stages of a buffer

MOST_BUFFERS = 8  # the largest number of buffers
MOST_BYTES = 2**22  # the limit for all buffers together, unless a single buffer needs more
ALL_WORKERS = -1  # instead of a worker's number: the update is the mean of a round
ANY_WORKER = -2  # instead of a worker's number: this buffer keeps an update of any worker

V = TypeVar("V")


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

    @property
    def read_by_pull(self) -> dict[str, tf.Variable]:
        """The weights, and the variables in `of_pull`."""
        return {"weights": self.weights, **self.of_pull}

    @property
    def changed_by_push(self) -> dict[str, tf.Variable]:
        """The weights and the slots."""
        return {"weights": self.weights, **self.slots}

    def is_vector(self, variable: tf.Variable) -> bool:
        """Return whether a variable has a number for each weight. Otherwise one number of it is kept."""
        found: bool = variable.shape[-1:] == self.weights.shape
        return found

    def read(
        self, variables: Mapping[str, tf.Variable], positions: tf.Tensor, worker: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Return values of some variables: name → float32 [positions], or [1] for a single number.

        Args:
          positions: int64 [positions], the positions at which vectors are read.
          worker: int64 [], the worker whose row or number is read if a variable has one for each worker.
        """

        def value(variable: tf.Variable) -> tf.Tensor:
            if variable.shape.rank == 0:
                return tf.cast(variable.read_value(), tf.float32)[None]
            if variable.shape.rank == 2:
                return variable.gather_nd(tf.stack([tf.fill(tf.shape(positions), worker), positions], axis=1))
            return variable.sparse_read(positions if self.is_vector(variable) else worker[None])

        return {name: value(variable) for name, variable in variables.items()}


class SampleKey(NamedTuple, Generic[V]):
    """Identifies the pull and the push of an update. A buffer keeps a push only if it has kept the pull with this key.

    V is the type of the fields, as in `KeptUpdate`.
    """

    update: V  # int64 [], the number of the update: its step id; in rounds, the version to which it is applied
    worker: V  # int64 [], the worker that pulls and pushes; in rounds, ALL_WORKERS
    version: V  # int64 [], the version that the worker pulls


class KeptUpdate(NamedTuple, Generic[V]):
    """Everything that a buffer keeps of one sampled update, except the rows of embedding tables.

    V is the type of the fields: variables on the shard with a row for each buffer, the values of one row, or their
    specifications. The shapes below are those of one row. A vector has [positions] elements, and a single number [1].
    """

    stage: V  # int64 [], how far the buffer is filled: _FREE, _RESERVED, _GIVEN or _CHANGED
    awaited: V  # int64 [], the worker whose next update the buffer keeps, or ANY_WORKER
    # Before the pull, only `update` is set. If a worker is awaited, it is the lowest number that the update may have.
    key: SampleKey[V]
    first_position: V  # int64 [], the first of the positions at which vectors are kept
    given: V  # [vectors * n] in the dtype of the wire, the weights that the worker gets
    given_statistics: V  # float32 [m], the statistics that the worker gets
    at_pull: Mapping[str, V]  # name → float32, the values of `KeptState.read_by_pull`
    gradient: V  # float32 [positions], as received
    fresh: V  # float32 [m], the step's part of the new statistics
    before: Mapping[str, V]  # name → float32, the values of `KeptState.changed_by_push` before the update
    after: Mapping[str, V]  # name → float32, the same values after the update
    statistics_before: V  # float32 [m]
    statistics_after: V  # float32 [m]


_Field: TypeAlias = "V | Mapping[str, V] | SampleKey[V]"
"""A field of `KeptUpdate[V]`."""
_Taken: TypeAlias = "tuple[KeptUpdate[tf.Tensor], list[RowValues[tf.Tensor]]]"
"""The content of a buffer, and for each group of tables the result of `KeptRows.read`."""


class UpdateSamples:
    """Keeps the inputs and results of sampled updates in buffers. Create it on the shard's device.

    A sampled update is one that the evaluator computes again, to check it. All buffers together take at most
    `MOST_BYTES`, unless a single buffer needs more. In a large shard, a buffer takes about as much memory as two
    vectors of n weights: one for the weights that a pull returned, and another for the kept positions of all other
    vectors. It takes more if a pull returns several vectors, or if a single matrix needs more.

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
        read, changed = state.read_by_pull, state.changed_by_push
        vectors = 1 + sum(map(state.is_vector, [*read.values(), *changed.values(), *changed.values()]))
        self._positions = SamplePositions(state.weights.shape[0], matrices, vectors)
        number, statistics = tf.TensorSpec([], tf.int64), tf.TensorSpec(state.statistics.shape)
        vector, single = tf.TensorSpec([self._positions.count]), tf.TensorSpec([1])

        def specs(variables: Mapping[str, tf.Variable]) -> dict[str, tf.TensorSpec]:
            return {name: vector if state.is_vector(variable) else single for name, variable in variables.items()}

        buffer = KeptUpdate(
            stage=number, awaited=number, key=SampleKey(number, number, number), first_position=number,
            given=tf.TensorSpec([given], wire), given_statistics=statistics, at_pull=specs(read), gradient=vector,
            fresh=statistics, before=specs(changed), after=specs(changed),
            statistics_before=statistics, statistics_after=statistics,
        )  # fmt: skip
        buffer_bytes = sum(spec.dtype.size * spec.shape.num_elements() for spec in tf.nest.flatten(buffer))
        self.buffers = int(np.clip(MOST_BYTES // buffer_bytes, 1, 1 if state.tables else MOST_BUFFERS))

        def for_buffers(spec: tf.TensorSpec) -> tf.Variable:
            return tf.Variable(tf.zeros([self.buffers, *spec.shape], spec.dtype), trainable=False)

        with tf.device(device):
            self._kept: KeptUpdate[tf.Variable] = tf.nest.map_structure(for_buffers, buffer)
            self._rows = [KeptRows(table) for table in state.tables]

    # The shard calls these methods in its critical section. Some of them return 0 only so that later operations can
    # depend on this tensor.

    def keep_given(
        self,
        key: SampleKey[tf.Tensor],
        given: tf.Tensor,
        statistics: tf.Tensor,
        rows: Sequence[tuple[tf.Tensor, tf.Tensor]] = (),
    ) -> tf.Tensor:
        """Keep the values that a worker pulls for an update, if a buffer is reserved for the update.

        Returns 0, int32 [], on which later operations can depend.

        Args:
          given: the weights that the worker gets, [vectors * n] in the dtype in which they are sent.
          statistics: the statistics that the worker gets, float32 [m].
          rows: for each group of tables, the indices or keys, int64 [u], and the rows, [u * width].
        """
        kept = self._kept
        stages, awaited, updates = (one.read_value() for one in (kept.stage, kept.awaited, kept.key.update))
        is_reserved = tf.not_equal(stages, _FREE) & tf.equal(awaited, ANY_WORKER) & tf.equal(updates, key.update)
        is_next = tf.equal(stages, _RESERVED) & tf.equal(awaited, key.worker) & (updates <= key.update)
        buffer = _first(is_reserved | is_next)

        def keep() -> tf.Tensor:
            at_pull = self._state.read(self._state.read_by_pull, self._positions_of(buffer), key.worker)
            return _write(
                buffer,
                (kept.stage, tf.constant(_GIVEN, tf.int64)),
                (kept.awaited, tf.constant(ANY_WORKER, tf.int64)),
                (kept.key, key),
                (kept.given, given),
                (kept.given_statistics, statistics),
                (kept.at_pull, at_pull),
                also=[
                    one.keep_given(*indices_and_rows) for one, indices_and_rows in zip(self._rows, rows, strict=True)
                ],
            )

        return tf.cond(buffer >= 0, keep, lambda: tf.constant(0))

    def keep_change(
        self,
        key: SampleKey[tf.Tensor],
        gradient: tf.Tensor,
        fresh: tf.Tensor,
        change: Callable[[], tf.Tensor],
        rows: PushedRows = NOTHING_PUSHED,
    ) -> tf.Tensor:
        """Run `change`, which applies an update, and return the new version, int64 [].

        If the pull for this update was kept, keep the input and the result of `change` too.

        Args:
          gradient: float32 [n], as received.
          fresh: float32 [m], the term that the step adds to the moving statistics (`ParameterShard.update_statistics`).
          change: changes the weights, and returns the new version, int64 [].
          rows: the gradients of rows of embedding tables, as received.
        """
        kept, state = self._kept, self._state
        has_key = tf.reduce_all([tf.equal(one.read_value(), number) for one, number in zip(kept.key, key)], axis=0)
        buffer = _first(tf.equal(kept.stage.read_value(), _GIVEN) & has_key)
        is_kept = buffer >= 0

        def now() -> dict[str, tf.Tensor]:
            return state.read(state.changed_by_push, self._positions_of(buffer), key.worker)

        def before() -> tf.Tensor:
            return _write(
                buffer,
                (kept.gradient, tf.gather(gradient, self._positions_of(buffer))),
                (kept.fresh, fresh),
                (kept.before, now()),
                (kept.statistics_before, state.statistics.read_value()),
                also=[one.keep_before(*pushed) for one, *pushed in zip(self._rows, *rows, strict=True)],
            )

        def after() -> tf.Tensor:
            return _write(
                buffer,
                (kept.stage, tf.constant(_CHANGED, tf.int64)),
                (kept.after, now()),
                (kept.statistics_after, state.statistics.read_value()),
                also=[one.keep_after() for one in self._rows],
            )

        with tf.control_dependencies([tf.cond(is_kept, before, lambda: tf.constant(0))]):
            changed = change()
        with tf.control_dependencies([changed]):
            done = tf.cond(is_kept, after, lambda: tf.constant(0))
        with tf.control_dependencies([done]):
            return tf.identity(changed)

    def _positions_of(self, buffer: tf.Tensor) -> tf.Tensor:
        """Return the positions at which a buffer keeps vectors, int64 [positions]."""
        return self._positions.beginning_at(self._kept.first_position.sparse_read(buffer))

    # The chief calls these methods.

    @graph
    def _reserve(self, buffer: tf.Tensor, update: tf.Tensor, worker: tf.Tensor, first: tf.Tensor) -> tf.Tensor:
        kept = self._kept

        def reserve() -> tf.Tensor:
            stage = tf.constant(_RESERVED, tf.int64)
            return _write(
                buffer,
                (kept.stage, stage),
                (kept.awaited, worker),
                (kept.key.update, update),
                (kept.first_position, first),
            )

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
        first = self._positions.first(offset)
        self._reserve(*(tf.constant(value, tf.int64) for value in (buffer, update, worker, first)))

    @graph
    def _take(self, buffer: tf.Tensor) -> _Taken:
        def take() -> _Taken:
            update: KeptUpdate[tf.Tensor] = tf.nest.map_structure(lambda one: one.sparse_read(buffer), self._kept)
            kept = update, [rows.read() for rows in self._rows]
            with tf.control_dependencies(tf.nest.flatten(kept)):
                freed = _write(buffer, (self._kept.stage, tf.constant(_FREE, tf.int64)))
            with tf.control_dependencies([freed]):
                copied: _Taken = tf.nest.map_structure(tf.identity, kept)
                return copied

        with tf.device(self._device):
            taken: _Taken = self._section.execute(take)
            return taken

    def take(self, buffer: int) -> SampledShard | None:
        """Return the update that a buffer holds, and free the buffer. Return None if the update is not complete."""
        taken, rows_of_tables = self._take(tf.constant(buffer, tf.int64))
        if int(taken.stage) != _CHANGED:
            return None
        kept: KeptUpdate[np.ndarray] = tf.nest.map_structure(lambda tensor: tensor.numpy(), taken)
        first_of_table = self._state.weights.shape[0]
        shard = SampledShard(
            update=int(kept.key.update), worker=int(kept.key.worker), version=int(kept.key.version),
            positions=self._positions.beginning_at(tf.constant(kept.first_position)).numpy(),
            given=kept.given.astype(np.float32), given_positions=np.arange(first_of_table),
            given_statistics=kept.given_statistics, at_pull=kept.at_pull, rows_at_pull=np.zeros(0, np.float32),
            gradient=kept.gradient, before=kept.before, after=kept.after, fresh=kept.fresh,
            statistics_before=kept.statistics_before, statistics_after=kept.statistics_after,
        )  # fmt: skip
        for index, (rows, table, values) in enumerate(zip(self._rows, self._state.tables, rows_of_tables, strict=True)):
            shard = rows.add_to_record(shard, index, first_of_table, values)
            first_of_table += table.size
        return shard


def _first(chosen: tf.Tensor) -> tf.Tensor:
    """Return the index of the first chosen buffer, int64 []; -1 if none is chosen. `chosen`: bool [buffers]."""
    return tf.where(tf.reduce_any(chosen), tf.argmax(tf.cast(chosen, tf.int32)), tf.constant(-1, tf.int64))


def _write(
    buffer: tf.Tensor, *values: tuple[_Field[tf.Variable], _Field[tf.Tensor]], also: Sequence[tf.Operation] = ()
) -> tf.Tensor:
    """Write each value into the row `buffer` of its variable, and run the operations `also`.

    Returns 0, int32 [], on which later operations can depend.
    """

    def write(variable: tf.Variable, value: tf.Tensor) -> tf.Variable:
        return variable.scatter_update(tf.IndexedSlices(value[None], buffer[None]))

    written = [tf.nest.map_structure(write, variables, value) for variables, value in values]
    with tf.control_dependencies([*tf.nest.flatten(written), *also]):
        return tf.constant(0)
