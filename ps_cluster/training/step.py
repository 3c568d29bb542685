"""One training step as a pure function of its step id and the parameters it pulled; clipping, schedules.

The launcher imports this module, to check schedules: nothing here imports TensorFlow before a graph is built.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from ps_cluster.config import RunConfig, user_code
from ps_cluster.config.datasets import DATASETS, OF_WORKER, Sample
from ps_cluster.config.lazy import tf
from ps_cluster.config.objectives import ExampleSpec
from ps_cluster.config.optimizer_rules import RuleSettings
from ps_cluster.config.schedules import SCHEDULES, Schedule, ScheduleSettings
from ps_cluster.models.failures import COMPUTATION
from ps_cluster.runs.run_dir import IDENTITY

if TYPE_CHECKING:  # imports TensorFlow
    from ps_cluster.models.flat import FlatLayout, FlatNetwork


@dataclass(frozen=True)
class WorkerIdentity:
    """The worker that runs a graph: index and pid, read from the file in the process's working directory."""

    worker: tf.Tensor  # int64 []
    pid: tf.Tensor  # int64 []

    @classmethod
    def read(cls) -> WorkerIdentity:
        """Read the identity file, in the process where the graph runs."""
        content = tf.io.decode_raw(tf.io.read_file(IDENTITY), tf.int64)
        return cls(content[0], content[1])

    def both(self) -> tf.Tensor:
        return tf.stack([self.worker, self.pid])


class TrainBatch(NamedTuple):
    """The examples of a step, as the network and the judge take them."""

    inputs: dict[str, tf.Tensor]  # name → [B, ...]
    targets: tf.Tensor  # [B, ...]
    weights: tf.Tensor | None  # float32 [B], how much each example counts; None if all count alike
    ids: tf.Tensor  # int64 [B], the indices of the examples in the training set


@dataclass(frozen=True)
class StepResult:
    """The result of one step, or of all local steps of a period."""

    gradient: tf.Tensor  # [n], in the dtype of the weights
    fresh: tf.Tensor  # float32 [m], what the batch adds to the kept share of the statistics
    loss: tf.Tensor  # float32 []
    metric: tf.Tensor  # float32 [], the sum over the batch
    learning_rate: tf.Tensor  # float32 []
    examples: tf.Tensor  # int64 [], the examples that the network was trained on, counted on its outputs
    ids_checksum: tf.Tensor  # int64 [], of the ids of these examples: see `data.batches.checksum_of`


GoesOn: TypeAlias = "Callable[[], tf.Tensor]"
"""Returns whether a period of local steps continues, bool []."""


class PeriodLimits(NamedTuple):
    """What may end a period of local steps early.

    Attributes:
      batches: int64 [], the number of the period's batches to take; None: all of them.
      goes_on: is asked after each local step; None: the period continues.
    """

    batches: tf.Tensor | None = None
    goes_on: GoesOn | None = None


WHOLE_PERIOD = PeriodLimits()


