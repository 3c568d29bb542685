"""Read what the page of runs shows for each run: numbers, curves, staleness and settings. Imports no TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

from ps_cluster.config.datasets import DATASETS
from ps_cluster.files import untrusted
from ps_cluster.files.json_rows import last_row, some_rows
from ps_cluster.files.values import one_line, one_line_text
from ps_cluster.report.points import Point, scored_points, trained_points
from ps_cluster.report.run_list import ListedRun, RunFiles, list_run, read_files
from ps_cluster.runs.result_rows import (
    MEASURES,
    STALENESS_BOUNDS,
    EvaluationRow,
    Measure,
    ProgressRow,
    ScoreRow,
)
from ps_cluster.runs.run_dir import RunDir

MOST_POINTS = 40  # the most points of a curve, because a browser draws the curves of 20 runs at once
MOST_CHARACTERS = 200  # the most characters of the name or the value of a setting

Item = TypeVar("Item")


@dataclass(frozen=True)
class ShownRun:
    """A run as the page of runs shows it.

    Attributes:
      listed: the entry of the run in the list of runs.
      is_generated: whether the data set of the run is generated.
      staleness_shares: pairs of a staleness and the share of the updates that have at most this staleness; empty
        without updates.
      tested, trained: the curve of each measure on test examples, and on training examples. Curves without points are
        left out.
      settings: the value of each setting as text, by its dotted key.
      page: the page with its results; None if there is none, or if another user could have written it.
    """

    listed: ListedRun
    is_generated: bool
    staleness_shares: Sequence[tuple[int, float]]
    tested: Mapping[Measure, list[Point]]
    trained: Mapping[Measure, list[Point]]
    settings: Mapping[str, str] = field(repr=False)
    page: Path | None


def read_shown(run_dir: RunDir) -> ShownRun:
    """Return a run as the page of runs shows it. Raises UserError or OSError if its files can't be read."""
    files = read_files(run_dir)
    one = list_run(files)
    trained = [row for row in some_rows(run_dir.progress, ProgressRow, MOST_POINTS) if row.applied]
    tested = _scores(files)
    return ShownRun(
        one,
        is_generated=_is_generated(files, one.dataset),
        staleness_shares=_staleness_shares(files),
        tested=_curves(lambda measure: scored_points(tested, measure, "test")),
        trained=_curves(lambda measure: trained_points(trained, measure)),
        settings={_short(key): _short(one_line_text(value)) for key, value in files.settings.items()},
        page=_own_page(run_dir),
    )


def _scores(files: RunFiles) -> Sequence[ScoreRow]:
    if files.ended:
        return _thinned(files.ended.evaluation.history)
    return some_rows(files.run_dir.evaluation, EvaluationRow, MOST_POINTS)


def _curves(points_of: Callable[[Measure], list[Point]]) -> dict[Measure, list[Point]]:
    return {measure: points for measure in MEASURES if (points := points_of(measure))}


def _staleness_shares(files: RunFiles) -> list[tuple[int, float]]:
    if files.ended:
        histogram = files.ended.staleness.histogram
        counts = sorted((int(staleness), count) for staleness, count in histogram.items())
        return _thinned(_cumulative_shares(counts, sum(histogram.values())))
    row = last_row(files.run_dir.progress, ProgressRow)
    buckets = row.staleness.counts if row and row.staleness else []
    return _cumulative_shares(list(zip(STALENESS_BOUNDS, buckets)), sum(buckets))


def _cumulative_shares(counts: Sequence[tuple[int, int]], steps: int) -> list[tuple[int, float]]:
    """Return pairs of a staleness and the share of steps with at most this staleness. The list ends when the share is 1.

    Args:
      counts: (staleness, number of steps), in ascending order.
      steps: the number of all steps.
    """
    if not steps:
        return []
    totals = accumulate(count for _, count in counts)
    found = [(staleness, total / steps) for (staleness, _), total in zip(counts, totals)]
    everything = next((index for index, (_, share) in enumerate(found) if share == 1), len(found))
    return found[: everything + 1]


def _thinned(items: Sequence[Item]) -> list[Item]:
    """Return at most `MOST_POINTS` items, evenly spaced, and the last item."""
    every = -(-len(items) // MOST_POINTS) or 1
    found = list(items[::every])
    return found if not items or (len(items) - 1) % every == 0 else [*found, items[-1]]


def _is_generated(files: RunFiles, dataset: str | None) -> bool:
    if files.summary and files.summary.dataset_kind:
        return files.summary.dataset_kind == "synthetic"
    return dataset in DATASETS.own and DATASETS[dataset].kind == "synthetic"


def _short(text: str) -> str:
    return one_line(text, MOST_CHARACTERS)


def _own_page(run_dir: RunDir) -> Path | None:
    """Return the page of a run, unless another user could have written it, because a browser runs the code in it."""
    page = run_dir.results_page
    return page if page.is_file() and not untrusted.is_foreign(page) else None
