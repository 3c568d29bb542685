"""The formats of exported models: what each needs, how it is written, and how it is loaded again to be checked."""

from __future__ import annotations

import importlib.util
import re
import tempfile
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ps_cluster.config.lazy import tf
from ps_cluster.config.objectives import ExampleSpec
from ps_cluster.config.registry import Registry
from ps_cluster.errors import UserError
from ps_cluster.evaluation.raw_rows import RAW_DTYPES, as_raw, with_encoding
from ps_cluster.files.values import Malformed, one_line
from ps_cluster.installation import to_add, to_install
from ps_cluster.quiet_import import without_lines

if TYPE_CHECKING:
    import keras

    from ps_cluster.evaluation.predict import Inputs, TrainedRun

SAMPLES = 200  # training examples from which the ranges of a quantised model are found


class Exported:
    """A model to write.

    Attributes:
      run: that has left it.
      model: takes examples as the network does, computes in float32 and returns predictions [B, outputs].
      spec: the form of the examples.
      encoding: how columns of a table became them; None if they are no table's.
    """

    def __init__(self, run: TrainedRun, model: keras.Model):
        self.run, self.model, self.spec = run, model, run.spec
        self.encoding = run.dataset.encoding()

    @property
    def output_name(self) -> str:
        """The name of the predictions, in formats that have one."""
        return "probabilities" if self.spec.classes else "values"

    @cached_property
    def graph(self) -> Any:
        """The model as a graph of raw inputs by name; images are uint8."""
        from ps_cluster.evaluation.predict import graph_of

        return graph_of(self.model, self.spec)

    @cached_property
    def of_raw_rows(self) -> Any:
        """The model with the encoding of a table before it: it takes raw columns. Without a table it is the model."""
        return self.model if self.encoding is None else with_encoding(self.model, self.encoding)

    def raw(self, inputs: Inputs) -> Inputs:
        """Return examples as `of_raw_rows` takes them."""
        return inputs if self.encoding is None else as_raw(inputs, self.encoding)

    def raw_signature(self) -> dict[str, tf.TensorSpec]:
        """Return name → the form of each input of `of_raw_rows`."""
        from ps_cluster.evaluation.predict import signature_of

        signature = signature_of(self.spec)
        if self.encoding is None:
            return signature
        return {name: tf.TensorSpec(one.shape, RAW_DTYPES[name], name) for name, one in signature.items()}

    def samples(self) -> Inputs:
        """Return some raw training examples, evenly spaced."""
        ids = spaced(self.run.dataset.train_examples, SAMPLES)
        return {name: np.asarray(rows[ids]) for name, rows in self.run.dataset.inputs("train").items()}


class ExportFormat:
    """A format. Subclass it, and write both methods.

    Attributes:
      name: its name; says: in a few words, what it is.
      file: the name of the file or folder that is written.
      takes_raw_rows: whether the file takes a table's columns as they are: numbers and texts.
      tolerance: the largest difference of a probability from the original's that is allowed; None if it is only told.
      packages: modules that have to be installed; extra: the extra of this package that brings them.
    """

    name = ""
    says = ""
    page = "docs/tools.md#export"
    file = ""
    takes_raw_rows = False
    tolerance: float | None = 1e-4
    packages: tuple[str, ...] = ()
    extra = ""

    def check(self, spec: ExampleSpec) -> None:
        """Raise UserError where this format can't be written here, or not for such examples."""
        if missing := [name for name in self.packages if importlib.util.find_spec(name) is None]:
            raise UserError(
                f"--to: '{self.name}' needs {missing[0]}, which is not installed: "
                f"{to_install(self.extra) if self.extra else to_add(missing)}; or leave {self.name} out"
            )

    def write(self, exported: Exported, path: Path) -> None:
        """Write the model to `path`, which does not exist."""
        raise NotImplementedError

    def load(self, exported: Exported, path: Path) -> Callable[[Inputs], np.ndarray]:
        """Return what was written as a function of raw examples, as `Predictor` is."""
        raise NotImplementedError


EXPORT_FORMATS: Registry[ExportFormat] = Registry(
    "export format", ExportFormat, "ps_cluster.evaluation.export_formats", "ps_cluster.export_formats"
)


def spaced(count: int, most: int) -> np.ndarray:
    """Return int64 [n]: at most `most` places of `count`, evenly spaced."""
    wanted = min(count, most)
    return np.arange(wanted) * count // wanted


# Keras's own files: .keras, and the older .h5.


class KerasFile(ExportFormat):
    name = "keras"
    says = "Keras's own file"
    file = "model.keras"
    takes_raw_rows = True

    def write(self, exported: Exported, path: Path) -> None:
        exported.of_raw_rows.save(path)

    def load(self, exported: Exported, path: Path) -> Callable[[Inputs], np.ndarray]:
        from ps_cluster.evaluation.predict import Predictor, graph_of
        from ps_cluster.models.build import load_finished

        try:
            model = load_finished(path)
        except (TypeError, ValueError, NotImplementedError):  # Keras alone can't, so code has built the original too
            again = Exported(exported.run, Predictor(exported.run).model)
            model = again.of_raw_rows if self.takes_raw_rows else again.model
            model.set_weights([np.zeros_like(values) for values in model.get_weights()])
            model.load_weights(path)
        if exported.encoding is not None and self.takes_raw_rows:
            return lambda inputs: _of_raw(model, exported.raw(inputs))
        graph = graph_of(model, exported.spec)
        return lambda inputs: graph(**inputs).numpy()