class TrainStep:
    """Computes the batch, the forward pass and the gradient of a step id."""

    def __init__(self, config: RunConfig, network: FlatNetwork, spec: ExampleSpec, *, train_examples: int):
        from ps_cluster.models.judges import judge_of

        self._config = config
        self._network = network
        self._examples = train_examples
        self._spec = spec
        self._judge = judge_of(spec, config.training, network.model)
        self._clip = clipping_of(config.optimizer, network.weights)
        self._augment = DATASETS[config.data.dataset].augmentation()
        self._total_steps = config.total_steps(train_examples) * config.batches_per_step

    def __call__(
        self, step: tf.Tensor, weights: tf.Tensor, statistics: tf.Tensor, limits: PeriodLimits = WHOLE_PERIOD
    ) -> StepResult:
        """Compute the step of one batch, for which no limits count.

        Args:
          step: int64 []. weights: [n]. statistics: float32 [m].
        """
        from ps_cluster.data.batches import checksum_of

        batch = self.batch(step)
        random_state = tf.stack([self._config.training.seed, tf.cast(step, tf.int32)])
        with tf.name_scope(COMPUTATION):
            with tf.GradientTape() as tape:
                tape.watch(weights)
                passed = self._network.forward(weights, statistics, batch.inputs, random_state)
                loss = sum(passed.losses, self._judge.loss(batch.targets, passed.outputs, batch.weights))
            gradient = tape.gradient(loss, weights)
            metric = tf.reduce_sum(self._judge.metric(batch.targets, passed.outputs))
        return StepResult(
            gradient=self._clip(gradient),
            fresh=passed.fresh,
            loss=loss,
            metric=metric,
            learning_rate=self.learning_rate(step),
            examples=rows_in(passed.outputs),
            ids_checksum=checksum_of(batch.ids),
        )

    def batch(self, step: tf.Tensor) -> TrainBatch:
        """Return the batch of a step id, varied."""
        from ps_cluster.data import batches
        from ps_cluster.data.augment import resized

        training = self._config.training
        batch = batches.batch_of(
            step,
            batch_size=training.batch_size_per_worker,
            examples=self._examples,
            seed=training.seed,
            **self._part(step),
        )
        examples = batches.rows_of(batch, self._spec, self._examples)
        targets, varied = self._judge.targets(examples.target), examples.inputs
        if self._augment is not None:
            varied = self._augment(varied, batch, self._spec, self._config.data)
        inputs = {name: tf.cast(rows, self._spec.inputs[name].network_dtype) for name, rows in varied.items()}
        if scales := self._config.schedule.image_scales:
            inputs = resized(inputs, self._spec, scales, progress(*updates_at(self._config, self._total_steps, step)))
        return TrainBatch(inputs, targets, self._judge.weights(targets, examples.weight), batch.ids)

    def _part(self, step: tf.Tensor) -> dict[str, Any]:
        """Return the arguments of `batch_of` for the examples that this process walks through."""
        if self._config.training.sample != OF_WORKER:
            return {"sample": self._config.sample}
        workers = self._config.cluster.workers
        # One that `scale` has added shares a part.
        own = Sample(index=WorkerIdentity.read().worker % workers, of=workers)
        return {"sample": own, "number": number_in_step(self._config, step)}

    def learning_rate(self, step: tf.Tensor) -> tf.Tensor:
        """Return the learning rate, float32 [], of the step's update; the steps of one update share it."""
        return learning_rate(self._config, self._total_steps, step)


def rows_in(outputs: Any) -> tf.Tensor:
    """Return the number of examples in the outputs of a network, int64 []."""
    return tf.shape(tf.nest.flatten(outputs)[0], tf.int64)[0]


# Clip a gradient, as Keras's optimizers do: clipnorm, global_clipnorm, clipvalue.

Clip: TypeAlias = "Callable[[tf.Tensor], tf.Tensor]"
"""Gradient [n] → clipped gradient [n], in the same dtype."""


def clipping_of(settings: RuleSettings, layout: FlatLayout) -> Clip:
    """Return what the settings ask for; without any, the gradient stays as it is.

    Args:
      layout: of the gradient, by variables.
    """
    if (limit := settings.clip_norm) is not None:
        return partial(_by_norms, limit=limit, layout=layout)
    if (limit := settings.global_clip_norm) is not None:
        return partial(_by_norm, limit=limit)
    if (limit := settings.clip_value) is not None:
        return partial(tf.clip_by_value, clip_value_min=-limit, clip_value_max=limit)
    return lambda gradient: gradient


def _by_norms(gradient: tf.Tensor, limit: float, layout: FlatLayout) -> tf.Tensor:
    return tf.concat([_by_norm(part, limit) for part in tf.split(gradient, layout.sizes)], axis=0)


def _by_norm(vector: tf.Tensor, limit: float) -> tf.Tensor:
    # A sum of squares in bfloat16 would stop growing after some hundred of them.
    return tf.cast(tf.clip_by_norm(tf.cast(vector, tf.float32), limit), vector.dtype)


# The learning rate of a step id.


def learning_rate(config: RunConfig, total_batches: int, batch: tf.Tensor) -> tf.Tensor:
    """Return the learning rate, float32 [], of a batch (its number, int64 [], of `total_batches`)."""
    return config.optimizer.learning_rate * schedule_factor(config.schedule, *updates_at(config, total_batches, batch))


