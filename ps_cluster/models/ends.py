"""Find out what the outputs of a network mean: scores or probabilities, their units, and the target of each output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import keras
import tensorflow as tf

from ps_cluster.config.objectives import OBJECTIVES, TARGET, ExampleSpec, are_numbered
from ps_cluster.models.end_graphs import activation_name, last_activation, output_changes_of
from ps_cluster.models.flat import as_arguments, input_signature
from ps_cluster.models.keras_losses import loss_takes_probabilities, takes_any_units
from ps_cluster.models.marks import MARKS, OWN_UNITS, PROBABILITIES, is_marked
from ps_cluster.models.pure import Outputs
from ps_cluster.private_names import origin_of, wrapped_function_of


class NetworkEnd:
    """The end of a network: its outputs, traced in a graph for inference, and what they mean.

    Methods about a single output refer to the output whose targets are in the array with the name `array`. If all
    outputs predict the same target, they refer to the first output.
    """

    def __init__(self, model: keras.Model, spec: ExampleSpec, array: str = TARGET):
        """Store the model, which is traced only when needed.

        `array`: the name of the array with the targets of the output to examine.
        """
        self._model, self._array, self._spec = model, array, spec.targets[array]
        self._of_all = spec

    def of(self, array: str) -> NetworkEnd:
        """Return a `NetworkEnd` of the same network for the output whose targets are in another array."""
        other = NetworkEnd(self._model, self._of_all, array)
        other._graph = self._graph
        return other

    @cached_property
    def _graph(self) -> _OutputsGraph:
        return _OutputsGraph.of(self._model, self._spec)

    @property
    def arrays(self) -> list[str]:
        """For each output, the name of the array with its targets.

        Raises ValueError if targets and outputs don't match.
        """
        if self._of_all.others:
            return target_names(self._model, self.structure, self._of_all)
        return [TARGET] * len(self._graph.tensors)

    @cached_property
    def index(self) -> int:
        """The index, among all outputs, of the output that predicts the target."""
        return self.arrays.index(self._array)

    @property
    def _output(self) -> tf.Tensor:
        return self._graph.tensors[self.index]

    @property
    def structure(self) -> Outputs:
        """The outputs, as symbolic tensors, in the structure that the model returns."""
        return self._graph.structure

    @property
    def is_one_of_two(self) -> bool:
        """True if there are two classes, and the output is one number: the score or probability of the second class."""
        spec = self._spec
        two = OBJECTIVES[spec.objective].activation == "softmax" and len(spec.classes) == 2
        return two and self._output.shape[-1] == 1

    def gives_probabilities(self, loss: keras.Loss | None = None) -> bool:
        """Return whether the output consists of probabilities already, so that no activation has to follow.

        True if the network ends in a softmax, a sigmoid or the layer `PROBABILITIES` (marks.py).

        `loss`, the output's loss in compile(), is used only if each number of the output is compared with a label of 0
        or 1. The result is then also true if this loss takes probabilities. If the output has a number for each of
        several classes, callers may add a softmax, because a softmax does not change which number is the largest.
        """
        objective = OBJECTIVES[self._spec.objective]
        if not objective.has_accuracy:
            return False
        if self.ends_in_probabilities or self.is_marked:
            return True
        has_labels_of_0_and_1 = self.is_one_of_two or objective.activation == "sigmoid"
        return loss is not None and has_labels_of_0_and_1 and loss_takes_probabilities(loss)

    @property
    def ends_in_probabilities(self) -> bool:
        """True if a softmax or sigmoid makes the output, so that it is always between 0 and 1."""
        return last_activation(self._output) is not None

    @property
    def is_marked(self) -> bool:
        """True if the network has the layer `PROBABILITIES` (marks.py), which marks its outputs as probabilities."""
        return is_marked(self._model, PROBABILITIES)

    def why_own_units(self, losses: Sequence[keras.Loss]) -> str:
        """Return why a regression has to be trained in its target's units, or "" if targets may be standardised.

        Targets may be standardised if the best network for standardised targets is also the best one for the original
        targets. This depends on the loss, and on whether the outputs can take every value, as those of a linear layer
        can. If either is not known, targets are not standardised.

        `losses`: the losses in compile(), one for each output that has a loss; empty for a model that was not compiled.
        Such a model is trained with the squared error in standard deviations.
        """
        if is_marked(self._model, OWN_UNITS):
            return "the saved model already returns values in the target's units"
        if self._of_all.others:
            return "losses of several targets are added up"
        for loss in losses:
            if not takes_any_units(loss):
                return f"loss {loss.name}"
        if len({wrapped_function_of(loss) for loss in losses}) > 1:
            return "losses of several kinds are added up"
        if losses and self._graph.adds_losses:
            return "regularisers are added to the loss"
        for tensor in self._graph.tensors:
            found = output_changes_of(tensor, self._graph.trainable)
            if not (found.any_scale and (not losses or (found.any_offset and found.unscaled))):
                activation = activation_name(tensor)
                return f"the network ends in {activation}" if activation else "its last layer is not known to be linear"
        return ""


@dataclass(frozen=True)
class _OutputsGraph:
    """A network's outputs in a graph."""

    tensors: Sequence[tf.Tensor]  # float [B, outputs] each
    structure: Outputs  # the same outputs in the structure that the model returns
    trainable: frozenset[str]  # names of the placeholders for trained variables in the graph
    adds_losses: bool  # whether layers add losses, such as regularisers

    @classmethod
    def of(cls, model: keras.Model, spec: ExampleSpec) -> _OutputsGraph:
        losses: list[tf.Tensor] = []

        def outputs(given: Mapping[str, tf.Tensor]) -> Outputs:
            found = model(as_arguments(given))
            losses.extend(model.losses)
            return found

        graph = tf.function(outputs, autograph=False).get_concrete_function(input_signature(spec))
        handles = {id(variable.value.handle) for variable in model.trainable_variables}
        trainable = {inner.name for outer, inner in graph.graph.captures if id(outer) in handles}
        return cls(graph.outputs, graph.structured_outputs, frozenset(trainable), bool(losses))


