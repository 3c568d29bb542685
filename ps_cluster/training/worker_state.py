"""Keep a worker's local state from one push to the next.

With local steps, this is the state of the worker's optimizer; with compressed pushes, the remainder that the pushes left out.
A push may be refused (the shard already has its step) or dropped (it came too late). So the state changes only once the
outcome of the push is known:

    compute ──► push ──► outcome of each shard ──► settle: if applied, keep and write the new state; else keep the old state

worker's process   variables "SESSION/NAME/…" of one leader; created when first used, freed by the next leader
its workspace      two files for each state, written in turn after each push; read by a restarted worker, and when a new
                   leader has created new variables
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ps_cluster.config.lazy import tf
from ps_cluster.server.leftovers import VARIABLE, note, terms_of
from ps_cluster.server.ordering import Needed, after
from ps_cluster.server.shard import APPLIED
from ps_cluster.server.wire import as_bytes, from_bytes

_SAVES_BITS = 40  # the lower bits of a save's number, which count the saves; the bits above are the leader's term

Settle: TypeAlias = "Callable[[tf.Tensor], list[tf.Tensor]]"
"""A function that keeps or restores a worker's state after a push.

Its argument is what each shard did with the push, int32 or int64 [ps]: APPLIED, REFUSED or DROPPED. It returns tensors
to depend on, if any.
"""


class WorkerState:
    """Variables in a worker's process that outlive the graphs that use them. Copies in two files outlive the process.

    Each leader has separate variables, because two leaders may work in one process if one of them was frozen for a while. The
    leaders share the files. A state that a newer leader wrote counts as newer than all states of an earlier leader. If training
    has begun anew, the states that leaders wrote before are ignored.

    A dying process may leave the file that it writes incomplete. So the two files are written in turn, and one of them
    is always complete.
    """

    def __init__(self, name: str, description: str, files: Sequence[str] = ()):
        """Create the state for one graph. It has no variables yet.

        Args:
          name: the name of the state, which is unique in the process. It begins with the leader's prefix.
          description: a description of the state, for the worker's log.
          files: the names of the two files in the worker's workspace; if empty, the state is lost with the process.
        """
        self._name, self._description, self._files = name, description, files
        self._kept: list[tf.Variable] = []
        self._first: list[np.ndarray | tf.Tensor] = []  # the values with which the kept variables begin
        self._names: list[str] = []
        self._refused = self.scratch("refused", [], tf.bool)  # whether the disk refused the last save
        self._saves = self.scratch("saves", [], tf.int64)  # the number of the newest save

    def variable(self, name: str, value: np.ndarray | tf.Tensor, /) -> tf.Variable:
        """Return the process's variable of this name. Its first value is `value`, and the worker's files include it."""
        self._first.append(value)
        self._kept.append(self.scratch(name, value.shape, tf.as_dtype(value.dtype)))
        return self._kept[-1]

    def fixed(self, name: str, value: np.ndarray, /) -> tf.Tensor:
        """Return `value` as a constant of the graph. This method belongs to the protocol `RuleVariables`."""
        return tf.constant(value)

    def scratch(self, name: str, shape: Sequence[int], dtype: tf.DType) -> tf.Variable:
        """Return the process's variable of this name, which is not kept in files."""
        from ps_cluster.private_names import variable_of_process

        self._names.append(f"{self._name}/{name}")
        return variable_of_process(self._names[-1], shape, dtype)

    def load(self, step: tf.Tensor, needed: Needed) -> tf.Tensor:
        """Initialise the variables if that has not been done yet.

        Their values come from the newer of the worker's two state files. A file that is missing, incomplete, or from an
        earlier training is ignored. If both files are ignored, the variables get their first values.

        Returns a tensor to depend on. `step`: the step id, int64 []. `needed`: operations that have to run before.
        """
        with tf.control_dependencies(needed):
            is_there = tf.raw_ops.VarIsInitializedOp(resource=self._saves.handle)

        def begin() -> tf.Tensor:
            refused = self._refused.assign(False, read_value=False)
            return after([note(VARIABLE, self._names), refused], self._fill(step))

        return tf.cond(is_there, lambda: tf.constant(0, tf.int64), begin)

    @property
    def _in_files(self) -> list[tf.Variable]:
        """The variables in the order in which each file has their values: the number of the save comes last."""
        return [*self._kept, self._saves]

    def _first_values(self) -> tf.Tensor:
        """Return the bytes of the state with which the variables begin, uint8 [k]. The number of its save is 0."""
        return _joined_bytes([*self._first, np.zeros([], np.int64)])

    def _fill(self, step: tf.Tensor) -> tf.Tensor:
        if not self._files:
            return self._assign(self._first_values())
        states, counts = self._written(step)
        newest = tf.where(counts[0] > counts[1], *states)
        number = tf.maximum(*counts)
        printed = tf.cond(
            number > 0,
            lambda: _print(
                f"{self._description} continues from the state after", number % 2**_SAVES_BITS, "periods of this worker"
            ),
            lambda: _print(f"{self._description} begins anew: this worker has no earlier state"),
        )
        with tf.control_dependencies([printed]):
            return self._assign(newest)

    def _written(self, step: tf.Tensor) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Return the bytes of the state in each file, uint8 [k], and the number of each file's save, int64 []."""
        # If a file's name is constant, TensorFlow reads the file when it optimises the graph, and keeps that content.
        nothing = tf.strings.substr(tf.strings.as_string(step), 0, 0)
        states = [self._read(tf.strings.join([name, nothing])) for name in self._files]
        return states, [self._save_number(state) for state in states]

    def _assign(self, state: tf.Tensor) -> tf.Tensor:
        """Assign the values in the bytes of a state to all variables; return the number of its save, int64 []."""
        parts = tf.split(state, [_bytes_of(variable) for variable in self._in_files])
        assigned = []
        for variable, part in zip(self._in_files, parts, strict=True):
            values = from_bytes(part, variable.dtype, variable.shape.num_elements())
            assigned.append(variable.assign(tf.reshape(values, variable.shape), read_value=False))
        return after(assigned, self._save_number(state))

    def _read(self, name: tf.Tensor) -> tf.Tensor:
        """Return the bytes of the state in a file, uint8 [k].

        If the file is missing, incomplete, or from an earlier training, return the bytes of the first values.
        """
        size = sum(map(_bytes_of, self._in_files))
        expected = tf.make_tensor_proto(np.zeros(size, np.uint8)).ByteSize()
        begun = self._first_values()

        def parsed() -> tf.Tensor:
            content = tf.io.read_file(name)
            is_complete = tf.equal(tf.strings.length(content), expected)
            state = tf.cond(
                is_complete, lambda: tf.ensure_shape(tf.io.parse_tensor(content, tf.uint8), [size]), lambda: begun
            )
            is_of_this_training = self._save_number(state) >= terms_of(self._name)[1] * 2**_SAVES_BITS
            return tf.where(is_of_this_training, state, begun)

        return tf.cond(tf.size(tf.io.matching_files(name)) > 0, parsed, lambda: begun)

    def _save_number(self, state: tf.Tensor) -> tf.Tensor:
        return tf.bitcast(state[-tf.int64.size :], tf.int64)  # see `_in_files`

    def settle(self, step: tf.Tensor, is_applied: tf.Tensor) -> tf.Tensor:
        """Write the variables to the older of the two files if a push was applied; else restore the last written state.

        If the disk refused the last write, the files hold an older state. Then it is not restored, because this would
        undo several periods. The variables keep the effect of the one period whose push was not applied. Returns a
        tensor to depend on. `step`: the step id, int64 []. `is_applied`: bool [].
        """

        def save() -> tf.Tensor:
            return after([self.save([])], tf.constant(0, tf.int64))

        def restore() -> tf.Tensor:
            states, counts = self._written(step)
            last = self._saves.read_value()
            first, second = (tf.equal(count, last) for count in counts)
            state, is_there = tf.where(first, *states), tf.logical_or(first, second)
            return tf.cond(is_there, lambda: self._assign(state), lambda: tf.constant(0, tf.int64))

        def restore_if_written() -> tf.Tensor:  # after a refusal the files may not be readable either
            return tf.cond(self._refused.read_value(), lambda: tf.constant(0, tf.int64), restore)

        # If all shards already had the step, it was not computed, and this process may not have any state yet.
        with tf.control_dependencies([self.load(step, [is_applied])]):
            settled: tf.Tensor = tf.cond(is_applied, save, restore_if_written)
        return settled

    def save(self, needed: Needed) -> tf.Operation:
        """After the operations `needed`, write the variables to the older of the two files, if the state has files.

        If the disk refuses the write, the worker's log reports it once, and training continues. The next save tries the same
        file, because the other file is complete.
        """
        if not self._files:
            return tf.group(*needed)
        with tf.control_dependencies(needed):
            before = self._saves.read_value()
            refused_before = self._refused.read_value()
            term = terms_of(self._name)[0] * 2**_SAVES_BITS
        with tf.control_dependencies([before]):
            number = self._saves.assign(term + (before + 1) % 2**_SAVES_BITS)
        with tf.control_dependencies([number]):
            state = _joined_bytes(variable.read_value() for variable in self._in_files)
        name = tf.gather(tf.constant(list(self._files)), number % len(self._files))
        is_written = _try_to_write(name, tf.io.serialize_tensor(state))
        with tf.control_dependencies([is_written, refused_before]):
            refused = self._refused.assign(tf.logical_not(is_written), read_value=False)
            printed = tf.cond(tf.equal(refused_before, is_written), lambda: self._report_disk(is_written), _nothing)
            number = tf.cond(is_written, lambda: number, lambda: self._saves.assign(before))
        return tf.group(refused, printed, number)

    def _report_disk(self, is_written: tf.Tensor) -> tf.Tensor:
        return tf.cond(
            is_written,
            lambda: _print(f"{self._description}: writing the state works again"),
            lambda: _print(
                f"{self._description}: the state can't be written ({' or '.join(self._files)} in the worker's folder). "
                "Training continues; if this process dies, its successor continues from the last state that was written"
            ),
        )


