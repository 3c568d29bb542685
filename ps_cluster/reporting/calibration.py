"""Measure whether a network is right as often as it is sure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

BINS = 15  # as many as in the paper's tables


@dataclass(frozen=True)
class Calibration:
    """Predictions in bins of equal width by their confidence: bin m holds those in ((m − 1) / M, m / M].

    Attributes:
      counts: predictions in each bin. right: the share of them that are right. confidence: their mean confidence. The
        last two are None for an empty bin.
    """

    counts: tuple[int, ...]
    right: tuple[float | None, ...]
    confidence: tuple[float | None, ...]

    @property
    def total(self) -> int:
        return sum(self.counts)

    @property
    def expected_error(self) -> float | None:
        """The expected calibration error: the mean over all predictions of |right − confidence| of their bin.

        Guo et al. 2017, "On Calibration of Modern Neural Networks", arXiv:1706.04599, eq. 3. None without predictions.
        """
        if not self.total:
            return None
        gaps = (
            count * abs(right - confidence)
            for count, right, confidence in zip(self.counts, self.right, self.confidence)
            if right is not None and confidence is not None
        )
        return sum(gaps) / self.total

    @property
    def overconfidence(self) -> float | None:
        """Mean confidence less the share that is right: above 0 the network is too sure. None without predictions."""
        if not self.total:
            return None
        sums = [0.0, 0.0]
        for count, right, confidence in zip(self.counts, self.right, self.confidence):
            sums[0] += count * (right or 0.0)
            sums[1] += count * (confidence or 0.0)
        return (sums[1] - sums[0]) / self.total


def calibration(confidence: np.ndarray, right: np.ndarray, bins: int = BINS) -> Calibration:
    """Return predictions in bins.

    Args:
      confidence: float [N], the probability that each prediction gave to itself, 0..1.
      right: bool [N], whether it is right.
    """
    sure = np.asarray(confidence, np.float64)
    of_bin = np.clip(np.ceil(sure * bins).astype(np.int64) - 1, 0, bins - 1)
    counts = np.bincount(of_bin, minlength=bins)
    sums = (np.bincount(of_bin, values, bins) for values in (right, sure))
    rights, confidences = (
        tuple(float(total / count) if count else None for total, count in zip(of_bins, counts)) for of_bins in sums
    )
    return Calibration(tuple(map(int, counts)), rights, confidences)


def expected_calibration_error(confidence: np.ndarray, right: np.ndarray, bins: int = BINS) -> float | None:
    """Return `Calibration.expected_error` of predictions; arguments as of `calibration`."""
    return calibration(confidence, right, bins).expected_error
