"""Compute one training step as a pure function of its step id and the pulled parameters.

The launcher imports this module to check schedules. So this module does not import TensorFlow before a graph is built.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ps_cluster.config import RunConfig
from ps_cluster.config.datasets import DATASETS
from ps_cluster.config.lazy import tf
from ps_cluster.config.objectives import ExampleSpec
from ps_cluster.config.optimizer_rules import RuleSettings
from ps_cluster.config.samples import ConsecutiveExamples, IntOrTensor, Sample, WorkerParts
from ps_cluster.models.failures import COMPUTATION
from ps_cluster.models.rows import NO_ROWS, Rows
from ps_cluster.runs.run_dir import IDENTITY
from ps_cluster.training.devices import on_device
from ps_cluster.training.learning_rate import batch_of_worker, learning_rate, progress, updates_at

if TYPE_CHECKING:  # imports TensorFlow
    from ps_cluster.data.batches import Batch
    from ps_cluster.models.flat import FlatLayout, FlatNetwork


@dataclass(frozen=True)
class WorkerIdentity:
    """The index and the pid of a worker. Each is an int64 [] in the worker's graph, and a Python number elsewhere."""

    worker: tf.Tensor | int
    pid: tf.Tensor | int

    @classmethod
    def read(cls) -> WorkerIdentity:
        """Read the identity of the process that runs the graph, from a file in its working directory."""
        content = tf.io.decode_raw(tf.io.read_file(IDENTITY), tf.int64)
        return cls(content[0], content[1])

    def both(self) -> tf.Tensor:
        """Return the worker's index and pid, int64 [2]."""
        return tf.stack([self.worker, self.pid])


class TrainBatch(NamedTuple):
    """The examples of a step, in the form that the network and the head take."""

    inputs: dict[str, tf.Tensor]  # name → [B, ...]
    targets: tf.Tensor | tuple[tf.Tensor, ...]  # [B, ...]; with several targets, one for each output
    weights: tf.Tensor | None  # float32 [B], the weight of each example; None if all count the same
    ids: tf.Tensor  # int64 [B], the indices of the examples in the training set


class StepResult(NamedTuple):
    """The result of one step, or of all local steps of a period."""

    gradient: tf.Tensor  # [n], in the dtype of the weights
    fresh: tf.Tensor  # float32 [m], what the batch adds to the kept share of the statistics
    loss: tf.Tensor  # float32 []
    metric: tf.Tensor  # float32 [], the sum over the batch
    learning_rate: tf.Tensor  # float32 []
    examples: tf.Tensor  # int64 [], the number of examples on which the network was trained, counted in its outputs
    ids_checksum: tf.Tensor  # int64 [], the checksum of the examples' ids: see `data.batches.checksum_of`


MayContinue: TypeAlias = "Callable[[], tf.Tensor]"
"""A function that is called after each local step, and returns whether the period continues, bool []."""


class PeriodLimits(NamedTuple):
    """The conditions that may end a period of local steps early."""

    batches: tf.Tensor | None = None  # int64 [], the number of the period's batches to take; None: all of them
    may_continue: MayContinue | None = None  # None: the period always continues


WHOLE_PERIOD = PeriodLimits()


class Compute(ABC):
    """The computation of a step: a `TrainStep`, or what a mode builds from a `TrainStep` (`Mode.worker_step`)."""

    @abstractmethod
    def __call__(
        self,
        step: tf.Tensor,
        /,
        weights: tf.Tensor,
        statistics: tf.Tensor,
        limits: PeriodLimits = WHOLE_PERIOD,
        rows: Rows = NO_ROWS,
    ) -> StepResult:
        """Compute a step.

        Args:
          step: int64 [], the step id.
          weights: the pulled weights, [n], in the dtype in which they are sent, followed by the pulled rows of
            embedding tables; or [vectors, n] if a pull returns several vectors.
          statistics: the pulled moving statistics, float32 [m].
          limits: the limits of a period of local steps.
          rows: describes the rows of embedding tables that follow the weights.
        """

    def rows(self, step: tf.Tensor, /) -> Rows:
        """Return the rows of embedding tables that a step (int64 []) needs. By default, a step needs none."""
        return NO_ROWS

    def settle(self, step: tf.Tensor, outcomes: tf.Tensor) -> list[tf.Tensor]:
        """Keep the worker's new state if a shard applied the push of `step` (int64 []); else restore the old state.

        Returns tensors to depend on. By default there is no state. `outcomes`: what each shard did with the push, int32
        or int64 [ps]: APPLIED, REFUSED or DROPPED.
        """
        return []