def _bytes_of(variable: tf.Variable) -> int:
    size: int = variable.dtype.size * variable.shape.num_elements()
    return size


def _joined_bytes(values: Iterable[np.ndarray | tf.Tensor]) -> tf.Tensor:
    return tf.concat([as_bytes(value) for value in values], 0)


def _try_to_write(name: tf.Tensor, content: tf.Tensor) -> tf.Tensor:
    """Write a file; return whether the disk took it, bool []."""

    def write(name: tf.Tensor, content: tf.Tensor) -> tf.Tensor:
        return after([tf.io.write_file(name, content)], tf.constant(True))

    # No operation catches the error of another operation, but a dataset can leave out elements that fail.
    written = tf.data.Dataset.from_tensors((name, content)).map(write).ignore_errors()
    is_written: tf.Tensor = written.reduce(tf.constant(False), tf.logical_or)
    return is_written


def _nothing() -> tf.Tensor:
    return tf.constant(0)


def _print(*words: Any) -> tf.Tensor:
    """Print a line into the worker's log. Returns a tensor to depend on."""
    with tf.control_dependencies([tf.print(*words)]):
        return tf.constant(0)


class SentVector(NamedTuple):
    """The vector that is pushed instead of a gradient, and the norms of the remainders before and after the push."""

    vector: tf.Tensor  # float32 [n]
    # float32 [ps, 2], for each shard the norms of the remainder before this push and of the remainder after it
    remainders: tf.Tensor
    settle: Settle  # keeps the new remainder of each shard that has applied the push


