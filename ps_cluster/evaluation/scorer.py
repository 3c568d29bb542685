"""Score a checkpoint: compute metric and loss on the test set, and on held-out training examples.

TensorFlow is imported when the first scorer is created.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ps_cluster.config import RunConfig
from ps_cluster.config.datasets import DATASETS
from ps_cluster.config.lazy import keras, tf
from ps_cluster.config.networks import NETWORKS
from ps_cluster.config.objectives import OBJECTIVES, TARGET, WEIGHT, ExampleSpec
from ps_cluster.data import sources
from ps_cluster.data.cache import default_cache_dir
from ps_cluster.data.packed import PackedDataset, PackedSplit, fields_of, load_description, targets_in
from ps_cluster.data.text_rows import network_inputs
from ps_cluster.errors import UserError
from ps_cluster.evaluation.recall import Recall
from ps_cluster.files.values import finite
from ps_cluster.models.failures import computing
from ps_cluster.notices import Notify
from ps_cluster.quiet_import import import_tensorflow
from ps_cluster.runs.checkpoint_arrays import KEYED
from ps_cluster.runs.checkpoints import Checkpoint
from ps_cluster.runs.predictions import Predictions
from ps_cluster.runs.run_dir import RunDir

if TYPE_CHECKING:
    from ps_cluster.models.compiled import CompiledMetrics
    from ps_cluster.models.heads import Head
    from ps_cluster.models.pure import Outputs
    from ps_cluster.report.prediction_sheet import Answer

GRADIENT_EXAMPLES = 50  # the number of examples for the histograms of gradients
MOST_BYTES = 2**26  # the largest size of the kept predictions; those of CIFAR-10's test set take 160 kB


def dataset_of(run_dir: RunDir, config: RunConfig, data_dir: Path | None, notify: Notify) -> PackedDataset:
    """Return the packed data set of a run.

    The data set is read from `data_dir`. If `data_dir` is None, the copy that the run used is returned. If that copy
    can't be used any more, the data set is looked for again, and packed if there is no other packed copy.
    """
    cache = default_cache_dir()
    if data_dir is not None:
        found = sources.resolve(config.data.model_copy(update={"data_dir": data_dir}), cache, notify=notify)
    else:
        found = sources.resolve_for_run(run_dir.dataset, config.data, cache, notify=notify)
    return found.holding_out(config.evaluation.validation_examples)


def dataset_or_description(run_dir: RunDir, config: RunConfig, data_dir: Path | None, notify: Notify) -> PackedDataset:
    """Return a run's data set without its examples: the shapes, dtypes and classes that the run directory describes.

    If `data_dir` is given, or if the run directory has no such description, return the data set itself.
    """
    if data_dir is None:
        with suppress(FileNotFoundError):  # a run whose tasks were started by hand does not have this file
            return load_description(run_dir.examples)
    return dataset_of(run_dir, config, data_dir, notify)


@dataclass(frozen=True)
class SplitScores:
    """Scores over the examples of one split.

    Attributes:
      metric: an accuracy (0 to 1) or an error; None if it is not finite.
      loss: the mean loss; None if it is not finite.
      further: further metrics of the objective, by name.
      compiled: metrics of the network's compile(), by name.
    """

    metric: float | None = None
    loss: float | None = None
    further: Mapping[str, float] = field(default_factory=dict)
    compiled: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Scored:
    """The scores of a checkpoint."""

    test: SplitScores
    validation: SplitScores = SplitScores()  # over held-out training examples, if there are any
    augmented_metric: float | None = None  # of the mean prediction over views of each test example; None if not wanted
    # The predictions for the test examples; None if they are not kept (`Head.kept`).
    predictions: Predictions | None = field(default=None, compare=False)


def spaced(count: int, most: int) -> np.ndarray:
    """Return at most `most` of the integers 0 .. count - 1, evenly spaced: int64 [n]."""
    wanted = min(count, most)
    return np.arange(wanted) * count // wanted


class Scorer:
    """Scores checkpoints with the run's network, in the run's precision.

    The network keeps the weights of the checkpoint that was scored last.
    """

    def __init__(self, config: RunConfig, dataset: PackedDataset):
        """Build the network."""
        import_tensorflow()
        from ps_cluster.models.build import build
        from ps_cluster.models.compiled import CompiledMetrics
        from ps_cluster.models.compiled_heads import head_of
        from ps_cluster.models.flat import as_arguments
        from ps_cluster.models.fused_layers import with_fused_layers
        from ps_cluster.models.objective_metrics import ObjectiveMetrics
        from ps_cluster.models.pure import infer

        self._most = config.evaluation.scored_examples or max(dataset.test_examples, dataset.validation_examples)
        self.test_examples = min(self._most, dataset.test_examples)
        self.validation_examples = min(self._most, dataset.validation_examples)
        self.unit = dataset.spec.unit
        self.objective = OBJECTIVES[dataset.spec.objective]
        self._config, self._dataset = config, dataset
        # A user's network is saved in float32, as its function builds it. It is built first, so that its layers have
        # the same names as in plain Keras.
        as_written = config.model.model_copy(update={"precision": "float32"})
        is_own = config.model.name in NETWORKS.own
        self._saved = build(config.model if is_own else as_written, dataset.spec, seed=config.training.seed)
        same = is_own or as_written == config.model
        self._model = self._saved if same else build(config.model, dataset.spec, seed=config.training.seed)
        self._head = head_of(dataset.spec, model=self._model)
        self._fused = with_fused_layers(self._model)  # computes the same, but faster

        def outputs(inputs: Mapping[str, tf.Tensor]) -> Outputs:
            return infer(self._fused, as_arguments(inputs))

        def first(inputs: Mapping[str, tf.Tensor]) -> tf.Tensor:
            return self._head.predicting(outputs(inputs))

        self._first = first
        views = DATASETS[config.data.dataset].views()
        self._compiled = CompiledMetrics(self._model)
        self._further = ObjectiveMetrics(self._head, self._compiled)
        self._sums = _make_sums(outputs, self._head, dataset.spec, self._compiled)
        # Only the prediction, which is the first of several outputs, is averaged over views.
        self._sums_of_views = views and _make_sums(
            partial(views, first), self._head.prediction_head, dataset.spec.targets[TARGET]
        )

    def score(self, checkpoint: Checkpoint, *, augmented: bool = False) -> Scored:
        """Score a checkpoint on the test examples, and on held-out training examples if there are any.

        If `evaluation.scored_examples` is set, at most this many test examples and this many held-out ones are scored.
        With `augmented`, the mean prediction over several augmented views of each test example is scored too.

        Raises:
          UserError: the checkpoint belongs to another network.
        """
        self._assign(checkpoint)
        spec, validation, by_views = self._dataset.spec, SplitScores(), None
        if self._dataset.validation_examples:
            validation, _ = self._score_split("validation")
        test, kept = self._score_split("test")
        if augmented and self._sums_of_views:
            by_views, _, _ = self._means("test", self._sums_of_views, spec.targets[TARGET])
        about = (checkpoint.step, self.objective.name, self.unit, spec.classes)
        return Scored(test, validation, by_views, Predictions(*about, kept) if kept else None)

    def _score_split(self, split: PackedSplit) -> tuple[SplitScores, dict[str, np.ndarray]]:
        """Return the scores over a split, and the arrays to keep for the analysis of the results (`Head.kept`)."""
        metric, loss, kept = self._means(split, self._sums, self._dataset.spec)
        further = self._further.take_results()
        if loss is None:
            further = {}  # these metrics are wrong, because they treat a probability that is NaN as 0
        elif (name := self._config.evaluation.recall_name) and (recall := self._recall.of(split)) is not None:
            further[name] = recall
        return SplitScores(metric, loss, further, self._compiled.take_results()), kept

    @cached_property
    def _recall(self) -> Recall:
        """The object that computes recall@k of the network, with the weights of the last checkpoint."""
        spec = self._dataset.spec
        fields = {name: tf.TensorSpec([None, *one.shape], one.dtype) for name, one in spec.inputs.items()}

        @tf.function(autograph=False, input_signature=[fields])
        def outputs(inputs: dict[str, tf.Tensor]) -> tf.Tensor:
            return _floats(self._first(network_inputs(inputs, spec)))

        k = self._config.evaluation.recall_at
        assert k is not None, "recall is scored only if it is asked for"
        return Recall(k, self._dataset, lambda inputs: outputs(inputs).numpy())

    def model_of(self, checkpoint: Checkpoint) -> keras.Model:
        """Return the network with the weights of a checkpoint, in the form in which it is saved (`Head.finished`)."""
        self._assign(checkpoint)
        return self._head.finished(self._saved)

    @cached_property
    def gradient(self) -> Callable[[], np.ndarray] | None:
        """A function that returns the gradient of the loss at the weights that were scored last, float32 [n].

        It is None unless `evaluation.gradients` is set.

        The gradient is computed on a few examples that are spread evenly over the training set. It differs from that of
        any step: there is no augmentation, no dropout and no regulariser, and batch normalisation uses its moving
        statistics.
        """
        if not self._config.evaluation.gradients:
            return None
        from ps_cluster.models.compiled_heads import head_of
        from ps_cluster.models.flat import as_arguments
        from ps_cluster.models.pure import infer

        spec, variables = self._dataset.spec, self._model.trainable_variables
        head = head_of(spec, self._config.training, self._model)
        chosen = spaced(self._dataset.train_examples, GRADIENT_EXAMPLES)
        rows = {name: self._dataset.rows("train", name, field)[chosen] for name, field in fields_of(spec).items()}
        inputs = {name: rows[name] for name in spec.inputs}

        @tf.function(autograph=False)
        def gradient() -> tf.Tensor:
            targets = head.targets(keras.tree.map_structure(tf.constant, targets_in(rows, spec)))
            with tf.GradientTape() as tape:
                outputs = keras.tree.map_structure(
                    _floats, infer(self._model, as_arguments(network_inputs(inputs, spec)))
                )
                loss = head.loss(targets, outputs, head.weights(targets, rows.get(WEIGHT)))
            values = [variable.value for variable in variables]
            gradients = tape.gradient(loss, values, unconnected_gradients=tf.UnconnectedGradients.ZERO)
            return tf.concat([tf.reshape(tf.cast(one, tf.float32), [-1]) for one in gradients], axis=0)

        return lambda: np.asarray(gradient())

    @property
    def variables(self) -> dict[str, int]:
        """The size of each variable, by its path, in the order of the flat vector of weights."""
        from ps_cluster.models.flat import FlatLayout

        layout = FlatLayout.of(self._saved.trainable_variables)
        return dict(zip(layout.paths, layout.sizes))

    def answers(self, count: int) -> list[Answer]:
        """Return test images, spread over the test set, with their predictions by the weights that were scored last."""
        from ps_cluster.report.prediction_sheet import Answer

        spec, named = self._dataset.spec, self.objective
        chosen = spaced(self._dataset.test_examples, count)
        ((name, images),) = self._dataset.inputs("test").items()
        pictures = np.stack([np.asarray(images[i]) for i in chosen])
        output = self._first(network_inputs({name: pictures}, spec))
        predictions = self._head.prediction_head.prediction(_floats(output)).numpy()
        found = []
        for index, picture, prediction in zip(chosen, pictures, predictions):
            truth = named.named_target(np.asarray(self._dataset.target("test")[index]), spec)
            predicted = named.named_prediction(prediction, spec)
            found.append(Answer(picture, truth, predicted, predicted == truth if named.has_accuracy else None))
        return found

    def save_model(self, path: Path) -> None:
        """Save the network with the weights that were scored last. The .keras file loads without this package."""
        self._head.finished(self._saved).save(path)

    def _assign(self, checkpoint: Checkpoint) -> None:
        from ps_cluster.models.flat import assign

        try:
            for model in (self._model, self._fused, self._saved):
                arrays = checkpoint.arrays
                assign(model, arrays["weights"], arrays["statistics"], arrays.get(KEYED))
        except KeyError as error:
            raise UserError(f"checkpoint of step {checkpoint.step}: holds no array {error}") from error
        except ValueError as error:
            raise UserError(f"checkpoint of step {checkpoint.step} belongs to another network: {error}") from error

    def _means(
        self, split: PackedSplit, sums: SumBatch, spec: ExampleSpec
    ) -> tuple[float | None, float | None, dict[str, np.ndarray]]:
        """Return the mean metric and the mean loss over a split, and the arrays to keep for the analysis (`Head.kept`).

        A mean that is not finite is None.

        Args:
          sums: computes the sums over a batch.
          spec: the description of the examples that `sums` takes.
        """
        everything = len(self._dataset.target(split))
        chosen = spaced(everything, self._most)
        examples = len(chosen)
        fields = {
            name: self._dataset.rows(split, name, field) for name, field in fields_of(spec).items() if name != WEIGHT
        }
        metric, loss, kept = 0.0, 0.0, None
        at_once = NETWORKS[self._config.model.name].scored_at_once
        for start in range(0, examples, at_once):
            batch = slice(start, start + at_once)
            arrays = {name: np.asarray(rows[chosen[batch]]) for name, rows in fields.items()}
            with computing():
                found = sums(arrays)
            kept = arrays_to_keep(found.kept, examples) if kept is None else kept
            for name, rows in kept.items():
                rows[batch] = found.kept[name]
            if found.compared is not None:
                self._further.add(*found.compared)
            metric += float(found.metric)
            loss += float(found.loss)
        if kept is None or examples < everything:  # it would not be known to which examples the kept predictions belong
            kept = {}
        return finite(metric / examples), finite(loss / examples), kept


def arrays_to_keep(batch: Mapping[str, tf.Tensor], examples: int) -> dict[str, np.ndarray]:
    """Create arrays, [N, ...] by name, to hold the values that are kept of each example; {} if they would be too large.

    Args:
      batch: the values to keep of one batch (`Head.kept`), [B, ...] by name.
      examples: N, the number of examples.
    """
    first = {name: np.asarray(rows) for name, rows in batch.items()}
    if examples * sum(rows[:1].nbytes for rows in first.values()) > MOST_BYTES:
        return {}
    return {name: np.zeros((examples, *rows.shape[1:]), rows.dtype) for name, rows in first.items()}


def _floats(output: tf.Tensor) -> tf.Tensor:
    return tf.cast(output, tf.float32)


class BatchSums(NamedTuple):
    """The sums of the metric and of the loss over a batch, float32 [] each, and values of each example.

    `kept`: the values to keep for the analysis of the results (`Head.kept`), [B, ...] by name. `compared`: the true
    targets and predictions for further metrics (`Head.compared`), or None without such metrics.
    """

    metric: tf.Tensor
    loss: tf.Tensor
    kept: dict[str, tf.Tensor]
    compared: tuple[tf.Tensor, tf.Tensor] | None


SumBatch = Callable[[dict[str, np.ndarray]], BatchSums]
"""A function that returns the sums over a batch. It takes the inputs and targets of the batch as the data set stores
them, [B, ...] each, by the names that `fields_of` (data/packed.py) returns."""


def _make_sums(
    outputs: Callable[[dict[str, tf.Tensor]], Outputs],
    head: Head,
    spec: ExampleSpec,
    compiled: CompiledMetrics | None = None,
) -> SumBatch:
    """Return a graph that computes the sums over a batch.

    Args:
      outputs: returns the network's outputs for inputs by name.
      compiled: the metrics of compile(), which the graph updates. If it is None, the graph computes only the
        objective's metric and the loss.
    """

    packed = {name: field.packed for name, field in fields_of(spec).items() if name != WEIGHT}
    fields = {name: tf.TensorSpec([None, *field.shape], field.dtype) for name, field in packed.items()}

    @tf.function(autograph=False, input_signature=[fields])
    def sums(arrays: dict[str, tf.Tensor]) -> BatchSums:
        inputs = {name: arrays[name] for name in spec.inputs}
        found = keras.tree.map_structure(_floats, outputs(network_inputs(inputs, spec)))
        targets = head.targets(targets_in(arrays, spec))
        compared = None
        if compiled is not None:
            compiled.update(targets, head.final(found), head.as_probabilities(found))
            compared = head.compared(targets, found)
        metric, loss = (tf.reduce_sum(of(targets, found)) for of in (head.metric, head.losses))
        return BatchSums(metric, loss, head.kept(targets, found), compared)

    graph: SumBatch = sums
    return graph
