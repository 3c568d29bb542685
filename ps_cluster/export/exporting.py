"""Write the best model of a run in several formats, load each again, and compare it with the original."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from ps_cluster import __version__
from ps_cluster.catalogue.networks import NETWORKS
from ps_cluster.errors import RunFailed, UserError
from ps_cluster.export.checking import Checked, compare, print_checked
from ps_cluster.export.export_format import Exported, ExportFormat, spaced
from ps_cluster.files import ownership
from ps_cluster.files.plain_text import one_line
from ps_cluster.files.writing import folder_beside, write_json
from ps_cluster.prediction.finished_run import FinishedRun
from ps_cluster.prediction.predictor import Predictor

REPORT = "export.json"
T = TypeVar("T")


def export(
    run: FinishedRun,
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
    ownership.check_folder(output, "export folder", notify)
    check_unused(output)
    for one in formats:
        one.check(run.spec)
    with folder_beside(output) as folder:
        original = Predictor(run)
        exported = Exported(run, original.model)
        for one in formats:
            notify(f"writing {one.says}")
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
        write_json(folder / REPORT, _report(run, count, checked))


def check_unused(output: Path) -> None:
    """Raise UserError where there is something at `output`."""
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(f"--output: '{output}' exists and is not empty: name another, or remove it")


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
    allowed = {one.name: one.tolerance and one.tolerance * _unit(run) for one in formats}
    compared = compare(run.dataset, original, functions, most)
    return [Checked(name, file.name, _bytes(file), compared[name], allowed.get(name)) for name, file in files.items()]


def _unit(run: FinishedRun) -> float:
    """Return what a difference is measured in: 1 for probabilities, the target's deviation for a regression."""
    return 1.0 if run.spec.classes else max(run.spec.target.std, default=1.0) or 1.0


def _bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file())


def _trying(one: ExportFormat, what: str, work: Callable[[Exported, Path], T], exported: Exported, path: Path) -> T:
    """Return what `work` returns. Raises RunFailed, with the format, for what a converter can't do."""
    try:
        return work(exported, path)
    except (UserError, OSError):
        raise
    except Exception as error:  # converters raise almost any
        raise RunFailed(
            f"{one.name}: the model can't be {what} ({type(error).__name__}: {one_line(str(error), 500)}): leave it out of --to"
        ) from error


def _report(run: FinishedRun, count: int, checked: Sequence[Checked]) -> dict[str, Any]:
    spec = run.spec
    return {
        "schema": 1,
        "run": str(run.run_dir.root),
        "model": run.config.model.name,
        "dataset": run.dataset.name,
        "objective": spec.objective,
        "inputs": {name: {"dtype": field.dtype, "shape": list(field.shape)} for name, field in spec.inputs.items()},
        "classes": list(spec.classes),
        "test_examples": count,
        "versions": {"ps-cluster": __version__, "keras": version("keras")},
        "compared": [asdict(row) for row in checked],
    }
