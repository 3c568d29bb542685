"""Keras's own files: .keras, and the older .h5."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ps_cluster.export.export_format import ExportFormat

if TYPE_CHECKING:
    from ps_cluster.export.export_format import Exported
    from ps_cluster.prediction.predictor import Inputs


class KerasFile(ExportFormat):
    name = "keras"
    says = "Keras's own file"
    file = "model.keras"

    def write(self, exported: Exported, path: Path) -> None:
        exported.model.save(path)

    def load(self, exported: Exported, path: Path) -> Callable[[Inputs], np.ndarray]:
        from ps_cluster.models.saved import load_finished
        from ps_cluster.prediction.predictor import graph_of

        graph = graph_of(load_finished(path), exported.spec)
        return lambda inputs: graph(**inputs).numpy()


class KerasH5(KerasFile):
    name = "h5"
    says = "Keras's older file"
    file = "model.h5"


KERAS_FILE = KerasFile()
KERAS_H5 = KerasH5()
