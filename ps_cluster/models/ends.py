"""Find out what the outputs of a network are: scores or probabilities, and in which units a regression returns its target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import keras
import tensorflow as tf

from ps_cluster.config.objectives import OBJECTIVES, ExampleSpec
from ps_cluster.models.end_graphs import activation_name, last_activation, reach_of
from ps_cluster.models.flat import as_arguments
from ps_cluster.models.keras_losses import loss_takes_probabilities, takes_any_units
from ps_cluster.models.marks import OWN_UNITS, PROBABILITIES, is_marked
from ps_cluster.private_names import wrapped_by


class NetworkEnd:
    """The end of a network: its outputs in a graph outside of training, and what they are."""

    def __init__(self, model: keras.Model, spec: ExampleSpec):
        """Keep the model. It is traced when a question needs more than its layers."""
        self._model, self._spec = model, spec

    @cached_property
    def _graph(self) -> _OutputsGraph:
        return _OutputsGraph.of(self._model, self._spec)

    @property
    def structure(self) -> Any:
        """The outputs' forms, as the model returns them."""
        return self._graph.structure

    @property
    def is_one_of_two(self) -> bool:
        """True if one number, the score or the probability of the second class, distinguishes two classes."""
        spec = self._spec
        two = OBJECTIVES[spec.objective].activation == "softmax" and len(spec.classes) == 2
        return two and self._graph.tensors[0].shape[-1] == 1

    def gives_probabilities(self, loss: keras.Loss | None = None) -> bool:
        """Return whether the first output is probabilities already, so that no activation has to follow.

        The last activation says it, or the layer `PROBABILITIES`. Where there is neither, the loss does: outputs that Keras
        compares with labels of 0 and 1 place by place are probabilities, whatever has made them. (The largest of several
        outputs is that of the predicted class in any case; so there the softmax follows, and the loss is not asked.)

        Args:
          loss: of the first output, by compile().
        """
        objective = OBJECTIVES[self._spec.objective]
        if not objective.has_accuracy:
            return False
        if not self.is_estimate or self.is_marked:
            return True
        is_of_places = self.is_one_of_two or objective.activation == "sigmoid"
        return loss is not None and is_of_places and loss_takes_probabilities(loss)

    @property
    def is_estimate(self) -> bool:
        """True if no activation keeps the first output between 0 and 1."""
        return last_activation(self._graph.tensors[0]) is None

    @property
    def is_marked(self) -> bool:
        """True if a layer at the end says that the outputs are probabilities."""
        return is_marked(self._model, PROBABILITIES)

    def why_own_units(self, losses: Sequence[keras.Loss]) -> str:
        """Return why a regression is trained in the target's own units; "" if standard deviations give the same network.

        They do if the best network for the standardised targets is the best one for the targets. That follows from the
        loss, and from an end that can return any number. Where this is not known, targets stay as they are.

        Args:
          losses: of compile(), one for each output that has one; none of a model that was not compiled, which is trained
            by the squared error in standard deviations.
        """
        if is_marked(self._model, OWN_UNITS):
            return "a saved model returns them so"
        for loss in losses:
            if not takes_any_units(loss):
                return f"loss {loss.name}"
        if len({wrapped_by(loss) for loss in losses}) > 1:
            return "losses of several kinds are added up"
        if losses and self._graph.adds_losses:
            return "regularisers are added to the loss"
        for tensor in self._graph.tensors:
            found = reach_of(tensor, self._graph.trainable)
            if not (found.any_scale and (not losses or (found.any_place and found.unscaled))):
                activation = activation_name(tensor)
                return f"it ends in {activation}" if activation else "its end is not known to be linear"
        return ""


@dataclass(frozen=True)
class _OutputsGraph:
    """A network's outputs in a graph.

    Attributes:
      tensors: float [B, outputs] each.
      structure: their forms, as the model returns them.
      trainable: names of the graph's placeholders of variables that are trained.
      adds_losses: whether layers add losses, such as regularisers.
    """

    tensors: Sequence[tf.Tensor]
    structure: Any
    trainable: frozenset[str]
    adds_losses: bool

    @classmethod
    def of(cls, model: keras.Model, spec: ExampleSpec) -> _OutputsGraph:
        fields = spec.inputs.items()
        inputs = {name: tf.TensorSpec([None, *field.shape], field.network_dtype) for name, field in fields}
        losses: list[tf.Tensor] = []

        def outputs(given: Mapping[str, tf.Tensor]) -> Any:
            found = model(as_arguments(given))
            losses.extend(model.losses)
            return found

        graph = tf.function(outputs, autograph=False).get_concrete_function(inputs)
        handles = {id(variable.value.handle) for variable in model.trainable_variables}
        trainable = {inner.name for outer, inner in graph.graph.captures if id(outer) in handles}
        return cls(graph.outputs, graph.structured_outputs, frozenset(trainable), bool(losses))
