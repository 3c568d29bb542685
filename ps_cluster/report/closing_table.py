"""Print the end of a run for a person, and draw its results, from summary.json and the run directory. No TensorFlow."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ps_cluster.config.sections import CHOSEN, flat
from ps_cluster.config.tasks import CHIEF
from ps_cluster.errors import UserError
from ps_cluster.files import untrusted
from ps_cluster.files.json_files import Json, read_json
from ps_cluster.files.json_rows import last_row
from ps_cluster.files.values import one_line
from ps_cluster.files.yaml_files import read_yaml
from ps_cluster.installation import PROGRAM
from ps_cluster.report.progress import real
from ps_cluster.report.terminal import FOLD, LEFT, RIGHT, facts_table, plain_table
from ps_cluster.runs import checkpoints
from ps_cluster.runs.logs import RUN_ENDED, LogLine
from ps_cluster.runs.result_rows import BROKEN, ProgressRow, Summary, told
from ps_cluster.runs.run_dir import RunDir

BARS = "▁▂▃▄▅▆▇█"
HISTOGRAM_COLUMNS = 24
WIDE = 80  # columns from which addresses have room
MOST_SETTINGS, MOST_OF_A_VALUE = 8, 48
MOST_EPOCHS = 6  # that have no score
MOST_CHANGES = 3  # of the number of workers
_TOLD_ALREADY = {"model.name", "model.precision", "mode.name", "training.seed", "data.dataset"}  # in the rows above
_COLOURS = {"completed": "bold green", "stopped": "bold yellow"} | dict.fromkeys((*BROKEN, "failed"), "bold red")


def print_closing_table(summary: Json, run_dir: RunDir, console: Console) -> None:
    """Print the outcome, numbers, evidence that several processes did the work, and where the files are."""
    print_numbers(summary, console)
    print_places(summary, run_dir, console)


def print_numbers(summary: Json, console: Console) -> None:
    """Print the outcome, numbers, and evidence that several processes did the work."""
    console.print()
    console.print(Padding(facts_table(facts_of(summary)), (0, 1)))
    if summary["workers"] or summary["parameter_servers"]:
        console.print()
        console.print(Padding(_tasks(summary, addresses=console.width >= WIDE), (0, 1)))
        console.print(f" {evidence(summary)}", style="bold", highlight=False)


def as_line(summary: Json) -> LogLine:
    """Return the outcome, the counts of updates and the last score as one line."""
    scored = {name: value for name, value in summary["evaluation"].items() if name != "history" and value is not None}
    updates = summary["updates"]
    told = {name: summary[name] for name in ("outcome", "train_seconds", "wall_seconds", "goodput")}
    holds = summary["proof"] and summary["proof"]["holds"]
    line = f"the run has ended: {summary['outcome']}, {number(updates['applied'])} updates"
    return RUN_ENDED(line, **told, updates=updates, evaluation=scored, proof_holds=holds)


def print_places(summary: Json, run_dir: RunDir, console: Console) -> None:
    """Print where the files are, and the commands that finish what was left open."""
    console.print()
    for line in (*_places(run_dir), *_next_commands(summary, run_dir)):
        # Each is one unbroken line at any width, so that it can be copied.
        console.print(line, soft_wrap=True, highlight=False)


def evidence(summary: Json) -> str:
    """Return `3 distinct worker processes did the work`, counted from the pids whose updates were applied."""
    count, workers = summary["worker_processes"] or 0, len(summary["workers"])
    ending, plural = "es" * (count != 1), "s" * (workers != 1)
    restarts = sum(worker["restarts"] for worker in summary["workers"])
    again = f", {restarts} started again" if restarts else ""
    alone = summary["trainer"] == CHIEF
    kind, crew = ("", "no cluster") if alone else ("worker ", f"{workers} worker{plural}")
    return f"{count} distinct {kind}process{ending} did the work ({crew}{again})"


def histogram_bars(histogram: Mapping[str, int]) -> str:
    """Return a bar for each staleness from 0 to the highest, e.g. `▁█▄▁`; wide ranges share bars."""
    counts = {int(value): count for value, count in histogram.items()}
    if not counts:
        return ""
    per_bar = -(-(max(counts) + 1) // HISTOGRAM_COLUMNS)
    sums = [0] * (max(counts) // per_bar + 1)
    for value, count in counts.items():
        sums[value // per_bar] += count
    # A count of 0 is a space; the smallest other count still shows.
    return "".join(BARS[round(n / max(sums) * (len(BARS) - 1))] if n else " " for n in sums)


def number(value: float | None, spec: str = ",d") -> str:
    return "–" if value is None else f"{value:{spec}}"


def facts_of(summary: Json) -> Iterator[tuple[str, Text | str]]:
    """Yield label and text of the numbers of a run."""
    evaluation, updates = summary["evaluation"], summary["updates"]
    yield (
        "run",
        Text(summary["outcome"], _COLOURS.get(summary["outcome"], "bold"))
        + Text(
            f"   {summary['model']} · {summary['precision']} · {summary['mode']} · seed {summary['seed']}", "default"
        ),
    )
    yield "data", _data(summary)
    yield "settings", _settings(summary["settings"])
    if notice := summary["network"]["notice"]:
        yield "network", Text(notice, "yellow")
    metric = "accuracy" if evaluation["test_error"] is None else "error"
    if evaluation["best_chosen_on"] == "validation":
        yield f"validation {metric}", _validation_score(evaluation)
    yield f"test {metric}", _score(evaluation, updates["applied"], summary["unit"])
    if lacking := evaluation["epochs_not_scored"]:
        yield "not scored", Text(_not_scored(lacking), "yellow")
    if warning := _warning(summary):
        yield "WARNING", Text(warning, "bold red")
    yield "speed", f"{number(summary['examples_per_second'], ',.0f')} {summary['unit']}/s"
    yield "time", _time(summary)
    if summary["scaled"]:
        rows = summary["scaled"]
        more = [f"{len(rows) - MOST_CHANGES} earlier"] if len(rows) > MOST_CHANGES else []
        last = [f"{row['before']} → {row['workers']} at update {row['applied']:,}" for row in rows[-MOST_CHANGES:]]
        yield "workers", " · ".join([*more, *last])
    yield "updates", _ledger(updates)
    if proof := summary["proof"]:
        rows = " + ".join(f"{part['rows']:,}" for part in proof["slices"])
        again = proof["recomputed"]
        agree = f"holds: {rows} rows agree with versions and gradients accepted; no step twice; "
        if again["updates"]:
            agree += f"{again['updates']} of {again['of']:,} updates were computed again outside the cluster and agree"
        else:
            agree += "no update was computed again outside the cluster"
        yield "proof", agree if proof["holds"] else Text(f"FAILS: {proof['problems'][0]}", "bold red")
    if summary["gradients"]["dropped"]:
        gradients = summary["gradients"]
        counts = " · ".join(f"{number(gradients[name])} {name}" for name in ("scheduled", "applied", "dropped"))
        each = gradients["applied"] / updates["applied"] if updates["applied"] else 0
        yield "gradients", f"{counts} (late; {each:.3g} to an update)"
    if summary["parameter_servers"]:  # without them all gradients are of the newest parameters
        stale = summary["staleness"]
        yield (
            "staleness",
            "–"
            if stale["mean"] is None
            else f"mean {stale['mean']:.2f} · median {stale['p50']} · 95 % up to {stale['p95']} · max {stale['max']}   "
            f"0 {histogram_bars(stale['histogram'])} {stale['max']}",
        )


def _data(summary: Json) -> Text:
    if summary["dataset_kind"] == "synthetic":
        return Text(" SYNTHETIC ", "bold black on yellow") + Text(
            f" generated {summary['unit']}: no number here says anything about {real(summary['dataset'])}", "yellow"
        )
    return Text(f"{summary['dataset']} ({summary['dataset_kind'] or 'kind unknown'})")


def _settings(settings: Json) -> str:
    """Return the settings that differ from the defaults, as `--set` takes them; of many the first, and a count."""
    texts = [
        f"{key}={one_line(value if isinstance(value, str) else json.dumps(value), MOST_OF_A_VALUE)}"
        for key, value in settings.items()
        if key not in _TOLD_ALREADY
    ]
    more = [f"and {len(texts) - MOST_SETTINGS} more in config.yaml"] if len(texts) > MOST_SETTINGS else []
    return " · ".join([*texts[:MOST_SETTINGS], *more]) or "all others as by default"


def _not_scored(epochs: Sequence[float]) -> str:
    """Return which epochs have no score, and what may be the reason."""
    named = ", ".join(f"{epoch:g}" for epoch in epochs[:MOST_EPOCHS])
    more = f" and {len(epochs) - MOST_EPOCHS:,} more" if len(epochs) > MOST_EPOCHS else ""
    is_one = len(epochs) == 1
    says = (
        "has no score: its checkpoint was not written, or was removed before it was scored"
        if is_one
        else "have no score: their checkpoints were not written, or were removed before they were scored"
    )
    return f"epoch{'s' * (not is_one)} {named}{more} {says}; a larger checkpoints.every_epochs asks for fewer"


def _validation_score(evaluation: Json) -> Text:
    """Return the metric on held-out examples, by which the best model is chosen."""
    last, best = (_value(evaluation, name) for name in ("validation", "best_validation"))
    text = Text(last, "bold") + Text(f" at step {evaluation['step']:,}", "default")
    if evaluation["best_step"] == evaluation["step"]:
        return text + Text(", the best", "default")
    return text + Text(
        f" · best {best} at step {evaluation['best_step']:,}" if evaluation["best_step"] else "", "default"
    )


def _value(evaluation: Json, name: str) -> str:
    """Return a metric of an evaluation in words. `name`: of its examples, e.g. "best_test"."""
    words = told(evaluation[f"{name}_accuracy"], evaluation[f"{name}_error"])
    return words.split(" ", 1)[1] if words else "not a finite number"


def _score(evaluation: Json, last_step: int, unit: str) -> Text:
    """Return the metric and its step; a step before the last one is pointed out."""
    if evaluation["step"] is None:
        return Text("not measured: no checkpoint was scored", "yellow")
    text = Text(_value(evaluation, "test"), "bold") + Text(f" at step {evaluation['step']:,}", "default")
    if evaluation["augmented_test_accuracy"] is not None:
        text.append(f" · {evaluation['augmented_test_accuracy']:.2%} over six views of each image")
    if evaluation["best_step"] not in (None, evaluation["step"]):
        best = f"{_value(evaluation, 'best_test')} at step {evaluation['best_step']:,}"
        held_out = evaluation["best_chosen_on"] == "validation"
        text.append(f" · {best}, the best on {unit} held out" if held_out else f" · best {best}, chosen on test {unit}")
    if evaluation["step"] < last_step:
        text.append(f"\nNOT THE LAST: step {last_step:,} is not scored yet", "yellow")
    return text


def _warning(summary: Json) -> str:
    """Return why the numbers of a run are not those of a training that works; nothing where they may be."""
    page, bad, total = "docs/extending.md#if-it-does-not-learn", summary["bad_losses"], summary["updates"]["applied"]
    if summary["outcome"] == "diverged":
        return f"diverged: weights are NaN or infinite, and training was stopped. {page}"
    if summary["outcome"] == "nan_loss":
        return f"the loss was NaN or infinite in every step: no number here says that anything was learned. {page}"
    if few := summary["too_few_examples"]:
        return (
            f"{few:,} test {summary['unit']} are too few to tell whether it is better than guessing: score it on more, or "
            f"let several runs agree. {page}"
        )
    if summary["learned"] is False:
        guess = told(
            *((summary["guess"], None) if summary["evaluation"]["test_error"] is None else (None, summary["guess"]))
        )
        hint = f" {summary['few_updates'].capitalize()}." if summary["few_updates"] else ""
        return f"not better than guessing, which has {guess}: nothing was learned.{hint} {page}"
    return f"the loss was NaN or infinite in {bad:,} of {total:,} updates. {page}" if bad else ""


def _ledger(updates: Json) -> Text:
    text = Text()
    wrong = {"duplicated", "lost"}
    for name, count in updates.items():
        text.append("\n" if name == "duplicated" else " · " if text else "")
        text.append(f"{number(count)} {name.replace('_', ' ')}", "bold red" if name in wrong and count else "default")
    return text


def _time(summary: Json) -> str:
    """Return the seconds of training and of the command; for a resumed run on separate lines."""
    training = f"{number(summary['train_seconds'], '.1f')} s training"
    command = (
        f"{number(summary['startup_seconds'], '.1f')} s start-up · {number(summary['wall_seconds'], '.1f')} s in all"
    )
    if summary["sessions"] == 1:
        return f"{training} · {command}{_in_vain(summary)}"
    mine = f"since the last resume: {number(summary['session_train_seconds'], '.1f')} s training · {command}"
    return f"{training} over {summary['sessions']} sessions{_in_vain(summary)}\n{mine}"


def _in_vain(summary: Json) -> str:
    """Return the training time lost to faults; empty if none."""
    rolled_back, interrupted = summary["rolled_back_seconds"], summary["interrupted_seconds"]
    if not rolled_back and not interrupted:
        return ""
    return (
        f"\nof the training {rolled_back:.1f} s were rolled back and {interrupted:.1f} s without an update: "
        f"goodput {number(summary['goodput'], '.1%')}"
    )


def _tasks(summary: Json, *, addresses: bool) -> Table:
    numbers = dict.fromkeys(("pid", "updates", summary["unit"], "restarts"), RIGHT)
    table = plain_table(task=LEFT, **numbers, **({"address": FOLD} if addresses else {}))
    for worker in summary["workers"]:
        counts = (number(worker[name]) for name in ("updates", "examples", "restarts"))
        address = [worker["address"] or "–"] if addresses else []
        name = CHIEF if summary["trainer"] == CHIEF else f"worker {worker['index']}"
        table.add_row(name, str(worker["pid"]), *counts, *address)
    for server in summary["parameter_servers"]:
        holds = f"{server['address'] or '–'}, holds {number(server['parameters'])} parameters"
        if server["pushed_bytes"] is not None:
            holds += f", got {_megabytes(server['pushed_bytes'])}, sent {_megabytes(server['pulled_bytes'])}"
        pid = str(server["pid"] or "–")
        table.add_row(f"ps {server['index']}", pid, "", "", number(server["restarts"]), *([holds] if addresses else []))
    return table


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"


def _places(run_dir: RunDir) -> Iterator[str]:
    yield f" run directory  {run_dir.root}"
    if run_dir.best_model.is_file():
        yield f" best model     {run_dir.best_model}"
    if run_dir.results_page.is_file():
        yield f" results        {run_dir.results_page}"
    if run_dir.tensorboard.is_dir():
        yield f" curves         tensorboard --logdir {shlex.quote(str(run_dir.tensorboard))}"


def _next_commands(summary: Json, run_dir: RunDir) -> Iterator[str]:
    """Yield the commands that finish what this run left open."""
    root = shlex.quote(str(run_dir.root))
    last_step = 0
    with contextlib.suppress(checkpoints.CheckpointError):
        ended = checkpoints.ended(run_dir.checkpoints)
        last_step = ended.last_step if ended else 0
    if (summary["evaluation"]["step"] or 0) < last_step:
        yield f" score it       {PROGRAM} evaluate --checkpoint-dir {root}{_code(run_dir)}"
    if summary["outcome"] in ("stopped", "failed") and any(map(checkpoints.steps, run_dir.states)):
        yield f" go on          {PROGRAM} run --resume {root}{_code(run_dir)}"


def _code(run_dir: RunDir) -> str:
    """Return the options that let the files be run that the configuration names."""
    settings = flat(read_yaml(run_dir.config))
    chosen = ((kinds, settings.get(f"{section}.{key}")) for section, (key, kinds) in CHOSEN.items())
    files = dict.fromkeys(
        str(file) for kinds, name in chosen if isinstance(name, str) and (file := kinds.code_of(name))
    )
    return "".join(f" --code {shlex.quote(file)}" for file in files)


# Draw the results of a run when it has ended, if there is anything to draw. matplotlib is imported only then.

NOT_SCORED = "no results: no checkpoint was scored"

Notify = Callable[[str], None]


def try_to_draw_results(run_dir: RunDir, notify: Notify) -> None:
    """Draw the results at the end of a run. If that fails the run has not: it is one notice, whatever the reason."""
    try:
        draw_results(run_dir, notify)
    except (Exception, KeyboardInterrupt) as error:
        why = one_line(str(error), 300) or type(error).__name__
        notify(
            f"the results are not drawn ({why}); to try again: {PROGRAM} runs show {shlex.quote(str(run_dir.root))} --page"
        )


def draw_results(run_dir: RunDir, notify: Notify) -> None:
    """Write results/ of a run that has ended, or say that it has none.

    Raises:
      UserError: there is no summary, it is damaged, or the folder belongs to another user.
      OSError: the disk is full or refuses.
    """
    untrusted.refuse_foreign(run_dir.root)
    untrusted.check_way(run_dir.results, "folder of the run")
    try:
        summary = read_json(run_dir.summary, Summary)
    except FileNotFoundError as error:
        raise UserError(f"'{run_dir.summary}' is not there: results are drawn when the run has ended") from error
    # Of a run that did not complete at least the curves of its training are drawn.
    last = last_row(run_dir.progress, ProgressRow)
    has_curves = summary.outcome != "completed" and last is not None and last.applied > 0
    if not summary.evaluation.history and not has_curves:
        notify(NOT_SCORED)
        return
    from ps_cluster.report.results import write_results  # matplotlib takes half a second to import

    write_results(run_dir, summary, notify)