@dataclass(frozen=True)
class ErrorFeedback:
    """Adds to a push the remainder that earlier pushes of this worker left out.

    Seide et al. 2014; Karimireddy et al. 2019, arXiv:1901.09847, algorithm 2. After a push, the new remainder is kept for each
    shard that applied it. For any other shard, the old remainder stays. So the sum of the gradients for a shard equals the sum
    of the vectors that the shard applied plus the remainder.

    If a worker dies between a push and the write of its file, its next push adds the old remainder a second time.
    """

    rounded: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]  # as `ParameterStore.rounded`
    lengths: Sequence[int]  # the number of weights in each shard to which pushes go; their sum is n
    seed: int  # the seed of random rounding
    files: Sequence[str] = ()  # the files of the `WorkerState`
    name: str = field(kw_only=True)  # the name of the `WorkerState`

    def __call__(self, step: tf.Tensor, gradient: tf.Tensor) -> SentVector:
        """Return the vector to push for the gradient [n] of a step (int64 [])."""
        state = WorkerState(self.name, "the remainder of earlier pushes", self.files)
        left_out = state.variable("vector", np.zeros(sum(self.lengths), np.float32))
        with tf.control_dependencies([state.load(step, [gradient])]):
            before = left_out.read_value()
        wanted = tf.cast(gradient, tf.float32) + before
        sent = self.rounded(wanted, tf.stack([np.int32(self.seed), tf.cast(step, tf.int32)]))
        parts_before, parts_after = tf.split(before, self.lengths), tf.split(wanted - sent, self.lengths)

        def settle(outcomes: tf.Tensor) -> list[tf.Tensor]:
            applied = tf.unstack(tf.equal(outcomes, APPLIED), len(self.lengths))
            kept = tf.concat([tf.where(*part) for part in zip(applied, parts_after, parts_before, strict=True)], 0)

            def keep() -> tf.Tensor:
                return after([state.save([left_out.assign(kept, read_value=False)])], 0)

            return [tf.cond(tf.reduce_any(applied), keep, lambda: tf.constant(0))]

        remainders = [[tf.norm(part) for part in parts] for parts in zip(parts_before, parts_after, strict=True)]
        return SentVector(sent, tf.stack(remainders), settle)
