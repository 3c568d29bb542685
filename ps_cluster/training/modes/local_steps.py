"""Take local steps between two exchanges, with an optimizer whose state stays with the worker.

The weights and the optimizer's slots are local to a worker (training/worker_state.py). A restarted worker reads the
slots from files. Here a step id stands for a period of `local_steps` batches. The number of the period's first batch is
step id * local_steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from pydantic import Field

from ps_cluster.config import RunConfig
from ps_cluster.config.lazy import tf
from ps_cluster.config.modes import ModeSettings, Synchrony
from ps_cluster.models.rows import NO_ROWS, Rows
from ps_cluster.runs.run_dir import OF_OPTIMIZER
from ps_cluster.server.initial_state import InitialState
from ps_cluster.server.ordering import after
from ps_cluster.server.shard import APPLIED
from ps_cluster.server.update_rules.rule import Gradient, make_rule
from ps_cluster.training.modes.base import DefaultMode
from ps_cluster.training.step import WHOLE_PERIOD, Compute, MayContinue, PeriodLimits, StepResult, TrainStep
from ps_cluster.training.worker_state import WorkerState


def local_steps_field(default: int) -> Any:
    """Return the field `local_steps` of a mode's settings."""
    description = "Number of steps that a worker takes alone between two exchanges with the parameter servers."
    return Field(default=default, ge=1, le=1000, description=description)


class LocalSettings(ModeSettings):
    """The settings of a mode whose workers train alone between two exchanges with the parameter servers."""

    local_steps: int = local_steps_field(16)


class LocalMode(DefaultMode):
    """A mode in which a step id stands for a period of `mode.local_steps` batches."""

    synchrony = Synchrony(takes_local_steps=True)

    def batches_per_step(self, config: RunConfig) -> int:
        return LocalSettings.of(config).local_steps


class PeriodSoFar(NamedTuple):
    """The values that a local step of a period passes to the next step. The next step depends on all these values."""

    # The value that `take` passes on. In mode elastic it is the change of the weights so far, float32 [n]. In the other
    # modes, whose weights are in variables, it is an int32 [] without a meaning: a step depends on it to run after the
    # previous step.
    passed_on: tf.Tensor
    statistics: tf.Tensor  # float32 [m]
    numbers: tf.Tensor  # float32 [3]: sums of loss and metric, and the learning rate of the period's first step
    seen: tf.Tensor  # int64 [2]: the number of examples so far, and the checksum of their ids

    @classmethod
    def begin(cls, passed_on: tf.Tensor, statistics: tf.Tensor) -> PeriodSoFar:
        return cls(passed_on, statistics, tf.zeros([3]), tf.zeros([2], tf.int64))

    def result(self, steps: int | tf.Tensor, gradient: tf.Tensor, fresh: tf.Tensor) -> StepResult:
        """Return the result of `steps` steps: their mean loss, the sum of their metrics, and the first learning rate.

        Args:
          gradient: the vector to push in place of a gradient.
          fresh: what the steps add to the kept share of the moving statistics.
        """
        loss, metric, rate = tf.unstack(self.numbers)
        return StepResult(gradient, fresh, loss / tf.cast(steps, tf.float32), metric, rate, *tf.unstack(self.seen))


def take_local_steps(
    first: int,
    end: int | tf.Tensor,
    so_far: PeriodSoFar,
    keep: np.ndarray,
    take: Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tuple[StepResult, tf.Tensor]],
    may_continue: MayContinue | None = None,
) -> PeriodSoFar:
    """Take the steps of a period from `first` up to but not including `end`, one after the other.

    Args:
      so_far: the values with which the first of these steps begins.
      keep: as for `Mode.worker_step`.
      take: computes one step: (position int64 [], the tensor that the previous step has passed on, statistics) → (the
        step's result, the tensor that this step passes on).
      may_continue: as in `PeriodLimits`.
    """

    from ps_cluster.data.batches import append_to_checksum

    def body(
        position: tf.Tensor, continues: tf.Tensor, before: PeriodSoFar
    ) -> tuple[tf.Tensor, tf.Tensor, PeriodSoFar]:
        result, passed_on = take(position, before.passed_on, before.statistics)
        loss, metric, rate = tf.unstack(before.numbers)
        rate = tf.where(position == 0, result.learning_rate, rate)
        numbers = tf.stack([loss + result.loss, metric + result.metric, rate])
        examples, checksum = tf.unstack(before.seen)
        seen = tf.stack([examples + result.examples, append_to_checksum(checksum, result.ids_checksum)])
        if may_continue is not None:
            with tf.control_dependencies([passed_on]):
                continues = tf.identity(may_continue())
        return position + 1, continues, PeriodSoFar(passed_on, keep * before.statistics + result.fresh, numbers, seen)

    start, last = (tf.constant(first, tf.int64), tf.constant(True), so_far), tf.cast(end, tf.int64)
    loop: tuple[tf.Tensor, tf.Tensor, PeriodSoFar] = tf.while_loop(
        lambda position, continues, _: tf.logical_and(continues, position < last), body, start, parallel_iterations=1
    )
    return loop[2]


