"""Write the results of a sweep: results.json, best.yaml, the plots and one page. The test set is in none of them."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from rich.console import Console

from ps_cluster.config.objectives import OBJECTIVES
from ps_cluster.files.writing import write_json, write_whole
from ps_cluster.files.yaml_files import dump_yaml
from ps_cluster.installation import PROGRAM
from ps_cluster.report.pages import PALETTE, WIDTH_IN, Plot, plot_style, rendered
from ps_cluster.runs.result_rows import told
from ps_cluster.tools.sweep.space import Axis, Values
from ps_cluster.tools.sweep.sweep_plan import SweepPlan, Trial, TrialBook

TRIALS_FOLDER = "trials"  # folder of their run directories
RESULTS, BEST, PAGE = "results.json", "best.yaml", "sweep.html"
_WORDS = {"completed": "completed", "pruned": "stopped early", "running": "not finished", "failed": "failed"}


def write_sweep_report(plan: SweepPlan, book: TrialBook, output: Path) -> None:
    """Write all files of the results into the sweep's folder."""
    trials, importances, best = book.ranked(), book.importances(), book.best()
    write_json(output / RESULTS, _results(plan, trials, importances))
    if best is not None:
        count = f"{plan.dataset.validation_examples:,} held-out training {plan.dataset.spec.unit}"
        comment = f"# The best of a sweep: trial {best.number}, {score_text(plan, best.score)} on {count}.\n"
        write_whole(output / BEST, comment + dump_yaml(plan.found(best.values)))
    plots = make_sweep_plots(plan, trials, importances)
    for plot in plots:
        write_whole(output / f"{plot.name}.png", plot.png)
        write_whole(output / f"{plot.name}.svg", plot.svg)
    keys = list(plan.space.axes)
    rows = [
        [
            f"trial {one.number}",
            score_text(plan, one.score),
            _WORDS[one.state],
            *(text(one.values[key]) for key in keys),
        ]
        for one in trials
    ]
    page = rendered(
        __package__,
        "sweep.html",
        overview=_overview(plan, trials),
        plots=plots,
        headings=["trial", "held-out score", "state", *keys],
        rows=rows,
        failed=[trial for trial in trials if trial.state == "failed"],
        best=best and {"values": listed(best.values), "score": score_text(plan, best.score)},
        command=_command(output),
        trials_folder=shlex.quote(str(output / TRIALS_FOLDER)),
    )
    write_whole(output / PAGE, page)


def print_sweep_result(plan: SweepPlan, book: TrialBook, output: Path, console: Console) -> None:
    """Print the best trial, and where the results are."""
    best = book.best()
    console.print()
    if best is None:
        console.print("no trial has completed", style="bold yellow")
    else:
        among = sum(trial.state in ("completed", "pruned") for trial in book.trials)
        count = f"{plan.dataset.validation_examples:,} held-out {plan.dataset.spec.unit}"
        console.print(f"best of {among} trials: {listed(best.values)}", style="bold", soft_wrap=True)
        console.print(
            f"{score_text(plan, best.score)} on {count} (chosen on them, so a little too high)", soft_wrap=True
        )
        console.print(f"train with it: {_command(output)}", soft_wrap=True)
    console.print(f"all trials:    {output / PAGE}", soft_wrap=True)


def _results(plan: SweepPlan, trials: Sequence[Trial], importances: dict[str, float]) -> dict[str, Any]:
    return {
        "schema": 1,
        "method": plan.method.name,
        "dataset": plan.dataset.name,
        "dataset_kind": plan.dataset.kind,
        "held_out_examples": plan.dataset.validation_examples,
        "metric": OBJECTIVES[plan.dataset.spec.objective].field,
        "settings": plan.sweep.settings,
        "trials": [
            {"trial": trial.number, "state": trial.state, "held_out_score": trial.score, "values": dict(trial.values)}
            | ({"why": trial.why} if trial.why else {})
            for trial in trials
        ],
        "importances": importances,
    }


def score_text(plan: SweepPlan, score: float | None) -> str:
    has_accuracy = OBJECTIVES[plan.dataset.spec.objective].has_accuracy
    return told(*((score, None) if has_accuracy else (None, score))) or "–"


def _overview(plan: SweepPlan, trials: Sequence[Trial]) -> dict[str, str]:
    dataset = plan.dataset
    states = [trial.state for trial in trials]
    counts = ", ".join(f"{states.count(state)} {word}" for state, word in _WORDS.items() if state in states)
    return {
        "method": f"{plan.method.name}: {plan.method.says}",
        "trials": f"{counts or 'none'} of {plan.count} planned",
        "data set": f"{dataset.name} ({dataset.kind}): {dataset.train_examples:,} {dataset.spec.unit} to train on",
        "judged on": f"{dataset.validation_examples:,} training {dataset.spec.unit} that are held out",
        "all trials have": listed(plan.sweep.settings),
    }


def _command(output: Path) -> str:
    return f"{PROGRAM} run --config {shlex.quote(str(output / BEST))}"


# Draw a sweep: each trial as a line through its values, and what decided the score.

_COLOURS = matplotlib.colormaps["viridis"]
_BEST = PALETTE[1]  # stands out of them, on white and when a dark page turns the colours over
_LOW_SHARE = 0.05  # of the scores, which a few bad trials would otherwise spread over all colours
_TICKS = 5