def _of_raw(model: Any, raw: Inputs) -> np.ndarray:
    from ps_cluster.models.flat import as_arguments

    found: np.ndarray = model(as_arguments({name: tf.constant(rows) for name, rows in raw.items()})).numpy()
    return found


class KerasH5(KerasFile):
    """It has layers alone, and the encoding of a table has operations, such as one that takes a column."""

    name = "h5"
    says = "Keras's older file"
    file = "model.h5"
    takes_raw_rows = False

    def write(self, exported: Exported, path: Path) -> None:
        exported.model.save(path)


# ONNX, for ONNX Runtime and Triton.


class OnnxFile(ExportFormat):
    name = "onnx"
    says = "ONNX"
    file = "model.onnx"
    packages = ("tf2onnx", "onnx", "onnxruntime")
    extra = "onnx"

    def write(self, exported: Exported, path: Path) -> None:
        from ps_cluster.evaluation.predict import signature_of
        from ps_cluster.models.flat import as_arguments

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


# TensorFlow's SavedModel, for TensorFlow Serving and Triton.

VERSION = "1"  # servers look for a folder with a number, and take the largest


class SavedModel(ExportFormat):
    """A signature takes raw examples by name. It returns predictions and, beside each, the name of its class."""

    name = "savedmodel"
    says = "TensorFlow's SavedModel"
    file = "savedmodel"
    takes_raw_rows = True

    def write(self, exported: Exported, path: Path) -> None:
        from ps_cluster.models.flat import as_arguments

        names = tf.constant(exported.spec.classes)

        def serve(**inputs: tf.Tensor) -> dict[str, tf.Tensor]:
            raw = exported.encoding is not None
            predictions = exported.of_raw_rows(as_arguments(inputs)) if raw else exported.graph(**inputs)
            # A row of names for each example: a server takes only outputs that have as many rows as the inputs.
            classes = {"classes": tf.broadcast_to(names, tf.shape(predictions))} if exported.spec.classes else {}
            return {exported.output_name: predictions, **classes}

        module = tf.Module()
        module.model = exported.of_raw_rows  # so that its variables are saved
        signature = tf.function(serve, autograph=False).get_concrete_function(**exported.raw_signature())
        tf.saved_model.save(module, str(path / VERSION), signatures={"serving_default": signature})

    def load(self, exported: Exported, path: Path) -> Callable[[Inputs], np.ndarray]:
        loaded = tf.saved_model.load(str(path / VERSION))

        def predictions(inputs: Inputs) -> np.ndarray:
            serve = loaded.signatures["serving_default"]  # looked up here: without `loaded` its variables are gone
            found = serve(**{name: tf.constant(rows) for name, rows in exported.raw(inputs).items()})
            rows: np.ndarray = found[exported.output_name].numpy()
            return rows

        return predictions


# TensorFlow Lite, for phones and small computers: in float32, or quantised to whole numbers of 8 bits.


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
            try:
                with without_lines(_OF_THE_COMPILER):
                    content = converter.convert()
            except Exception as error:  # of the converter or of the compiler below it
                raise Malformed(_why_no_tflite(str(error))) from error
            path.write_bytes(content)

    def configure(self, converter: Any, exported: Exported) -> None:
        """Set what the conversion differs in."""

    def load(self, exported: Exported, path: Path) -> Callable[[Inputs], np.ndarray]:
        runner = tf.lite.Interpreter(str(path)).get_signature_runner()
        forms, (result,) = runner.get_input_details(), runner.get_output_details().values()

        def predictions(inputs: Inputs) -> np.ndarray:
            found = runner(**{name: _quantised(rows, forms[name]) for name, rows in inputs.items()})
            return _restored(found[exported.output_name], result)

        return predictions


_OF_THE_COMPILER = ("loc(", "error: ", "note: ")  # parts of its lines: the first reason is told in its place
_OPERATION = re.compile(r"'tf\.(\w+)'")


def _why_no_tflite(text: str) -> str:
    """Return in one clause why a model can't be converted. `text`: many lines of a compiler."""
    if "TensorList" in text:
        return (
            "TensorFlow Lite has no loop over a list, which a recurrent layer such as LSTM runs: build the layer with "
            "unroll=True, which takes the same weights"
        )
    if operations := dict.fromkeys(_OPERATION.findall(text)):
        return f"TensorFlow Lite has no operation {', '.join(operations)}"
    return one_line(text, 300)


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
    from ps_cluster.evaluation.predict import graph_of, signature_of
    from ps_cluster.private_names import frozen

    constant = frozen(graph_of(exported.model, exported.spec, image_dtype=image_dtype))
    order = [tensor.name.partition(":")[0] for tensor in constant.inputs]

    def named(**inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        (predictions,) = constant(*(inputs[name] for name in order))
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
