"""Steps that a worker takes by itself between two exchanges, with an optimizer whose state stays with the worker.

    worker's process   variables "local/…": weights, the rule's slots, counters; made when first used, gone with the process
    its workspace      local-state-0, local-state-1: the slots after every other period; a worker started again reads the newer

A step id is a period here: `local_steps` batches, whose numbers are step id x local_steps and those that follow.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from pydantic import Field

from ps_cluster.config import RunConfig
from ps_cluster.config.modes import Mode
from ps_cluster.config.registry import tf
from ps_cluster.runs.run_dir import LOCAL_STATES
from ps_cluster.server.shard import InitialState, after
from ps_cluster.server.update_rules import make_rule
from ps_cluster.training.step import StepResult, TrainStep


def local_steps_field(default: int) -> Any:
    """Return the field `local_steps` of a mode's settings."""
    says = "Steps that a worker takes by itself between two exchanges."
    return Field(default=default, ge=1, le=1000, description=says)


class LocalMode(Mode):
    """A mode whose step id is a period: `mode.local_steps` batches."""

    takes_local_steps = is_simulated = True
    ignores = frozenset({"staleness", "lookahead"})

    def batches_per_step(self, config: RunConfig) -> int:
        steps: int = self.settings(config).local_steps
        return steps


class Progress(NamedTuple):
    """What goes from each local step of a period to the next."""

    state: tf.Tensor
    statistics: tf.Tensor  # float32 [m]
    numbers: tf.Tensor  # float32 [3]: sums of loss and metric, and the learning rate of the period's first step

    @classmethod
    def begin(cls, state: tf.Tensor, statistics: tf.Tensor) -> Progress:
        return cls(state, statistics, tf.zeros([3]))

    def result(self, steps: int | tf.Tensor, gradient: tf.Tensor, fresh: tf.Tensor) -> StepResult:
        """Return the result of `steps` steps. Loss is the mean, metric the sum, and the learning rate the first one's."""
        loss, metric, rate = tf.unstack(self.numbers)
        return StepResult(gradient, fresh, loss / tf.cast(steps, tf.float32), metric, rate)


GoesOn: TypeAlias = "Callable[[], tf.Tensor]"
"""Returns whether a period goes on, bool []."""