def make_sweep_plots(plan: SweepPlan, trials: Sequence[Trial], importances: Mapping[str, float]) -> list[Plot]:
    """Return the plots that have something to show. `trials`: all, ranked."""
    scored = [trial for trial in trials if trial.score is not None and trial.state in ("completed", "pruned")]
    plots = []
    with plot_style():
        if len(scored) >= 2:
            caption = (
                "A line is a trial: its values, and its score on held-out training examples. The best is thick, orange."
            )
            if any(trial.state == "pruned" for trial in scored):
                caption += " Trials that were stopped early are dashed, with the score for which they were stopped."
            figure = _parallel(plan, scored)
            plots.append(Plot("parallel-coordinates", "All trials", caption, figure))
        if importances:
            count = sum(trial.state == "completed" for trial in trials)
            caption = (
                "The share of each setting in what sets the better trials apart (PED-ANOVA, Watanabe et al. 2023), over "
                f"{count} completed trials, each with one seed. With few trials it is a hint, not a finding."
            )
            plots.append(Plot("importance", "What decided the score", caption, _importance(importances)))
    return plots


def _parallel(plan: SweepPlan, scored: Sequence[Trial]) -> Figure:
    axes, larger = plan.space.axes, OBJECTIVES[plan.dataset.spec.objective].has_accuracy
    scale, name = (100.0, "accuracy [%]") if larger else (1.0, "error")
    figure = Figure(figsize=(WIDTH_IN, 4.2), layout="constrained")
    panel = figure.subplots()
    scores = [scale * (trial.score or 0.0) for trial in scored]
    low, high = min(scores), max(scores)
    of_scores = Axis((low, high if high > low else low + 1.0), is_range=True)
    rulers = [_ruler(axis) for axis in (*axes.values(), of_scores)]
    worst = float(np.quantile(scores, _LOW_SHARE if larger else 1 - _LOW_SHARE))
    for rank in reversed(range(len(scored))):  # the best is drawn last, above all
        trial = scored[rank]
        values = [*(trial.values[key] for key in axes), scores[rank]]
        heights = [height(value) for (height, _), value in zip(rulers, values, strict=True)]
        share = np.clip((scores[rank] - worst) / (scores[0] - worst or 1.0), 0, 1)
        panel.plot(
            range(len(rulers)), heights, color=_COLOURS(0.88 * share) if rank else _BEST,
            linewidth=1.1 if rank else 2.6, alpha=0.75 if rank else 1.0,
            linestyle="--" if trial.state == "pruned" else "-",
        )  # fmt: skip
    for place, (key, (_, ticks)) in enumerate(zip((*axes, f"held-out {name}"), rulers)):
        beside, align = (0.03, "left") if place == len(axes) else (-0.03, "right")
        panel.plot([place, place], [0, 1], color="#5b6570", linewidth=1.0, zorder=0)
        panel.text(place, 1.06, key.rpartition(".")[2], ha="center", va="bottom", fontsize=9, fontweight="bold")
        for label, height in ticks.items():
            panel.text(
                place + beside, height, label, ha=align, va="center", fontsize=8,
                bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.8},
            )  # fmt: skip
    panel.set_xlim(-0.25, len(rulers) - 0.65)
    panel.set_ylim(-0.06, 1.12)
    panel.axis("off")
    return figure


def _ruler(axis: Axis) -> tuple[Callable[[Any], float], dict[str, float]]:
    """Return a function that gives the height of a value, 0 to 1, and the labels beside an upright axis, by height."""
    if not axis.is_range:
        places = {axis.label(value): place / (len(axis.values) - 1) for place, value in enumerate(axis.values)}
        return (lambda value: places[axis.label(value)]), dict(zip(map(text, axis.values), places.values()))
    change = math.log if axis.log else float
    low, high = map(change, axis.values)
    spaced = (np.geomspace if axis.log else np.linspace)(axis.values[0], axis.values[1], _TICKS)

    def height(value: Any) -> float:
        return (change(value) - low) / (high - low)

    return height, {f"{value:.3g}": height(value) for value in (spaced.round() if axis.is_whole else spaced)}


def _importance(importances: Mapping[str, float]) -> Figure:
    figure = Figure(figsize=(WIDTH_IN, 0.9 + 0.38 * len(importances)), layout="constrained")
    panel = figure.subplots()
    keys = sorted(importances, key=lambda key: importances[key])
    bars = panel.barh(keys, [100 * importances[key] for key in keys], color=PALETTE[0], height=0.62)
    panel.bar_label(bars, fmt="%.0f %%", padding=4, fontsize=8)
    panel.set_xlim(0, 108)
    panel.set_xlabel("share [%]")
    panel.grid(False, axis="y")
    return figure


def listed(values: Values) -> str:
    """Return values as text, e.g. "optimizer.learning_rate=0.05, training.batch_size_per_worker=64"."""
    return ", ".join(f"{key}={text(value)}" for key, value in values.items())


def text(value: Any) -> str:
    """Return a value short enough to read; numbers with four digits."""
    return f"{value:.4g}" if isinstance(value, float) else f"{value}"