class TrainStep(Compute):
    """Reads and augments a batch, and computes its forward pass and its gradient.

    Batches are numbered through the whole training. Without local steps, the number of a batch is its step id; with local
    steps, a step id stands for `batches_per_step` batches.
    """

    def __init__(
        self,
        config: RunConfig,
        network: FlatNetwork,
        spec: ExampleSpec,
        *,
        train_examples: int,
        accelerator: str | None = None,
    ):
        """Create the step. `accelerator`: the worker's device that computes the network; None: the worker's processor."""
        from ps_cluster.models.compiled_heads import head_of

        self._accelerator = accelerator
        self._config = config
        self._network = network
        self._examples = train_examples
        self._spec = spec
        self._head = head_of(spec, config.training, network.model)
        self._clip = clipping_of(config.optimizer, network.weights)
        self._augment = DATASETS[config.data.dataset].augmentation()
        self._total_batches = config.total_steps(train_examples) * config.batches_per_step

    def __call__(
        self,
        batch: tf.Tensor,
        /,
        weights: tf.Tensor,
        statistics: tf.Tensor,
        limits: PeriodLimits = WHOLE_PERIOD,
        rows: Rows = NO_ROWS,
    ) -> StepResult:
        """Compute the step of the batch with this number. `limits` are not used, because the step is a single batch."""
        from ps_cluster.data.batches import checksum_of

        drawn = self.batch(batch, rows.packed)
        random_state = self._random_state(batch)
        with on_device(self._accelerator), tf.name_scope(COMPUTATION):
            with tf.GradientTape() as tape:
                tape.watch(weights)
                passed = self._network.forward(weights, statistics, drawn.inputs, random_state, rows)
                loss = sum(passed.losses, self._head.loss(drawn.targets, passed.outputs, drawn.weights))
            gradient = tape.gradient(loss, weights)
            metric = tf.reduce_sum(self._head.metric(drawn.targets, passed.outputs))
        return StepResult(
            gradient=self._clip(gradient),
            fresh=passed.fresh,
            loss=loss,
            metric=metric,
            learning_rate=self.learning_rate(batch),
            examples=example_count(passed.outputs),
            ids_checksum=checksum_of(drawn.ids),
        )

    def rows(self, batch: tf.Tensor, /) -> Rows:
        """Return the rows of embedding tables that a batch needs. `batch`: its number, int64 []."""
        if not self._network.tables:
            return NO_ROWS
        # At the end of a dispatch, a worker has no next step, so this method is called for step -1 (NO_STEP). It
        # returns the rows of batch 0, but the servers send no rows for this step.
        batch = tf.maximum(batch, tf.zeros_like(batch))
        packed = self.packed(self._drawn(batch))
        inputs = self.batch(batch, packed).inputs
        with tf.name_scope(COMPUTATION):
            rows = self._network.table_rows_of(inputs, self._random_state(batch), self._config.shards)
        return rows._replace(packed=packed)

    def _random_state(self, batch: tf.Tensor) -> tf.Tensor:
        return tf.stack([self._config.training.seed, tf.cast(batch, tf.int32)])

    def packed(self, drawn: Batch) -> dict[str, tf.Tensor]:
        """Read the examples of a batch from the packed data set, without augmentation: name → [B, ...]."""
        from ps_cluster.data.batches import packed_examples

        return packed_examples(drawn, self._spec, self._examples)

    def batch(self, batch: tf.Tensor, packed: Mapping[str, tf.Tensor] = NO_ROWS.packed) -> TrainBatch:
        """Return the augmented batch with this number, int64 [].

        Args:
          packed: the batch's examples as the packed data set has them, name → [B, ...]; empty if they still have to be
            read.
        """
        from ps_cluster.data.augment import resized
        from ps_cluster.data.batches import split_fields
        from ps_cluster.data.text_rows import network_inputs

        drawn = self._drawn(batch)
        rows = split_fields(packed or self.packed(drawn), self._spec)
        targets, varied = self._head.targets(rows.target), rows.inputs
        if self._augment is not None:
            varied = self._augment(varied, drawn, self._spec, self._config.data)
        inputs = network_inputs(varied, self._spec)
        if scales := self._config.schedule.image_scales:
            done = progress(*updates_at(self._config, self._total_batches, batch))
            inputs = resized(inputs, self._spec, scales, done)
        return TrainBatch(inputs, targets, self._head.weights(targets, rows.weight), drawn.ids)

    def _drawn(self, batch: tf.Tensor) -> Batch:
        from ps_cluster.data.batches import batch_of

        training = self._config.training
        sample, number = self._part(batch)
        return batch_of(
            batch,
            batch_size=training.batch_size_per_worker,
            examples=self._examples,
            seed=training.seed,
            sample=sample,
            number=number,
        )

    def _part(self, batch: tf.Tensor) -> tuple[Sample | ConsecutiveExamples | None, tf.Tensor | None]:
        """Return the arguments `sample` and `number` for `batch_of`.

        `sample` is the part of the training examples from which this process draws. `number` is the index of the batch
        among all batches from this part.
        """
        sample = self._config.sample
        if not isinstance(sample, WorkerParts):
            return sample, None

        def take(numbers: Sequence[int], index: IntOrTensor) -> tf.Tensor:
            return tf.constant(numbers, tf.int64)[index]

        mine = sample.part(WorkerIdentity.read().worker, self._config.cluster.workers, take)
        return mine, batch_of_worker(self._config, batch)

    def learning_rate(self, batch: tf.Tensor) -> tf.Tensor:
        """Return the learning rate, float32 [], of the batch's update. All steps of an update have the same rate."""
        return learning_rate(self._config, self._total_batches, batch)


def example_count(outputs: Any) -> tf.Tensor:
    """Return the number of examples in the outputs of a network, int64 []."""
    return tf.shape(tf.nest.flatten(outputs)[0], tf.int64)[0]


Clip: TypeAlias = "Callable[[tf.Tensor], tf.Tensor]"
"""Gradient [n] → clipped gradient [n], in the same dtype."""


def clipping_of(settings: RuleSettings, layout: FlatLayout) -> Clip:
    """Return a function that clips a gradient as Keras does; without clipping settings it leaves the gradient unchanged.

    Args:
      layout: the layout of the variables in the gradient.
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
    # In bfloat16, a sum of squares would stop growing after some hundred squares.
    return tf.cast(tf.clip_by_norm(tf.cast(vector, tf.float32), limit), vector.dtype)
