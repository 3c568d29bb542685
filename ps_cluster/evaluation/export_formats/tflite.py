"""Export to TensorFlow Lite, for phones and small computers."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from ps_cluster.config.lazy import tf
from ps_cluster.evaluation.export_formats import Exported, ExportFormat
from ps_cluster.evaluation.raw_graph import signature_of
from ps_cluster.evaluation.raw_rows import Predictions
from ps_cluster.files.values import Malformed, one_line
from ps_cluster.quiet_import import without_lines

# Lines of the compiler that contain these texts are dropped, because the exception contains the first reason.
_COMPILER_LINES = ("loc(", "error: ", "note: ")
_OPERATION = re.compile(r"'tf\.(\w+)'")


class Tflite(ExportFormat):
    name = "tflite"
    title = "TensorFlow Lite"
    file = "model.tflite"

    def write(self, exported: Exported, path: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="ps-cluster-tflite-") as folder:
            _save_frozen(exported, folder)
            try:
                with without_lines(_COMPILER_LINES):
                    content = tf.lite.TFLiteConverter.from_saved_model(folder).convert()
            except Exception as error:  # an error of the converter, or of the compiler that it calls
                raise Malformed(_why_no_tflite(str(error))) from error
            path.write_bytes(content)

    def load(self, exported: Exported, path: Path) -> Predictions:
        runner = tf.lite.Interpreter(str(path)).get_signature_runner()
        return lambda inputs: runner(**inputs)[exported.output_name]


def _why_no_tflite(text: str) -> str:
    """Return one clause that says why a model can't be converted. `text`: all lines of the compiler's error."""
    if "TensorList" in text:
        return (
            "TensorFlow Lite can't run the loop of a recurrent layer such as LSTM: build the layer with unroll=True, "
            "which does not change its weights"
        )
    if operations := dict.fromkeys(_OPERATION.findall(text)):
        return f"TensorFlow Lite has no operation {', '.join(operations)}"
    return one_line(text, 300)


def _save_frozen(exported: Exported, folder: str) -> None:
    """Save the model with constants instead of variables.

    If a model has variables of Keras, the converter of TensorFlow 2.21 writes a file that never initialises them.
    """
    from ps_cluster.private_names import frozen

    constant = frozen(exported.graph)
    order = [tensor.name.partition(":")[0] for tensor in constant.inputs]

    def named(**inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        (predictions,) = constant(*(inputs[name] for name in order))
        return {exported.output_name: predictions}

    graph = tf.function(named, autograph=False).get_concrete_function(**signature_of(exported.spec))
    tf.saved_model.save(tf.Module(), folder, signatures={"serving_default": graph})
