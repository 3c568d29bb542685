"""Mode elastic: each worker trains separate weights; from time to time, these and the centre move towards each other.

Zhang, Choromanska, LeCun 2015, "Deep learning with elastic averaging SGD" (arXiv:1412.6651), algorithm 1 (asynchronous
EASGD). The paper's text was not available; this module follows the authors' code (github.com/sixin-zh/mpiT,
asyncsgd/optim-eamsgd.lua), and its moving rate is beta / workers (mlaunch.lua). Worker i with weights x_i repeats, with
the centre c, the moving rate a and the period k:

  x ← x_i;  x_i ← x_i - a (x - c);  c ← c + a (x - c)         an exchange
  x_i ← x_i - (learning rate) g(x)                             a step; gradient at x, the weights before the exchange
  k - 1 times: x_i ← x_i - (learning rate) g(x_i)              the other steps of the period

The first exchange changes nothing, because all workers begin with the weights of the centre. So here a step id stands
for k steps and then the exchange, which is the same sequence, cut at another point. The exchange is then part of the
push, which is applied exactly once. An exchange before the steps would be part of a pull, which may come twice.

The parameter server keeps every worker's weights, so nothing is lost if a worker dies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field

from ps_cluster.config import RunConfig
from ps_cluster.config.equations import Slots, UpdateParts
from ps_cluster.config.lazy import tf
from ps_cluster.config.modes import ClusterShape
from ps_cluster.models.rows import NO_ROWS, Rows
from ps_cluster.runs.checkpoint_arrays import WEIGHTS
from ps_cluster.server.capabilities import Capabilities
from ps_cluster.server.initial_state import InitialState
from ps_cluster.server.shard import Answer, ParameterShard, Push
from ps_cluster.server.staleness.correction import Arrival
from ps_cluster.server.update_rules.rule import decay_rates
from ps_cluster.training.modes.local_steps import (
    LocalMode,
    LocalSettings,
    PeriodSoFar,
    local_steps_field,
    take_local_steps,
)
from ps_cluster.training.step import WHOLE_PERIOD, Compute, PeriodLimits, StepResult, TrainStep

if TYPE_CHECKING:
    from ps_cluster.training.recomputed_steps import RecomputedSteps


class ElasticSettings(LocalSettings):
    local_steps: int = local_steps_field(4)
    beta: float = Field(
        default=0.9,
        gt=0,
        le=1,
        description="In an exchange, a worker's weights and the centre move towards each other. Each of them moves by "
        "beta / workers times their difference.",
    )


def moving_rate(config: RunConfig) -> float:
    """Return the moving rate, by which a worker's weights and the centre move towards each other in an exchange.

    An exchange moves the worker's weights `x` by `rate * (c - x)`, and the centre `c` by `rate * (x - c)`.
    """
    settings = ElasticSettings.of(config)
    return settings.beta / config.cluster.workers


class ElasticShard(ParameterShard):
    """A shard that holds the centre (the weights that are evaluated) and, for each worker, two vectors of weights.

    For worker i these are the weights after its last exchange, x_i, and the weights before that exchange, x. A pull
    returns both, float32 [2, n]. A push contains the change of x_i by the worker's steps.
    """

    capabilities = Capabilities(vectors_given=2, slots_per_worker=2)

    def __init__(self, device: str, start: InitialState, config: RunConfig, total_steps: int):
        super().__init__(device, start, config, total_steps)
        self._moving_rate = moving_rate(config)
        with tf.device(device):
            first = tf.tile(self.weights[None], [config.training_workers, 1])
            self._own, self._before = tf.Variable(first), tf.Variable(first)

    @property
    def slots(self) -> dict[str, tf.Variable]:
        return super().slots | {"own": self._own, "before": self._before}

    def read_message(self, message: Sequence[tf.Tensor]) -> Answer:
        answer = super().read_message(message)
        return answer._replace(weights=tf.reshape(answer.weights, [self.capabilities.vectors_given, self.length]))

    def values_for(self, worker: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
        weights = tf.stack([self._own.sparse_read(worker), self._before.sparse_read(worker)])
        return [weights, self.statistics.read_value()], self.version.read_value()

    def row_of_newcomer(self, state: dict[str, np.ndarray]) -> np.ndarray:
        return state[WEIGHTS]  # all workers begin with the weights of the centre

    def change(self, push: Push, arrival: Arrival, factor: tf.Tensor) -> tf.Tensor:
        before = self._own.sparse_read(push.worker) + push.gradient
        move = self._moving_rate * (before - self.weights.read_value())
        moved = [
            self._before.scatter_update(tf.IndexedSlices(before[None], push.worker[None])),
            self._own.scatter_update(tf.IndexedSlices((before - move)[None], push.worker[None])),
            self.weights.assign_add(move, read_value=False),
            self.update_statistics(push.fresh),
        ]
        with tf.control_dependencies(moved):
            return self.version.assign_add(1)


class LocalSteps(Compute):
    """Computes one period of a worker: `local_steps` steps of plain SGD on the worker's weights."""

    def __init__(self, step: TrainStep, config: RunConfig, start: InitialState, keep: np.ndarray):
        """Create the constants. The arguments are as for `Mode.worker_step`."""
        self._step, factors = step, start.factors
        self._decay = tf.constant(decay_rates(config.optimizer, factors))
        self._factors = 1.0 if np.all(factors == 1) else tf.constant(factors)
        self._keep = keep
        self._local_steps = config.batches_per_step

    def __call__(
        self,
        step: tf.Tensor,
        /,
        weights: tf.Tensor,
        statistics: tf.Tensor,
        limits: PeriodLimits = WHOLE_PERIOD,
        rows: Rows = NO_ROWS,
    ) -> StepResult:
        """Take all steps of one period. Instead of a gradient, return the change of the weights by these steps.

        Args:
          weights: [2, n], the worker's weights after the last exchange, and those before it. The first gradient of the
            period is computed at the weights before the exchange.
          limits, rows: not used.
        """
        own, before = tf.unstack(weights)

        def take(position: tf.Tensor, moved: tf.Tensor, statistics: tf.Tensor) -> tuple[StepResult, tf.Tensor]:
            # The change is summed in float32, because the rounding of bfloat16 weights would lose a step of SGD.
            there = tf.cast(tf.cast(own, tf.float32) + moved, own.dtype)
            here = tf.where(position == 0, before, there)
            result = self._step(step * self._local_steps + position, here, statistics)
            gradient = self._factors * tf.cast(result.gradient, tf.float32)
            return result, moved - result.learning_rate * (gradient + self._decay * tf.cast(here, tf.float32))

        begun = PeriodSoFar.begin(tf.zeros_like(own, tf.float32), statistics)
        ended = take_local_steps(0, self._local_steps, begun, self._keep, take)
        fresh = ended.statistics - self._keep**self._local_steps * statistics
        return ended.result(self._local_steps, tf.cast(ended.passed_on, own.dtype), fresh)


