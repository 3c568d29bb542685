"""Define which training examples a run, or each of its workers, uses: all, a data shard, or a bootstrap sample."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TypeAlias

from ps_cluster.config.lazy import tf

IntOrTensor: TypeAlias = "int | tf.Tensor"
"""An integer. In the graph of a worker it may be a tensor, int64 []."""

ALL = "all"
OF_WORKER = "shard:worker"  # as many data shards as workers; each worker uses the data shard with its index
OF_FILES = "files:worker"  # each worker uses whole files of the data set; replaced by rows:… once the files are read
MOST_SHARDS = 1000
# A bootstrap sample draws without replacement from this many copies of each example. This is practically the same
# as drawing with replacement.
COPIES = 1024
_SHARD = re.compile(r"shard:(0|[1-9][0-9]{0,3})/([1-9][0-9]{0,3})")
_BOOTSTRAP = re.compile(r"bootstrap:(0|[1-9][0-9]{0,8})")
_ROWS = re.compile(r"rows:([1-9][0-9]{0,11}(?:,[1-9][0-9]{0,11}){0,999})")


@dataclass(frozen=True)
class Sample:
    """A random part of the training examples: a data shard, or a bootstrap sample.

    The training set of N examples is repeated `copies` times and shuffled with `seed`. The sample consists of the
    examples at the positions `index`, `index + of`, `index + 2 * of`, …, up to position N - 1.

    For a data shard, `copies` is 1, and `of` is the number of data shards. The data shards are disjoint, and together
    they hold all examples. For a bootstrap sample (Breiman 1996, "Bagging Predictors"), `of` is 1, and there are many
    copies. On average it contains 63 % of the examples, some of them several times.
    """

    seed: int = 0
    index: IntOrTensor = 0
    of: int = 1
    copies: int = 1

    def size(self, examples: int) -> IntOrTensor:
        """Return the number of examples in this sample. `examples`: the number of all training examples."""
        return (examples - self.index + self.of - 1) // self.of


@dataclass(frozen=True)
class ConsecutiveExamples:
    """A sequence of `count` consecutive examples that begins with example number `first`."""

    first: IntOrTensor
    count: IntOrTensor

    def size(self, examples: int) -> IntOrTensor:
        """Return `count`. The number of all examples, `examples`, does not matter."""
        return self.count


@dataclass(frozen=True)
class WorkerParts:
    """A division of the training examples among the workers.

    `ends`: the end (exclusive) of each worker's examples, if each worker has consecutive examples; () if each worker
    has the data shard with its index. With the ends 3000 and 7000, worker 0 has the examples 0 to 2999, and worker 1
    has the examples 3000 to 6999.
    """

    ends: tuple[int, ...] = ()

    def size(self, examples: int) -> int:
        """Return how many of the `examples` examples are used by any of the workers."""
        return self.ends[-1] if self.ends else examples

    def part(
        self, worker: IntOrTensor, workers: int, take: Callable[[Sequence[int], IntOrTensor], IntOrTensor]
    ) -> Sample | ConsecutiveExamples:
        """Return the part of one worker.

        Args:
          worker: the index of the worker. A worker that `ps-cluster scale` has added uses the examples of another one.
          workers: the number of workers among which the examples are divided.
          take: returns the element of a sequence at an index. It is an argument because the index may be a tensor.
        """
        index = worker % workers
        if not self.ends:
            return Sample(index=index, of=workers)
        firsts = (0, *self.ends[:-1])
        counts = [end - first for first, end in zip(firsts, self.ends)]
        return ConsecutiveExamples(take(firsts, index), take(counts, index))


def is_by_worker(text: str) -> bool:
    """Return whether a value of `training.sample`, which may be invalid, gives each worker its own examples."""
    return text in (OF_WORKER, OF_FILES) or _ROWS.fullmatch(text) is not None


def ends_of_files(rows_of_files: Sequence[int], workers: int) -> tuple[int, ...]:
    """Divide files among the workers: each gets some consecutive files, with similar numbers of examples.

    Return the end (exclusive) of each worker's examples, as in `WorkerParts.ends`.

    Args:
      rows_of_files: the number of training examples in each file, in order.
    Raises:
      ValueError: there are fewer files than workers.
    """
    ends = [end for end, rows in zip(accumulate(rows_of_files), rows_of_files) if rows]
    if len(ends) < workers:
        raise ValueError(f"only {len(ends)} files have examples to train on, but there are {workers} workers")
    chosen, first = [], 0
    for worker in range(1, workers):
        possible = range(first, len(ends) - (workers - worker))  # each of the later workers gets a file too
        wanted = ends[-1] * worker / workers
        last = min(possible, key=lambda file: abs(ends[file] - wanted))
        chosen.append(ends[last])
        first = last + 1
    return (*chosen, ends[-1])


def parse_sample(text: str) -> Sample | WorkerParts | None:
    """Parse the setting `training.sample`. Return None for "all". Raises ValueError if the text has no valid form."""
    if text == ALL:
        return None
    if text in (OF_WORKER, OF_FILES):
        return WorkerParts()
    if found := _ROWS.fullmatch(text):
        ends = tuple(map(int, found[1].split(",")))
        if any(later <= end for end, later in pairwise(ends)):
            raise ValueError(f"{text!r:.80}: the numbers have to ascend: each says where the examples of a worker end")
        return WorkerParts(ends)
    if found := _BOOTSTRAP.fullmatch(text):
        return Sample(seed=int(found[1]), copies=COPIES)
    found = _SHARD.fullmatch(text)
    if found is None or int(found[1]) >= int(found[2]) or int(found[2]) > MOST_SHARDS:
        raise ValueError(
            f"{text!r:.80} is no sample: write all, shard:0/4 (the first of four parts), shard:worker (one part for each "
            "worker), files:worker (whole files for each worker), rows:3000,7000 (where each worker's rows end) or bootstrap:7 "
            "(7 is the seed)"
        )
    return Sample(index=int(found[1]), of=int(found[2]))
