"""Export to ONNX, for ONNX Runtime and Triton."""

from __future__ import annotations

from pathlib import Path

from ps_cluster.evaluation.export_formats import Exported, ExportFormat
from ps_cluster.evaluation.raw_graph import signature_of
from ps_cluster.evaluation.raw_rows import Predictions


class OnnxFile(ExportFormat):
    name = "onnx"
    title = "ONNX"
    file = "model.onnx"
    packages = ("tf2onnx", "onnx", "onnxruntime")
    extra = "onnx"

    def write(self, exported: Exported, path: Path) -> None:
        from ps_cluster.models.flat import as_arguments

        # Export by Keras's method, which patches tf2onnx for NumPy 2.
        signature = [as_arguments(signature_of(exported.spec))]
        exported.model.export(path, format="onnx", verbose=False, input_signature=signature)

    def load(self, exported: Exported, path: Path) -> Predictions:
        import onnxruntime

        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        return lambda inputs: session.run(None, dict(inputs))[0]
