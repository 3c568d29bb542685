"""The parameter store: one flat vector of weights, cut into shards over the parameter servers.

A worker's graph contains the store's pulls, pushes and exchanges, which go to all shards at once. The chief reads the
shards' ledgers, takes and restores snapshots, and tells the shards that time has passed. The module shard.py handles
the messages on the parameter servers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, ParamSpec, TypeAlias, TypeVar

import numpy as np

from ps_cluster.config import RunConfig
from ps_cluster.config.lazy import tf
from ps_cluster.errors import UserError
from ps_cluster.files.tensor_files import DTYPES, Pieces
from ps_cluster.models.keyed_rows import KeyedTableLayout
from ps_cluster.models.rows import NO_ROWS, Rows
from ps_cluster.runs.changed_vector import ChangedVector, ranges_of
from ps_cluster.runs.checkpoint_arrays import CHANGED, NAME_PATTERN, Shape, form_of
from ps_cluster.runs.ledger import rows_of
from ps_cluster.runs.update_samples import SampledShard
from ps_cluster.server.arrangement import BLOCK_NUMBERS, Arrangement, Block, BlockPart, contiguous
from ps_cluster.server.initial_state import InitialState
from ps_cluster.server.keyed_tables import KeyedTableShard
from ps_cluster.server.ordering import Needed
from ps_cluster.server.shard import NO_STEP, AnswerNumbers, ParameterShard, Push, Tick
from ps_cluster.server.shard_checkpoint import ShardSnapshot
from ps_cluster.server.table_shard import PushedRows
from ps_cluster.server.vector_on_server import Extent, VectorOnServer

Messages: TypeAlias = "list[list[tf.Tensor]]"
"""For each shard, the tensors of its answer to a pull."""

A = TypeVar("A")
P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound=ParameterShard)
V = TypeVar("V")
MOST_AT_ONCE = 32  # parameter servers that the chief waits for at the same time, each in its own thread


@dataclass(frozen=True)
class Ledgers:
    """The new rows and the counters of the ledgers on the parameter servers."""

    rows: list[np.ndarray]  # for each shard, a structured array [k] of ROW, in the order of acceptance
    counts: np.ndarray  # int64 [ps, len(COUNTS)]


@dataclass(frozen=True)
class Pulled:
    """The parameters that a pull returns. All parameters of a shard belong to one version."""

    weights: tf.Tensor  # wire dtype [n], then the rows; or [vectors, n] if a shard returns several vectors
    statistics: tf.Tensor  # float32 [m]
    versions: tf.Tensor  # int64 [ps]
    is_replay: tf.Tensor | None = None  # bool [], whether every shard already has the step; None if not asked
    batches: tf.Tensor | None = None  # int64 [], the number of batches that the step may take; None: all
    rows: Rows = NO_ROWS  # the rows of embedding tables that follow the weights


class StepPush(NamedTuple):
    """The result of a step, as a worker pushes it to all shards together."""

    step: tf.Tensor  # int64 [], the step id
    versions: tf.Tensor  # int64 [ps], the version that was pulled from each shard
    # [n] in the wire's dtype, or in float32 if pushes are compressed, followed by the rows' gradients
    gradient: tf.Tensor
    fresh: tf.Tensor  # float32 [m], the step's part of the new statistics, as in `Push`
    # float64 [ps, len(WORKER_COLUMNS)], for each shard as in `Push`; [len(WORKER_COLUMNS)] if all shards get the same
    columns: tf.Tensor
    rows: Rows = NO_ROWS  # the rows of embedding tables that the step has pulled


class ParameterStore:
    """Presents the shards of all parameter servers as one store of parameters.

    Workers' graphs contain its pulls and pushes. The chief calls all other methods.
    """

    def __init__(
        self,
        devices: Sequence[str],
        parts: Sequence[InitialState],
        *,
        config: RunConfig,
        total_steps: int,
        shard_class: type[ParameterShard] = ParameterShard,
        arrangement: Arrangement | None = None,
        layout: Sequence[str] = (),
        snapshot_lock: AbstractContextManager[object] = nullcontext(),
    ):
        """Create the variables, one shard on each of `devices`.

        Args:
          parts: the initial values of each shard.
          total_steps: step ids are 0 .. total_steps - 1.
          shard_class: the class of the shards, which decides what pulls and pushes do.
          arrangement: where the weights of each shard are in the network's vector; None if the shards follow one
            another.
          layout: the path and shape of each variable in the vectors, for checkpoints.
          snapshot_lock: held while a snapshot is taken.
        """
        self.layout = list(layout)
        self._most_workers = config.most_workers
        # The names of variables in workers begin with this prefix, so that two leaders never share such a variable.
        self.leader_prefix = parts[0].leader_prefix
        self.shards = [
            shard_class(device, part, config, total_steps) for device, part in zip(devices, parts, strict=True)
        ]
        _check_state(self.shards[0])
        if config.recomputes_updates:
            for shard in self.shards:
                shard.keep_samples()
        self.snapshot_lock = snapshot_lock

        # Within a graph, TensorFlow runs operations that have side effects but no resource one after the other, such as
        # reading the time and leaving a critical section. So if one graph pushed to all shards, the push to a shard
        # would hold this shard's lock while it waits for the push to the previous shard. With a separate graph for each
        # shard, the pushes go to all shards at once.
        def in_its_own_graph(call: Callable[P, R]) -> Callable[P, R]:
            as_graph: Callable[P, R] = tf.function(call, autograph=False)
            return call if len(parts) == 1 else as_graph

        self._pulls = [in_its_own_graph(shard.pull) for shard in self.shards]
        self._pushes = [in_its_own_graph(shard.push) for shard in self.shards]
        self._exchanges = [in_its_own_graph(shard.exchange) for shard in self.shards]
        self._pool = ThreadPoolExecutor(min(len(parts), MOST_AT_ONCE), thread_name_prefix="shards")
        self._weight_lengths = [len(part.weights) for part in parts]
        self._statistic_lengths = [len(part.statistics) for part in parts]
        self._arrangement = arrangement or contiguous(self._weight_lengths)
        # The number of weights of each shard; empty if the shards do not follow one another in the network's vector.
        self.lengths = [] if arrangement else self._weight_lengths

    def pull(
        self,
        worker: tf.Tensor,
        needed: Needed = (),
        step: tf.Tensor | int = NO_STEP,
        *,
        asks_for_step: bool = False,
        rows: Rows = NO_ROWS,
    ) -> Pulled:
        """Return the parameters for `worker` (int64 []), read after everything `needed` is done.

        Args:
          step: int64 [], the step id for which the parameters are pulled; NO_STEP if the id is not known yet, e.g.
            because the worker computes it from the pulled version.
          asks_for_step: whether to set `Pulled.is_replay`, which says if every shard already has the step.
          rows: the rows of embedding tables that the step needs.
        """
        return self.read_messages(
            self.pull_messages(worker, needed, step, rows), asks_for_step=asks_for_step, rows=rows
        )

    def pull_messages(self, worker: tf.Tensor, needed: Needed, step: tf.Tensor | int, rows: Rows = NO_ROWS) -> Messages:
        """Return every shard's answer to a pull as sent; `read_messages` unpacks it. Arguments: as for `pull`."""
        return [pull(worker, needed, step, at) for pull, at in zip(self._pulls, self._indices(rows), strict=True)]

    def read_messages(self, messages: Messages, *, asks_for_step: bool, rows: Rows = NO_ROWS) -> Pulled:
        """Return the parameters in the shards' answers. Arguments: as for `pull`."""
        rows_of_shards = [shard.read_rows(message) for shard, message in zip(self.shards, messages, strict=True)]
        row_values = [part for group in zip(*rows_of_shards) for part in group]  # in the order of `rows`
        answers = [shard.read_message(message) for shard, message in zip(self.shards, messages, strict=True)]
        numbers = AnswerNumbers(*tf.unstack(tf.stack([answer.numbers for answer in answers]), axis=1))
        return Pulled(
            tf.concat([*(answer.weights for answer in answers), *row_values], -1),
            tf.concat([answer.statistics for answer in answers], 0),
            numbers.version,
            is_replay=tf.reduce_all(numbers.has_step > 0) if asks_for_step else None,
            # The shards' answers may differ a little, because each shard measures separately. The first shard decides.
            batches=None if numbers.batches is None else numbers.batches[0],
            rows=rows,
        )

    def only_shard(self, kind: type[S]) -> S:
        """Return the only shard, which is an instance of class `kind`.

        Raises:
          TypeError: the shard is not an instance of `kind`, or there are several shards.
        """
        shard = self.shards[0]
        if len(self.shards) > 1 or not isinstance(shard, kind):
            found = f"{len(self.shards)} of class {type(shard).__name__}"
            raise TypeError(f"this mode needs exactly one shard, of class {kind.__name__}, but it has {found}")
        return shard

    def row_counts(self, rows: Rows) -> tuple[tf.Tensor | int, tf.Tensor | int]:
        """Return how many rows `rows` has, over all groups of tables, and how many floats are in these rows."""
        counts = [(tf.size(ids, tf.int64), table.width) for ids, table in zip(rows.ids, self.shards[0].tables)]
        return sum(count for count, _ in counts), sum(count * width for count, width in counts)

    def _indices(self, rows: Rows) -> list[list[tf.Tensor]]:
        """Return for each shard the indices or keys of its rows in each group, int64 [u] (server/table_shard.py)."""
        servers = len(self.shards)
        if servers == 1:
            return [list(rows.ids)]
        by_group = [
            tf.split(table.indices_or_keys(ids, servers), counts, num=servers)
            for table, ids, counts in zip(self.shards[0].tables, rows.ids, rows.counts)
        ]
        return [[by_server[server] for by_server in by_group] for server in range(servers)]

    def outcomes(self, messages: Messages) -> tf.Tensor:
        """Return, for each shard, the outcome of a push that was sent with `exchange`, int64 [ps].

        An outcome is REFUSED, APPLIED or DROPPED. `messages`: the answers that `exchange` has returned.
        """
        return tf.stack([shard.outcome(message) for shard, message in zip(self.shards, messages, strict=True)])

    @property
    def drops(self) -> bool:
        """Whether shards may drop pushes. The worker computes the step of a dropped push again."""
        return self.shards[0].capabilities.drops

    def rounded(self, vector: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Return a vector as the shards will decode it, float32 [n]. See `Codec.rounded`."""
        parts = zip(self.shards, tf.split(vector, self._weight_lengths), strict=True)
        return tf.concat([shard.codec.rounded(part, seed + index) for index, (shard, part) in enumerate(parts)], 0)

    def push(self, push: StepPush) -> tf.Tensor:
        """Send one step's result to every shard. Each shard applies its part once.

        Return int32 [ps]: APPLIED, REFUSED (the shard already had this step) or DROPPED (the push came too late).
        """
        parts = self._parts_of(push)
        return tf.stack([send(part) for send, part in zip(self._pushes, parts, strict=True)])

    def exchange(self, push: StepPush, following: tf.Tensor, next_rows: Rows = NO_ROWS) -> Messages:
        """Push, and return every shard's answer to a pull for step `following`. See `ParameterShard.exchange`.

        The answers also hold the outcome of the push, see `outcomes`.
        """
        parts_and_indices = zip(self._exchanges, self._parts_of(push), self._indices(next_rows), strict=True)
        return [exchange(part, following, indices) for exchange, part, indices in parts_and_indices]

    def _parts_of(self, push: StepPush) -> list[Push]:
        """Return each shard's part of a push."""
        step, versions, gradient, fresh, columns, rows = push
        sizes = [counts * table.width for counts, table in zip(rows.counts, self.shards[0].tables)]
        lengths = tf.concat([self._weight_lengths, *sizes], 0)
        servers = len(self.shards)
        # The weights of all shards come first. Then the rows of all shards follow, group by group.
        parts = tf.split(gradient, lengths, num=servers * (1 + len(sizes)))
        dense = [tf.ensure_shape(part, [length]) for part, length in zip(parts, self._weight_lengths)]
        pushed = [
            PushedRows(indices, parts[servers + server :: servers])
            for server, indices in enumerate(self._indices(rows))
        ]
        fresh_parts = tf.split(fresh, self._statistic_lengths)
        columns_of_shards = tf.unstack(tf.broadcast_to(columns, [servers, columns.shape[-1]]))
        of_shards = zip(tf.unstack(versions), dense, fresh_parts, columns_of_shards, pushed, strict=True)
        return [Push(step, *of_shard) for of_shard in of_shards]

    def tick(
        self, seconds: float, *, handed_out: int, longest_update_s: float = 0.0, present: Collection[int] | None = None
    ) -> None:
        """Tell the shards that time has passed, and let waiting workers try again. See `ParameterShard.tick`.

        Args:
          seconds: the time to add to the shards' clocks: the time since the last tick, but at most one polling
            interval. If more time has passed, the rest does not count, because the chief has seen no pushes meanwhile.
          handed_out: the number of steps handed out so far; NO_END if more steps may be handed out before the
            next tick.
          longest_update_s: the longest time that an update of a healthy worker takes, in seconds.
          present: the workers that take part; None: all of them.
        """
        workers = range(self._most_workers)
        tick = Tick(
            seconds=tf.constant(seconds, tf.float64),
            longest_update_s=tf.constant(longest_update_s, tf.float64),
            handed_out=tf.constant(handed_out, tf.int64),
            is_present=tf.constant([present is None or worker in present for worker in workers]),
        )
        self._on_all(lambda shard: shard.tick(tick))

    def read_ledgers(self, firsts: Sequence[int]) -> Ledgers:
        """Return the rows of each shard from row number `firsts[shard]` on, and the shards' counters."""
        answers = self._on_each(lambda shard, first: shard.read_ledger(tf.constant(first, tf.int64)), firsts)
        rows = [rows_of(answer.rows.numpy()) for answer in answers]
        return Ledgers(rows, np.stack([answer.counts.numpy() for answer in answers]))

    @property
    def changed_share(self) -> float:
        """The fraction of weights that a saved state holds if it leaves out unchanged table rows; 1 without tables."""
        if not self.shards[0].tables:
            return 1.0
        changed = self._on_all(lambda shard: int(shard.checkpoint.changed_weights()))
        return sum(changed) / sum(shard.parameters for shard in self.shards)

    def snapshot(
        self, firsts: Sequence[int], closed: int, extent: Extent = Extent.WHOLE
    ) -> tuple[dict[str, np.ndarray | Pieces], Ledgers]:
        """Return the arrays of a checkpoint, and the new rows of the ledgers, which are read at the same moment.

        Each shard is read at one version. The versions of different shards may differ, because pushes continue
        meanwhile, unless `snapshot_lock` blocks them.

        Args:
          firsts: for each shard, the number of the first row to return.
          closed: a step id. Each step below it was accepted, or will never be accepted.
          extent: which rows of tables to return. With CHANGED, the arrays of weights and slots are shorter: they have only
            the numbers at the positions in the network's vector that the array "changed" lists.
        Returns:
          The arrays by name, and the new rows. The arrays are:
            weights: float32 [n]. statistics: float32 [m].
            slot_…: float32 [..., n]. each_…: float32 [ps, …], one number or a few numbers for each shard.
            accepted_steps: int64 [ps, 1 + k]. The row of a shard begins with `closed`. Then follows id + 1 for each
              accepted step whose id is at least `closed`. Zeros, which stand for no step, fill the rest of the row.
            counts: int64 [ps, len(COUNTS)].
            keyed: int64 [k], see `checkpoint_arrays.KEYED`; only if there are dynamic embedding tables.
            changed: int64 [k, 2], ranges of the network's vector; only with `extent` CHANGED and embedding tables.
          With embedding tables, the weights and slots are `Pieces`.
        """
        with self.snapshot_lock:
            found = self._on_each(lambda shard, first: shard.checkpoint.snapshot(first, closed, extent), firsts)
        rows = [rows_of(of_shard.ledger_rows) for of_shard in found]
        return self._joined(found), Ledgers(rows, np.stack([of_shard.counts for of_shard in found]))

    @property
    def keyed_tables(self) -> list[KeyedTableLayout]:
        """The properties of each dynamic embedding table, in the order in which a checkpoint has the tables."""
        return [table.layout for table in self.shards[0].tables if isinstance(table, KeyedTableShard)]

    @property
    def state_bytes(self) -> int:
        """The size in bytes of a checkpoint's arrays, without the few numbers of the ledger."""
        return sum(shard.checkpoint.bytes for shard in self.shards)

    @property
    def sample_buffers(self) -> int:
        """The number of sampled updates that every shard can keep at a time."""
        return min((shard.samples.buffers for shard in self.shards if shard.samples), default=0)

    def reserve_sample(self, buffer: int, update: int, *, worker: int, offset: int) -> None:
        """Reserve a buffer of every shard for an update, see `UpdateSamples.reserve`."""

        def reserve(shard: ParameterShard) -> None:
            if shard.samples is not None:
                shard.samples.reserve(buffer, update, worker=worker, offset=offset)

        self._on_all(reserve)

    def take_sample(self, buffer: int) -> list[SampledShard | None]:
        """Return each shard's part of the update for which a buffer was reserved, see `UpdateSamples.take`."""
        taken = self._on_all(lambda shard: shard.samples.take(buffer) if shard.samples else None)
        return [shard and self._in_network(index, shard) for index, shard in enumerate(taken)]

    def _in_network(self, index: int, shard: SampledShard) -> SampledShard:
        """Return a shard's record of a sampled update, with positions in the network's vectors, not in the shard's."""
        positions = partial(self._arrangement.positions, index)
        return replace(shard, positions=positions(shard.positions), given_positions=positions(shard.given_positions))

    def _on_all(self, call: Callable[[ParameterShard], A]) -> list[A]:
        """Run `call(shard)` for all shards at once. See `_on_each`."""
        return self._on_each(lambda shard, _: call(shard), self.shards)

    def _on_each(self, call: Callable[[ParameterShard, V], A], values: Sequence[V]) -> list[A]:
        """Run `call(shard, value)` for all shards at once; return the answers in the order of the shards.

        Raises the error of the first shard whose call fails.
        """
        if len(self.shards) == 1:
            return [call(self.shards[0], values[0])]
        return list(self._pool.map(call, self.shards, values))

    def restore(self, arrays: Mapping[str, np.ndarray | ChangedVector]) -> None:
        """Restore all shards from the arrays of a checkpoint. Arrays that shards do not hold are left out.

        Raises:
          UserError: the arrays belong to another network, optimizer or number of parameter servers.
        """
        arrays = {name: array for name, array in arrays.items() if form_of(name).is_of_shards}
        of_shards = [shard.checkpoint.shapes for shard in self.shards]
        shapes = {name: [of_shard[name] for of_shard in of_shards] for name in of_shards[0]}
        expected = {name: form_of(name).sizes(form_of(name).joined_shape(parts)) for name, parts in shapes.items()}
        sizes = {name: form_of(name).sizes(array.shape) for name, array in arrays.items()}
        if sizes != expected:
            raise UserError(
                f"the checkpoint does not fit this configuration: its arrays have the sizes {sizes}, not {expected}"
            )
        for name, variable in self.shards[0].state.items():
            found, dtype = arrays[name].dtype, np.dtype(variable.dtype.as_numpy_dtype)
            if found != dtype:
                raise UserError(
                    f"the checkpoint does not fit this configuration: its array '{name}' is {found}, not {dtype}"
                )
        parts = {name: self._parts(name, array, shapes[name]) for name, array in arrays.items()}
        for index, shard in enumerate(self.shards):
            shard.checkpoint.restore({name: cut[index] for name, cut in parts.items()})

    def _joined(self, snapshots: Sequence[ShardSnapshot]) -> dict[str, np.ndarray | Pieces]:
        """Return the arrays of a checkpoint, made from the snapshots of all shards."""
        joined: dict[str, np.ndarray | Pieces] = {}
        for name in snapshots[0].arrays:
            found = [of_shard.arrays[name] for of_shard in snapshots]
            vectors = [one for one in found if isinstance(one, VectorOnServer)]
            arrays = [one for one in found if not isinstance(one, VectorOnServer)]
            if vectors and vectors[0].changes is None:
                joined[name] = self._in_pieces(vectors)
            elif vectors:
                joined[CHANGED], joined[name] = self._changed_in_pieces(vectors)
            else:
                joined[name] = form_of(name).joined(arrays, self._arrangement)
        return joined

    def _in_pieces(self, vectors: Sequence[VectorOnServer]) -> Pieces:
        """Return the network's vector, float32 [n], which is read from the servers block by block."""
        arrangement, ahead = self._arrangement, BLOCK_NUMBERS // len(vectors)

        def block(block: Block) -> np.ndarray:
            values = np.empty(block.end - block.begin, np.float32)

            def read(part: BlockPart) -> None:
                part.rows.put(values, vectors[part.shard].read(part.place, part.place + part.rows.size, ahead))

            list(self._pool.map(read, block.parts))
            return values

        return Pieces((sum(arrangement.sizes),), np.dtype(np.float32), lambda: map(block, arrangement.blocks()))

    def _changed_in_pieces(self, vectors: Sequence[VectorOnServer]) -> tuple[np.ndarray, Pieces]:
        """Return the changed ranges of the network's vector, int64 [k, 2], and the numbers in them, float32 [n]."""
        blocks, ahead = self._arrangement.blocks, BLOCK_NUMBERS // len(vectors)

        def changed(block: Block) -> tuple[list[tuple[VectorOnServer, int, int]], np.ndarray, int]:
            """Return where a block's changed rows are on the servers and in the network's vector, and a row's width."""
            pieces, positions, width = [], [], 1
            for part in block.parts:
                vector = vectors[part.shard]
                assert vector.changes is not None
                first, begins, width = vector.changes.within(part.place, part.rows.size)
                pieces.append((vector, first, first + len(begins) * width))
                positions.append(block.begin + part.rows.positions(begins))
            return pieces, np.concatenate(positions), width

        def values(block: Block) -> np.ndarray:
            pieces, positions, width = changed(block)
            found = list(self._pool.map(lambda piece: piece[0].read(*piece[1:], ahead), pieces))
            ordered: np.ndarray = np.concatenate(found).reshape(-1, width)[np.argsort(positions)].reshape(-1)
            return ordered

        ranges = np.concatenate([ranges_of(*changed(block)[1:]) for block in blocks()])
        shape = (int((ranges[:, 1] - ranges[:, 0]).sum()),)
        return ranges, Pieces(shape, np.dtype(np.float32), lambda: map(values, blocks()))

    def _parts(self, name: str, array: np.ndarray | ChangedVector, shapes: Sequence[Shape]) -> list[np.ndarray]:
        """Return each shard's part of a checkpoint's array. `shapes`: the shapes of the parts. Reverses `_joined`.

        If there are embedding tables, this method itself restores their rows. The returned parts do not contain rows.
        """
        form = form_of(name)
        if not (form.has_number_per_weight and self.shards[0].tables):
            return form.cut(array[:], shapes, self._arrangement)
        dense = [np.empty(length, np.float32) for length in self._weight_lengths]
        for block in self._arrangement.blocks():
            for shard, place, rows in block.parts:
                values = rows.take(array[block.begin : block.end])
                if place < len(dense[shard]):
                    dense[shard][place : place + len(values)] = values
                else:
                    self.shards[shard].checkpoint.restore_rows(name, place, values)
        return dense


def _check_state(shard: ParameterShard) -> None:
    """Raise UserError if a shard, whose class a user may have written, has state that a checkpoint can't hold."""
    owner, (weights,) = type(shard).__name__, shard.weights.shape
    for name, variable in shard.slots.items():
        if variable.dtype != tf.float32:
            raise UserError(f"{owner}.slots: '{name}' is {variable.dtype.name}: a slot has to be float32")
        if variable.shape.rank and variable.shape[-1] != weights:
            raise UserError(
                f"{owner}.slots: '{name}' has the shape {variable.shape.as_list()}: a slot is a single number, or its "
                f"last axis has a number for each of the shard's {weights} weights; let `state` return this variable instead"
            )
    for name, variable in shard.state.items():
        if not re.match(NAME_PATTERN, name):
            raise UserError(
                f"{owner}.state: got the name '{name}': names in checkpoints, also those of slots, have 1 to 60 lower-case "
                "letters, digits and underscores"
            )
        if np.dtype(variable.dtype.as_numpy_dtype) not in DTYPES:
            raise UserError(
                f"{owner}.state: '{name}' is {variable.dtype.name}: checkpoints hold {', '.join(sorted(map(str, DTYPES)))}"
            )
        if not variable.shape.rank and not form_of(name).takes_single_numbers:
            raise UserError(
                f"{owner}.state: '{name}' is a single number: give it the shape [1], or let `slots` return it"
            )
