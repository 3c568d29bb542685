"""Draw a sweep: each trial as a line through its values, and what decided the score."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from ps_cluster.reporting.plot import Plot
from ps_cluster.reporting.plot_style import PALETTE, WIDTH_IN, plot_style
from ps_cluster.sweep.space import Interval, Space
from ps_cluster.sweep.sweep_view import text
from ps_cluster.sweep.trial_book import Trial

_COLOURS = matplotlib.colormaps["viridis"]
_BEST = PALETTE[1]  # stands out of them, on white and when a dark page turns the colours over
_LOW_SHARE = 0.05  # of the scores, which a few bad trials would otherwise spread over all colours
_TICKS = 5


def make_sweep_plots(
    space: Space, trials: Sequence[Trial], importances: Mapping[str, float], *, scale: float, axis: str, larger: bool
) -> list[Plot]:
    """Return the plots that have something to show.

    Args:
      trials: all, ranked. scale: shown score / score. axis: the name of a score with its unit. larger: is better.
    """
    with plot_style():
        return list(_plots(space, trials, importances, scale, axis, larger))


def _plots(
    space: Space, trials: Sequence[Trial], importances: Mapping[str, float], scale: float, axis: str, larger: bool
) -> Iterator[Plot]:
    scored = [trial for trial in trials if trial.score is not None and trial.state in ("completed", "pruned")]
    if len(scored) >= 2:
        told = (
            "A line is a trial: its values, and its score on held-out training examples. The best is thick and orange."
        )
        early = " Trials that were stopped early are dashed, with the score for which they were stopped." * any(
            trial.state == "pruned" for trial in scored
        )
        figure = _parallel(space, scored, scale, axis, larger)
        yield Plot("parallel-coordinates", "All trials", told + early, figure)
    if importances:
        count = sum(trial.state == "completed" for trial in trials)
        told = (
            "The share of each setting in what sets the better trials apart (PED-ANOVA, Watanabe et al. 2023), over "
            f"{count} completed trials, each with one seed. With few trials it is a hint, not a finding."
        )
        yield Plot("importance", "What decided the score", told, _importance(importances))


def _parallel(space: Space, scored: Sequence[Trial], scale: float, axis: str, larger: bool) -> Figure:
    figure = Figure(figsize=(WIDTH_IN, 4.2), layout="constrained")
    panel = figure.subplots()
    scores = [scale * (trial.score or 0.0) for trial in scored]
    columns = [*(_Column.of_axis(space, key) for key in space.axes), _Column.of_scores(axis, scores)]
    colours = Normalize(*_middle(scores, larger), clip=True)
    for rank in reversed(range(len(scored))):  # the best is drawn last, above all
        trial = scored[rank]
        heights = [column.height(trial.values[column.key]) for column in columns[:-1]]
        heights.append(columns[-1].height(scores[rank]))
        share = float(colours(scores[rank]))
        panel.plot(
            range(len(columns)), heights, color=_COLOURS(0.88 * (share if larger else 1 - share)) if rank else _BEST,
            linewidth=2.6 if rank == 0 else 1.1, alpha=1.0 if rank == 0 else 0.75,
            linestyle="--" if trial.state == "pruned" else "-",
        )  # fmt: skip
    for place, column in enumerate(columns):
        column.draw(panel, place, is_last=place == len(columns) - 1)
    panel.set_xlim(-0.25, len(columns) - 0.65)
    panel.set_ylim(-0.06, 1.12)
    panel.axis("off")
    return figure


def _middle(scores: Sequence[float], larger: bool) -> tuple[float, float]:
    """Return the range of colours: from the worst trials but a few to the best one."""
    inner = sorted(scores)
    cut = int(_LOW_SHARE * len(inner))
    low, high = (inner[cut], inner[-1]) if larger else (inner[0], inner[-1 - cut])
    return low, high if high > low else low + 1e-9


class _Column:
    """An upright axis of the plot: where its values are, and their ticks."""

    def __init__(self, key: str, ticks: Mapping[str, float], low: float, high: float, log: bool = False):
        self.key, self._ticks, self._low, self._high, self._log = key, ticks, low, high, log

    @classmethod
    def of_axis(cls, space: Space, key: str) -> _Column:
        axis = space.axes[key]
        if isinstance(axis, Interval):
            return cls(key, _ticks(axis.low, axis.high, axis.log, axis.is_whole), axis.low, axis.high, axis.log)
        places = {json.dumps(value): float(place) for place, value in enumerate(axis.ends())}
        column = cls(key, {text(value): places[json.dumps(value)] for value in axis.ends()}, 0.0, len(places) - 1.0)
        column._places = places
        return column

    @classmethod
    def of_scores(cls, name: str, scores: Sequence[float]) -> _Column:
        low, high = min(scores), max(scores)
        high = high if high > low else low + 1.0
        return cls(name, _ticks(low, high), low, high)

    _places: Mapping[str, float] | None = None

    def height(self, value: Any) -> float:
        """Return the height of a value, 0 to 1."""
        number = self._places[json.dumps(value)] if self._places is not None else value
        low, high, at = (math.log(one) if self._log else one for one in (self._low, self._high, number))
        return float((at - low) / (high - low))

    def draw(self, panel: Axes, place: int, *, is_last: bool) -> None:
        panel.plot([place, place], [0, 1], color="#5b6570", linewidth=1.0, zorder=0)
        panel.text(place, 1.06, self.key.rpartition(".")[2], ha="center", va="bottom", fontsize=9, fontweight="bold")
        for label, value in self._ticks.items():
            low, high, at = (math.log(one) if self._log else one for one in (self._low, self._high, value))
            height = (at - low) / (high - low)
            side = 0.03 if is_last else -0.03
            panel.text(
                place + side, height, label, ha="left" if is_last else "right", va="center", fontsize=8,
                bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.8},
            )  # fmt: skip


def _ticks(low: float, high: float, log: bool = False, is_whole: bool = False) -> dict[str, float]:
    ends = (math.log(low), math.log(high)) if log else (low, high)
    between = (ends[0] + (ends[1] - ends[0]) * place / (_TICKS - 1) for place in range(_TICKS))
    values = [math.exp(value) if log else value for value in between]
    return {f"{value:.3g}": value for value in (map(round, values) if is_whole else values)}


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
