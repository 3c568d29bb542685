"""Read `cluster.isolation`: a word, or the interface to which a task on several machines keeps. No TensorFlow."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field

from ps_cluster.errors import did_you_mean

KEY = "cluster.isolation"
WORDS = ("auto", "require", "off")
_STRICTER = ("off", "auto", "require")  # each than those before it; stricter than all: an interface
INTERFACE = r"^interface=[A-Za-z0-9_.:@-]{1,15}$"  # Linux has no longer names; a * would be a pattern for the firewall


def _known(value: object) -> object:
    if value in WORDS or isinstance(value, str) and re.fullmatch(INTERFACE, value):
        return value
    nearest = did_you_mean(value, WORDS) if isinstance(value, str) else ""
    words = ", ".join(map(repr, WORDS))
    raise ValueError(f"{nearest}Input should be {words} or, for `task`, interface=NAME, e.g. interface=wg0")


Isolation = Annotated[
    Literal["auto", "require", "off"] | Annotated[str, Field(pattern=INTERFACE)], BeforeValidator(_known)
]


def joined(layers: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Join layers of dotted keys, the later over the earlier. But of `cluster.isolation` the strictest wins."""
    layers = list(layers)
    return {key: value for layer in layers for key, value in layer.items()} | strictest(layers)


def strictest(layers: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the strictest `cluster.isolation` that layers of dotted keys have, under its key; {} where none has it.

    Who asks for protection gets it, whoever else asks for less.
    """
    asked = [value for layer in layers if isinstance(value := layer.get(KEY), str)]
    return (
        {KEY: max(asked, key=lambda one: _STRICTER.index(one) if one in _STRICTER else len(_STRICTER))} if asked else {}
    )


def interface_of(setting: str) -> str | None:
    """Return the interface that the setting names, None for one of the words."""
    return None if setting in WORDS else setting.partition("=")[2]


# Parse `--straggler`: workers that are slow on purpose. No TensorFlow.

_NUMBER = r"([0-9]{1,4}(?:\.[0-9]{1,6})?)"
_ONE = re.compile(rf"(0|[1-9][0-9]{{0,4}}):(?:{_NUMBER}x|\+{_NUMBER}s)")
MOST_TIMES, MOST_EXTRA_S = 1000, 3600
NONE, GAMMA = "none", "random:gamma"

# Ali et al. 2000, "Representing task and machine heterogeneities for heterogeneous computing systems" (Tamkang J. Sci.
# Eng. 3(3)), the coefficient-of-variation method; these values are those of Hakimi et al. 2019 (arXiv:1907.11612) for
# machines that differ.
MACHINE_VARIATION = 0.6
TASK_VARIATION = 0.1


@dataclass(frozen=True)
class Slowness:
    """The slowness of a worker: its step takes `factor` times its own time, plus `extra_s` seconds."""

    worker: int
    factor: float = 1.0
    extra_s: float = 0.0


@dataclass(frozen=True)
class Stragglers:
    """The slow workers: named ones, or (`gamma`) all, by factors drawn for each worker and each of its steps."""

    slow: tuple[Slowness, ...] = ()
    gamma: bool = False

    def __bool__(self) -> bool:
        return self.gamma or bool(self.slow)

    def are_among(self, workers: int) -> bool:
        """Return whether all named workers have an index below `workers`."""
        return all(slow.worker < workers for slow in self.slow)

    def longest_step_s(self, own_s: float, workers: int, seed: int) -> float:
        """Return the seconds of the slowest worker's step if others take `own_s`; for random ones, nearly a bound."""
        if self.gamma:
            return own_s * float(machine_means(workers, seed).max()) * (1 + 5 * TASK_VARIATION)
        return max([own_s, *(slow.factor * own_s + slow.extra_s for slow in self.slow)])


def parse_stragglers(text: str) -> Stragglers:
    """Parse `"none"`, `"2:5x"`, `"1:+0.2s"`, several of these joined by `;`, or `"random:gamma"`.

    Raises:
      ValueError: it is none of these.
    """
    if text == NONE:
        return Stragglers()
    if text == GAMMA:
        return Stragglers(gamma=True)
    slow = tuple(_slowness(part) for part in text.split(";"))
    if len({one.worker for one in slow}) < len(slow):
        raise ValueError(f"{text!r:.80} names a worker twice")
    return Stragglers(slow)


def _slowness(text: str) -> Slowness:
    match = _ONE.fullmatch(text.strip())
    if not match:
        raise ValueError(
            f"{text!r:.80} is no straggler: write 2:5x (worker 2 takes 5 times as long), 1:+0.2s, random:gamma or none"
        )
    factor, extra_s = float(match[2] or 1), float(match[3] or 0)
    if not 1 <= factor <= MOST_TIMES or extra_s > MOST_EXTRA_S:
        raise ValueError(
            f"{text!r} is no straggler: a factor is in 1 to {MOST_TIMES}, a delay at most {MOST_EXTRA_S} s"
        )
    return Slowness(int(match[1]), factor, extra_s)


def machine_means(workers: int, seed: int) -> np.ndarray:
    """Return each worker's relative step time, float64 [workers], the fastest 1; gamma with MACHINE_VARIATION."""
    shape = MACHINE_VARIATION**-2
    means = np.random.default_rng(seed).gamma(shape, 1 / shape, size=workers)
    return np.asarray(means / means.min())


# Compute how many steps a worker is handed at once.

# A dispatch costs the chief 1 to 2 ms (docs/results.md, configs/simulate/) and its worker a round trip. The more steps
# it has, the more are computed twice when a worker dies.
DISPATCH_S, FEWEST, MOST = 0.5, 4, 64
CHIEF_PER_S = 200  # dispatches per second to all workers together that the chief can easily make


def dispatch_size(setting: int | Literal["auto"], *, workers: int, per_second: float, left: float) -> int:
    """Return how many steps (or rounds) a worker is handed at once.

    Args:
      setting: the number, or "auto": about `DISPATCH_S` seconds of work, or more where there are too many workers for
        the chief; less towards the end, so that no worker still has much to do while the others have nothing.
      workers: the number of workers.
      per_second: steps (or rounds) per second of one worker; 0 while unknown.
      left: steps (or rounds) left for each worker.
    """
    if setting != "auto":
        return setting
    wanted = min(max(FEWEST, per_second * max(DISPATCH_S, workers / CHIEF_PER_S)), MOST)
    return int(max(1, min(wanted, left / 2)))
