"""ONNX, for ONNX Runtime and Triton."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ps_cluster.export.export_format import ExportFormat

if TYPE_CHECKING:
    from ps_cluster.export.export_format import Exported
    from ps_cluster.prediction.predictor import Inputs


class OnnxFile(ExportFormat):
    name = "onnx"
    says = "ONNX"
    file = "model.onnx"
    packages = ("tf2onnx", "onnx", "onnxruntime")
    extra = "onnx"

    def write(self, exported: Exported, path: Path) -> None:
        from ps_cluster.models.flat import as_arguments
        from ps_cluster.prediction.predictor import signature_of

        # Keras mends tf2onnx for NumPy 2.
        signature = [as_arguments(signature_of(exported.spec))]
        exported.model.export(path, format="onnx", verbose=False, input_signature=signature)

    def load(self, exported: Exported, path: Path) -> Callable[[Inputs], np.ndarray]:
        import onnxruntime

        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

        def predictions(inputs: Inputs) -> np.ndarray:
            found: np.ndarray = session.run(None, dict(inputs))[0]
            return found

        return predictions


ONNX_FILE = OnnxFile()