def take_local_steps(
    first: int,
    end: int | tf.Tensor,
    progress: Progress,
    keep: Any,
    take: Callable[..., tuple[StepResult, tf.Tensor]],
    goes_on: GoesOn | None = None,
) -> Progress:
    """Take the steps of a period from `first` up to `end`, one after the other.

    Args:
      keep: float32 [m], the share of the statistics that one step keeps.
      take: (position int64 [], state, statistics) → (the step's result, state).
      goes_on: asked after each step; None: the period goes on.
    """

    def body(
        position: tf.Tensor, goes: tf.Tensor, state: tf.Tensor, statistics: tf.Tensor, numbers: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        result, state = take(position, state, statistics)
        loss, metric, rate = tf.unstack(numbers)
        rate = tf.where(position == 0, result.learning_rate, rate)
        numbers = tf.stack([loss + result.loss, metric + result.metric, rate])
        if goes_on is not None:
            with tf.control_dependencies([state]):
                goes = tf.identity(goes_on())
        return position + 1, goes, state, keep * statistics + result.fresh, numbers

    start, last = (tf.constant(first, tf.int64), tf.constant(True)), tf.cast(end, tf.int64)
    _, _, *ended = tf.while_loop(
        lambda position, goes, *_: tf.logical_and(goes, position < last),
        body,
        (*start, *progress),
        parallel_iterations=1,
    )
    return Progress(*ended)


class WorkerState:
    """The variables of a worker's process that a graph uses. They outlive the graph, and by two files the process.

    A dying process may leave the file that it writes incomplete, so they are written in turn: the other is whole.
    """

    def __init__(self) -> None:
        """Begin a graph."""
        self._kept: dict[str, tf.Variable] = {}

    def variable(self, name: str, value: np.ndarray | tf.Tensor, *, changes: bool) -> Any:
        """Return the process's variable of this name, which is kept; its first value is 0. Of a constant, the constant."""
        if not changes:
            return tf.constant(value)
        self._kept[name] = self.scratch(name, value.shape, tf.as_dtype(value.dtype))
        return self._kept[name]

    @staticmethod
    def scratch(name: str, shape: Sequence[int], dtype: tf.DType) -> tf.Variable:
        """Return the process's variable of this name, which is not kept in files."""
        from ps_cluster.private_names import variable_of_process

        return variable_of_process(f"local/{name}", shape, dtype)

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
        states = [self._read(tf.strings.join([name, nothing])) for name in LOCAL_STATES]
        counts = [self._number_of_saves(state) for state in states]
        newest = tf.where(counts[0] > counts[1], *states)
        number = tf.maximum(*counts)
        told = tf.cond(
            number > 0,
            lambda: _tell("the optimizer of the local steps goes on as it was after", number, "periods of this worker"),
            lambda: _tell("the optimizer of the local steps begins anew: this worker has no earlier state"),
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
        """Write the variables to the older of the files, after `needed`."""
        with tf.control_dependencies(needed):
            number = self._saves.assign_add(1)
        with tf.control_dependencies([number]):
            parts = [tf.reshape(tf.bitcast(variable.read_value(), tf.uint8), [-1]) for variable in self._kept.values()]
        name = tf.gather(tf.constant(LOCAL_STATES), number % len(LOCAL_STATES))
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


class LocalOptimizer:
    """A worker's own weights and optimizer, in a graph: the variables of `WorkerState` and the operations on them."""

    def __init__(self, training: LocalTraining, length: int, dtype: tf.DType):
        """Name the variables. `length`: of the weights. `dtype`: that they are computed in."""
        self._training, self._dtype = training, dtype
        self.state = WorkerState()
        self.weights = self.state.scratch("weights", [length], tf.float32)
        self._rule = make_rule(
            training.settings, self.weights, training.start.factors, self.state.variable, training.start.matrices
        )

    def take(
        self, step: tf.Tensor, first: int, end: int | tf.Tensor, progress: Progress, goes_on: GoesOn | None = None
    ) -> Progress:
        """Take the steps `first` up to `end` of period `step`, as `take_local_steps` does."""
        training, rule = self._training, self._rule

        def take(position: tf.Tensor, before: tf.Tensor, statistics: tf.Tensor) -> tuple[StepResult, tf.Tensor]:
            with tf.control_dependencies([before]):
                here = tf.cast(self.weights.read_value(), self._dtype)
                taken = rule.applied.read_value()
            result = training.step(step * training.local_steps + position, here, statistics)
            gradient = tf.cast(result.gradient, tf.float32)
            with tf.control_dependencies([gradient, taken]):
                applied = rule.apply(gradient, result.learning_rate, taken)
            return result, after([applied], before)

        return take_local_steps(first, end, progress, training.keep, take, goes_on)


class LocalTraining:
    """One period of a worker: steps by itself with the run's optimizer rule, whose state stays with the worker."""

    def __init__(self, step: TrainStep, config: RunConfig, start: InitialState, keep: np.ndarray):
        """Prepare the constants.

        Args:
          start: of all weights.
          keep: float32 [m], the share of the statistics that one step keeps.
        """
        self.step, self.settings, self.start, self.keep = step, config.optimizer, start, keep
        self.local_steps = config.batches_per_step
        self.session = uuid.uuid4().hex  # another leader's training has other variables in the same worker
        self.kept = keep**self.local_steps  # the share of the statistics that the server keeps with each push

    def __call__(
        self,
        step: tf.Tensor,
        weights: tf.Tensor,
        statistics: tf.Tensor,
        batches: tf.Tensor | None = None,
        goes_on: GoesOn | None = None,
    ) -> StepResult:
        """Take the steps of one period.

        Args:
          step: int64 [], the period. weights: [n], as pulled. statistics: float32 [m].
          batches: int64 [], how many of the period's steps to take; None: all.
          goes_on: asked after each step; a period that does not is pushed as it is, to be dropped.
        Returns:
          As `TrainStep`, with the weights pulled minus those reached in place of the gradient. The rest is as for
          `Progress.result`.
        """
        own = LocalOptimizer(self, weights.shape[0], weights.dtype)
        pulled = tf.cast(weights, tf.float32)
        with tf.control_dependencies([own.state.load(step, [pulled]), own.weights.assign(pulled, read_value=False)]):
            begun = tf.constant(0)
        count = self.local_steps if batches is None else batches
        ended = own.take(step, 0, count, Progress.begin(begun, statistics), goes_on)
        with tf.control_dependencies([own.state.save([ended.state])]):
            moved = pulled - own.weights.read_value()
        fresh = ended.statistics - self.kept * statistics
        return ended.result(count, tf.cast(moved, weights.dtype), fresh)
