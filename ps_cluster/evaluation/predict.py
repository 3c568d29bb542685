"""Open a run that has left a model, and predict with that in float32. TensorFlow is imported when a predictor is made."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from rich.text import Text

from ps_cluster.config import RunConfig, load_config
from ps_cluster.config.objectives import ExampleSpec, Field
from ps_cluster.data.array_files import open_npy, open_npz
from ps_cluster.data.folders import files_below, not_read
from ps_cluster.data.packed import PackedDataset, load_form
from ps_cluster.data.pictures import ENDINGS, Images, Picture, Size, is_picture, look_at_all
from ps_cluster.data.table_files import TABLES, arrow_errors, ending_of, open_tables
from ps_cluster.data.tables import Encoding
from ps_cluster.errors import UserError
from ps_cluster.evaluation.scorer import dataset_of
from ps_cluster.files.reading import bounded_memory, open_regular
from ps_cluster.files.untrusted import Notify
from ps_cluster.files.values import Malformed, cell, finite, one_line
from ps_cluster.files.writing import create_beside
from ps_cluster.models.failures import computing
from ps_cluster.quiet_import import without_first_lines
from ps_cluster.report.terminal import FOLD, Output, SafeConsole, plain_table
from ps_cluster.runs.run_dir import RunDir

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

Inputs = Mapping[str, np.ndarray]
"""Name of an input → raw examples [B, ...]."""


RUNS = Path("runs")


@dataclass(frozen=True)
class TrainedRun:
    """A run that has left a model.

    Attributes:
      dataset: without its examples, if the run is opened for its model alone.
    """

    run_dir: RunDir
    config: RunConfig
    dataset: PackedDataset

    @classmethod
    def open(
        cls, root: Path | None, data_dir: Path | None, notify: Notify, *, needs_examples: bool = True
    ) -> TrainedRun:
        """Return the run in `root`; for None the one in runs/ with the newest model.

        Args:
          data_dir: where the data set is; None takes the copy that the run used.
          notify: called with a line for a person, each time.
          needs_examples: False: how the run says that an example looks is enough, and its data set need not be here.

        Raises:
          UserError: it is no run, it has no model, or its data set is not here.
        """
        if root is None:
            models = [file for file in RUNS.glob("*/best/model.keras") if file.is_file()]
            if not models:
                raise UserError(
                    f"--run: '{RUNS}' has no run with a model: train one, or name the folder of another by --run"
                )
            root = max(models, key=lambda file: file.stat().st_mtime_ns).parents[1]
            notify(f"run: '{root}', which has the newest model (--run names another)")
        run_dir = RunDir.open(root)
        if not run_dir.best_model.is_file():
            raise UserError(
                f"run directory '{root}' has no best/{run_dir.best_model.name}, so no checkpoint was scored: score one by "
                f"evaluate --once --checkpoint-dir {root}"
            )
        config = load_config(run_dir.config)
        if not needs_examples and data_dir is None:
            with suppress(FileNotFoundError):  # its tasks were started by hand
                return cls(run_dir, config, load_form(run_dir.examples))
        return cls(run_dir, config, dataset_of(run_dir, config, data_dir, notify))

    @property
    def spec(self) -> ExampleSpec:
        """The form of the examples that the model takes."""
        return self.dataset.spec


class Predictor:
    """The best model of a run, as a function of raw examples.

    Attributes:
      model: takes raw examples and returns predictions.
    """

    def __init__(self, run: TrainedRun, *, as_trained: bool = False):
        """Load the model.

        Args:
          as_trained: compute in the precision in which it was trained, in place of float32.

        Raises:
          UserError: the model can't be loaded, or it is not one of this data set.
        """
        with without_first_lines():
            import tensorflow  # noqa: F401
        from ps_cluster.models.build import in_float32, load_best, predicting

        file = run.run_dir.best_model
        try:
            model = load_best(file, run.config.model, run.spec)
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
        self.model = found
        self._predictions = graph_of(self.model, run.spec)

    def __call__(self, inputs: Inputs) -> np.ndarray:
        """Return predictions float32 [B, outputs]: probabilities, or values in the target's units."""
        with computing():
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


# Read the examples to predict: pictures, folders of them, arrays and tables, a batch at a time.

BATCH_SIZE = 64


class NamedExamples(NamedTuple):
    """Some examples: their names for people, and name of an input → raw examples [B, ...]."""

    names: list[str]
    inputs: dict[str, np.ndarray]