def target_names(model: keras.Model, outputs: Outputs, spec: ExampleSpec) -> list[str]:
    """Return, for each output, the name of the array with its targets, in the order of `keras.tree.flatten`.

    If the targets have no names, the first target belongs to the first output that the model returns, and so on.
    `outputs`: the outputs in the structure that the model returns. Raises ValueError if an output has no target, or if
    a target has no output.
    """
    arrays = {one.output: array for array, one in spec.targets.items()}
    names = _output_names(model, outputs)
    if are_numbered(list(arrays)) and not isinstance(outputs, Mapping) and len(arrays) == len(names):
        return list(arrays.values())
    if sorted(arrays) != sorted(names):
        found = ", ".join(name or "one without a name" for name in names)
        raise ValueError(
            f"its outputs are {found}, and the data has targets for {', '.join(arrays)}: give y as a dictionary "
            "that maps the name of each output to its target"
        )
    return [arrays[name] for name in names]


def _output_names(model: keras.Model, outputs: Outputs) -> list[str]:
    """Return the name of each output: its key if the model returns a dictionary, else the name of its last layer.

    The name is "" if Keras does not know that layer, as in a subclassed model.
    """
    if isinstance(outputs, Mapping) and not any(keras.tree.is_nested(output) for output in outputs.values()):
        found: list[str] = keras.tree.flatten({name: name for name in outputs})
        return found
    count = len(keras.tree.flatten(outputs))
    made = getattr(model, "outputs", None) or []
    return [_layer_name(output) for output in made] if len(made) == count else [""] * count


def _layer_name(output: keras.KerasTensor) -> str:
    """Return the name of the last layer before an output. Layers that this package has added (`MARKS`) are skipped."""
    layer, given = origin_of(output)
    return _layer_name(given[0]) if layer.name in MARKS else str(layer.name)
