"""The numbers that a comparison reads from each of its runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ps_cluster.tools.compare.metric import Metric
from ps_cluster.tools.compare.records import Reached, Record


@dataclass(frozen=True)
class Measure:
    """A number that can be read from the record of a run. Accuracies and shares are from 0 to 1.

    Attributes:
      column: the name of the number in the CSV and JSON files.
      read: returns the number of a run; None if the run does not have it.
    """

    column: str
    read: Callable[[Record], float | None]


TRAIN_SECONDS = Measure("train_seconds", lambda record: record.summary.train_seconds)
EXAMPLES = Measure("examples", lambda record: record.examples)
SPEED = Measure("examples_per_second", lambda record: record.examples_per_second)
STALENESS_MEAN = Measure("staleness_mean", lambda record: record.summary.staleness.mean)
STALENESS_P95 = Measure("staleness_p95", lambda record: record.summary.staleness.p95)
STALENESS_MAX = Measure("staleness_max", lambda record: record.summary.staleness.max)
UPDATES_APPLIED = Measure("updates_applied", lambda record: record.summary.updates.applied)
GRADIENTS_DROPPED = Measure("gradients_dropped", lambda record: record.summary.gradients.dropped or 0)
REPLAYS_REFUSED = Measure("replays_refused", lambda record: record.summary.updates.replays_refused)
CPU_SECONDS = Measure("cpu_seconds", lambda record: record.summary.cpu_seconds)
PEAK_MEMORY = Measure("peak_memory_bytes", lambda record: record.summary.peak_memory_bytes)
PUSHED = Measure(
    "pushed_bytes", lambda record: _total(server.pushed_bytes for server in record.summary.parameter_servers)
)
PULLED = Measure(
    "pulled_bytes", lambda record: _total(server.pulled_bytes for server in record.summary.parameter_servers)
)


def _total(counts: Iterable[int | None]) -> int | None:
    """Return the sum of the counts; None if a count is unknown, or if there are no counts."""
    known = list(counts)
    return sum(count for count in known if count is not None) if known and None not in known else None


@dataclass(frozen=True)
class Measures:
    """All measures of a comparison. Iterating over them yields the measures in the order of their columns.

    Attributes:
      times: the seconds of training after which the metric is compared, in addition to its final and its best value.
    """

    metric: Metric
    target: float | None
    times: Sequence[float] = ()

    @property
    def final(self) -> Measure:
        return Measure(self.metric.column, lambda record: record.final)

    @property
    def best(self) -> Measure:
        return Measure(self.metric.best_column, lambda record: record.best)

    def after(self, seconds: float) -> Measure:
        """Return the measure that reads the metric after `seconds` of training."""
        return Measure(f"{self.metric.column}_after_{seconds:g}_s", lambda record: record.after(seconds))

    @property
    def metric_values(self) -> tuple[Measure, ...]:
        """The measures of the metric: its final value, its best value, and its value after each of `times`."""
        return (self.final, self.best, *map(self.after, self.times))

    @property
    def seconds_to_target(self) -> Measure:
        return self._reached("seconds_to_target", lambda found: found.seconds)

    @property
    def exact_seconds_to_target(self) -> Measure:
        """The same as `seconds_to_target`, but None for each run for which only an upper limit of the time is known.

        No column of a table has this measure.
        """
        return self._reached("seconds_to_target", lambda found: None if found.is_limit else found.seconds)

    @property
    def examples_to_target(self) -> Measure:
        return self._reached("examples_to_target", lambda found: found.examples)

    @property
    def target_is_limit(self) -> Measure:
        """The measure that is 1 if the time and the examples to the target are only upper limits, else 0."""
        return self._reached("target_is_limit", lambda found: found.is_limit)

    def _reached(self, column: str, read: Callable[[Reached], float | None]) -> Measure:
        return Measure(column, lambda record: read(found) if (found := record.reached(self.target)) else None)

    def __iter__(self) -> Iterator[Measure]:
        yield from self.metric_values
        yield from (TRAIN_SECONDS, EXAMPLES, SPEED)
        yield from (self.seconds_to_target, self.examples_to_target, self.target_is_limit)
        yield from (STALENESS_MEAN, STALENESS_P95, STALENESS_MAX, UPDATES_APPLIED, GRADIENTS_DROPPED, REPLAYS_REFUSED)
        yield from (CPU_SECONDS, PEAK_MEMORY, PUSHED, PULLED)