# A kind of files: yields the examples of some. It raises UserError, with the file and the reason, for one that can't be read.
Reader = Callable[[Sequence[Path], TrainedRun], Iterator[NamedExamples]]


def _read_pictures(skip_bad: bool, notify: Notify, files: Sequence[Path], run: TrainedRun) -> Iterator[NamedExamples]:
    """Read pictures of any size and colour, made to fit the network as those of its training were."""
    (name, field), *others = run.spec.inputs.items()
    if others or not field.is_image:
        raise UserError(f"'{files[0]}' is read as a picture, and the network takes {run.spec}: give such examples")
    for start in range(0, len(files), BATCH_SIZE):
        pictures = [Picture(str(file), partial(open_regular, file)) for file in files[start : start + BATCH_SIZE]]
        if skip_bad:
            wrong = [looked.wrong for looked in look_at_all(pictures, wholly=True)]
            for picture, why in zip(pictures, wrong):
                if why:
                    notify(f"skipped '{picture.name}', which can't be read ({why})")
            pictures = [picture for picture, why in zip(pictures, wrong) if not why]
        try:
            images = Images(pictures, Size(*field.shape))[:]
        except Malformed as error:
            raise UserError(str(error)) from error
        yield NamedExamples([picture.name for picture in pictures], {name: images})


def _read_arrays(files: Sequence[Path], run: TrainedRun) -> Iterator[NamedExamples]:
    """Read arrays that numpy has saved: one as .npy, or those of several inputs by their names as .npz."""
    for file in files:
        with reading(file):
            found = open_npz(file) if file.suffix.lower() == ".npz" else {"": open_npy(file)}
            arrays = _by_input(found, run.spec)
        yield from _in_batches(file, arrays, run.spec)


def _read_tables(files: Sequence[Path], run: TrainedRun) -> Iterator[NamedExamples]:
    """Read tables, whose columns become numbers as those of the training did."""
    known = run.dataset.encoding()
    if known is None:
        raise UserError(f"'{files[0]}' is a table, and the run was not trained on one: the network takes {run.spec}")
    encoding = Encoding(known.model_dump())
    columns = zip(encoding.categories, encoding.values)
    text = [name for name, values in columns if not {"true", "false"} >= set(values)]
    for file in files:
        first = 0
        with reading(file), arrow_errors("it"):
            for inputs in encoding.encoded(open_tables({"": [file]}, text)[""]):
                yield from _in_batches(file, inputs, run.spec, first)
                first += len(next(iter(inputs.values())))


def batches_of(paths: Sequence[Path], run: TrainedRun, *, skip_bad: bool, notify: Notify) -> Iterator[NamedExamples]:
    """Yield all examples of files and folders, in their order; the pictures of a folder are sorted.

    Args:
      skip_bad: go on without pictures that can't be read, and name them.

    Raises:
      UserError: there is no such file, or it can't be read.
    """
    pictures = partial(_read_pictures, skip_bad, notify)

    def reader_of(file: Path) -> Reader:
        arrays = _read_arrays if file.suffix.lower() in (".npy", ".npz") else pictures
        return _read_tables if ending_of(file) else arrays

    files = [file for path in paths for file in _files(path, notify)]
    for reader, group in groupby(files, reader_of):
        some = list(group)
        # Other files than pictures one by one: so an error names the right one.
        for part in [some] if reader is pictures else [[file] for file in some]:
            yield from (batch for batch in _bounded(reader(part, run), part) if batch.names)


def _bounded(batches: Iterator[NamedExamples], files: Sequence[Path]) -> Iterator[NamedExamples]:
    """Yield the same batches, each read in bounded memory."""
    size_bytes = sum(file.stat().st_size for file in files)
    while True:
        with reading(files[0]), bounded_memory(size_bytes):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


def _files(path: Path, notify: Notify) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise UserError(
            f"there is no '{path}': give pictures, folders of pictures, arrays (.npy, .npz) or tables ({', '.join(TABLES)})"
        )
    below = list(files_below(path))
    found = sorted(file for file in below if is_picture(file.name))
    if not found:
        raise UserError(f"the folder '{path}' has no picture ({', '.join(ENDINGS)}): give one that has some")
    for note in not_read([file for file in below if not is_picture(file.name)], path, "no pictures"):
        notify(note)
    return found


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Raise UserError, with the file, for what can't be read."""
    try:
        yield
    except Malformed as error:
        raise UserError(f"'{file}': {error}") from error
    except OSError as error:
        raise UserError(f"'{file}' can't be read: {error.strerror or error}") from error


