"""TensorFlow Lite, for phones and small computers: in float32, or quantised to whole numbers of 8 bits."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ps_cluster.catalogue.examples import ExampleSpec
from ps_cluster.catalogue.lazily import tf
from ps_cluster.errors import UserError
from ps_cluster.export.export_format import ExportFormat

if TYPE_CHECKING:
    from ps_cluster.export.export_format import Exported
    from ps_cluster.prediction.predictor import Inputs


class Tflite(ExportFormat):
    name = "tflite"
    says = "TensorFlow Lite"
    file = "model.tflite"
    image_dtype = "uint8"

    def write(self, exported: Exported, path: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="ps-cluster-tflite-") as folder:
            _save_frozen(exported, self.image_dtype, folder)
            converter = tf.lite.TFLiteConverter.from_saved_model(folder)
            self.configure(converter, exported)
            path.write_bytes(converter.convert())

    def configure(self, converter: Any, exported: Exported) -> None:
        """Set what the conversion differs in."""

    def load(self, exported: Exported, path: Path) -> Callable[[Inputs], np.ndarray]:
        runner = tf.lite.Interpreter(str(path)).get_signature_runner()
        forms, (result,) = runner.get_input_details(), runner.get_output_details().values()

        def predictions(inputs: Inputs) -> np.ndarray:
            found = runner(**{name: _quantised(rows, forms[name]) for name, rows in inputs.items()})
            return _restored(found[exported.output_name], result)

        return predictions


class TfliteInt8(Tflite):
    name = "tflite-int8"
    says = "TensorFlow Lite in 8 bits"
    file = "model-int8.tflite"
    tolerance = None
    image_dtype = "float32"  # the converter quantises it

    def check(self, spec: ExampleSpec) -> None:
        super().check(spec)
        if spec.unit != "images":
            raise UserError(f"--to: '{self.name}' is for images, and the network takes {spec}: leave it out")

    def configure(self, converter: Any, exported: Exported) -> None:
        samples = exported.samples()

        def representative() -> Iterator[Inputs]:
            for place in range(len(next(iter(samples.values())))):
                yield {name: rows[place : place + 1].astype(np.float32) for name, rows in samples.items()}

        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.representative_dataset = representative
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
        converter.inference_input_type = converter.inference_output_type = tf.uint8


def _save_frozen(exported: Exported, image_dtype: str, folder: str) -> None:
    """Save the model without variables. With Keras's, the converter of TensorFlow 2.21 writes a file that reads none."""
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    from ps_cluster.prediction.predictor import graph_of, signature_of

    frozen = convert_variables_to_constants_v2(graph_of(exported.model, exported.spec, image_dtype=image_dtype))
    order = [tensor.name.partition(":")[0] for tensor in frozen.inputs]

    def named(**inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        (predictions,) = frozen(*(inputs[name] for name in order))
        return {exported.output_name: predictions}

    signature = signature_of(exported.spec, image_dtype)
    graph = tf.function(named, autograph=False).get_concrete_function(**signature)
    tf.saved_model.save(tf.Module(), folder, signatures={"serving_default": graph})


def _quantised(rows: np.ndarray, form: Any) -> np.ndarray:
    """Return raw rows as the file takes them: divided by the scale of a quantised input, if it is one."""
    scale, zero = form["quantization"]
    if not scale:
        return rows
    limits = np.iinfo(form["dtype"])
    places: np.ndarray = np.clip(np.round(rows / scale) + zero, limits.min, limits.max)
    return places.astype(form["dtype"])


def _restored(rows: np.ndarray, form: Any) -> np.ndarray:
    """Return an output as float32."""
    scale, zero = form["quantization"]
    return (rows.astype(np.float32) - zero) * scale if scale else rows


TFLITE = Tflite()
TFLITE_INT8 = TfliteInt8()
