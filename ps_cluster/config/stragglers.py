"""Parse the option `--straggler`, which makes workers slow on purpose."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

_NUMBER = r"([0-9]{1,4}(?:\.[0-9]{1,6})?)"
_STRAGGLER = re.compile(rf"(0|[1-9][0-9]{{0,4}}):(?:{_NUMBER}x|\+{_NUMBER}s)")
MOST_TIMES, MOST_EXTRA_S = 1000, 3600
NONE, GAMMA = "none", "random:gamma"

# Ali et al. 2000, "Representing task and machine heterogeneities for heterogeneous computing systems" (Tamkang J. Sci.
# Eng. 3(3)), the coefficient-of-variation method. The values are from Hakimi et al. 2019 (arXiv:1907.11612), for
# machines that differ.
MACHINE_VARIATION = 0.6
TASK_VARIATION = 0.1


@dataclass(frozen=True)
class Slowness:
    """The slowness of one worker: its steps take `factor` times as long as usual, plus `extra_s` seconds."""

    worker: int
    factor: float = 1.0
    extra_s: float = 0.0


@dataclass(frozen=True)
class Stragglers:
    """The slow workers. With `gamma`, all workers are slow, by a random factor for each worker and for each step."""

    slow: tuple[Slowness, ...] = ()
    gamma: bool = False

    def __bool__(self) -> bool:
        return self.gamma or bool(self.slow)

    def are_among(self, workers: int) -> bool:
        """Return whether all named workers have an index below `workers`."""
        return all(slow.worker < workers for slow in self.slow)

    def longest_step_s(self, own_s: float, workers: int, seed: int) -> float:
        """Return the longest time, in seconds, that a step is expected to take in the slowest worker.

        With the setting `gamma` the times are random. A step then very rarely takes longer than this.

        Args:
          own_s: the seconds that a step takes in a worker that is not slowed down.
        """
        if self.gamma:
            return own_s * float(machine_means(workers, seed).max()) * (1 + 5 * TASK_VARIATION)
        return max([own_s, *(slow.factor * own_s + slow.extra_s for slow in self.slow)])


def parse_stragglers(text: str) -> Stragglers:
    """Parse `"none"`, `"random:gamma"`, or workers such as `"2:5x"` and `"1:+0.2s"`, joined by `;`.

    Raises:
      ValueError: the text has none of these forms.
    """
    if text == NONE:
        return Stragglers()
    if text == GAMMA:
        return Stragglers(gamma=True)
    slow = tuple(_parse_slowness(part) for part in text.split(";"))
    if len({one.worker for one in slow}) < len(slow):
        raise ValueError(f"{text!r:.80} names a worker twice")
    return Stragglers(slow)


def _parse_slowness(text: str) -> Slowness:
    match = _STRAGGLER.fullmatch(text.strip())
    if not match:
        raise ValueError(
            f"{text!r:.80} is no straggler: write 2:5x (worker 2 takes 5 times as long), 1:+0.2s (each step of worker 1 "
            "takes 0.2 s longer), random:gamma (random factors for all workers) or none"
        )
    factor, extra_s = float(match[2] or 1), float(match[3] or 0)
    if not 1 <= factor <= MOST_TIMES or extra_s > MOST_EXTRA_S:
        raise ValueError(
            f"{text!r} is no straggler: a factor has to be from 1 to {MOST_TIMES}, a delay at most {MOST_EXTRA_S} s"
        )
    return Slowness(int(match[1]), factor, extra_s)


def machine_means(workers: int, seed: int) -> np.ndarray:
    """Draw each worker's relative step time, float64 [workers], from a gamma distribution. The smallest time is 1."""
    shape = MACHINE_VARIATION**-2
    means = np.random.default_rng(seed).gamma(shape, 1 / shape, size=workers)
    return np.asarray(means / means.min())
