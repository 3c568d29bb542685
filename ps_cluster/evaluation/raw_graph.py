"""Make a graph of a trained model that takes raw inputs by name."""

from __future__ import annotations

from ps_cluster.config.lazy import keras, tf
from ps_cluster.config.objectives import ExampleSpec
from ps_cluster.data.text_rows import network_inputs


def prediction_graph(model: keras.Model, spec: ExampleSpec) -> tf.types.experimental.ConcreteFunction:
    """Return a graph that takes raw inputs by name, e.g. images as uint8, and returns the model's predictions.

    It accepts any number of examples.

    Args:
      model: a model that `predicting` (models/saved.py) has returned.
    """
    from ps_cluster.models.flat import as_arguments  # imports TensorFlow

    def predictions(**inputs: tf.Tensor) -> tf.Tensor:
        return model(as_arguments(network_inputs(inputs, spec)), training=False)

    return tf.function(predictions, autograph=False).get_concrete_function(**signature_of(spec))


def signature_of(spec: ExampleSpec) -> dict[str, tf.TensorSpec]:
    """Return the shape and dtype of each raw input, for any number of examples, by the input's name."""
    return {name: tf.TensorSpec([None, *field.shape], field.dtype, name) for name, field in spec.inputs.items()}