def updates_at(config: RunConfig, total_batches: int, batch: tf.Tensor) -> tuple[tf.Tensor, int]:
    """Return the number of the (local) update that a batch is for, int64 [], from 0, and how many there are."""
    return number_in_step(config, batch), total_batches // config.steps_per_update


def number_in_step(config: RunConfig, batch: tf.Tensor) -> tf.Tensor:
    """Return the number of a batch among those of its own worker, int64 [], from 0, where workers go in step.

    Each of them has a step of an update, and may take several batches in it. In the other modes nobody knows which steps
    a worker will get: the number is that among all batches.
    """
    of_step = config.batches_per_step
    return batch // of_step // config.steps_per_update * of_step + batch % of_step


def progress(update: tf.Tensor, updates: int) -> tf.Tensor:
    """Return how far the training is, float32 [] from 0 at the first update to 1 at the last."""
    return tf.cast(update, tf.float32) / max(1, updates - 1)


def expected_rates(config: RunConfig, total_steps: int) -> Callable[[np.ndarray], np.ndarray]:
    """Return the function from step ids, int64 [k], to what their rows have to say of the learning rate, float32 [k].

    That of a step with several batches is its first one's.
    """
    batches = config.batches_per_step

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None], tf.int64)])
    def rates(steps: tf.Tensor) -> tf.Tensor:
        return tf.vectorized_map(lambda step: learning_rate(config, total_steps * batches, step * batches), steps)

    def of(steps: np.ndarray) -> np.ndarray:
        expected: np.ndarray = rates(tf.constant(steps, tf.int64)).numpy()
        return expected

    return of


def text_of_rules(config: RunConfig, total_steps: int) -> str:
    """Return the settings that decide the learning rate of a step id and the bound of its staleness, as text to compare."""
    code = user_code.parse(config.schedule.kind)
    digest = hashlib.sha256(code.file.read_bytes()).hexdigest() if code and code.file.is_file() else ""
    settings = config.schedule.model_dump(mode="json"), digest, config.optimizer.learning_rate
    shape = total_steps, config.batches_per_step, config.steps_per_update
    return json.dumps([*settings, *shape, config.mode_kind.most_staleness(config)])


# The schedules of the learning rate, as pure functions of the step id.


def schedule_factor(settings: ScheduleSettings, step: tf.Tensor, total_steps: int) -> tf.Tensor:
    """Return the factor of the peak learning rate at `step` (int64 [], from 0), float32 [].

    It rises linearly from `start_factor` over the warm-up. From there to the last step the schedule gives it.
    """
    done = progress(step, total_steps)
    warmup = settings.warmup_fraction
    rising = settings.start_factor + (1 - settings.start_factor) * done / max(warmup, 1e-9)
    past = tf.clip_by_value((done - warmup) / max(1 - warmup, 1e-9), 0.0, 1.0)
    after = SCHEDULES[settings.kind].after_warmup(settings, past)
    return tf.where(done < warmup, rising, after)


# Schedule constant.


class Constant(Schedule):
    name = "constant"

    def after_warmup(self, settings: ScheduleSettings, past: tf.Tensor) -> tf.Tensor:
        """Return 1."""
        return tf.ones_like(past)


# Schedule cosine.


class Cosine(Schedule):
    name = "cosine"

    def after_warmup(self, settings: ScheduleSettings, past: tf.Tensor) -> tf.Tensor:
        """Return the factor that falls from 1 to `end_factor` along half a cosine.

        Loshchilov and Hutter 2017, arXiv:1608.03983, equation 5.
        """
        return settings.end_factor + (1 - settings.end_factor) * (1 + tf.cos(math.pi * past)) / 2


# Schedule triangle.


class Triangle(Schedule):
    name = "triangle"

    def after_warmup(self, settings: ScheduleSettings, past: tf.Tensor) -> tf.Tensor:
        """Return the factor that falls linearly from 1 to `end_factor`."""
        return 1 - (1 - settings.end_factor) * past
