"""Write the best model of a run in several formats, load each file again, and compare it with the original."""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from ps_cluster import __version__
from ps_cluster.config.networks import NETWORKS
from ps_cluster.data.cache import size_of
from ps_cluster.errors import RunFailed, UserError
from ps_cluster.evaluation.export_check import CheckedModel, compare, print_checked
from ps_cluster.evaluation.export_formats import Exported, ExportFormat
from ps_cluster.evaluation.predictor import Predictor, TrainedRun
from ps_cluster.evaluation.raw_rows import RAW_DTYPES, Predictions
from ps_cluster.evaluation.scorer import spaced
from ps_cluster.files import untrusted
from ps_cluster.files.values import Malformed, one_line
from ps_cluster.files.writing import folder_beside, write_json
from ps_cluster.notices import Notify
from ps_cluster.quiet_import import STARTUP_LINES, without_lines
from ps_cluster.runs.dataset_rows import CategoryColumn, NumberColumn
from ps_cluster.runs.rows import Count, Row

REPORT = "export.json"
T = TypeVar("T")


class InputForm(Row):
    """The dtype and shape of one example at an input of a model."""

    dtype: str
    shape: list[Count]


class TableColumns(Row):
    """The columns of a table as inputs of the model, in the order in which the model takes them."""

    numbers: list[NumberColumn]
    categories: list[CategoryColumn]


class ExportReport(Row):
    """The content of export.json, except for its schema version.

    Attributes:
      inputs: the inputs of the exported files. If the data set is a table, the inputs of those files that take encoded
        columns.
      columns: how the table was encoded. If the data set is not a table, this field and the next two are None, and
        export.json does not have them.
      raw_inputs: the inputs of the exported files that take the table's rows as they are.
      take_raw_rows: the formats of these files.
      classes: the names of the classes, in the order of the outputs.
    """

    run: str
    model: str
    dataset: str
    objective: str
    inputs: dict[str, InputForm]
    columns: TableColumns | None
    raw_inputs: dict[str, InputForm] | None
    take_raw_rows: list[str] | None
    classes: list[str]
    test_examples: Count
    versions: dict[str, str]
    compared: list[CheckedModel]


def export(
    run: TrainedRun,
    formats: Sequence[ExportFormat],
    output: Path,
    *,
    check_examples: int,
    notify: Notify,
    console: Console,
) -> None:
    """Write the best model of a run in all `formats`, and a report, into the folder `output`.

    The folder appears when it is complete. Each file is loaded again, and compared with the original.

    Args:
      check_examples: the largest number of test examples on which the files are compared with the original.

    Raises:
      UserError: a format can't be written here, or the folder is not empty.
      RunFailed: a file can't be written or read again, or differs from the original by more than its format allows.
    """
    untrusted.check_folder(output, "export folder", notify)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(f"--output: '{output}' exists and is not empty: name another folder, or remove it")
    for one in formats:
        one.check(run.spec)
    with folder_beside(output) as folder:
        original = Predictor(run)
        exported = Exported(run, original.model)
        for one in formats:
            encoded = exported.encoding is not None and not one.takes_raw_rows
            form = f": it takes encoded columns of the table; {REPORT} describes the encoding" if encoded else ""
            notify(f"writing {one.title}{form}")
            _convert(one, "written", one.write, exported, folder / one.file)
        count = len(spaced(run.dataset.test_examples, check_examples))
        notify(f"comparing with the original on {count:,} of {run.dataset.test_examples:,} test {run.spec.unit}")
        checked = _check_files(exported, original, formats, folder, check_examples)
        print_checked(checked, run.spec, console)
        if failed := [row for row in checked if row.fails]:
            raise RunFailed(
                f"{failed[0].name}: a prediction differs by {failed[0].compared.largest:.2g} from that of the "
                f"original, more than the {failed[0].allowed or 0:.1g} allowed: nothing was written to '{output}'"
            )
        content = _report_of(exported, formats, count, checked).model_dump()
        write_json(
            folder / REPORT, {"schema": 1} | {name: value for name, value in content.items() if value is not None}
        )


