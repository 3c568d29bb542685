"""Draw the results of a run that has ended, from its directory: one page, its plots, and all numbers as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from ps_cluster.config.objectives import OBJECTIVES
from ps_cluster.data.packed import PackedDataset, load_pointed
from ps_cluster.errors import UserError
from ps_cluster.files import untrusted
from ps_cluster.files.values import Malformed, number_text
from ps_cluster.files.writing import remove_leftovers, write_whole
from ps_cluster.notices import Notify
from ps_cluster.report.analysis import Analysis, Mistake
from ps_cluster.report.calibration import percent, share_of
from ps_cluster.report.colours import PALETTE
from ps_cluster.report.curves import X_AXES, Curves, XAxis
from ps_cluster.report.facts import facts_of
from ps_cluster.report.mistakes import ShownExamples, shown_examples
from ps_cluster.report.pages import rendered
from ps_cluster.report.plots import Plot, small_plot
from ps_cluster.runs.predictions import load_predictions
from ps_cluster.runs.result_rows import Measure, MetricText, Summary, metric_text
from ps_cluster.runs.run_dir import RunDir

SCHEMA = 2  # schema 1 had the scores of the last and of the best model under "models"


@dataclass(frozen=True)
class _ScoredRun:
    """A run with everything that its page of results shows."""

    name: str
    summary: Summary
    curves: Curves
    dataset: PackedDataset | None
    analysis: Analysis | None
    mistakes: list[Mistake]
    examples: ShownExamples

    @classmethod
    def of(cls, run_dir: RunDir, summary: Summary, notify: Notify) -> _ScoredRun:
        try:
            dataset = load_pointed(run_dir.dataset)
        except (UserError, OSError):  # the packed copy is not on this machine any more
            dataset = None
        analysis = _analysis(run_dir, dataset, notify)
        mistakes = analysis.mistakes() if analysis else []
        ids = [one.example for one in mistakes]
        shown = shown_examples(dataset, analysis.target, ids) if analysis else ShownExamples()
        return cls(run_dir.root.name, summary, Curves.of(run_dir, summary), dataset, analysis, mistakes, shown)

    def warnings(self) -> Iterator[str]:
        """Yield sentences that a reader must see before the numbers."""
        summary = self.summary
        if summary.dataset_kind == "synthetic":
            yield f"Generated {summary.unit}: no number here says anything about real data."
        if summary.outcome != "completed":
            stopped = f"was stopped early ({summary.early_stop.line})" if summary.early_stop else "was stopped"
            ended = {"diverged": "diverged", "nan_loss": "had a loss that was NaN or infinite in every step"}
            yield f"The run {ended.get(summary.outcome, stopped)}: this page shows the training until then."
        if self.analysis is None:
            yield "No predictions of the test set are kept, so there are only curves."
        elif self.analysis.predictions.step != summary.evaluation.step:
            yield f"The predictions are those of step {self.analysis.predictions.step:,}, not of the step that was scored last."
        last = summary.updates.applied
        if summary.evaluation.step is not None and summary.evaluation.step < last:
            yield f"The last step, {last:,}, has not been scored."

    @property
    def _best_texts(self) -> dict[str, MetricText | None]:
        """The metric of the best model on each split. The split that is preferred for choosing the best model comes first."""
        score = self.summary.evaluation
        return {
            "validation": metric_text(score.best_validation_accuracy, score.best_validation_error),
            "test": metric_text(score.best_test_accuracy, score.best_test_error),
        }

    def models(self) -> Iterator[str]:
        """Yield sentences that name the model that the page shows, and the scores of the best model."""
        score = self.summary.evaluation
        if score.step is None:
            return
        yield f"This page shows the last scored model, that of step {score.step:,}: {', '.join(score.scores)}."
        if score.best_step == score.step:
            yield "It is also the best model, which predict and export use (best/model.keras)."
        elif score.best_step is not None:
            chosen = "held-out training examples" if score.best_chosen_on == "validation" else "the test set itself"
            best = ", ".join(f"{name} {text}" for name, text in self._best_texts.items() if text)
            by = ""
            if score.monitor not in (None, "accuracy", "error"):
                extreme = "largest" if score.monitor_mode == "max" else "smallest"
                by = f", by the {extreme} {MetricText.of(score.monitor, score.best_value)}"
            yield (
                "The best model, which predict and export use (best/model.keras), is that of step "
                f"{score.best_step:,}: {best or 'test metric not finite'}; it was chosen on {chosen}{by}."
            )

    def highlights(self) -> Iterator[tuple[str, str]]:
        """Yield the name and text of each of the most important numbers."""
        score = self.summary.evaluation
        last = {"last validation": score.validation, "last test": metric_text(score.test_accuracy, score.test_error)}
        best = {f"best {name}": text for name, text in self._best_texts.items()}
        if score.best_chosen_on == "validation":  # this is the test score of the chosen model, not the best test score
            best["best model, test"] = best.pop("best test")
        for name, text in (last | best).items():
            if text:
                yield f"{name} {text.name}", text.value.replace("%", "\N{NO-BREAK SPACE}%")
        for name, number in (score.compiled | score.metrics).items():
            yield f"last test {name}", number_text(number)
        if self.analysis:
            yield from self.analysis.highlights()
        if self.summary.examples_per_second is not None:
            yield f"{self.summary.unit}/s", f"{self.summary.examples_per_second:,.0f}"
        yield "s of training", f"{self.summary.train_seconds:,.0f}"

    def numbers(self) -> dict[str, Any]:
        """Return the content of results.json."""
        analysis, shown = self.analysis, {*X_AXES, *self.curves.measures, "examples_per_second"}
        return {
            "schema": SCHEMA,
            "run": self.name,
            "outcome": self.summary.outcome,
            "evaluation": self.summary.evaluation.model_dump(exclude={"history"}),
            "step": analysis.predictions.step if analysis else None,
            "objective": analysis.predictions.objective if analysis else None,
            "test_examples": analysis.predictions.examples if analysis else None,
            "found": analysis.numbers() if analysis else None,
            "mistakes": [asdict(one) for one in self.mistakes],
            "curves": {
                "training": [row.model_dump(include=shown) for row in self.curves.trained],
                "test": [row.model_dump() for row in self.curves.tested],
                "workers": [row.model_dump() for row in self.summary.scaled],
            },
        }

    def workers(self) -> Iterator[list[str]]:
        """Yield the cells of each worker's row: its index, updates, share of all updates, examples, and restarts."""
        every = sum(worker.updates for worker in self.summary.workers)
        for worker in self.summary.workers:
            share = percent(share_of(worker.updates, every))
            yield [f"{worker.index}", f"{worker.updates:,}", share, f"{worker.examples:,}", f"{worker.restarts:,}"]