def _by_input(found: Mapping[str, np.ndarray], spec: ExampleSpec) -> dict[str, np.ndarray]:
    """Return the arrays of the inputs [N, ...]; for a single input the only array, whatever its name."""
    if len(spec.inputs) == 1 and len(found) == 1:
        found = dict(zip(spec.inputs, found.values()))
    if missing := [name for name in spec.inputs if name not in found]:
        there = ", ".join(name for name in found if name) or "one array without a name"
        raise Malformed(f"there is no array '{missing[0]}', of {there}: save the inputs by name, by numpy.savez")
    arrays = {name: _rows(name, found[name], field) for name, field in spec.inputs.items()}
    if len({len(rows) for rows in arrays.values()}) > 1:
        raise Malformed(f"the arrays have {', '.join(f'{len(rows)} rows of {name}' for name, rows in arrays.items())}")
    return arrays


def _rows(name: str, given: np.ndarray, field: Field) -> np.ndarray:
    """Return an array with a row for each example. A single example, and grey images without an axis of channels, fit."""
    rows = given
    if field.is_image and field.shape[-1] == 1 and rows.shape[-2:] == field.shape[:2]:
        rows = rows[..., None]
    if rows.shape == field.shape:
        rows = rows[None]
    if rows.shape[1:] != field.shape or not _fits(rows, field.dtype):
        raise Malformed(
            f"an array is {given.dtype} {list(given.shape)}, and the network takes '{name}' as {field.dtype} "
            f"[N, {', '.join(map(str, field.shape))}]: convert it"
        )
    return rows


def _fits(rows: np.ndarray, dtype: str) -> bool:
    """Return whether an array can be cast without another meaning: whole numbers must be in the range of the dtype."""
    if rows.dtype.kind in "iu" and np.dtype(dtype).kind in "iu" and rows.size:
        limits = np.iinfo(dtype)
        return bool(limits.min <= rows.min() and rows.max() <= limits.max)
    return np.can_cast(rows.dtype, dtype, "same_kind")


def _in_batches(file: Path, arrays: Mapping[str, Any], spec: ExampleSpec, first: int = 0) -> Iterator[NamedExamples]:
    """Yield the rows of arrays. `first`: the number of the first one in its file."""
    count = len(next(iter(arrays.values())))
    for start in range(0, count, BATCH_SIZE):
        inputs = {
            name: np.ascontiguousarray(arrays[name][start : start + BATCH_SIZE], field.dtype)
            for name, field in spec.inputs.items()
        }
        for name, field in spec.inputs.items():
            if field.codes and not ((inputs[name] >= 0) & (inputs[name] < field.codes)).all():
                raise UserError(
                    f"'{file}': '{name}' has a code outside of 0 to {max(field.codes) - 1} near row {start}"
                )
        names = [f"{file}[{first + row}]" for row in range(start, min(start + BATCH_SIZE, count))]
        yield NamedExamples(names, inputs)


# Write predictions for people, as a table, or for programs, as JSON or CSV.


class Classes:
    """The predictions of one example as its most probable classes or labels, the most probable first.

    Attributes:
      columns: headings of the cells in a CSV. headings: those in a table for people.
    """

    def __init__(self, names: tuple[str, ...], top: int):
        self._names, self._top = names, min(top, len(names))
        places = range(1, self._top + 1)
        self.columns = [f"{what}_{place}" for place in places for what in ("class", "probability")]
        self.headings = ["class", *(f"{place}." for place in places[1:])]

    def cells(self, prediction: np.ndarray) -> list[Any]:
        """Return the cells of a CSV for a prediction [outputs]."""
        return [one for pair in self._best(prediction) for one in pair]

    def shown(self, prediction: np.ndarray) -> list[str]:
        """Return the cells of a table for people."""
        return [f"{name} {'–' if share is None else f'{share:.1%}'}" for name, share in self._best(prediction)]

    def as_json(self, prediction: np.ndarray) -> dict[str, Any]:
        """Return the keys and values of a JSON object, without the example's name."""
        return {"classes": [{"class": name, "probability": share} for name, share in self._best(prediction)]}

    def _best(self, prediction: np.ndarray) -> list[tuple[str, float | None]]:
        order = np.argsort(-prediction, kind="stable")[: self._top]
        return [(self._names[label], finite(prediction[label])) for label in order]