def _check_files(
    exported: Exported, original: Predictor, formats: Sequence[ExportFormat], folder: Path, most: int
) -> list[CheckedModel]:
    """Compare all exported files with the original on at most `most` test examples. Return the rows of the report.

    The first two rows are for the original: in float32, and in the precision of the training. A row for each file
    follows.
    """
    run = exported.run
    # A user's network is saved in the precision in which its function builds it.
    saved = run.config.model.precision if run.config.model.name in NETWORKS.own else "as saved"
    functions: dict[str, Predictions] = {
        "best model, float32": original,
        f"best model, {saved}": Predictor(run, as_trained=True),
    }
    files = dict.fromkeys(functions, run.run_dir.best_model)
    for one in formats:
        functions[one.name] = _convert(one, "read again", one.load, exported, folder / one.file)
        files[one.name] = folder / one.file
    # Tolerances refer to probabilities. For a regression, their unit is the standard deviation of its target.
    unit = 1.0 if run.spec.classes else max(run.spec.target.std, default=1.0) or 1.0
    allowed = {one.name: one.tolerance and one.tolerance * unit for one in formats}
    compared = compare(run.dataset, original, functions, most)
    return [
        CheckedModel(name, file.name, size_of(file), compared[name], allowed.get(name)) for name, file in files.items()
    ]


def _convert(one: ExportFormat, what: str, work: Callable[[Exported, Path], T], exported: Exported, path: Path) -> T:
    """Call `work`, which writes or loads the model in one format, and return its result.

    If a converter fails, raise RunFailed with the name of the format. The message says that the model can't be `what`:
    "written" or "read again".
    """
    try:
        return work(exported, path)
    except (UserError, OSError):
        raise
    except Exception as error:  # converters raise almost any exception
        text = one_line(str(error), 500)
        why = f": {text}" if isinstance(error, Malformed) else f" ({type(error).__name__}: {text})"
        raise RunFailed(
            f"{one.name}: the model can't be {what}{why}; to export the other formats, leave {one.name} out of --to"
        ) from error


def _report_of(
    exported: Exported, formats: Sequence[ExportFormat], count: int, checked: list[CheckedModel]
) -> ExportReport:
    run, spec, encoding = exported.run, exported.spec, exported.encoding
    columns = raw_inputs = take_raw_rows = None
    if encoding is not None:
        columns = TableColumns(numbers=encoding.numbers, categories=encoding.categories)
        raw_inputs = {name: _form(RAW_DTYPES[name], field.shape) for name, field in spec.inputs.items()}
        take_raw_rows = [one.name for one in formats if one.takes_raw_rows]
    return ExportReport(
        run=str(run.run_dir.root),
        model=run.config.model.name,
        dataset=run.dataset.name,
        objective=spec.objective,
        inputs={name: _form(field.dtype, field.shape) for name, field in spec.inputs.items()},
        columns=columns,
        raw_inputs=raw_inputs,
        take_raw_rows=take_raw_rows,
        classes=list(spec.classes),
        test_examples=count,
        versions={"ps-cluster": __version__, "keras": version("keras")},
        compared=checked,
    )


def _form(dtype: str, shape: tuple[int, ...]) -> InputForm:
    return InputForm(dtype=dtype, shape=list(shape))


_UNIMPORTANT_LINES = (*STARTUP_LINES, "Created TensorFlow Lite XNNPACK delegate")


@contextmanager
def quiet_converters() -> Iterator[None]:
    """Drop lines of converters that do not help users, e.g. that .h5 is a legacy format or that tf.lite will move.

    Keras and the converters use AutoGraph, which writes modules into the temporary folder and leaves their compiled
    form there. Therefore the block has a separate temporary folder, which is removed afterwards.
    """
    absl = logging.getLogger("absl")
    level, before = absl.level, tempfile.tempdir
    absl.setLevel(logging.ERROR)
    try:
        with (
            warnings.catch_warnings(action="ignore"),
            without_lines(_UNIMPORTANT_LINES),
            tempfile.TemporaryDirectory(prefix="ps-cluster-export-") as tempfile.tempdir,
        ):
            yield
    finally:
        tempfile.tempdir = before
        absl.setLevel(level)
