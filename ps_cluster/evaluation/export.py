"""Write the best model of a run in several formats, load each again, and compare it with the original."""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from rich.console import Console
from rich.text import Text

from ps_cluster import __version__
from ps_cluster.config.networks import NETWORKS
from ps_cluster.config.objectives import OBJECTIVES, ExampleSpec
from ps_cluster.data.packed import PackedDataset
from ps_cluster.data.sources import size_of
from ps_cluster.errors import RunFailed, UserError
from ps_cluster.evaluation.export_formats import Exported, ExportFormat, spaced
from ps_cluster.evaluation.predict import BATCH_SIZE, Inputs, Predictor, TrainedRun
from ps_cluster.evaluation.raw_rows import RAW_DTYPES
from ps_cluster.files import untrusted
from ps_cluster.files.values import Malformed, one_line
from ps_cluster.files.writing import folder_beside, write_json
from ps_cluster.quiet_import import NO_NEWS, without_lines
from ps_cluster.report.terminal import FOLD, RIGHT, megabytes, plain_table

REPORT = "export.json"
T = TypeVar("T")


def export(
    run: TrainedRun,
    formats: Sequence[ExportFormat],
    output: Path,
    *,
    check_examples: int,
    notify: Callable[[str], None],
    console: Console,
) -> None:
    """Write all formats and a report into `output`, which appears whole, or not at all.

    Args:
      check_examples: the most test examples on which the files are compared with the original.
      notify: called with a line for a person, each time.

    Raises:
      UserError: a format can't be written here, or the folder holds something.
      RunFailed: a file can't be written or read again, or differs from the original by more than its format allows.
    """
    untrusted.check_folder(output, "export folder", notify)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(f"--output: '{output}' exists and is not empty: name another, or remove it")
    for one in formats:
        one.check(run.spec)
    with folder_beside(output) as folder:
        original = Predictor(run)
        exported = Exported(run, original.model)
        for one in formats:
            encoded = exported.encoding is not None and not one.takes_raw_rows
            form = f": it takes the table's columns encoded, as {REPORT} says" if encoded else ""
            notify(f"writing {one.says}{form}")
            _trying(one, "written", one.write, exported, folder / one.file)
        count = len(spaced(run.dataset.test_examples, check_examples))
        notify(f"comparing with the original on {count:,} of {run.dataset.test_examples:,} test {run.spec.unit}")
        checked = _checked(exported, original, formats, folder, check_examples)
        print_checked(checked, run.spec, console)
        if failed := [row for row in checked if row.fails]:
            raise RunFailed(
                f"{failed[0].name}: a prediction differs by {failed[0].compared.largest:.2g} from that of the original, more "
                f"than the {failed[0].allowed or 0:.1g} allowed: nothing was written to '{output}'"
            )
        write_json(folder / REPORT, _report(exported, formats, count, checked))


def _checked(
    exported: Exported, original: Predictor, formats: Sequence[ExportFormat], folder: Path, most: int
) -> list[Checked]:
    """Return a row for the original, in float32 and as it was trained, and for each file."""
    run = exported.run
    # A user's own is saved in the precision that its function gave it.
    saved = run.config.model.precision if run.config.model.name in NETWORKS.own else "as saved"
    functions: dict[str, Any] = {
        "best model, float32": original,
        f"best model, {saved}": Predictor(run, as_trained=True),
    }
    files = dict.fromkeys(functions, run.run_dir.best_model)
    for one in formats:
        functions[one.name] = _trying(one, "read again", one.load, exported, folder / one.file)
        files[one.name] = folder / one.file
    # Differences are of probabilities, or in the deviation of a regression's target.
    unit = 1.0 if run.spec.classes else max(run.spec.target.std, default=1.0) or 1.0
    allowed = {one.name: one.tolerance and one.tolerance * unit for one in formats}
    compared = compare(run.dataset, original, functions, most)
    return [Checked(name, file.name, size_of(file), compared[name], allowed.get(name)) for name, file in files.items()]


def _trying(one: ExportFormat, what: str, work: Callable[[Exported, Path], T], exported: Exported, path: Path) -> T:
    """Return what `work` returns. Raises RunFailed, with the format, for what a converter can't do."""
    try:
        return work(exported, path)
    except (UserError, OSError):
        raise
    except Malformed as error:
        raise RunFailed(f"{one.name}: the model can't be {what}: {error}; or leave it out of --to") from error
    except Exception as error:  # converters raise almost any
        raise RunFailed(
            f"{one.name}: the model can't be {what} ({type(error).__name__}: {one_line(str(error), 500)}): leave it out of --to"
        ) from error


