"""Decide how many updates make a measurement of a network of which no number of examples is known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ps_cluster.config import RunConfig

SECONDS = 10.0  # that a measurement shall take
LEAST_STEPS = 90  # fewer would make the first and the last gradients count too much
MOST_STEPS = 50_000
_ENOUGH_S = 2.0  # a run that trains for so long tells the rate well enough
_GROWTH = 10  # from one short run to the next

Rate = Callable[[RunConfig], float | None]
"""Trains a configuration and returns its examples per second; None if it was over before there was a rate."""


def with_lengths(
    cases: Iterable[RunConfig], rate: Rate, *, unit: str, arm: str, notify: Callable[[str], None]
) -> Iterator[RunConfig]:
    """Yield the cases, each with its number of updates. All arms and rounds of a case have the same.

    Args:
      rate: runs `arm`, one after the other.
      unit: the word for several examples.
    """
    for case in cases:
        if case.training.steps is None:
            steps, per_second = _steps(case, rate)
            case = case.with_values({"training.steps": steps})
            notify(
                f"{case.model.name} {case.model.precision}: {steps * case.examples_per_step:,} {unit} make a measurement: "
                f"about {SECONDS:.0f} s, at the {per_second:,.0f} {unit}/s of a short run of arm {arm}"
            )
        yield case


def _steps(case: RunConfig, rate: Rate) -> tuple[int, float]:
    """Return the updates of a measurement and the examples per second of the last short run, 0 if it had none."""
    steps = LEAST_STEPS
    while True:
        per_second = rate(case.with_values({"training.steps": steps}))
        steps_per_second = (per_second or 0.0) / case.examples_per_step
        if per_second and steps >= _ENOUGH_S * steps_per_second or steps == MOST_STEPS:
            return min(MOST_STEPS, max(LEAST_STEPS, round(SECONDS * steps_per_second))), per_second or 0.0
        steps = min(MOST_STEPS, _GROWTH * steps)
