"""The command `ps-cluster export`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from ps_cluster.cli.options import FOLDER, OUTPUT_FOLDER, CommaList, NameOf, Whole, examples, option, trusted_code
from ps_cluster.evaluation.export_formats import EXPORT_FORMATS
from ps_cluster.report.terminal import make_console, print_line


@click.command(
    epilog=examples(
        "export --run runs/mine",
        "export --run runs/mine --to keras,h5,savedmodel,tflite --output exported",
        "export --to onnx --check-examples 1000",
    )
)
@option("--run", "run", type=FOLDER, help="The run directory; default: the one in runs/ with the newest model.")
@trusted_code
@option(
    "--to",
    "names",
    type=CommaList(NameOf(EXPORT_FORMATS)),
    default="keras,savedmodel,tflite",
    metavar="FORMAT,…",
    help=f"The formats: {', '.join(f'{one.name} ({one.says})' for one in EXPORT_FORMATS)}.",
)
@option("--output", type=OUTPUT_FOLDER, help="A new folder for all files; default: export in the run directory.")
@option(
    "--check-examples", type=Whole(1, 2**31), default=10_000, help="Most test examples on which files are compared."
)
@option("--data-dir", type=FOLDER, help="Where the data set is; default: the copy that the run used.")
def export(
    run: Path | None, names: tuple[str, ...], output: Path | None, check_examples: int, data_dir: Path | None
) -> None:
    """Write the best model of a run for other programs, and check each file against the original."""
    from ps_cluster.system import environment

    os.environ.update(environment.for_tensorflow(os.environ))
    from ps_cluster.evaluation import export as exporting
    from ps_cluster.evaluation.export import own_temporary_folder, without_known_lines
    from ps_cluster.evaluation.place import FinishedRun

    found = FinishedRun.open(run, data_dir, print_line)
    target = output or found.run_dir.root / "export"
    formats = [EXPORT_FORMATS[name] for name in dict.fromkeys(names)]
    with without_known_lines(), own_temporary_folder():
        exporting.export(
            found, formats, target, check_examples=check_examples, notify=print_line, console=make_console()
        )
    print_line(f"written: {target}")