def _report(
    exported: Exported, formats: Sequence[ExportFormat], count: int, checked: Sequence[Checked]
) -> dict[str, Any]:
    run, spec, encoding = exported.run, exported.spec, exported.encoding
    of_table: dict[str, Any] = {}
    if encoding is not None:
        of_table = {
            "columns": encoding.model_dump(include={"numbers", "categories"}),
            "raw_inputs": {
                name: {"dtype": RAW_DTYPES[name], "shape": list(field.shape)} for name, field in spec.inputs.items()
            },
            "take_raw_rows": [one.name for one in formats if one.takes_raw_rows],
        }
    return {
        "schema": 1,
        "run": str(run.run_dir.root),
        "model": run.config.model.name,
        "dataset": run.dataset.name,
        "objective": spec.objective,
        "inputs": {name: {"dtype": field.dtype, "shape": list(field.shape)} for name, field in spec.inputs.items()},
        **of_table,
        "classes": list(spec.classes),
        "test_examples": count,
        "versions": {"ps-cluster": __version__, "keras": version("keras")},
        "compared": [asdict(row) for row in checked],
    }


# Compare exported files with the original on the test set.

Predictions = Callable[[Inputs], np.ndarray]


@dataclass(frozen=True)
class ExportCheck:
    """The results of an exported file on the test examples.

    Attributes:
      metric: its accuracy, or its mean absolute error.
      same: the share of examples for which it decides as the original does; None for a regression.
      largest, mean: the differences of its predictions from the original's.
    """

    metric: float
    same: float | None
    largest: float
    mean: float


def compare(
    dataset: PackedDataset, original: Predictions, others: Mapping[str, Predictions], most: int
) -> dict[str, ExportCheck]:
    """Return name → what each does on test examples, evenly spaced if there are more than `most`."""
    objective = OBJECTIVES[dataset.spec.objective]
    sums = {name: np.zeros(3) for name in others}  # of metrics, of equal decisions, of mean differences
    largest = dict.fromkeys(others, 0.0)
    inputs, target = dataset.inputs("test"), dataset.target("test")
    ids = spaced(dataset.test_examples, most)
    for start in range(0, len(ids), BATCH_SIZE):
        some = ids[start : start + BATCH_SIZE]
        batch, wanted = {name: np.asarray(rows[some]) for name, rows in inputs.items()}, np.asarray(target[some])
        expected = original(batch)
        for name, predictions in others.items():
            found = predictions(batch)
            apart = np.abs(found - expected)
            same = (objective.decisions(found) == objective.decisions(expected)).reshape(len(some), -1).all(1)
            sums[name] += objective.metrics(wanted, found).sum(), same.sum(), apart.mean(1).sum()
            largest[name] = float(np.maximum(largest[name], apart.max()))  # NaN stays
    checks = {}
    for name, total in sums.items():
        metric, share, mean = (total / len(ids)).tolist()
        checks[name] = ExportCheck(metric, share if dataset.spec.classes else None, largest[name], mean)
    return checks


@dataclass(frozen=True)
class Checked:
    """A line of the report. `bytes` and `file` are of what was written; `allowed`: the largest difference, if bounded."""

    name: str
    file: str
    bytes: int
    compared: ExportCheck
    allowed: float | None

    @property
    def fails(self) -> bool:
        """True if the file differs more than is allowed. A difference that is NaN or infinite always fails."""
        largest = self.compared.largest
        return not np.isfinite(largest) or (self.allowed is not None and largest > self.allowed)


def print_checked(rows: list[Checked], spec: ExampleSpec, console: Console) -> None:
    """Print the table of all files."""
    field = OBJECTIVES[spec.objective].field
    table = plain_table(
        format=FOLD, **dict.fromkeys(("size", field, "same", "max diff", "mean diff", "allowed"), RIGHT)
    )
    for row in rows:
        found = row.compared
        metric = f"{found.metric:.2%}" if field == "accuracy" else f"{found.metric:.5g}"
        same = "–" if found.same is None else f"{found.same:.2%}"
        allowed = "–" if row.allowed is None else f"{row.allowed:.1g}"
        largest = Text(f"{found.largest:.2g}", "red" if row.fails else "")
        table.add_row(row.name, megabytes(row.bytes), metric, same, largest, f"{found.mean:.1g}", allowed)
    console.print(table)


# Leave out the lines that converters print and nobody can act on, and the temporary files that they leave.

_NO_NEWS = (*NO_NEWS, "fully_quantize: ", "Created TensorFlow Lite XNNPACK delegate")


@contextmanager
def quietly() -> Iterator[None]:
    """Drop these lines and warnings in the block (.h5 is legacy, tf.lite goes to another package), and what is left behind.

    Keras and the converters have AutoGraph write modules into the temporary folder, whose compiled form nobody removes. So
    this process gets one of its own.
    """
    absl = logging.getLogger("absl")
    level, before = absl.level, tempfile.tempdir
    absl.setLevel(logging.ERROR)
    try:
        with (
            warnings.catch_warnings(action="ignore"),
            without_lines(_NO_NEWS),
            tempfile.TemporaryDirectory(prefix="ps-cluster-export-") as tempfile.tempdir,
        ):
            yield
    finally:
        tempfile.tempdir = before
        absl.setLevel(level)
