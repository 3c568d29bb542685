"""Draw the results of a run that has ended, from its directory: one page, its plots, and all numbers as JSON."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes

from ps_cluster.config.objectives import OBJECTIVES, TARGET
from ps_cluster.data.describing import example_rows
from ps_cluster.data.packed import PackedDataset, load_pointed
from ps_cluster.errors import UserError
from ps_cluster.files import untrusted
from ps_cluster.files.json_files import Json
from ps_cluster.files.values import Malformed
from ps_cluster.files.writing import remove_leftovers, write_whole
from ps_cluster.report.analysis import Analysis, Mistake, percent
from ps_cluster.report.closing_table import facts_of
from ps_cluster.report.pages import ALONG, Curves, Plot, rendered, small_plot
from ps_cluster.report.sheets import scaled
from ps_cluster.runs.predictions import load_predictions
from ps_cluster.runs.result_rows import Summary, told
from ps_cluster.runs.run_dir import RunDir

SCHEMA = 1

Notify = Callable[[str], None]


# Show test examples on a page: pictures, or rows of columns.

MOST_COLUMNS = 10
_SIDE = 96  # pixels of a picture's longer side


@dataclass(frozen=True)
class Examples:
    """Some test examples, as sources of <img>, or else as rows of text below names of columns.

    `lacking`: why there is neither.
    """

    pictures: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    more_columns: int = 0
    lacking: str = ""


def examples(dataset: PackedDataset | None, analysis: Analysis, ids: Sequence[int]) -> Examples:
    """Return the test examples of these indices."""
    if dataset is None:
        return Examples(lacking="the packed copy of the data set is not on this machine any more")
    chosen = np.asarray(ids, np.int64)
    if not len(chosen):
        return Examples()
    if not _fits(dataset, analysis, chosen):
        return Examples(lacking="the data set's packed copy has changed since")
    image = next((name for name, field in dataset.spec.inputs.items() if field.is_image), None)
    if image is not None:
        return Examples(pictures=tuple(map(_source, dataset.inputs("test")[image][chosen])))
    names, rows = example_rows(dataset, chosen, "test")
    columns = [index for index, name in enumerate(names) if name != TARGET]
    shown = columns[:MOST_COLUMNS]
    return Examples(
        names=tuple(names[index] for index in shown),
        rows=tuple(tuple(row[index] for index in shown) for row in rows),
        more_columns=len(columns) - len(shown),
    )


def _fits(dataset: PackedDataset, analysis: Analysis, ids: np.ndarray) -> bool:
    """Return whether these are the examples that were predicted: as many, and of the same targets."""
    if dataset.test_examples != analysis.predictions.examples:
        return False
    now, then = (
        np.asarray(rows[ids], np.float64).reshape(len(ids), -1) for rows in (dataset.target("test"), analysis.target)
    )
    return now.shape == then.shape and np.allclose(now, then, rtol=1e-5)


def _source(image: np.ndarray) -> str:
    content = io.BytesIO()
    scaled(image, _SIDE).save(content, "PNG")
    return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"


# The page.


@dataclass(frozen=True)
class _ScoredRun:
    """Everything that the page shows."""

    name: str
    summary: Summary
    curves: Curves
    dataset: PackedDataset | None
    analysis: Analysis | None
    mistakes: list[Mistake]
    examples: Examples

    @classmethod
    def of(cls, run_dir: RunDir, summary: Summary, notify: Notify) -> _ScoredRun:
        try:
            dataset = load_pointed(run_dir.dataset)
        except (UserError, OSError):  # the packed copy is not on this machine any more
            dataset = None
        analysis = _analysis(run_dir, dataset, notify)
        mistakes = analysis.mistakes() if analysis else []
        shown = examples(dataset, analysis, [one.example for one in mistakes]) if analysis else Examples()
        return cls(run_dir.root.name, summary, Curves.of(run_dir, summary), dataset, analysis, mistakes, shown)

    def warnings(self) -> Iterator[str]:
        """Yield what a reader must know before the numbers."""
        summary, unit = self.summary, self.summary.unit
        if summary.dataset_kind == "synthetic":
            yield f"Generated {unit}: no number here says anything about real data."
        if summary.outcome != "completed":
            yield f"The run {'was stopped' if summary.outcome == 'stopped' else summary.outcome}: this is what it left."
        if self.analysis is None:
            yield "No predictions of the test set are kept, so there are only curves."
        elif self.analysis.predictions.step != summary.evaluation.step:
            yield f"The predictions are those of step {self.analysis.predictions.step:,}, not of the last score."
        last = summary.updates.applied
        if summary.evaluation.step is not None and summary.evaluation.step < last:
            yield f"Step {last:,}, the last one, is not scored."

    @property
    def models(self) -> dict[str, Json]:
        """The last scored model, whose predictions are shown, and the best one, which is kept: each with its score."""
        score = self.summary.evaluation
        models: dict[str, Json] = {
            "last": {
                "step": score.step,
                "validation_accuracy": score.validation_accuracy,
                "validation_error": score.validation_error,
                "test_accuracy": score.test_accuracy,
                "test_error": score.test_error,
            },
            "best": {
                "step": score.best_step,
                "validation_accuracy": score.best_validation_accuracy,
                "validation_error": score.best_validation_error,
                "test_accuracy": score.best_test_accuracy,
                "test_error": score.best_test_error,
                "chosen_on": score.best_chosen_on,
            },
        }
        return models if score.step is not None else {}

    @property
    def _best_words(self) -> dict[str, str | None]:
        """The examples that a model can be chosen on, in the order of weight → the metric of the best one in words."""
        score = self.summary.evaluation
        return {
            "validation": told(score.best_validation_accuracy, score.best_validation_error),
            "test": told(score.best_test_accuracy, score.best_test_error),
        }

    def of_which(self) -> Iterator[str]:
        """Yield sentences that say of which model the page is, and what the best one reaches."""
        score = self.summary.evaluation
        if score.step is None:
            return
        yield f"This page is of the last scored model, that of step {score.step:,}: {', '.join(score.scores)}."
        if score.best_step == score.step:
            yield "It is the best one too, which predict and export take (best/model.keras)."
        elif score.best_step is not None:
            chosen = "held-out training examples" if score.best_chosen_on == "validation" else "the test set itself"
            best = ", ".join(f"{name} {words}" for name, words in self._best_words.items() if words)
            yield (
                f"The best one, which predict and export take (best/model.keras), is that of step {score.best_step:,}: "
                f"{best or 'test metric not finite'}; it was chosen on {chosen}."
            )

    def highlights(self) -> Iterator[tuple[str, str]]:
        """Yield name and text of the most important numbers."""
        score = self.summary.evaluation
        last = {"last validation": score.validation, "last test": told(score.test_accuracy, score.test_error)}
        best = {f"best {name}": text for name, text in self._best_words.items()}
        if score.best_chosen_on == "validation":  # the test score of the model that was chosen, not the best of all
            best["test of the best,"] = best.pop("best test")
        for name, text in (last | best).items():
            if text:
                metric, value = text.split(" ", 1)
                yield f"{name} {metric}", value.replace("%", "\N{NO-BREAK SPACE}%")
        if self.analysis:
            yield from self.analysis.highlights()
        if self.summary.examples_per_second is not None:
            yield f"{self.summary.unit}/s", f"{self.summary.examples_per_second:,.0f}"
        yield "s of training", f"{self.summary.train_seconds:,.0f}"

    def numbers(self) -> Json:
        """Return the content of results.json."""
        analysis, shown = self.analysis, {*ALONG, *self.curves.measures, "examples_per_second"}
        return {
            "schema": SCHEMA,
            "run": self.name,
            "outcome": self.summary.outcome,
            "models": self.models,
            "step": analysis.predictions.step if analysis else None,
            "objective": analysis.predictions.objective if analysis else None,
            "test_examples": analysis.predictions.examples if analysis else None,
            "found": analysis.numbers() if analysis else None,
            "mistakes": [vars(one) for one in self.mistakes],
            "curves": {
                "training": [row.model_dump(include=shown) for row in self.curves.trained],
                "test": [row.model_dump() for row in self.curves.tested],
                "workers": [row.model_dump() for row in self.summary.scaled],
            },
        }

    def page(self, curves: list[Plot], plots: list[Plot]) -> str:
        """Return the HTML."""
        summary = self.summary.model_dump(mode="json")
        return rendered(
            __package__,
            "results.html",
            name=self.name,
            summary=self.summary,
            warnings=list(self.warnings()),
            of_which=" ".join(self.of_which()),
            highlights=list(self.highlights()),
            curves=curves,
            plots=plots,
            analysis=self.analysis,
            percent=percent,
            mistakes=self.mistakes,
            examples=self.examples,
            notes=self.dataset.notes if self.dataset else (),
            facts=[(label, str(text)) for label, text in facts_of(summary)],
        )


def _analysis(run_dir: RunDir, dataset: PackedDataset | None, notify: Notify) -> Analysis | None:
    """Return what the kept predictions show; None, with a notice if they are damaged, without any."""
    try:
        predictions = load_predictions(run_dir.predictions)
        encoding = dataset.encoding() if dataset else None
        kind = OBJECTIVES[predictions.objective].results()
        return kind(predictions, encoding.target if encoding else "target") if kind else None
    except FileNotFoundError:
        return None
    except Malformed as error:
        notify(f"left out of the results: '{run_dir.predictions}': {error}")
    except UserError as error:
        notify(f"left out of the results: {error}")
    return None


def _curve_plots(curves: Curves) -> Iterator[Plot]:
    for measure in curves.measures if curves.trained or curves.tested else ():
        for along in ALONG:
            over = "time" if along == "train_seconds" else curves.unit

            def draw(axes: Axes, along: str = along, measure: str = measure) -> None:
                curves.draw(axes, along, measure)
                axes.set_xlabel(curves.label(along))

            yield small_plot(f"{measure}-over-{over}", f"{measure.capitalize()} over {over}", "", draw)


def write_results(run_dir: RunDir, summary: Summary, notify: Notify) -> None:
    """Write results/ of a run that has ended, the page last: if it is there, all files are.

    Args:
      notify: gets one line for each damaged file; it is left out.
    Raises:
      OSError: the disk is full or refuses.
    """
    found = _ScoredRun.of(run_dir, summary, notify)
    curves = list(_curve_plots(found.curves))
    plots = found.analysis.plots() if found.analysis else []
    page, numbers = found.page(curves, plots), json.dumps(found.numbers(), indent=1, allow_nan=False)
    folder = run_dir.results / "plots"
    folder.mkdir(parents=True, exist_ok=True)
    untrusted.check_way(folder, "folder of the run")
    if folder.is_symlink():
        raise UserError(f"'{folder}' is a link: remove it, and draw again")
    remove_leftovers(run_dir.results, "results.*")
    for before in folder.glob("*.svg"):
        before.unlink()
    for plot in (*curves, *plots):
        write_whole(folder / f"{plot.name}.svg", plot.svg)
    write_whole(run_dir.results_numbers, f"{numbers}\n")
    write_whole(run_dir.results_page, page)
