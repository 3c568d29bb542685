"""The part of the training examples that a run, or each of its workers, sees: all, a shard, a sample. No TensorFlow."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

ALL = "all"
OF_WORKER = "shard:worker"  # of as many shards as there are workers, each worker sees the one of its index
MOST_SHARDS = 1000
# A bootstrap sample takes one of so many copies of each example, each once: near enough to drawing with replacement.
COPIES = 1024
_SHARD = re.compile(r"shard:(0|[1-9][0-9]{0,3})/([1-9][0-9]{0,3})")
_BOOTSTRAP = re.compile(r"bootstrap:(0|[1-9][0-9]{0,8})")


@dataclass(frozen=True)
class Sample:
    """A part of N examples: every `of`-th from `index` on, of a random order (by `seed`) of `copies` of each example.

    A shard has one copy: shards of the same `of` are disjoint, and together they are all. A bootstrap sample (Breiman
    1996, "Bagging Predictors") has N of many copies, so on average 63 % of the examples, some of them several times.
    """

    seed: int = 0
    index: Any = 0  # int; in the graph of a worker also int64 []
    of: int = 1
    copies: int = 1

    def size(self, examples: int) -> Any:
        """Return how many of so many examples it has: an int, or int64 [] as `index` is."""
        return (examples - self.index + self.of - 1) // self.of


def parse_sample(text: str) -> Sample | None:
    """Return the sample of "shard:0/4" or "bootstrap:7" (its seed). Raises ValueError for another text.

    None where the run sees all: "all", and "shard:worker", of which each worker makes its own sample.
    """
    if text in (ALL, OF_WORKER):
        return None
    if found := _BOOTSTRAP.fullmatch(text):
        return Sample(seed=int(found[1]), copies=COPIES)
    found = _SHARD.fullmatch(text)
    if found is None or int(found[1]) >= int(found[2]) or int(found[2]) > MOST_SHARDS:
        raise ValueError(
            f"{text!r:.80} is no sample: write all, shard:0/4 (the first of four), shard:worker (each worker's own) or "
            "bootstrap:7 (its seed)"
        )
    return Sample(index=int(found[1]), of=int(found[2]))
