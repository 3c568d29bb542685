"""Export to TensorFlow's SavedModel, for TensorFlow Serving and Triton."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ps_cluster.config.lazy import tf
from ps_cluster.evaluation.export_formats import Exported, ExportFormat
from ps_cluster.evaluation.raw_graph import signature_of
from ps_cluster.evaluation.raw_rows import RAW_DTYPES, Inputs, Predictions

VERSION = "1"  # servers look for folders whose names are numbers, and load the folder with the largest number


class SavedModel(ExportFormat):
    """TensorFlow's SavedModel. Its signature returns predictions and the names of the classes.

    It takes raw inputs by name, e.g. images as uint8, or the columns of a table as they are.
    """

    name = "savedmodel"
    title = "TensorFlow's SavedModel"
    file = "savedmodel"
    takes_raw_rows = True

    def write(self, exported: Exported, path: Path) -> None:
        from ps_cluster.models.flat import as_arguments

        names = tf.constant(exported.spec.classes)

        def serve(**inputs: tf.Tensor) -> dict[str, tf.Tensor]:
            raw = exported.encoding is not None
            predictions = exported.raw_model(as_arguments(inputs)) if raw else exported.graph(**inputs)
            # The names are repeated for each example, because a server accepts only outputs with as many rows as the
            # inputs.
            classes = {"classes": tf.broadcast_to(names, tf.shape(predictions))} if exported.spec.classes else {}
            return {exported.output_name: predictions, **classes}

        module = tf.Module()
        module.model = exported.raw_model  # so that its variables are saved
        signature = signature_of(exported.spec)
        if exported.encoding is not None:
            signature = {name: tf.TensorSpec(one.shape, RAW_DTYPES[name], name) for name, one in signature.items()}
        graph = tf.function(serve, autograph=False).get_concrete_function(**signature)
        tf.saved_model.save(module, str(path / VERSION), signatures={"serving_default": graph})

    def load(self, exported: Exported, path: Path) -> Predictions:
        loaded = tf.saved_model.load(str(path / VERSION))

        def predictions(inputs: Inputs) -> np.ndarray:
            # The signature is looked up here, because its variables are deleted together with `loaded`.
            serve = loaded.signatures["serving_default"]
            found = serve(**{name: tf.constant(rows) for name, rows in exported.raw(inputs).items()})
            rows: np.ndarray = found[exported.output_name].numpy()
            return rows

        return predictions
