"""Define the settings for continuing a text.

The help of the command `predict` shows the defaults of these settings. This module does not import TensorFlow, so that
the help appears at once.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sampling:
    """Settings for the random choice of the next bytes."""

    length: int = 200  # the largest number of bytes to add; fewer if the model predicts the end of the file
    # The divisor of the scores. Below 1, likely bytes become likelier; at 0, the likeliest byte is always chosen.
    temperature: float = 0.7
    seed: int = 0
