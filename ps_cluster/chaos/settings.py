"""What is disturbed and for how long, and the options of `run` that follow from it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ps_cluster.chaos.faults import Fault, plan

# More than fit into the time between faults; each costs 128 bytes on every parameter server.
STEPS_PER_FAULT, STEPS_PER_MINUTE = 10_000, 20_000
MOST_STEPS = 10_000_000
# On the first, easier generated set, with 500 at the end of 800, equal runs of 64 images a step differed by 4 points; with 1,500
# by 0.1 (3 seeds). On today's, 1,500 leave 0.7 and 1.8 points (two pairs).
COOL_DOWN_FRACTION, SHORTEST_COOL_DOWN = 0.25, 1500
COOL_DOWN_END_FACTOR = 0.05


@dataclass(frozen=True)
class Settings:
    """What to disturb, and for how long: `faults` times, or for `minutes` where that is set."""

    seed: int = 0
    faults: int = 20
    minutes: float | None = None
    model: str = "tutorial_cnn"
    workers: int = 3
    parameter_servers: int = 1
    more_options: tuple[str, ...] = ()  # of `run`

    def most_steps(self) -> int:
        """Steps that the disturbed run would take if it were not drained after the last fault."""
        wanted = STEPS_PER_FAULT * self.faults if self.minutes is None else STEPS_PER_MINUTE * (self.minutes + 1)
        return min(MOST_STEPS, int(wanted))

    def run_options(self, values: Mapping[str, Any]) -> tuple[str, ...]:
        """The options of `run`; `values`: dotted key → value of more settings."""
        return (
            *("--dataset", "synthetic", "--model", self.model, "--seed", str(self.seed)),
            *("--workers", str(self.workers), "--ps", str(self.parameter_servers)),
            *(option for key, value in values.items() for option in ("--set", f"{key}={value}")),
            *self.more_options,
        )

    def plan(self) -> Iterator[Fault]:
        faults = plan(self.seed, workers=self.workers, parameter_servers=self.parameter_servers)
        return itertools.islice(faults, self.faults) if self.minutes is None else faults


def constant_rate(steps: int) -> dict[str, Any]:
    """Settings: the peak learning rate at every step."""
    return {"training.steps": steps, "schedule.kind": "constant", "schedule.warmup_fraction": 0.0}


def with_cool_down(steps: int) -> dict[str, Any]:
    """Settings: `steps` at the peak learning rate, as `constant_rate` has it, then more of them in which it falls."""
    total = steps + max(SHORTEST_COOL_DOWN, int(COOL_DOWN_FRACTION * steps))
    return {
        "training.steps": total,
        "schedule.kind": "triangle",
        "schedule.start_factor": 1.0,  # so that the "warm-up" is what is constant
        "schedule.warmup_fraction": steps / total,
        "schedule.end_factor": COOL_DOWN_END_FACTOR,
    }