class Elastic(LocalMode):
    """Asynchronous elastic averaging SGD."""

    name = "elastic"
    description = (
        "each worker trains separate weights; from time to time, these and the common centre move towards each other"
    )
    Settings = ElasticSettings
    cluster = ClusterShape(
        pins_workers=True,
        why_workers_are_fixed=(
            "a worker that came later would pull the centre back to the first weights, and would change the moving rate, "
            "beta / workers"
        ),
    )
    unused_settings = frozenset({"staleness", "lookahead"})
    own_rule = "sgd"
    shard = ElasticShard

    def worker_step(self, step: TrainStep, config: RunConfig, start: InitialState, keep: np.ndarray) -> Compute:
        return LocalSteps(step, config, start, keep)

    def recomputed_steps(self) -> type[RecomputedSteps]:
        from ps_cluster.training.recomputed_periods import RecomputedElasticPeriods

        return RecomputedElasticPeriods

    def equation(self, config: RunConfig, parts: UpdateParts) -> Slots:
        """Return the worker's weights before and after an exchange, and the new centre, by the paper's algorithm 1."""
        before = parts.slots["own"] + parts.gradient
        move = moving_rate(config) * (before - parts.weights)
        return {"before": before, "own": before - move, "weights": parts.weights + move}

    def label(self, config: RunConfig) -> str:
        return f"{self.name} k={ElasticSettings.of(config).local_steps}"
