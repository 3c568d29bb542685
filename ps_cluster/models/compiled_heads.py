"""Choose the head of a network: the object that computes loss, metric and predictions from the network's outputs.

If the model was compiled with a loss, the head uses that loss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import keras
import tensorflow as tf

from ps_cluster.config.objectives import OBJECTIVES, TARGET, ExampleSpec
from ps_cluster.config.schema import TrainingSettings
from ps_cluster.models.compiled import CompiledLoss, MicroBatchFactors, Targets, has_loss
from ps_cluster.models.ends import NetworkEnd
from ps_cluster.models.heads import Compared, Head, ObjectiveHead, OneOutputHead, PackedTargets
from ps_cluster.models.pure import Outputs


def head_of(spec: ExampleSpec, training: TrainingSettings | None = None, model: keras.Model | None = None) -> Head:
    """Return the head for a data set: the object that computes loss, metric and predictions from a network's outputs.

    The objective of the data set decides how they are computed. If the model was compiled with a loss, the head uses
    that loss instead.

    Args:
      spec: the description of the examples, with the objective.
      training: the settings of label smoothing and class weights, or None if the loss uses neither.
      model: the network whose outputs the head gets. If it is None, the head expects scores (one for each class) or,
        for a regression, values in standard deviations.
    """
    if model is None:
        return OBJECTIVES[spec.objective].head()(spec, training)
    end = NetworkEnd(model, spec)
    if spec.others:
        return _head_of_several_targets(spec, training, end, CompiledLoss(model))
    head = _head_of_output(spec, training, end)
    if not has_loss(model):
        head.adapt_to(end, {})
        return head
    loss = CompiledLoss(model)
    head.adapt_to(end, loss.by_output(head.scaled(head.targets(zero_targets(spec))), end.structure))
    return CompiledHead(head, loss)


def _head_of_output(spec: ExampleSpec, training: TrainingSettings | None, end: NetworkEnd) -> ObjectiveHead:
    return (OneOutputHead if end.is_one_of_two else OBJECTIVES[spec.objective].head())(spec, training)


def _head_of_several_targets(
    spec: ExampleSpec, training: TrainingSettings | None, end: NetworkEnd, loss: CompiledLoss
) -> MultiTargetHead:
    ends = {array: end.of(array) for array in end.arrays}
    heads = {array: _head_of_output(spec.targets[array], training, one) for array, one in ends.items()}
    head = MultiTargetHead(heads, loss)
    losses = loss.by_output(head.scaled(head.targets(zero_targets(spec))), end.structure)
    for place, (array, one) in enumerate(ends.items()):
        heads[array].adapt_to(one, {place: losses[place]} if place in losses else {})
    return head


def zero_targets(spec: ExampleSpec, examples: int = 1) -> PackedTargets:
    """Return zeros that have the shapes and dtypes of a data set's targets, to build or check a loss.

    `examples`: the number of examples.
    """
    fields = {name: one.target for name, one in spec.targets.items()}
    zeros = {name: tf.zeros([examples, *field.shape], field.dtype) for name, field in fields.items()}
    return zeros if spec.others else zeros[TARGET]


class CompiledHead(Head):
    """A head that uses the loss of a user's compile(), but the metric and the predictions of the data set's objective.

    A model may have several outputs, which are all compared with the same target. The first output is the prediction.
    """

    def __init__(self, objective: ObjectiveHead, loss: CompiledLoss):
        self.prediction_head = objective
        self._loss = loss

    @property
    def interpretation(self) -> str:
        return self.prediction_head.interpretation

    def targets(self, rows: PackedTargets) -> Targets:
        return self.prediction_head.targets(rows)

    def weights(self, targets: Targets, given: tf.Tensor | None) -> tf.Tensor | None:
        return self.prediction_head.weights(self._predicted_target(targets), given)

    def scaled(self, targets: Targets) -> Targets:
        return self.prediction_head.scaled(targets)

    def loss(
        self,
        targets: Targets,
        outputs: Outputs,
        weights: tf.Tensor | None = None,
        part: MicroBatchFactors | None = None,
    ) -> tf.Tensor:
        return self._loss(*self._as_loss_takes(targets, outputs), weights, part)

    def losses(self, targets: Targets, outputs: Outputs) -> tf.Tensor:
        """Return the mean loss of the batch, repeated for each example, [B].

        A user's loss may need a whole batch, so an example has no loss of its own.
        """
        examples = tf.shape(keras.tree.flatten(outputs)[0])[:1]
        return tf.fill(examples, self._loss.mean(*self._as_loss_takes(targets, outputs)))

    def metric(self, targets: Targets, outputs: Outputs) -> tf.Tensor:
        return self.prediction_head.metric(self._predicted_target(targets), self.predicting(outputs))

    def further_metrics(self) -> dict[str, keras.Metric]:
        return self.prediction_head.further_metrics()

    def compared(self, targets: Targets, outputs: Outputs) -> Compared | None:
        return self.prediction_head.compared(self._predicted_target(targets), self.predicting(outputs))

    def kept(self, targets: Targets, outputs: Outputs) -> dict[str, tf.Tensor]:
        return self.prediction_head.kept(self._predicted_target(targets), self.predicting(outputs))

    def final(self, outputs: Outputs) -> Outputs:
        return self.prediction_head.final(outputs)

    def as_probabilities(self, outputs: Outputs) -> Outputs:
        return self.prediction_head.as_probabilities(outputs)

    def finished(self, model: keras.Model) -> keras.Model:
        return self.prediction_head.finished(model)

    def _as_loss_takes(self, targets: Targets, outputs: Outputs) -> tuple[Targets, Outputs]:
        convert = self.prediction_head.in_units_of_loss
        return convert(self.scaled(targets)), keras.tree.map_structure(convert, outputs)

    def _predicted_target(self, targets: Targets) -> tf.Tensor:
        return targets


class MultiTargetHead(CompiledHead):
    """A head for several outputs, each with its own target.

    The metric and the predictions are those of a single output, which `ExampleSpec.output` names.

    The method `targets` takes the targets as the data set stores them, in a mapping: name of an array → [B, ...]. All
    other methods take a tuple with the targets of each output, in the order of `keras.tree.flatten`.
    """

    def __init__(self, heads: Mapping[str, ObjectiveHead], loss: CompiledLoss):
        """Create the head.

        `heads`: name of the array with an output's targets → the head of this output, in the order of the outputs.
        """
        super().__init__(heads[TARGET], loss)
        self._heads = heads
        self._place = list(heads).index(TARGET)

    def predicting(self, outputs: Outputs) -> tf.Tensor:
        return keras.tree.flatten(outputs)[self._place]

    def targets(self, rows: Mapping[str, tf.Tensor]) -> tuple[tf.Tensor, ...]:
        return tuple(head.targets(rows[name]) for name, head in self._heads.items())

    def scaled(self, targets: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, ...]:
        return tuple(head.scaled(target) for head, target in zip(self._heads.values(), targets, strict=True))

    def final(self, outputs: Outputs) -> Outputs:
        return self._of_each(outputs, [head.final for head in self._heads.values()])

    def as_probabilities(self, outputs: Outputs) -> Outputs:
        return self._of_each(outputs, [head.as_probabilities for head in self._heads.values()])

    def finished(self, model: keras.Model) -> keras.Model:
        """Return the model to save.

        If nothing but the loss shows that the predictions are probabilities, add a last layer that marks them as such
        (marks.py). Otherwise return `model` unchanged, because a last layer would change the names of the outputs.
        """
        return super().finished(model) if self.prediction_head.needs_mark else model

    def _as_loss_takes(self, targets: tuple[tf.Tensor, ...], outputs: Outputs) -> tuple[Targets, Outputs]:
        return self.scaled(targets), outputs

    def _predicted_target(self, targets: tuple[tf.Tensor, ...]) -> tf.Tensor:
        return targets[self._place]

    def _of_each(self, outputs: Outputs, functions: Sequence[Callable[[tf.Tensor], Outputs]]) -> Outputs:
        flat = keras.tree.flatten(outputs)
        found = [function(output) for function, output in zip(functions, flat, strict=True)]
        return keras.tree.pack_sequence_as(outputs, found)