def _analysis(run_dir: RunDir, dataset: PackedDataset | None, notify: Notify) -> Analysis | None:
    """Return the analysis of the stored predictions; None if there are none or, with a notice, if they are damaged."""
    try:
        predictions = load_predictions(run_dir.predictions)
        encoding = dataset.encoding() if dataset else None
        kind = OBJECTIVES[predictions.objective].results()
        return kind(predictions, encoding.target if encoding else "target") if kind else None
    except FileNotFoundError:
        return None
    except Malformed as error:
        notify(f"the results are drawn without the predictions: '{run_dir.predictions}': {error}")
    except UserError as error:
        notify(f"the results are drawn without the predictions: {error}")
    return None


def _curve_plots(curves: Curves) -> Iterator[Plot]:
    for measure in curves.measures if curves.trained or curves.tested else ():
        for x_axis in X_AXES:
            over = "time" if x_axis == "train_seconds" else curves.unit

            def draw(axes: Axes, x_axis: XAxis = x_axis, measure: Measure = measure) -> None:
                curves.draw(axes, x_axis, measure)
                axes.set_xlabel(curves.label(x_axis))

            yield small_plot(f"{measure}-over-{over}", f"{measure.capitalize()} over {over}", "", draw)


def _staleness_plot(summary: Summary) -> Iterator[Plot]:
    """Yield a plot of the distribution of staleness, if the summary has one."""
    counts = {int(value): count for value, count in summary.staleness.histogram.items()}
    if not counts or summary.staleness.mean is None:
        return

    def draw(axes: Axes) -> None:
        shares = [100 * count / sum(counts.values()) for count in counts.values()]
        axes.bar(list(counts), shares, color=PALETTE[0])
        axes.set(xlabel="staleness [updates]", ylabel="gradients [%]")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))

    yield small_plot("staleness", "Staleness of the gradients", "", draw)


def write_results(run_dir: RunDir, summary: Summary, notify: Notify) -> None:
    """Write results/ of a run that has ended. The page is written last: if it exists, all other files exist too.

    Args:
      notify: gets one line for each damaged file. The results are drawn without these files.

    Raises:
      UserError: the folder for plots is a link, or belongs to another user.
      OSError: the files can't be written.
    """
    found = _ScoredRun.of(run_dir, summary, notify)
    curves = list(_curve_plots(found.curves))
    plots = found.analysis.plots() if found.analysis else []
    staleness = list(_staleness_plot(summary))
    page = rendered(
        __package__,
        "results.html",
        script="sort.js",
        run=found,
        curves=curves,
        staleness=staleness,
        plots=plots,
        percent=percent,
        facts_of=facts_of,
    )
    numbers = json.dumps(found.numbers(), indent=1, allow_nan=False)
    folder = run_dir.results / "plots"
    folder.mkdir(parents=True, exist_ok=True)
    untrusted.refuse_foreign_symlinks(folder, "folder of the run")
    if folder.is_symlink():
        raise UserError(f"'{folder}' is a link: remove it, and draw the results again")
    remove_leftovers(run_dir.results, "results.*")
    for before in folder.glob("*.svg"):
        before.unlink()
    for plot in (*curves, *staleness, *plots):
        write_whole(folder / f"{plot.name}.svg", plot.svg)
    write_whole(run_dir.results_numbers, f"{numbers}\n")
    write_whole(run_dir.results_page, page)
