"""The commands that use a trained network: `ps-cluster evaluate`, `predict` and `export`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from ps_cluster.cli.command_line import command, option
from ps_cluster.cli.command_line import examples as examples_of_use
from ps_cluster.cli.options import log_format_option, refuse_others, trusted_code
from ps_cluster.cli.value_types import (
    INPUT_PATH,
    OUTPUT_FILE,
    OUTPUT_FOLDER,
    PRINTED_FILE,
    STDOUT,
    CommaList,
    Integer,
    NameOf,
    Number,
    OneOf,
)
from ps_cluster.config import LONGEST_SECONDS
from ps_cluster.config.tasks import EVALUATOR, Task
from ps_cluster.errors import UserError
from ps_cluster.evaluation.export_formats import EXPORT_FORMATS
from ps_cluster.evaluation.text_sampling import Sampling
from ps_cluster.process_variables import set_log_task
from ps_cluster.report.terminal import make_console, print_line, print_note
from ps_cluster.system.environment import not_used, prepare_for_tensorflow

_run = option(
    "--run", "run", type=INPUT_PATH, help="The run directory; default: the one in runs/ with the newest model."
)
_data_dir = option("--data-dir", type=INPUT_PATH, help="Where the data set is; default: the copy that the run used.")


def _prepare_for_tensorflow() -> None:
    """Set environment variables before TensorFlow is imported. Raises UserError if Keras can't be imported."""
    for line in not_used(os.environ):
        print_note(line)
    prepare_for_tensorflow()


@command(
    epilog=examples_of_use(
        "evaluate --checkpoint-dir runs/mine",
        "evaluate --checkpoint-dir runs/mine --once",
        "evaluate --checkpoint-dir runs/mine/checkpoints --wait-seconds 60",
    )
)
@trusted_code
@option("--checkpoint-dir", type=INPUT_PATH, required=True, help="A run directory, or its checkpoints/ folder.")
@option("--once", is_flag=True, help="Score the newest checkpoint and return.")
@option(
    "--wait-seconds",
    type=Number(0, LONGEST_SECONDS),
    help="End after this many seconds without news from the training; default: 600.",
)
@log_format_option
@_data_dir
def evaluate(checkpoint_dir: Path, once: bool, wait_seconds: float | None, data_dir: Path | None) -> None:
    """Score each new checkpoint until training has ended."""
    if once and wait_seconds is not None:
        raise UserError("--wait-seconds: --once does not wait: leave one of them out")
    _prepare_for_tensorflow()
    set_log_task(str(Task(EVALUATOR, 0)))
    from ps_cluster.evaluation import evaluator
    from ps_cluster.evaluation.checkpoint_folder import CheckpointFolder
    from ps_cluster.files import locks
    from ps_cluster.report.drawing import try_to_draw_results

    patience_s = evaluator.PATIENCE_S if wait_seconds is None else wait_seconds
    evaluator.evaluate(checkpoint_dir, once=once, data_dir=data_dir, patience_s=patience_s, notify=print_line)
    run_dir = CheckpointFolder.of(Path(os.path.realpath(checkpoint_dir))).run_dir
    if run_dir.summary.is_file() and not locks.is_held(run_dir.root):  # the run has ended: its page gets the new score
        try_to_draw_results(run_dir, print_line)


