"""Export to the file formats of Keras: .keras, and the older .h5."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ps_cluster.config.lazy import tf
from ps_cluster.evaluation.export_formats import Exported, ExportFormat
from ps_cluster.evaluation.raw_graph import prediction_graph
from ps_cluster.evaluation.raw_rows import Inputs, Predictions


class KerasFile(ExportFormat):
    name = "keras"
    title = "Keras's own file"
    file = "model.keras"
    takes_raw_rows = True

    def write(self, exported: Exported, path: Path) -> None:
        exported.raw_model.save(path)

    def load(self, exported: Exported, path: Path) -> Predictions:
        from ps_cluster.evaluation.predictor import Predictor  # imported here, because --help needs no data sets
        from ps_cluster.models.flat import as_arguments
        from ps_cluster.models.saved import load_unchanged

        try:
            model = load_unchanged(path)
        except (TypeError, ValueError, NotImplementedError):
            # The file needs layers of the user's code. So build the model with that code, as the original was built.
            again = Exported(exported.run, Predictor(exported.run).model)
            model = again.raw_model if self.takes_raw_rows else again.model
            model.set_weights([np.zeros_like(values) for values in model.get_weights()])
            model.load_weights(path)
        if exported.encoding is None or not self.takes_raw_rows:
            graph = prediction_graph(model, exported.spec)
            return lambda inputs: graph(**inputs).numpy()

        def predictions(inputs: Inputs) -> np.ndarray:
            raw = {name: tf.constant(rows) for name, rows in exported.raw(inputs).items()}
            found: np.ndarray = model(as_arguments(raw)).numpy()
            return found

        return predictions


class KerasH5(KerasFile):
    """The .h5 format, which can't contain the encoding of a table.

    It stores only layers, but the encoding also needs other operations, e.g. to select a column.
    """

    name = "h5"
    title = "Keras's older file"
    file = "model.h5"
    takes_raw_rows = False

    def write(self, exported: Exported, path: Path) -> None:
        exported.model.save(path)
