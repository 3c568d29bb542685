"""The findings of a comparison in words: a verdict on each arm, and what a reader must not overlook in the tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ps_cluster.files.values import counted
from ps_cluster.tools.compare.groups import NO_STRAGGLER, Group, arms
from ps_cluster.tools.compare.metric import METRICS
from ps_cluster.tools.compare.rows import Row

_MOST_NAMES = 6  # listed in one line
_MOST_VERDICTS = 8


def verdict(groups: Sequence[Group], differences: Sequence[Row], target: float | None) -> Iterator[str]:
    """Yield a sentence for each arm and its baseline. It claims nothing but what was measured."""
    if len(groups) > 1 and all(len(group.records) == 1 for group in groups):
        yield "This proves nothing: one seed. Two runs of one arm would differ too. --seeds 3 shows what differs."
    elif len(groups) > 1 and not differences:
        yield "Nothing is held against each other: no two groups have the same straggler and an equal batch."
    found = [row for row in differences if row["arm"] != row["against"]]
    for row in found[:_MOST_VERDICTS]:
        if parts := list(_verdict_parts(row, target)):
            yield f"{_pair(row)}: {'; '.join(parts)}."
    if len(found) > _MOST_VERDICTS:
        yield f"{len(found) - _MOST_VERDICTS} more pairs are in the table of differences."


def _pair(row: Row) -> str:
    slow = "" if row["straggler"] == NO_STRAGGLER else f", straggler {row['straggler']}"
    n = row["n"] or 0
    return f"{row['arm']} against {row['against']} ({row['equal']}{slow}; {counted(n, 'seed')})"


def _verdict_parts(row: Row, target: float | None) -> Iterator[str]:
    """Yield what is said of speed, of the time to the target and of the final metric."""
    metric = METRICS[row["metric"]]
    times = "{:.2f}".format
    speed, goal = f"{row['unit']}/s", "" if target is None else metric.goal(target)
    yield from _judged(
        row, "speed_ratio", 1, (f"more {speed}", f"fewer {speed}"), speed, lambda one: f"{times(one)} times"
    )
    sooner = (f"{goal} is reached later", f"{goal} is reached sooner")
    yield from _judged(row, "time_ratio", 1, sooner, f"the time to {goal}", lambda one: f"{times(one)} times the time")
    if target is not None and row["time_ratio"] is None and row["speed_ratio"] is not None:
        yield f"the time to {goal} is not compared, as it was not measured in every run"
    final = f"final {metric.name}"
    unit = " points" if metric.unit == "%" else ""
    yield from _judged(
        row, f"{metric.column}_difference", 0, (f"a higher {final}", f"a lower {final}"), f"the {final}",
        lambda one: f"{metric.signed(one)}{unit}",
    )  # fmt: skip


def _judged(
    row: Row, name: str, nothing: float, ways: tuple[str, str], what: str, text: Callable[[float], str]
) -> Iterator[str]:
    """Yield the finding on one number, if it was measured.

    Args:
      nothing: the value that means no difference. ways: the words for a larger and for a smaller value.
      what: the number in words. text: value → text.
    """
    mean, low, high = (row[f"{name}{part}"] for part in ("", "_low", "_high"))
    if mean is None:
        return
    way = ways[0] if mean > nothing else ways[1]
    if low is None or high is None:
        yield f"{way} in this run ({text(mean)})" if mean != nothing else f"no difference in {what} in this run"
    elif low <= nothing <= high:
        yield f"no difference shown in {what} ({text(mean)}; {text(low)} to {text(high)})"
    else:
        yield f"{way} ({text(mean)}; {text(low)} to {text(high)})"


def notes(groups: Sequence[Group], target: float | None) -> Iterator[str]:
    """Yield what diverged or did not learn, and what could not be compared."""
    diverged, lost = [], []
    for arm in arms(groups):
        records = [record for group in groups if group.arm == arm for record in group.records]
        broken = sum(record.diverged for record in records)
        diverged += [f"{arm} ({broken} of {len(records)} runs)"] * bool(broken)
        lost += [arm] * any(record.summary.learned is False and not record.diverged for record in records)
    if diverged:
        yield f"Diverged: {_some(diverged)}."
    if lost:
        yield f"Not better than guessing in some run: {_some(lost)}."
    records = [record for group in groups for record in group.records]
    reached = [record.reached(target) for record in records]
    if limits := sum(bool(one and one.is_limit) for one in reached):
        yield (
            f"{limits} of {len(reached)} runs had no score shortly before the one that was at the target: their times to it "
            "are upper limits (≤), and in no ratio."
        )
    if target is None and not all(record.diverged for record in records):
        yield (
            "No time to a target is compared: no round score that says more than a guess was crossed between two scores in "
            "all runs. --target-score chooses one."
        )


def _some(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
