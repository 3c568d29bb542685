"""Describe a finished run by pairs of a label and a text, for the closing table and the page of results."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from pydantic import JsonValue
from rich.text import Text

from ps_cluster.config.networks import NETWORKS
from ps_cluster.files.values import one_line, with_noun
from ps_cluster.report.run_state import real_counterpart
from ps_cluster.runs.result_rows import (
    BROKEN,
    EvaluationSummary,
    MetricText,
    Proof,
    Summary,
    Updates,
    metric_text,
    named_values,
)

BARS = "▁▂▃▄▅▆▇█"
HISTOGRAM_COLUMNS = 24
MOST_SETTINGS, MOST_OF_A_VALUE = 8, 48  # the most settings that are shown, and the most characters of a value
MOST_EPOCHS = 6  # the most epochs without a score that are listed
MOST_CHANGES = 3  # the most changes of the number of workers that are listed
AS_USUAL_POINTS = 1.0  # accuracies that differ by less, in percentage points, are reported as equal
_IN_OTHER_ROWS = {"model.name", "model.precision", "mode.name", "training.seed", "data.dataset"}
_COLOURS = {"completed": "bold green", "stopped": "bold yellow"} | dict.fromkeys((*BROKEN, "failed"), "bold red")


def facts_of(summary: Summary) -> Iterator[tuple[str, Text | str]]:
    """Yield the label and the text of each fact about a run, e.g. "time" and "61.0 s training · …"."""
    evaluation, updates = summary.evaluation, summary.updates
    model = f"   {summary.model} · {summary.precision} · {summary.mode} · seed {summary.seed}"
    yield "run", Text(summary.outcome, _COLOURS[summary.outcome]) + Text(model, "default")
    yield "data", _data(summary)
    yield "settings", _settings(summary.settings)
    if summary.network.notice:
        yield "network", Text(summary.network.notice, "yellow")
    metric = "accuracy" if evaluation.test_error is None else "error"
    if evaluation.best_chosen_on == "validation":
        yield f"validation {metric}", _validation_score(evaluation)
    yield f"test {metric}", _test_score(evaluation, updates.applied, summary.unit)
    if usual := _usual_score(summary):
        yield "usual score", usual
    if further := named_values(evaluation.compiled | evaluation.metrics):
        yield "test metrics", f"{' · '.join(further)} at step {evaluation.step:,}"
    if evaluation.best_step is not None and evaluation.monitor:
        yield "best model", _best_model(evaluation)
    if summary.early_stop:
        yield "stopped early", summary.early_stop.line
    if evaluation.epochs_not_scored:
        yield "not scored", Text(_not_scored(evaluation.epochs_not_scored), "yellow")
    if warning := _warning(summary):
        yield "WARNING", Text(warning, "bold red")
    yield "speed", f"{number(summary.examples_per_second, ',.0f')} {summary.unit}/s"
    yield "time", _time(summary)
    if summary.scaled:
        earlier = len(summary.scaled) - MOST_CHANGES
        last = [f"{row.before} → {row.workers} at update {row.applied:,}" for row in summary.scaled[-MOST_CHANGES:]]
        yield "workers", " · ".join([*([f"{earlier} earlier"] if earlier > 0 else []), *last])
    yield "updates", _updates(updates)
    for use in summary.keyed:
        yield "keys", Text(use.line, "yellow" if use.ended else "default")
    if summary.proof:
        yield "proof", _proof(summary.proof)
    gradients = summary.gradients
    if gradients.dropped:
        counts = {"scheduled": gradients.scheduled, "applied": gradients.applied, "dropped": gradients.dropped}
        each = (gradients.applied or 0) / updates.applied if updates.applied else 0
        texts = " · ".join(f"{number(count)} {name}" for name, count in counts.items())
        yield "gradients", f"{texts}, because they came too late · {each:.3g} applied per update on average"
    if summary.parameter_servers:  # without parameter servers, all gradients come from the newest parameters
        stale = summary.staleness
        text = "–" if stale.mean is None else f"mean {stale.mean:.2f}"
        if stale.max is not None:
            bars = f"0 {histogram_bars(stale.histogram)} {stale.max}"
            text += f" · median {stale.p50} · 95 % up to {stale.p95} · max {stale.max}   {bars}"
        yield "staleness", text


def number(value: float | None, spec: str = ",d") -> str:
    """Return a number as text; "–" for None."""
    return "–" if value is None else f"{value:{spec}}"


def histogram_bars(histogram: Mapping[str, int]) -> str:
    """Return a histogram of staleness as text, with a bar for each value from 0 to the highest, e.g. `▁█▄▁`.

    If there are more than HISTOGRAM_COLUMNS values, neighbouring values share a bar.
    """
    counts = {int(value): count for value, count in histogram.items()}
    if not counts:
        return ""
    per_bar = -(-(max(counts) + 1) // HISTOGRAM_COLUMNS)
    sums = [0] * (max(counts) // per_bar + 1)
    for value, count in counts.items():
        sums[value // per_bar] += count
    # A count of 0 is a space, and every other count is visible.
    return "".join(BARS[round(n / max(sums) * (len(BARS) - 1))] if n else " " for n in sums)


def _data(summary: Summary) -> Text:
    if summary.dataset_kind == "synthetic":
        warning = f" generated {summary.unit}: no number here says anything about {real_counterpart(summary.dataset)}"
        return Text(" SYNTHETIC ", "bold black on yellow") + Text(warning, "yellow")
    return Text(f"{summary.dataset} ({summary.dataset_kind or 'kind unknown'})")


def _settings(settings: Mapping[str, JsonValue]) -> str:
    """Return a text with the settings that differ from the defaults, as `--set` takes them.

    If there are many settings, the text ends with the number of those that it leaves out.
    """
    texts = [
        f"{key}={one_line(value if isinstance(value, str) else json.dumps(value), MOST_OF_A_VALUE)}"
        for key, value in settings.items()
        if key not in _IN_OTHER_ROWS
    ]
    more = [f"and {len(texts) - MOST_SETTINGS} more in config.yaml"] if len(texts) > MOST_SETTINGS else []
    return " · ".join([*texts[:MOST_SETTINGS], *more]) or "all other settings have their defaults"


def _not_scored(epochs: list[float]) -> str:
    """Return a text that names the epochs without a score, the reason, and what to do."""
    named = ", ".join(f"{epoch:g}" for epoch in epochs[:MOST_EPOCHS])
    more = f" and {len(epochs) - MOST_EPOCHS:,} more" if len(epochs) > MOST_EPOCHS else ""
    return (
        f"epoch{'s' * (len(epochs) > 1)} {named}{more}: no checkpoint was written, or it was removed before it was "
        "scored; if checkpoints.every_epochs is larger, fewer checkpoints have to be scored"
    )


def _validation_score(evaluation: EvaluationSummary) -> Text:
    """Return the metric on held-out training examples, with the step of the last and of the best model."""
    text = Text(_value(evaluation.validation_accuracy, evaluation.validation_error), "bold")
    text.append(f" at step {evaluation.step:,}", "default")
    if evaluation.best_step == evaluation.step:
        text.append(", the best", "default")
    elif evaluation.best_step:
        best = _value(evaluation.best_validation_accuracy, evaluation.best_validation_error)
        text.append(f" · best {best} at step {evaluation.best_step:,}", "default")
    return text


def _best_model(evaluation: EvaluationSummary) -> str:
    """Return the step of the best model, and the metric and examples by which it was chosen."""
    metric, examples = str(evaluation.monitor), evaluation.best_chosen_on
    which = "largest" if evaluation.monitor_mode == "max" else "smallest"
    value = MetricText.of(metric, evaluation.best_value).value
    return f"step {evaluation.best_step:,}, which has the {which} {examples} {metric}: {value}"


def _test_score(evaluation: EvaluationSummary, last_step: int, unit: str) -> Text:
    """Return the metric on the test examples with its step, and a warning if later steps have no score."""
    if evaluation.step is None:
        return Text("not measured: no checkpoint was scored", "yellow")
    text = Text(_value(evaluation.test_accuracy, evaluation.test_error), "bold")
    text.append(f" at step {evaluation.step:,}", "default")
    if evaluation.augmented_test_accuracy is not None:
        text.append(f" · {evaluation.augmented_test_accuracy:.2%} over six views of each image", "default")
    if evaluation.best_step not in (None, evaluation.step):
        best = f"{_value(evaluation.best_test_accuracy, evaluation.best_test_error)} at step {evaluation.best_step:,}"
        held_out = evaluation.best_chosen_on == "validation"
        chosen = f"{best}, the best model on held-out {unit}" if held_out else f"best {best}, chosen on test {unit}"
        text.append(f" · {chosen}", "default")
    if evaluation.step < last_step:
        text.append(f"\nThis is not the score of the last step: step {last_step:,} has not been scored yet", "yellow")
    return text


def _usual_score(summary: Summary) -> str:
    """Compare the test accuracy with that of earlier runs of the network; "" if there is nothing to compare."""
    network, scores = NETWORKS.own.get(summary.model or ""), summary.evaluation.history
    usual = network.usual_scores.get(summary.dataset or "") if network else None
    accuracy = summary.evaluation.test_accuracy
    if usual is None or accuracy is None or not scores:
        return ""
    after = f"after {usual.examples:,} {summary.unit} (async, {usual.runs} runs)"
    text = f"{summary.model} usually reaches {usual.accuracy:.1%} {after}"
    examples, points = scores[-1].examples, 100 * (accuracy - usual.accuracy)
    if examples is not None and abs(examples / usual.examples - 1) > 0.02:
        return f"{text}; this model has trained on {examples:,} {summary.unit}"
    if abs(points) < AS_USUAL_POINTS:
        return f"{text}, and so does this run"
    return f"{text}; this run is {abs(points):.1f} points {'better' if points > 0 else 'worse'}"


def _value(accuracy: float | None, error: float | None) -> str:
    """Return the accuracy or, if it is None, the error as text, e.g. "91.20%" or "not a finite number"."""
    return (metric_text(accuracy, error) or MetricText.of("metric", None)).value


def _warning(summary: Summary) -> str:
    """Return the reason why the training was not successful, or may not have been; "" if there is none."""
    page, bad = "docs/extending.md#if-it-does-not-learn", summary.bad_losses
    if summary.outcome == "diverged":
        return f"diverged: weights are NaN or infinite, and training was stopped. {page}"
    if summary.outcome == "nan_loss":
        return f"the loss was NaN or infinite in every step: no number here says that anything was learned. {page}"
    if summary.too_few_examples:
        return (
            f"{summary.too_few_examples:,} test {summary.unit} are too few to tell whether the model is better than "
            f"guessing: score it on more examples, or compare several runs. {page}"
        )
    if summary.learned is False:
        guess = MetricText.of("accuracy" if summary.evaluation.test_error is None else "error", summary.guess)
        hint = f" {summary.few_updates.capitalize()}." if summary.few_updates else ""
        return f"the model is not better than guessing, which has {guess}: nothing was learned.{hint} {page}"
    return f"the loss was NaN or infinite in {bad:,} of {summary.updates.applied:,} updates. {page}" if bad else ""


def _updates(updates: Updates) -> Text:
    text = Text(f"{number(updates.scheduled)} scheduled · {number(updates.applied)} applied · ")
    for count, name, separator in ((updates.duplicated, "duplicated", " · "), (updates.lost, "lost", "")):
        text.append(f"{number(count)} {name}", "bold red" if count else "default").append(separator)
    accidents = (
        (updates.rolled_back, "were lost in a failure, and trained again"),
        (updates.replays_refused, "arrived a second time, and were refused"),
        (updates.mixed, "came in parts from two processes of a worker, because the first died between its pushes"),
    )
    for count, happened in accidents:
        if count:
            text.append(f"\n{count:,} {happened}")
    return text


def _proof(proof: Proof) -> Text | str:
    if not proof.holds:
        return Text(f"FAILS: {proof.problem}", "bold red")
    rows = " + ".join(f"{part.rows:,}" for part in proof.shards)
    again = proof.recomputed
    count = f"{again.updates} of {again.of:,} updates were" if again.updates else "no update was"
    agree = " and agree" if again.updates else ""
    return (
        f"holds: {rows} rows agree with the versions and the accepted gradients; no step was applied twice; {count} "
        f"computed again outside the cluster{agree}"
    )


def _time(summary: Summary) -> str:
    """Return the seconds of training and of the command. For a resumed run, they are on separate lines."""
    training = f"{number(summary.train_seconds, '.1f')} s training"
    command = f"{number(summary.startup_seconds, '.1f')} s start-up · {number(summary.wall_seconds, '.1f')} s in all"
    lost = ""
    if summary.rolled_back_seconds or summary.interrupted_seconds:
        lost = (
            f"\nof the training, {summary.rolled_back_seconds:.1f} s were rolled back and "
            f"{summary.interrupted_seconds:.1f} s had no update: goodput {number(summary.goodput, '.1%')}"
        )
    if summary.sessions == 1:
        return f"{training} · {command}{lost}"
    mine = f"since the last resume: {number(summary.session_train_seconds, '.1f')} s training · {command}"
    return f"{training} over {with_noun(summary.sessions, 'session')}{lost}\n{mine}"