class LocalOptimizer:
    """A worker's local weights and optimizer, in a graph: the variables of `WorkerState` and the operations on them.

    All objects of one `LocalTraining` stand for the same variables of the worker's process. So each graph, and each
    part of a graph, can have a separate object.
    """

    def __init__(self, training: LocalTraining):
        self._training = training
        self.state = WorkerState(
            f"{training.start.leader_prefix}/optimizer", "the optimizer of the local steps", OF_OPTIMIZER
        )
        self.weights = self.state.scratch("weights", training.start.factors.shape, tf.float32)
        self._rule = make_rule(
            training.settings, self.weights, training.start.factors, self.state, training.start.matrices
        )
        self._taken = self.state.variable("taken", np.zeros([], np.int64))

    def take(
        self,
        step: tf.Tensor,
        first: int,
        end: int | tf.Tensor,
        so_far: PeriodSoFar,
        may_continue: MayContinue | None = None,
    ) -> PeriodSoFar:
        """Take the steps `first` up to `end` of period `step`, as `take_local_steps` does."""
        training, rule = self._training, self._rule

        def take(position: tf.Tensor, before: tf.Tensor, statistics: tf.Tensor) -> tuple[StepResult, tf.Tensor]:
            with tf.control_dependencies([before]):
                here = tf.cast(self.weights.read_value(), training.dtype)
                taken = self._taken.read_value()
            result = training.step(step * training.local_steps + position, here, statistics)
            gradient = tf.cast(result.gradient, tf.float32)
            with tf.control_dependencies([gradient, taken]):
                applied = rule.apply(Gradient(gradient, result.learning_rate, taken))
            with tf.control_dependencies([applied]):
                counted = self._taken.assign_add(1, read_value=False)
            return result, after([counted], before)

        return take_local_steps(first, end, so_far, training.keep, take, may_continue)

    def settle(self, step: tf.Tensor, outcomes: tf.Tensor) -> tf.Tensor:
        """Keep the optimizer's new state if a shard applied the push of the period; otherwise restore the old state.

        Returns a tensor to depend on. See `Compute.settle`.
        """
        return self.state.settle(step, tf.reduce_any(tf.equal(outcomes, APPLIED)))


class LocalTraining(Compute):
    """Computes one period of a worker: local steps with the run's optimizer rule, whose state stays with the worker."""

    def __init__(self, step: TrainStep, config: RunConfig, start: InitialState, keep: np.ndarray):
        """Create the constants. The arguments are as for `Mode.worker_step`."""
        self.step, self.settings, self.start, self.keep = step, config.optimizer, start, keep
        self.local_steps = config.batches_per_step
        self.seed = config.training.seed
        self.dtype = tf.as_dtype(config.wire)  # the dtype in which steps are computed
        self.kept = keep**self.local_steps  # the share of the statistics that the server keeps with each push

    def __call__(
        self,
        step: tf.Tensor,
        /,
        weights: tf.Tensor,
        statistics: tf.Tensor,
        limits: PeriodLimits = WHOLE_PERIOD,
        rows: Rows = NO_ROWS,
    ) -> StepResult:
        """Take the steps of one period. Instead of a gradient, return the pulled weights minus the weights at the end.

        If `limits.may_continue` ends a period early, the period is pushed anyway, and the shard drops the push.
        """
        local = LocalOptimizer(self)
        pulled = tf.cast(weights, tf.float32)
        loaded = local.state.load(step, [pulled])
        with tf.control_dependencies([loaded, local.weights.assign(pulled, read_value=False)]):
            begun = tf.constant(0)
        count = self.local_steps if limits.batches is None else limits.batches
        ended = local.take(step, 0, count, PeriodSoFar.begin(begun, statistics), limits.may_continue)
        with tf.control_dependencies([ended.passed_on]):
            moved = pulled - local.weights.read_value()
        fresh = ended.statistics - self.kept * statistics
        return ended.result(count, tf.cast(moved, weights.dtype), fresh)

    def settle(self, step: tf.Tensor, outcomes: tf.Tensor) -> list[tf.Tensor]:
        # A new object, because the tensors of the one in `__call__` may belong to another branch of the graph.
        return [LocalOptimizer(self).settle(step, outcomes)]