class Values:
    """The predictions of one example as the values of a regression, in the target's units."""

    def __init__(self, count: int):
        self.columns = ["value"] if count == 1 else [f"value_{place}" for place in range(1, count + 1)]
        self.headings = self.columns

    def cells(self, prediction: np.ndarray) -> list[Any]:
        return [finite(value) for value in prediction]

    def shown(self, prediction: np.ndarray) -> list[str]:
        return [f"{value:.6g}" for value in prediction]

    def as_json(self, prediction: np.ndarray) -> dict[str, Any]:
        return {"values": self.cells(prediction)}


class Answers(Protocol):
    """Turns a prediction, such as [outputs], into words. `columns`: headings of a CSV. `headings`: of a table for people."""

    columns: list[str]
    headings: list[str]

    def cells(self, prediction: Any, /) -> list[Any]: ...

    def shown(self, prediction: Any, /) -> list[str]: ...

    def as_json(self, prediction: Any, /) -> dict[str, Any]: ...


Writer = Callable[[Any, Iterable[tuple[str, Any]], Answers], None]
"""Writes to a text stream, for each example, its name and its prediction."""


def _write_csv(stream: Any, rows: Iterable[tuple[str, Any]], answers: Answers) -> None:
    """Write a line for each example, below a line of names."""
    lines = csv.writer(stream, lineterminator="\n")
    lines.writerow(map(cell, ["example", *answers.columns]))
    for name, prediction in rows:
        lines.writerow(map(cell, [name, *answers.cells(prediction)]))


def _write_json(stream: Any, rows: Iterable[tuple[str, Any]], answers: Answers) -> None:
    """Write a list with an object for each example, each on its line."""
    before = "[\n"
    for name, prediction in rows:
        stream.write(before + json.dumps({"example": name} | answers.as_json(prediction)))
        before = ",\n"
    stream.write("\n]\n")


def _write_table(stream: Any, rows: Iterable[tuple[str, Any]], answers: Answers) -> None:
    """Write a table for people, at the end: only then its widths are known."""
    table = plain_table(example=FOLD, **{heading: {} for heading in answers.headings})
    for name, prediction in rows:
        table.add_row(*map(Text, (name, *answers.shown(prediction))))
    output = stream if isinstance(stream, Output) else Output(stream)
    SafeConsole(output, highlight=False).print(table)


WRITERS: dict[str, Writer] = {"table": _write_table, "json": _write_json, "csv": _write_csv}


# Predict examples with the best model of a run, a batch at a time, and write what it says.


def predict(
    run: TrainedRun,
    paths: Sequence[Path],
    *,
    writer: Writer,
    top: int,
    output: Path | None,
    skip_bad: bool,
    notify: Notify,
) -> int:
    """Write the predictions for all examples in files and folders, and return how many there are.

    Args:
      writer: the form in which they are written.
      top: how many classes are told of each example.
      output: the file to write, which appears whole; None: standard output.
      skip_bad: go on without pictures that can't be read.
      notify: called with a line for a person, each time.

    Raises:
      UserError: an example can't be read, or there is none.
    """
    batches = batches_of(paths, run, skip_bad=skip_bad, notify=notify)
    first = next(batches, None)  # mistakes are told before TensorFlow is imported
    if first is None:
        raise UserError(f"'{paths[0]}': there is no example to predict: give pictures, arrays or tables that have some")
    predictor, count = Predictor(run), 0

    def rows() -> Iterator[tuple[str, np.ndarray]]:
        nonlocal count
        for names, inputs in chain([first], batches):
            yield from zip(names, predictor(inputs), strict=True)
            count += len(names)

    with opened_output(output) as stream:
        spec = run.spec
        writer(stream, rows(), Classes(spec.classes, top) if spec.classes else Values(spec.outputs))
    return count


@contextmanager
def opened_output(output: Path | None) -> Iterator[Any]:
    """Open the file to write, which appears whole; None: standard output."""
    if output is None:
        stream = Output(sys.stdout)
        yield stream
        stream.flush()
    else:
        output.parent.mkdir(parents=True, exist_ok=True)
        with create_beside(output, encoding="utf-8") as file:
            yield file
