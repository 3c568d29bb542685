"""Load the best model of a run, and predict with it in float32. TensorFlow is imported when a predictor is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ps_cluster.catalogue.examples import ExampleSpec
from ps_cluster.errors import UserError
from ps_cluster.files.plain_text import one_line
from ps_cluster.prediction.finished_run import FinishedRun
from ps_cluster.quiet_import import without_first_lines

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

Inputs = Mapping[str, np.ndarray]
"""Name of an input → raw examples [B, ...]."""


class Predictor:
    """The best model of a run, as a function of raw examples.

    Attributes:
      model: takes raw examples and returns predictions.
    """

    def __init__(self, run: FinishedRun, *, as_trained: bool = False):
        """Load the model.

        Args:
          as_trained: compute in the precision in which it was trained, in place of float32.

        Raises:
          UserError: the model can't be loaded, or it is not one of this data set.
        """
        self.model = _loaded(run, as_trained)
        self._predictions = graph_of(self.model, run.spec)

    def __call__(self, inputs: Inputs) -> np.ndarray:
        """Return predictions float32 [B, outputs]: probabilities, or values in the target's units."""
        found: np.ndarray = self._predictions(**inputs).numpy()
        return found


def graph_of(model: keras.Model, spec: ExampleSpec, *, image_dtype: str = "uint8") -> Any:
    """Return a graph of raw inputs by name, for any number of examples, that returns the model's predictions.

    Args:
      model: of `predicting`.
      image_dtype: of images that it takes, 0 to 255.
    """
    import tensorflow as tf

    from ps_cluster.models.flat import as_arguments

    def predictions(**inputs: tf.Tensor) -> tf.Tensor:
        raw = {name: tf.cast(values, spec.inputs[name].network_dtype) for name, values in inputs.items()}
        return model(as_arguments(raw), training=False)

    return tf.function(predictions, autograph=False).get_concrete_function(**signature_of(spec, image_dtype))


def signature_of(spec: ExampleSpec, image_dtype: str = "uint8") -> dict[str, tf.TensorSpec]:
    """Return name → the form of each raw input, for any number of examples."""
    import tensorflow as tf

    return {
        name: tf.TensorSpec([None, *field.shape], image_dtype if field.is_image else field.dtype, name)
        for name, field in spec.inputs.items()
    }


def _loaded(run: FinishedRun, as_trained: bool) -> keras.Model:
    with without_first_lines():
        import tensorflow  # noqa: F401
    from ps_cluster.models.saved import in_float32, load_finished, predicting

    file = run.run_dir.best_model
    try:
        model = load_finished(file)
        found = predicting(model if as_trained else in_float32(model), run.spec)
    except UserError:
        raise
    except Exception as error:  # a damaged file can raise almost any
        raise UserError(
            f"'{file}' can't be used for the data set '{run.dataset.name}' ({one_line(str(error), 300)}): if a layer in it "
            "is your own, name its file by --code; if the data set is another than the run's, name that by --data-dir"
        ) from error
    if found.output.shape[1:] != (run.spec.outputs,):
        raise UserError(
            f"'{file}' returns {list(found.output.shape[1:])} for an example, and the data set '{run.dataset.name}' has "
            f"{run.spec.outputs} outputs: it is not the one that the run used; name that by --data-dir"
        )
    return found
