"""The part of the training examples that a run sees: all, a shard of its own, or a bootstrap sample. No TensorFlow."""

from __future__ import annotations

import re
from dataclasses import dataclass

ALL = "all"
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
    index: int = 0
    of: int = 1
    copies: int = 1

    def size(self, examples: int) -> int:
        """Return how many of so many examples it has."""
        return len(range(self.index, examples, self.of))


def parse_sample(text: str) -> Sample | None:
    """Return the sample of "shard:0/4" or "bootstrap:7" (its seed); None for "all". Raises ValueError for another text."""
    if text == ALL:
        return None
    if found := _BOOTSTRAP.fullmatch(text):
        return Sample(seed=int(found[1]), copies=COPIES)
    found = _SHARD.fullmatch(text)
    if found is None or int(found[1]) >= int(found[2]) or int(found[2]) > MOST_SHARDS:
        raise ValueError(
            f"{text!r:.80} is no sample: write all, shard:0/4 (the first of four) or bootstrap:7 (its seed)"
        )
    return Sample(index=int(found[1]), of=int(found[2]))