@command(
    epilog=examples_of_use(
        "predict cat.png",
        "predict photos --run runs/mine --top 1 --format csv --output photos.csv",
        "predict rows.csv --run runs/mine",
        "predict --prompt 'def main(' --length 300 --run runs/text",
    )
)
@click.argument("examples", nargs=-1, type=INPUT_PATH, metavar="EXAMPLES...")
@_run
@trusted_code
@option("--top", type=Integer(1, 2**16), default=3, help="How many classes are shown for each example.")
@option("--format", "form", type=OneOf(("table", "json", "csv")), default="table", help="How predictions are written.")
@option("--output", type=PRINTED_FILE, metavar="FILE", help="The file to write; default, or -: standard output.")
@option("--skip-bad", is_flag=True, help="Skip pictures that can't be read, and report each in a notice.")
@option("--prompt", metavar="TEXT", help="The beginning of a text, which a network for text continues.")
@option("--length", type=Integer(1, 100_000), default=Sampling.length, help="Add at most this many bytes to a text.")
@option(
    "--temperature",
    type=Number(0, 100),
    default=Sampling.temperature,
    help="0: take the likeliest byte; 1: draw bytes by their probability.",
)
@option("--seed", type=Integer(0, 2**31), default=Sampling.seed, help="Seed with which bytes are drawn.")
@option(
    "--data-dir",
    type=INPUT_PATH,
    help="Take the names of classes and columns from the data set in this folder; default: those that the run keeps.",
)
@click.pass_context
def predict(
    context: click.Context,
    /,
    examples: tuple[Path, ...],
    run: Path | None,
    top: int,
    form: str,
    output: Path | None,
    skip_bad: bool,
    prompt: str | None,
    length: int,
    temperature: float,
    seed: int,
    data_dir: Path | None,
) -> None:
    """Predict with the best model of a run.

    EXAMPLES are pictures of any size, folders of pictures, arrays (.npy, .npz), or tables (.csv, .tsv, .parquet) with the
    columns of the training. A network for text continues the text of each file, and the text of --prompt.
    """
    if not examples and prompt is None:
        raise UserError("EXAMPLES: there are none: name pictures, arrays, tables or texts, or give --prompt TEXT")
    output = None if output == STDOUT else output
    _prepare_for_tensorflow()
    from ps_cluster.evaluation.answers import WRITERS
    from ps_cluster.evaluation.predict import predict as write_predictions
    from ps_cluster.evaluation.predictor import TrainedRun

    found = TrainedRun.open(run, data_dir, print_note, needs_examples=False)
    if found.spec.is_text:
        from ps_cluster.evaluation.continuing import continue_texts

        for_texts = ("examples", "run", "form", "output", "prompt", "length", "temperature", "seed", "data_dir")
        refuse_others(context, *for_texts, because="the network of this run continues texts")
        sampling = Sampling(length, temperature, seed)
        count = continue_texts(found, examples, prompt, sampling, writer=WRITERS[form], output=output)
    else:
        allowed = ("examples", "run", "top", "form", "output", "skip_bad", "data_dir")
        refuse_others(context, *allowed, because=f"the network of this run takes {found.spec}, not text")
        count = write_predictions(
            found, examples, writer=WRITERS[form], top=top, output=output, skip_bad=skip_bad, notify=print_note
        )
    if output:
        print_note(f"written: {output} ({count:,} {found.spec.unit})")


def _check_output(context: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
    """Return the path that `export` writes to, a file or a folder. Refuse a path that can't be written."""
    kind = OUTPUT_FOLDER if context.params["changed_since"] is None else OUTPUT_FILE
    return None if path is None else kind.convert(path, parameter, context)


@command(
    epilog=examples_of_use(
        "export --run runs/mine",
        "export --run runs/mine --to keras,h5,savedmodel,tflite --output exported",
        "export --to onnx --check-examples 1000",
        "export --run runs/clicks --changed-since 1200 --output rows.npz",
    )
)
@_run
@trusted_code
@option(
    "--changed-since",
    type=Integer(0, 2**62),
    metavar="STEP",
    is_eager=True,  # with this option, `--output` is a file
    help="Write only the rows of embedding tables that have changed since this step, to the .npz file --output.",
)
@option(
    "--to",
    "names",
    type=CommaList(NameOf(EXPORT_FORMATS)),
    default="keras,savedmodel,tflite",
    metavar="FORMAT,…",
    help=f"The formats: {', '.join(f'{one.name} ({one.title})' for one in EXPORT_FORMATS)}.",
)
@option(
    "--output",
    type=INPUT_PATH,
    callback=_check_output,
    help="A new folder for all files; default: export/ in the run directory. With --changed-since: a new file.",
)
@option(
    "--check-examples",
    type=Integer(1, 2**31),
    default=10_000,
    help="Compare each file with the original model on at most this many test examples.",
)
@_data_dir
@click.pass_context
def export(
    context: click.Context,
    /,
    run: Path | None,
    changed_since: int | None,
    names: tuple[str, ...],
    output: Path | None,
    check_examples: int,
    data_dir: Path | None,
) -> None:
    """Write the best model of a run for other programs, and check each file against the original."""
    if changed_since is not None:
        refuse_others(
            context, "run", "changed_since", "output", "data_dir", because="--changed-since writes only rows of tables"
        )
        if run is None or output is None:
            raise UserError("--changed-since: it needs a run and a file: --run RUN_DIR --output rows.npz")
        _prepare_for_tensorflow()
        from ps_cluster.evaluation.changed_rows import export_changed_rows

        export_changed_rows(run, changed_since, output, data_dir, print_line)
        print_line(f"written: {output}")
        return
    _prepare_for_tensorflow()
    from ps_cluster.evaluation import export as exporting
    from ps_cluster.evaluation.predictor import TrainedRun

    found = TrainedRun.open(run, data_dir, print_line)
    target = output or found.run_dir.root / "export"
    formats = [EXPORT_FORMATS[name] for name in dict.fromkeys(names)]
    with exporting.quiet_converters():
        exporting.export(
            found, formats, target, check_examples=check_examples, notify=print_line, console=make_console()
        )
    print_line(f"written: {target}")
