"""Print the table at the end of a run's output, from its summary and its directory. Imports no TensorFlow."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator

from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from ps_cluster.config.sections import CHOICES, flat
from ps_cluster.config.tasks import CHIEF
from ps_cluster.files.values import with_noun
from ps_cluster.files.yaml_files import read_yaml
from ps_cluster.installation import PROGRAM
from ps_cluster.notices import LogLine
from ps_cluster.report.facts import facts_of, number
from ps_cluster.report.terminal import FOLD, LEFT, RIGHT, facts_table, megabytes, plain_table
from ps_cluster.runs import checkpoints
from ps_cluster.runs.logs import RUN_ENDED
from ps_cluster.runs.result_rows import Summary, TimeLimitReached
from ps_cluster.runs.run_dir import RunDir

WIDE = 80  # the fewest columns of a terminal that has room for addresses

# The labels of the lines that point to files of the run.
RUN_DIRECTORY, BEST_MODEL, RESULTS, CURVES = "run directory", "best model", "results", "curves"
SCORE_IT, CONTINUE = "score it", "continue"
LABELS_OF_FILES = (RUN_DIRECTORY, BEST_MODEL, RESULTS, CURVES, SCORE_IT, CONTINUE)


def print_numbers(summary: Summary, console: Console) -> None:
    """Print a run's outcome, its scores and counts, and the evidence that several processes did the work."""
    console.print()
    console.print(Padding(facts_table(facts_of(summary)), (0, 1)))
    if summary.workers or summary.parameter_servers:
        console.print()
        console.print(Padding(_tasks(summary, addresses=console.width >= WIDE), (0, 1)))
        console.print(f" {evidence(summary)}", style="bold", highlight=False)


def print_places(summary: Summary, run_dir: RunDir, console: Console) -> None:
    """Print the paths of the run's files, and the commands that complete an unfinished run."""
    console.print()
    for line in (*_places(run_dir), *_next_commands(summary, run_dir)):
        # A terminal of any width gets each line unbroken, so that the line can be copied.
        console.print(line, soft_wrap=True, highlight=False)


def as_line(summary: Summary) -> LogLine:
    """Return the line of the log with the outcome, the counts of updates and the last score of a run."""
    fields = summary.model_dump(mode="json", include={"outcome", "train_seconds", "wall_seconds", "goodput", "updates"})
    scored = summary.evaluation.model_dump(mode="json", exclude={"history"}, exclude_none=True)
    line = f"the run has ended: {summary.outcome}, {number(summary.updates.applied)} updates"
    return RUN_ENDED(line, **fields, evaluation=scored, proof_holds=summary.proof and summary.proof.holds)


def evidence(summary: Summary) -> str:
    """Return a sentence with the number of processes whose updates were applied.

    An example is `3 distinct worker processes did the work (3 workers)`.
    """
    alone = summary.trainer == CHIEF
    kind, started = ("", "no cluster") if alone else ("worker ", with_noun(len(summary.workers), "worker"))
    processes = with_noun(summary.worker_processes or 0, f"distinct {kind}process", f"distinct {kind}processes")
    restarts = sum(worker.restarts for worker in summary.workers)
    again = f", {restarts} started again" if restarts else ""
    return f"{processes} did the work ({started}{again})"


def _tasks(summary: Summary, *, addresses: bool) -> Table:
    numbers = dict.fromkeys(("pid", "updates", summary.unit, "restarts"), RIGHT)
    table = plain_table(task=LEFT, **numbers, **({"address": FOLD} if addresses else {}))
    for worker in summary.workers:
        counts = map(number, (worker.updates, worker.examples, worker.restarts))
        name = CHIEF if summary.trainer == CHIEF else f"worker {worker.index}"
        table.add_row(name, str(worker.pid), *counts, *([worker.address or "–"] if addresses else []))
    for server in summary.parameter_servers:
        holds = f"{server.address or '–'}, holds {number(server.parameters)} parameters"
        if server.pushed_bytes is not None and server.pulled_bytes is not None:
            holds += f", got {megabytes(server.pushed_bytes)}, sent {megabytes(server.pulled_bytes)}"
        cells = (f"ps {server.index}", str(server.pid or "–"), "", "", number(server.restarts))
        table.add_row(*cells, *([holds] if addresses else []))
    return table


def _places(run_dir: RunDir) -> Iterator[str]:
    yield _labelled(RUN_DIRECTORY, f"{run_dir.root}")
    if run_dir.best_model.is_file():
        yield _labelled(BEST_MODEL, f"{run_dir.best_model}")
    if run_dir.results_page.is_file():
        yield _labelled(RESULTS, f"{run_dir.results_page}")
    if run_dir.tensorboard.is_dir():
        yield _labelled(CURVES, f"tensorboard --logdir {shlex.quote(str(run_dir.tensorboard))}")


def _next_commands(summary: Summary, run_dir: RunDir) -> Iterator[str]:
    """Yield the commands that score an unscored last checkpoint, and that continue an incomplete run."""
    root, last_step = shlex.quote(str(run_dir.root)), 0
    with contextlib.suppress(checkpoints.CheckpointError):
        ended = checkpoints.ended(run_dir.checkpoints)
        last_step = ended.last_step if ended else 0
    if (summary.evaluation.step or 0) < last_step:
        yield _labelled(SCORE_IT, f"{PROGRAM} evaluate --checkpoint-dir {root}{_code(run_dir)}")
    if summary.outcome in ("stopped", "failed") and any(map(checkpoints.steps, run_dir.states)):
        longer = " --max-seconds SECONDS" if isinstance(summary.early_stop, TimeLimitReached) else ""
        yield _labelled(CONTINUE, f"{PROGRAM} run --resume {root}{_code(run_dir)}{longer}")


def _labelled(label: str, text: str) -> str:
    return f" {label:<15}{text}"


def points_to_files(line: str) -> bool:
    """Return whether a line names files of the run. The line is a notice or comes from the closing table."""
    labels = tuple(f" {label} " for label in LABELS_OF_FILES)
    return line.startswith(labels) or line.partition("] ")[2].startswith(LABELS_OF_FILES)


def _code(run_dir: RunDir) -> str:
    """Return the options `--code` that permit running the code files that the configuration names."""
    settings = flat(read_yaml(run_dir.config))
    chosen = ((choice.kinds, settings.get(choice.setting)) for choice in CHOICES)
    files = dict.fromkeys(
        str(file) for kinds, name in chosen if isinstance(name, str) and (file := kinds.code_of(name))
    )
    return "".join(f" --code {shlex.quote(file)}" for file in files)
