"""Define which training examples a run, or each of its workers, uses: all, a data shard, or a bootstrap sample."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

ALL = "all"
OF_WORKER = "shard:worker"  # as many data shards as workers; each worker uses the shard with its index
OF_FILES = "files:worker"  # each worker uses whole files of the data set; becomes rows:… once the data is there
MOST_SHARDS = 1000
# A bootstrap sample draws without replacement from this many copies of each example. That is practically the same as to
# draw with replacement.
COPIES = 1024
_SHARD = re.compile(r"shard:(0|[1-9][0-9]{0,3})/([1-9][0-9]{0,3})")
_BOOTSTRAP = re.compile(r"bootstrap:(0|[1-9][0-9]{0,8})")
_ROWS = re.compile(r"rows:([1-9][0-9]{0,11}(?:,[1-9][0-9]{0,11}){0,999})")


@dataclass(frozen=True)
class Sample:
    """A part of N examples. `copies` of each are put in random order (by `seed`); every `of`-th from `index` on is taken.

    A data shard has one copy of each. The `of` data shards are disjoint, and together they hold all examples. A bootstrap
    sample (Breiman 1996, "Bagging Predictors") takes N of many copies: on average 63 % of the examples, some repeatedly.
    """

    seed: int = 0
    index: Any = 0  # int; in the graph of a worker also int64 []
    of: int = 1
    copies: int = 1

    def size(self, examples: int) -> Any:
        """Return how many of `examples` the sample has: an int, or int64 [] if `index` is a tensor."""
        return (examples - self.index + self.of - 1) // self.of


@dataclass(frozen=True)
class Stretch:
    """Consecutive examples: `count` of them, from number `first` on."""

    first: Any  # int; in the graph of a worker also int64 []
    count: Any

    def size(self, examples: int) -> Any:
        """Return how many examples these are. Their number does not depend on `examples`."""
        return self.count


def ends_of_workers(text: str) -> tuple[int, ...] | None:
    """Return where the consecutive examples of each worker end, as "rows:3000,7000" says; None for any other text.

    Worker 0 has the examples 0 to 2999 then, and worker 1 those up to 6999. Raises ValueError for ends that do not ascend.
    """
    found = _ROWS.fullmatch(text)
    if found is None:
        return None
    ends = tuple(map(int, found[1].split(",")))
    if any(later <= end for end, later in pairwise(ends)):
        raise ValueError(f"{text!r:.80}: the numbers have to ascend: each says where the examples of a worker end")
    return ends


def is_by_worker(text: str) -> bool:
    """Return whether a sample gives each worker examples of its own."""
    return text in (OF_WORKER, OF_FILES) or ends_of_workers(text) is not None


def sample_of_worker(
    text: str, worker: Any, workers: int, take: Callable[[Sequence[int], Any], Any]
) -> Sample | Stretch:
    """Return the sample of one worker.

    Args:
      text: a setting for which `is_by_worker` is true.
      worker: int, or int64 [] in a graph. A worker that `scale` has added shares the examples of another one.
      take: returns the number of a sequence at an index, which is `worker` modulo `workers`.
    """
    ends = ends_of_workers(text)
    if ends is None:
        return Sample(index=worker % workers, of=workers)
    firsts = (0, *ends[:-1])
    counts = [end - first for first, end in zip(firsts, ends)]
    return Stretch(take(firsts, worker % workers), take(counts, worker % workers))


def ends_of_files(rows_of_files: Sequence[int], workers: int) -> tuple[int, ...]:
    """Return where the examples of each worker end if each gets whole, consecutive files, about equally many examples.

    Raises:
      ValueError: there are fewer files than workers.
    """
    ends = [end for end, rows in zip(accumulate(rows_of_files), rows_of_files) if rows]
    if len(ends) < workers:
        raise ValueError(f"only {len(ends)} files have examples to train on, but there are {workers} workers")
    chosen, at = [], 0
    for worker in range(1, workers):
        places = range(at, len(ends) - (workers - worker))  # each of the later workers gets a file too
        wanted = ends[-1] * worker / workers
        place = min(places, key=lambda place: abs(ends[place] - wanted))
        chosen.append(ends[place])
        at = place + 1
    return (*chosen, ends[-1])


def parse_sample(text: str) -> Sample | None:
    """Parse "shard:0/4" or "bootstrap:7" (7 is the seed). Raises ValueError for any other text.

    Return None if the run uses all examples: for "all", and where each worker makes its own sample (`is_by_worker`).
    """
    if text == ALL or is_by_worker(text):
        return None
    if found := _BOOTSTRAP.fullmatch(text):
        return Sample(seed=int(found[1]), copies=COPIES)
    found = _SHARD.fullmatch(text)
    if found is None or int(found[1]) >= int(found[2]) or int(found[2]) > MOST_SHARDS:
        raise ValueError(
            f"{text!r:.80} is no sample: write all, shard:0/4 (the first of four), shard:worker (each worker's own), "
            "files:worker (whole files for each), rows:3000,7000 (where the rows of each worker end) or bootstrap:7 (its seed)"
        )
    return Sample(index=int(found[1]), of=int(found[2]))
