"""Load models that Keras has saved: to continue from their weights, or to predict with the best model of a run."""

from __future__ import annotations

from pathlib import Path

import keras

from ps_cluster.config import user_code
from ps_cluster.config.objectives import OBJECTIVES, ExampleSpec
from ps_cluster.errors import UserError
from ps_cluster.files import untrusted
from ps_cluster.models import dynamic_embedding as dynamic_embedding  # registers its layer with Keras
from ps_cluster.models.ends import NetworkEnd
from ps_cluster.models.marks import OWN_UNITS, UNITS, followed_by, is_marked, with_mark
from ps_cluster.private_names import copy_compiled, layers_of


def load_saved(file: Path, spec: ExampleSpec) -> keras.Model:
    """Return the model of a .keras file, with its loss and metrics.

    Keras's safe mode stays on. Layers that Keras does not know are looked up in the files of code that the user has
    named. If the model is for a regression and was not saved by a run, its outputs are assumed to be in the target's
    units, as in any Keras model.

    Raises:
      ValueError, TypeError: the file contains no model, or the code of one of its layers or losses is not found.
    """
    return in_own_units(load_unchanged(file, compiled=True), spec)


def in_own_units(model: keras.Model, spec: ExampleSpec) -> keras.Model:
    """Return a user's model. If it is for a regression, mark that its outputs are in the units of the target.

    The mark is a last layer, `OWN_UNITS` (marks.py). It is not added if the model already has a mark for its units.
    """
    if not OBJECTIVES[spec.objective].has_units or is_marked(model, UNITS) or is_marked(model, OWN_UNITS):
        return model
    marked = with_mark(model, OWN_UNITS, spec.inputs)
    copy_compiled(model, to=marked)
    return marked


def load_unchanged(file: Path, *, compiled: bool = False) -> keras.Model:
    """Return the model of a .keras or .h5 file unchanged. Safe mode and errors are as in `load_saved`.

    `compiled`: whether the model's loss and metrics are loaded too. Raises UserError if the file belongs to another
    user of the machine, and was not named by --code.
    """
    if untrusted.is_foreign(file) and not user_code.is_trusted(file):
        raise UserError(
            f"'{file}' belongs to {untrusted.name_of(file.stat().st_uid)}, and a model may run code: copy it if you "
            f"trust it, or add --code '{file}'"
        )
    custom = user_code.defined_in_trusted()
    return keras.models.load_model(file, custom_objects=custom, compile=compiled, safe_mode=True)


def in_float32(model: keras.Model) -> keras.Model:
    """Make the layers of a model compute in float32 instead of bfloat16. The variables are float32 in both cases."""
    for layer in layers_of(model):
        if layer.compute_dtype == "bfloat16":
            layer.dtype_policy = "float32"
    return model


def predicting(model: keras.Model, spec: ExampleSpec) -> keras.Model:
    """Return a saved model with predictions as its only output, [B, outputs].

    For classes and labels, the predictions are probabilities. For a regression, they are values in the target's units.
    If the outputs are already probabilities, no activation is added. If the model has several outputs, each with its
    own target, the prediction is the output that `spec.output` names. If they share a target, it is the first output.
    """
    end = NetworkEnd(model, spec)
    is_done, layers = end.gives_probabilities(), keras.layers
    is_one_of_two, objective = end.is_one_of_two, OBJECTIVES[spec.objective]
    activation = "sigmoid" if is_one_of_two else objective.activation
    last = layers.Activation("linear" if is_done else activation, dtype="float32", name="predictions")
    model = followed_by(model, last, spec.inputs)
    prediction = keras.tree.flatten(model.output)[end.index]
    if is_done and not end.ends_in_probabilities:
        prediction = layers.ReLU(max_value=1.0, dtype="float32", name="within_0_and_1")(prediction)
    if is_one_of_two:
        of_first = layers.Rescaling(-1.0, 1.0, dtype="float32", name="of_first_class")(prediction)
        prediction = layers.Concatenate(dtype="float32", name="of_both_classes")([of_first, prediction])
    return keras.Model(model.input, prediction, name=model.name)
