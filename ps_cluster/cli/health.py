"""The command `ps-cluster health`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ps_cluster.cli.options import FAILED, FOLDER, Number, OneOf, Whole, examples, option
from ps_cluster.config import LONGEST_SECONDS
from ps_cluster.config.modes import EVALUATOR, TRAINING_TYPES, Task
from ps_cluster.errors import UserError
from ps_cluster.report.terminal import print_line


@click.command(
    epilog=examples(
        "health runs/mine",
        "health shared/run --type worker --index 1 --probe live",
        "health shared/run --type chief --index 0 --max-age 120 --json",
    )
)
@click.argument("run_dir", type=FOLDER)
@option("--type", "kind", type=OneOf((*TRAINING_TYPES, EVALUATOR)), help="Ask about one task: its type.")
@option("--index", type=Whole(0), help="Ask about one task: which of its type, from 0.")
@option(
    "--probe",
    type=OneOf(("live", "ready")),
    default="ready",
    help="live: the process is there, its port is open, the leader writes; ready: also, training goes on.",
)
@option(
    "--max-age",
    type=Number(0, LONGEST_SECONDS),
    default=60.0,
    help="Seconds after which a leader without a sign, or a training without an update, counts as bad.",
)
@option(
    "--max-save-age",
    type=Number(0, LONGEST_SECONDS),
    help="Seconds after which the newest checkpoint or snapshot is too old; default: no limit.",
)
@option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
def health(
    run_dir: Path,
    kind: str | None,
    index: int | None,
    probe: str,
    max_age: float,
    max_save_age: float | None,
    as_json: bool,
) -> int:
    """Say whether a run, or one task of it, lives and makes progress: for probes.

    Exit code 0 if so, 1 if not. Call it where the run or the task is: on its machine, in its container.
    """
    from ps_cluster.report import health as answers

    if (kind is None) != (index is None):
        raise UserError("--type, --index: give both, or none of them")
    task = None if kind is None or index is None else Task(kind, index)
    answer = answers.ask(run_dir, answers.PROBES[probe], task, answers.Bounds(max_age, max_save_age))
    if as_json:
        print(json.dumps(answer.to_json()))
    else:
        print_line(answer.line)
    return 0 if answer.good else FAILED
