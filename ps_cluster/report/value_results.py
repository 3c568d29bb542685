"""Find out how far predicted numbers are from the true ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np
from matplotlib.axes import Axes

from ps_cluster.files.json_files import Json
from ps_cluster.files.values import Malformed, number_text
from ps_cluster.report.analysis import MISTAKES, Analysis, Mistake
from ps_cluster.report.colours import PALETTE
from ps_cluster.report.plots import Plot, plain_ticks, small_plot
from ps_cluster.runs.predictions import Predictions

_MOST_DRAWN = 3  # the most outputs that have plots
_MOST_POINTS = 2000  # the most points in a plot
_MOST_VALUES = 4  # the most values of a target that are shown for a mistake


@dataclass(frozen=True)
class ValueRow:
    """The results of one predicted number. Errors are predicted − true, in the units of the number.

    Without finite errors, all attributes except the name are None.

    Attributes:
      mean_absolute, root_mean_square: the mean absolute error, and the root mean square error.
      bias: the mean error.
      explained: R², the share of the variance that the predictions explain; None if all true values are equal.
      low, median, high: the 5 %, 50 % and 95 % quantiles of the errors.
    """

    name: str
    mean_absolute: float | None
    root_mean_square: float | None
    bias: float | None
    explained: float | None
    low: float | None
    median: float | None
    high: float | None

    @property
    def merit(self) -> tuple[float, ...]:
        return (np.inf if self.explained is None else self.explained,)

    @property
    def cells(self) -> list[str]:
        errors = [self.mean_absolute, self.root_mean_square, self.bias, self.low, self.median, self.high]
        texts = ["–" if value is None else number_text(value) for value in errors]
        return [*texts[:3], "–" if self.explained is None else f"{self.explained:.3f}", *texts[3:]]


class ValueResults(Analysis):
    """The analysis of predictions of one or several numbers for each example, in the units of the target."""

    heading, worst = "Errors", "outputs with the lowest R²"
    table_columns = (
        "predicted", "mean absolute error", "root mean square", "bias", "R²", "5 % below", "median", "5 % above",
    )  # fmt: skip
    mistakes_title = "The largest errors"
    columns = ("predicted", "true", "absolute error")

    def __init__(self, predictions: Predictions, target_name: str = "target"):
        super().__init__(predictions, target_name)
        self.target = predictions.column("target", "f", axes=2)
        self._predicted = predictions.column("prediction", "f", axes=2)
        if self.target.shape != self._predicted.shape:
            raise Malformed(
                f"its targets have the shape {self.target.shape}, but its predictions {self._predicted.shape}"
            )
        self.known = np.isfinite(self._predicted).all(axis=1) & np.isfinite(self.target).all(axis=1)
        self._errors = np.asarray(self._predicted[self.known], np.float64) - self.target[self.known]

    @cached_property
    def rows(self) -> list[ValueRow]:
        """A row for each output, in the order of the outputs."""
        outputs = self.target.shape[1]
        names = [self.target_name] if outputs == 1 else [f"{self.target_name}[{index}]" for index in range(outputs)]
        return [self._row(index, name) for index, name in enumerate(names)]

    def _row(self, index: int, name: str) -> ValueRow:
        errors, true = self._errors[:, index], np.asarray(self.target[self.known, index], np.float64)
        if not len(errors):
            return ValueRow(name, *[None] * 7)
        square, spread = float(np.mean(errors**2)), float(true.var())
        low, median, high = (float(value) for value in np.quantile(errors, (0.05, 0.5, 0.95)))
        explained = 1 - square / spread if spread else None
        of_errors = float(np.abs(errors).mean()), square**0.5, float(errors.mean())
        return ValueRow(name, *of_errors, explained, low, median, high)

    def table_note(self) -> str:
        return (
            "Errors are predicted − true, in the units of the target. Bias: their mean. R²: the share of the variance "
            "of the true values that the predictions explain; 0 is as good as always predicting their mean. The last "
            "three columns are quantiles of the errors."
        )

    def numbers(self) -> Json:
        return {"without_prediction": self.without_prediction, "outputs": [asdict(row) for row in self.rows]}

    def highlights(self) -> Iterator[tuple[str, str]]:
        if len(self.rows) == 1 and (explained := self.rows[0].explained) is not None:
            yield "R²", f"{explained:.3f}"

    def plots(self) -> list[Plot]:
        if not len(self._errors):
            return []
        return [plot for index in self.shown[:_MOST_DRAWN] for plot in self._plots(index)]

    def _plots(self, index: int) -> Iterator[Plot]:
        name, number = self.rows[index].name, f"-{index}" if len(self.rows) > 1 else ""
        some = np.unique(np.linspace(0, len(self._errors) - 1, _MOST_POINTS).astype(int))
        sampled = f" {_MOST_POINTS:,} of {len(self._errors):,} are shown." if len(some) < len(self._errors) else ""
        true, errors = self.target[self.known, index], self._errors[:, index]

        def draw_points(axes: Axes) -> None:
            x, y = true[some], true[some] + errors[some]
            ends = [float(min(x.min(), y.min())), float(max(x.max(), y.max()))]
            axes.plot(
                x, y, linestyle="", marker="o", markersize=3, color=PALETTE[0], alpha=0.5, markeredgewidth=0,
                rasterized=True, label="test example",
            )  # fmt: skip
            axes.plot(ends, ends, color=PALETTE[1], linestyle="--", linewidth=1.2, label="right")
            axes.set(xlabel=f"true {name}", ylabel=f"predicted {name}")
            plain_ticks(axes)

        def draw_errors(axes: Axes) -> None:
            # If errors are very large and nearly equal, floats are too coarse for the edges of bins between them.
            least = 1e-9 * np.abs(errors).max()
            around = (errors.min() - least, errors.max() + least) if least > 0 and np.ptp(errors) < least else None
            axes.hist(errors, bins=40, range=around, color=PALETTE[5], edgecolor="white", linewidth=0.4)
            axes.axvline(0, color=PALETTE[1], linestyle="--", linewidth=1.2)
            axes.set(xlabel=f"predicted − true {name}", ylabel="test examples")
            plain_ticks(axes)

        caption = f"A point for each test example. On the line, the prediction is right.{sampled}"
        yield small_plot(f"predicted{number}", f"Predicted against true: {name}", caption, draw_points)
        caption = "The number of test examples by error. To the right of 0, the prediction is too high."
        yield small_plot(f"residuals{number}", f"Errors: {name}", caption, draw_errors)

    def mistakes(self) -> list[Mistake]:
        """Return the examples with the largest mean absolute error over their outputs."""
        sizes = np.abs(self._errors).mean(axis=1)
        ids = np.flatnonzero(self.known)
        return [
            Mistake(int(ids[at]), _text(self._predicted[ids[at]]), _text(self.target[ids[at]]), number_text(sizes[at]))
            for at in np.argsort(-sizes, kind="stable")[:MISTAKES]
        ]


def _text(values: np.ndarray) -> str:
    more = ", …" if len(values) > _MOST_VALUES else ""
    return ", ".join(number_text(value) for value in values[:_MOST_VALUES]) + more
