"""Measure calibration: whether the accuracy of predictions matches the confidence of the network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from ps_cluster.report.colours import PALETTE
from ps_cluster.report.plots import Plot, small_plot

BINS = 15  # the number of bins in the tables of the paper that `expected_error` cites


@dataclass(frozen=True)
class Calibration:
    """Counts that show how well the confidence of predictions matches their accuracy.

    The predictions are sorted into M bins of equal width. Bin m, from 1 to M, holds the predictions with a confidence
    in ((m − 1) / M, m / M].

    Attributes:
      counts: the number of predictions in each bin, int64 [M].
      rights: the number of right predictions in each bin, [M].
      sums: the sum of the confidences in each bin, [M].
    """

    counts: np.ndarray
    rights: np.ndarray
    sums: np.ndarray

    @classmethod
    def of(cls, confidence: np.ndarray, right: np.ndarray, bins: int = BINS) -> Calibration:
        """Return the calibration of N predictions.

        Args:
          confidence: float [N], the probability that the network gave to each prediction, 0..1.
          right: bool [N], whether each prediction is right.
          bins: the number of bins.
        """
        sure = np.asarray(confidence, np.float64)
        of_bin = np.clip(np.ceil(sure * bins).astype(np.int64) - 1, 0, bins - 1)
        return cls(*(np.bincount(of_bin, values, bins) for values in (None, right, sure)))

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    @property
    def expected_error(self) -> float | None:
        """The expected calibration error: the mean over all predictions of |accuracy − confidence| of their bin.

        Guo et al. 2017, "On Calibration of Modern Neural Networks", arXiv:1706.04599, eq. 3. None without predictions.
        """
        return share_of(np.abs(self.rights - self.sums).sum(), self.total)

    @property
    def overconfidence(self) -> float | None:
        """The mean confidence minus the accuracy: above 0 the network is too sure. None without predictions."""
        return share_of((self.sums - self.rights).sum(), self.total)

    def bin_means(self, sums: np.ndarray) -> list[float | None]:
        """Return the mean of each bin: its sum in `sums` [M] divided by its count; None for an empty bin."""
        return [share_of(total, count) for total, count in zip(sums, self.counts)]

    def to_json(self) -> dict[str, Any]:
        """Return the bins, the calibration error and the overconfidence for results.json."""
        return {
            "expected_calibration_error": self.expected_error,
            "overconfidence": self.overconfidence,
            "bins": len(self.counts),
            "counts": self.counts.tolist(),
            "right": self.bin_means(self.rights),
            "confidence": self.bin_means(self.sums),
        }


def reliability(found: Calibration, unit: str) -> list[Plot]:
    """Return two plots with bins of confidence on the x axis.

    One shows the share of right predictions in each bin. The other shows the share of all predictions that is in each
    bin.
    """
    if not found.total:
        return []
    middles = 100 * (np.arange(BINS) + 0.5) / BINS
    right = (
        f"The share of predictions that are right, by the confidence of the network, in {BINS} bins of equal width. "
        "On the diagonal, this share equals the confidence; below the diagonal, the network is too sure. A bin without a "
        "dot has no predictions."
    )

    def draw_right(axes: Axes) -> None:
        known = found.counts > 0
        places, heights = middles[known], 100 * found.rights[known] / found.counts[known]
        axes.bar(places, heights, width=100 / BINS * 0.9, color=PALETTE[0], label="right")
        # A bar of 0 % has no height. Its dot distinguishes it from a bin without predictions.
        axes.plot(
            places, heights, "o", color=PALETTE[0], markeredgecolor="white", markersize=6, clip_on=False, zorder=3
        )
        axes.plot([0, 100], [0, 100], color=PALETTE[1], linestyle="--", linewidth=1.2, label="perfectly calibrated")
        axes.set(xlabel="confidence [%]", ylabel="right [%]", xlim=(0, 100), ylim=(0, 100))

    def draw_counts(axes: Axes) -> None:
        share = 100 * found.counts / found.total
        axes.bar(middles, share, width=100 / BINS * 0.9, color=PALETTE[5])
        axes.set(xlabel="confidence [%]", ylabel="predictions [%]", xlim=(0, 100))

    return [
        small_plot("calibration", "Right predictions, by confidence", right, draw_right),
        small_plot("confidence", "Distribution of confidence", f"The share of test {unit} by confidence.", draw_counts),
    ]


def percent(share: float | None) -> str:
    """Return a share, 0..1, as text, e.g. "91.2 %"; "–" for None."""
    return "–" if share is None else f"{share:.1%}".replace("%", "\N{NO-BREAK SPACE}%")


def share_of(part: float, whole: float) -> float | None:
    """Return part / whole; None if `whole` is 0."""
    return float(part / whole) if whole else None
