"""The command `ps-cluster predict`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from ps_cluster.cli.options import FOLDER, OUTPUT_FILE, OneOf, Whole, examples, option, trusted_code
from ps_cluster.report.terminal import print_note

FORMATS = ("table", "json", "csv")


@click.command(
    epilog=examples(
        "predict cat.png",
        "predict photos --run runs/mine --top 1 --format csv --output photos.csv",
        "predict rows.csv --run runs/mine",
    )
)
@click.argument("examples", nargs=-1, required=True, type=FOLDER, metavar="EXAMPLES...")
@option("--run", "run", type=FOLDER, help="The run directory; default: the one in runs/ with the newest model.")
@trusted_code
@option("--top", type=Whole(1, 2**16), default=3, help="How many classes are told of each example.")
@option("--format", "form", type=OneOf(FORMATS), default="table", help="How predictions are written.")
@option("--output", type=OUTPUT_FILE, metavar="FILE", help="The file to write; default: standard output.")
@option("--skip-bad", is_flag=True, help="Go on without pictures that can't be read, and name them.")
@option(
    "--data-dir",
    type=FOLDER,
    help="Take classes and columns from the data set there; default: as the run has kept them.",
)
def predict(
    examples: tuple[Path, ...],
    run: Path | None,
    top: int,
    form: str,
    output: Path | None,
    skip_bad: bool,
    data_dir: Path | None,
) -> None:
    """Predict with the best model of a run.

    EXAMPLES are pictures of any size, folders of pictures, arrays (.npy, .npz), or tables (.csv, .parquet) with the
    columns of the training.
    """
    from ps_cluster.system import environment

    os.environ.update(environment.for_tensorflow(os.environ))
    from ps_cluster.evaluation import predict as predicting
    from ps_cluster.evaluation.place import FinishedRun
    from ps_cluster.evaluation.predict import WRITERS

    found = FinishedRun.open(run, data_dir, print_note, needs_examples=False)
    count = predicting.predict(
        found, examples, writer=WRITERS[form], top=top, output=output, skip_bad=skip_bad, notify=print_note
    )
    if output:
        print_note(f"written: {output} ({count:,} {found.spec.unit})")
