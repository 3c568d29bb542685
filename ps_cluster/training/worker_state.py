"""Keep a worker's own state from one push to the next.

With local steps that is its optimizer's state; where pushes are compressed, what they left out.

worker's process   variables "local/NAME/…"; made when first used, gone with the process
its workspace      two files of a state, written after every other push; a worker that is started again reads the newer
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ps_cluster.config.registry import tf
from ps_cluster.server.shard import after


class WorkerState:
    """The variables of a worker's process that a graph uses. They outlive the graph, and by two files the process.

    A dying process may leave the file that it writes incomplete, so they are written in turn: the other is whole.
    """

    def __init__(self, name: str, says: str, files: Sequence[str] = ()):
        """Begin a graph.

        Args:
          name: of the state; the process has one of each name.
          says: what it is, for the worker's log.
          files: names of the two in the worker's workspace; none: the state ends with the process.
        """
        self._name, self._says, self._files = name, says, files
        self._kept: dict[str, tf.Variable] = {}

    def variable(self, name: str, value: np.ndarray | tf.Tensor, *, changes: bool) -> Any:
        """Return the process's variable of this name, which is kept; its first value is 0. Of a constant, the constant."""
        if not changes:
            return tf.constant(value)
        self._kept[name] = self.scratch(name, value.shape, tf.as_dtype(value.dtype))
        return self._kept[name]

    def scratch(self, name: str, shape: Sequence[int], dtype: tf.DType) -> tf.Variable:
        """Return the process's variable of this name, which is not kept in files."""
        from ps_cluster.private_names import variable_of_process

        return variable_of_process(f"local/{self._name}/{name}", shape, dtype)

    def load(self, step: tf.Tensor, needed: Sequence[Any]) -> tf.Tensor:
        """Fill the variables where this process has none yet: from the newer whole file, else with 0.

        Returns a tensor to depend on. `step`: the step id, int64 []. `needed`: is done before.
        """
        self._saves = self.variable("saves", np.zeros([], np.int64), changes=True)
        with tf.control_dependencies(needed):
            is_there = tf.raw_ops.VarIsInitializedOp(resource=self._saves.handle)
        # TensorFlow reads a file of a constant name when it optimises the graph, and keeps what was in it then.
        nothing = tf.strings.substr(tf.strings.as_string(step), 0, 0)
        return tf.cond(is_there, lambda: tf.constant(0, tf.int64), lambda: self._fill(nothing))

    def _fill(self, nothing: tf.Tensor) -> tf.Tensor:
        if not self._files:
            zeros = [variable.assign(tf.zeros(variable.shape, variable.dtype)) for variable in self._kept.values()]
            return after(zeros, tf.constant(0, tf.int64))
        states = [self._read(tf.strings.join([name, nothing])) for name in self._files]
        counts = [self._number_of_saves(state) for state in states]
        newest = tf.where(counts[0] > counts[1], *states)
        number = tf.maximum(*counts)
        told = tf.cond(
            number > 0,
            lambda: _tell(f"{self._says} goes on as it was after", number, "periods of this worker"),
            lambda: _tell(f"{self._says} begins anew: this worker has no earlier state"),
        )
        with tf.control_dependencies([told]):
            parts = tf.split(newest, [_bytes_of(variable) for variable in self._kept.values()])
        assigned = [
            variable.assign(tf.reshape(_whole(part, variable.dtype), variable.shape), read_value=False)
            for variable, part in zip(self._kept.values(), parts, strict=True)
        ]
        return after(assigned, number)

    def _read(self, name: tf.Tensor) -> tf.Tensor:
        """Return the bytes of a file's state, uint8 [k]; zeros if it is missing or not whole."""
        size = sum(map(_bytes_of, self._kept.values()))
        expected = tf.make_tensor_proto(np.zeros(size, np.uint8)).ByteSize()
        nothing = tf.zeros([size], tf.uint8)

        def parsed() -> tf.Tensor:
            content = tf.io.read_file(name)
            is_whole = tf.equal(tf.strings.length(content), expected)
            return tf.cond(
                is_whole, lambda: tf.ensure_shape(tf.io.parse_tensor(content, tf.uint8), nothing.shape), lambda: nothing
            )

        return tf.cond(tf.size(tf.io.matching_files(name)) > 0, parsed, lambda: nothing)

    def _number_of_saves(self, state: tf.Tensor) -> tf.Tensor:
        return tf.bitcast(state[-tf.int64.size :], tf.int64)  # `saves` is the last that is kept

    def save(self, needed: Sequence[Any]) -> tf.Operation:
        """Write the variables to the older of the files, if there are any, after `needed`."""
        if not self._files:
            return tf.group(*needed)
        with tf.control_dependencies(needed):
            number = self._saves.assign_add(1)
        with tf.control_dependencies([number]):
            parts = [tf.reshape(tf.bitcast(variable.read_value(), tf.uint8), [-1]) for variable in self._kept.values()]
        name = tf.gather(tf.constant(list(self._files)), number % len(self._files))
        return tf.io.write_file(name, tf.io.serialize_tensor(tf.concat(parts, 0)))


def _bytes_of(variable: tf.Variable) -> int:
    size: int = variable.dtype.size * variable.shape.num_elements()
    return size


def _whole(part: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    return tf.bitcast(tf.reshape(part, [-1, dtype.size]), dtype)


def _tell(*words: Any) -> tf.Tensor:
    """Print a line into the worker's log. Returns a tensor to depend on."""
    with tf.control_dependencies([tf.print(*words)]):
        return tf.constant(0)


class ErrorFeedback:
    """Adds to a push what the pushes of this worker before have left out (Seide et al. 2014; Karimireddy et al. 2019,
    arXiv:1901.09847, algorithm 2).

    A worker that died between the write of its file and its push has lost what it would have sent.
    """

    def __init__(
        self,
        rounded: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
        length: int,
        seed: int,
        files: Sequence[str] = (),
        *,
        name: str,
    ):
        """Prepare.

        Args:
          rounded: (vector float32 [n], seed int32 [2]) → what is sent of it. length: n.
          files: of a state.
          name: of the training and the slice. All graphs of one training share a vector; another leader's training has
            another one in the same worker.
        """
        self._rounded, self._length, self._seed, self._files = rounded, length, seed, files
        self._name = f"left-out/{name}"

    def __call__(self, step: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
        """Return what to push for the gradient [n] of a step (int64 []), float32 [n], and keep the rest."""
        state = WorkerState(self._name, "what pushes left out", self._files)
        left_out = state.variable("vector", np.zeros(self._length, np.float32), changes=True)
        with tf.control_dependencies([state.load(step, [gradient])]):
            wanted = tf.cast(gradient, tf.float32) + left_out.read_value()
        sent = self._rounded(wanted, tf.stack([np.int32(self._seed), tf.cast(step, tf.int32)]))
        kept = left_out.assign(wanted - sent, read_value=False)
        with tf.control_dependencies([state.save([kept])]):
            return tf.identity(sent)
