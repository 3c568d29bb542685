"""Recompute a worker's step with plain Keras in float32.

A worker runs one graph, which prepares the batch (`training/step.py`), and then computes a pure function of flat
vectors, in the precision of the run and with fused layers (`models/flat.py`). Here the batch is computed with numpy,
the network is the Keras model itself, the loss is one of Keras's, and each operation runs separately.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ps_cluster.config import RunConfig
from ps_cluster.config.datasets import DATASETS, ImageSettings
from ps_cluster.config.equations import mean_of
from ps_cluster.config.objectives import TARGET, class_weights
from ps_cluster.config.optimizer_rules import RuleSettings
from ps_cluster.data import augment
from ps_cluster.data.batches import Batch
from ps_cluster.data.packed import PackedDataset, targets_in
from ps_cluster.data.recomputed_batches import RecomputedBatches
from ps_cluster.data.recomputed_images import resized, varied
from ps_cluster.data.text_rows import network_input
from ps_cluster.models.build import build
from ps_cluster.models.compiled_heads import head_of
from ps_cluster.models.dynamic_embedding import DynamicEmbedding
from ps_cluster.models.flat import FlatNetwork, as_arguments, statistics_of
from ps_cluster.models.heads import ClassificationHead, MultiLabelHead, NextByteHead, RegressionHead
from ps_cluster.models.keyed_rows import EMPTY
from ps_cluster.models.pure import seed_states, seeds_of
from ps_cluster.private_names import layers_of
from ps_cluster.runs.update_samples import SampledGradient, SampledShard
from ps_cluster.server.update_rules.rule import decay_rates
from ps_cluster.training.learning_rate import learning_rate, progress, updates_at


@dataclass(frozen=True)
class RecomputedGradient:
    """The expected push of a step: the gradient, float64 [n], and the step's part of the moving statistics, float64 [m].

    An update multiplies the moving statistics of the network by constants, and then adds this part (`fresh`).
    """

    gradient: np.ndarray
    fresh: np.ndarray


@dataclass(frozen=True)
class _Examples:
    """The examples of a batch."""

    inputs: dict[str, np.ndarray]  # name → [B, ...] in the dtype of the network
    target: np.ndarray | dict[str, np.ndarray]  # [B, ...] as packed; if there are several targets: name → [B, ...]
    weights: np.ndarray | None  # float32 [B]

    def split(self, parts: int) -> list[_Examples]:
        """Split the examples into `parts` micro-batches of equal size."""
        weights = [None] * parts if self.weights is None else np.split(self.weights, parts)

        def part_of(arrays: Any, part: int) -> Any:
            return keras.tree.map_structure(lambda rows: np.split(rows, parts)[part], arrays)

        return [
            _Examples(part_of(self.inputs, part), part_of(self.target, part), weights[part]) for part in range(parts)
        ]


class RecomputedSteps:
    """Recomputes steps of a run, so that they can be compared with what the workers pushed.

    Subclass this class for a mode whose step is more than one gradient.

    Attributes:
      factors: float32 [n], the learning-rate factors of the weights.
      decay: float32 [n], the share of each weight that decay removes per unit of learning rate.
      keep: float32 [m], the share of each moving statistic that remains after one batch.
      matrices: the positions of the matrices that the optimizer rule needs as a whole.
    """

    def __init__(self, config: RunConfig, dataset: PackedDataset, precision: str = "float32"):
        """Build the network. `precision`: the precision of its computation, as in `model.precision`."""
        self._config, self._dataset = config, dataset
        self._batches = RecomputedBatches(config, dataset.train_examples)
        settings = config.model.model_copy(update={"precision": precision})
        self._model = build(settings, dataset.spec, seed=config.training.seed)
        network = FlatNetwork(self._model)
        if network.has_changing_statistics:
            network.count_calls(dataset.spec)
        self._layout, self._statistics, self.keep = network.weights, network.statistics, network.keep
        self._seeds = seeds_of(self._model)
        self._head = head_of(dataset.spec, config.training, self._model)
        self._total_batches = config.total_steps(dataset.train_examples) * config.batches_per_step
        self.factors = self._layout.factors(
            (rule.match, rule.factor) for rule in config.optimizer.learning_rate_factors
        )
        self.matrices = self._layout.matrices(config.optimizer.matrix_patterns)
        self.decay = np.broadcast_to(decay_rates(config.optimizer, self.factors), self.factors.shape)

    @property
    def length(self) -> int:
        """The number of weights, n."""
        return self._layout.length

    def why_unchecked(self, gradient: SampledGradient) -> str | None:
        """Return why a gradient can't be recomputed; None if it can."""
        return None

    def take_keys(self, shards: Sequence[SampledShard], wire: str) -> str | None:
        """Assign the keys of a sampled update to the `DynamicEmbedding` layers. Call this before `recompute`.

        Returns why the update can't be recomputed; None if it can. It can't be recomputed if a row was removed from its
        table between the pull and the push: the Keras layer would compute with the initial values of the row's key, but
        the worker had pulled other values.

        Args:
          shards: the sampled update.
          wire: the dtype in which the worker received the rows.
        """
        groups = sorted({int(name.partition("_")[0]) for name in shards[0].keyed})
        layers = [one for one in layers_of(self._model) if isinstance(one, DynamicEmbedding) and one.trainable]
        for group, layer in zip(groups, layers, strict=True):
            found = np.full(layer.layout.capacity, EMPTY)
            for shard in shards:
                keys, places, given = (shard.keyed[f"{group}_{name}"] for name in ("keys", "places", "given"))
                found[places[places >= 0]] = keys[places >= 0]
                others = tf.cast(layer.layout.initial(tf.constant(keys[places < 0])), wire)
                if (tf.cast(others, tf.float32) != given.reshape(-1, layer.layout.width)[places < 0]).numpy().any():
                    return "gradients of rows that were removed from their table between the pull and the push"
            layer.keys.assign(found)
        return None

    def recompute(self, gradient: SampledGradient, given: np.ndarray, statistics: np.ndarray) -> RecomputedGradient:
        """Return the expected push of a step.

        Args:
          given: the pulled weights, float32 [n], or [vectors, n] if a pull returns several vectors.
          statistics: the pulled statistics, float32 [m].
        """
        return self._of_batch(gradient.step, gradient.worker, given, statistics)

    def _of_batch(self, batch: int, worker: int, weights: np.ndarray, statistics: np.ndarray) -> RecomputedGradient:
        """Return the gradient of a batch, and what it adds to the moving statistics.

        `batch`: the number of the batch among all batches of the run.
        """
        parts = self._examples(batch, worker).split(self._config.chosen_mode.micro_batches(self._config))
        found = [
            self._of_examples(examples, weights, statistics, draws=batch * len(parts) + number)
            for number, examples in enumerate(parts)
        ]
        gradient = mean_of([one.gradient for one in found])
        return RecomputedGradient(self._clipped(gradient), mean_of([one.fresh for one in found]))

    def _of_examples(
        self, examples: _Examples, weights: np.ndarray, statistics: np.ndarray, *, draws: int
    ) -> RecomputedGradient:
        """Return the gradient of a micro-batch, and what it adds to the moving statistics.

        `draws`: the number that determines the random state of the micro-batch, together with the seed of the training.
        """
        variables = [tf.constant(part) for part in _split(weights, self._layout.shapes)]
        before = _split(statistics, self._statistics.shapes)
        states = seed_states(tf.constant([self._config.training.seed, np.int32(draws)]), len(self._seeds))
        moving = statistics_of(self._model)
        others = {id(variable): part for variable, part in zip(moving, before)}
        others |= {id(seed): state for seed, state in zip(self._seeds, states)}
        fixed = [others.get(id(one), one.value) for one in self._model.non_trainable_variables]
        inputs = as_arguments({name: tf.constant(rows) for name, rows in examples.inputs.items()})
        with tf.GradientTape() as tape:
            tape.watch(variables)
            outputs, after, losses = self._model.stateless_call(
                variables, fixed, inputs, training=True, return_losses=True
            )
            loss = sum((tf.reduce_sum(one) for one in losses), self._loss(examples, outputs))
        gradients = tape.gradient(loss, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        new = {id(one): value for one, value in zip(self._model.non_trainable_variables, after)}
        return RecomputedGradient(
            _joined(gradients, self._layout.length),
            _joined([new[id(variable)] for variable in moving], self._statistics.length) - self.keep * statistics,
        )

    def _loss(self, examples: _Examples, outputs: Any) -> tf.Tensor:
        """Return the loss, [], of a micro-batch.

        If the network was compiled with a loss, or has one output for two classes, this is the loss that the workers
        use. Otherwise it is Keras's loss for the objective.
        """
        rows, weights = examples.target, examples.weights
        targets = self._head.targets(keras.tree.map_structure(tf.constant, rows))
        smoothing = self._config.training.label_smoothing
        outputs = keras.tree.map_structure(lambda output: tf.cast(output, tf.float32), outputs)
        head = type(self._head)
        if head not in (ClassificationHead, MultiLabelHead, RegressionHead, NextByteHead):
            # A loss of compile() has no second implementation to compare with, so the worker's one is used here.
            return self._head.loss(targets, outputs, None if weights is None else tf.constant(weights))
        targets = self._head.prediction_head.scaled(targets)
        if head is ClassificationHead:
            loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=smoothing)
            return loss(tf.one_hot(targets, outputs.shape[-1]), outputs, weights)
        if head is MultiLabelHead:
            loss = keras.losses.BinaryCrossentropy(from_logits=True, label_smoothing=smoothing)
            return loss(targets, outputs, weights)
        if head is RegressionHead:
            return keras.losses.MeanSquaredError()(targets, outputs, weights)
        scores = tf.reshape(outputs, [*targets.shape, -1])
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)(targets, scores, weights)

    def _examples(self, batch: int, worker: int) -> _Examples:
        """Return the augmented examples of a batch."""
        config, spec, seed = self._config, self._dataset.spec, self._config.training.seed
        examples = self._batches.of_batches(np.array(batch), worker)
        inputs = {name: rows[examples.ids] for name, rows in self._dataset.inputs("train").items()}
        fields = {name: one.target for name, one in spec.targets.items()}
        rows = {
            name: np.asarray(self._dataset.rows("train", name, field)[examples.ids]) for name, field in fields.items()
        }
        target, weights = rows[TARGET], self._dataset.weight("train")
        weights = None if weights is None else weights[examples.ids].astype(np.float32)
        if config.training.class_weights:
            of_labels = np.asarray(class_weights(config.training.class_weights, spec.classes), np.float32)[target]
            weights = of_labels if weights is None else weights * of_labels
        vary = DATASETS[config.data.dataset].augmentation()
        if vary is not None and vary is not augment.augment:  # a user's augmentation, used as it is
            of_batch = Batch(seed, tf.constant(batch, tf.int64), *map(tf.constant, (examples.ids, examples.epochs)))
            varied_inputs = vary(
                {name: tf.constant(rows) for name, rows in inputs.items()}, of_batch, spec, config.data
            )
            inputs = {name: np.asarray(rows) for name, rows in varied_inputs.items()}
        for name, field in spec.inputs.items():
            if vary is augment.augment and field.is_image:
                settings = ImageSettings.of(config).augmentation
                inputs[name] = varied(inputs[name], examples, settings, field.mean, seed=seed, step=batch)
            inputs[name] = network_input(tf.constant(inputs[name]), field).numpy()
            if field.is_image and config.schedule.image_scales:
                number, updates = updates_at(config, self._total_batches, tf.constant(batch, tf.int64))
                inputs[name] = resized(inputs[name], config.schedule.image_scales, float(progress(number, updates)))
        return _Examples(inputs, targets_in(rows, spec), weights)

    def _rate(self, batch: int) -> float:
        """Return the learning rate of a batch."""
        return float(learning_rate(self._config, self._total_batches, tf.constant(batch, tf.int64)))

    def _clipped(self, gradient: np.ndarray) -> np.ndarray:
        """Return a gradient, float64 [n], clipped as by `optimizer.clip_norm`, `global_clip_norm` or `clip_value`."""
        settings: RuleSettings = self._config.optimizer
        if settings.clip_value is not None:
            clipped: np.ndarray = np.clip(gradient, -settings.clip_value, settings.clip_value)
            return clipped
        limit = settings.clip_norm or settings.global_clip_norm
        if limit is None:
            return gradient
        parts = [gradient] if settings.global_clip_norm else np.split(gradient, np.cumsum(self._layout.sizes)[:-1])
        return np.concatenate([part * min(1.0, limit / max(float(np.linalg.norm(part)), 1e-300)) for part in parts])


def _split(vector: np.ndarray, shapes: tuple[tuple[int, ...], ...]) -> list[np.ndarray]:
    """Return the consecutive parts of a vector, reshaped to `shapes`."""
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
    return [vector[end - int(np.prod(shape)) : end].reshape(shape) for end, shape in zip(ends, shapes)]


def _joined(tensors: list[Any], length: int) -> np.ndarray:
    """Return the tensors, of `length` numbers in all, concatenated as one vector, float64 [length]."""
    whole, end = np.empty(length), 0
    for tensor in tensors:  # converted one after the other, because tables are large
        values = np.ravel(keras.ops.convert_to_numpy(tensor))
        whole[end : end + len(values)] = values
        end += len(values)
    return whole
