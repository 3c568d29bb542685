"""The findings of a comparison in words: what each arm reached, a verdict on it, and what a reader must not overlook."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ps_cluster.files.values import with_noun
from ps_cluster.report.facts import number
from ps_cluster.tools.compare.estimates import Estimate
from ps_cluster.tools.compare.findings import GroupDifference, GroupFinding
from ps_cluster.tools.compare.groups import NO_STRAGGLER, Group, arms
from ps_cluster.tools.compare.measures import SPEED, STALENESS_MEAN

_MOST_NAMES = 6  # listed in one line
_MOST_VERDICTS = 8


def verdict(groups: Sequence[Group], differences: Sequence[GroupDifference], target: float | None) -> Iterator[str]:
    """Yield sentences that compare each arm with its baseline. A sentence claims only what was measured."""
    if len(groups) > 1 and all(len(group.records) == 1 for group in groups):
        yield "This proves nothing: each arm has one seed, and two runs of one arm would differ too. Compare with --seeds 3."
    elif len(groups) > 1 and not differences:
        yield "Nothing is compared: no two groups have the same straggler and an equal batch."
    found = [one for one in differences if one.group.arm != one.against.arm]
    for one in found[:_MOST_VERDICTS]:
        if parts := list(_verdict_parts(one, target)):
            yield f"{_pair(one)}: {'; '.join(parts)}."
    if len(found) > _MOST_VERDICTS:
        yield f"{len(found) - _MOST_VERDICTS} more pairs are in the table of differences."


def results(findings: Sequence[GroupFinding]) -> Iterator[str]:
    """Yield a sentence for each group: the means of its metric, its speed, its time to the target and its staleness."""
    for finding in findings[:_MOST_VERDICTS]:
        group = finding.group
        slow = "" if group.straggler == NO_STRAGGLER else f", straggler {group.straggler}"
        of = "1 run" if len(group.records) == 1 else f"means of {len(group.records)} runs"
        what = f"{group.arm} ({group.batch_per_worker} {group.unit} per worker{slow}; {of})"
        yield f"{what}: {', '.join(_means(finding))}."
    if (more := len(findings) - _MOST_VERDICTS) > 0:
        yield f"{with_noun(more, 'more group')} {'is' if more == 1 else 'are'} in the tables."


def _means(finding: GroupFinding) -> Iterator[str]:
    """Yield the known means of a group, in words. If only some of the runs have a number, the text says how many."""
    metric, unit, measures = finding.group.metric, finding.group.unit, finding.measures
    final, stale = finding.mean(measures.final), finding.mean(STALENESS_MEAN)
    if final is None:
        yield f"no final {metric.name}"
    else:
        yield f"final {metric.name} {metric.number(final)} {metric.unit}".rstrip() + finding.runs_with(measures.final)
    yield f"{number(finding.mean(SPEED), ',.0f')} {unit}/s"
    if measures.target is not None:
        yield _time_to_target(finding, metric.goal(measures.target))
    if stale is not None:
        yield f"staleness {stale:.2f}"


def _time_to_target(finding: GroupFinding, goal: str) -> str:
    measures = finding.measures
    seconds = finding.mean(measures.seconds_to_target)
    if seconds is None:
        return f"{goal} not reached"
    limit = "at most " if finding.mean(measures.target_is_limit) else ""
    return f"{goal} after {limit}{seconds:,.1f} s{finding.runs_with(measures.seconds_to_target)}"


def _pair(one: GroupDifference) -> str:
    slow = "" if one.group.straggler == NO_STRAGGLER else f", straggler {one.group.straggler}"
    seeds = with_noun(min(len(one.group.records), len(one.against.records)), "seed")
    return f"{one.group.arm} against {one.against.arm} ({one.equal}{slow}; {seeds})"


def _verdict_parts(one: GroupDifference, target: float | None) -> Iterator[str]:
    """Yield the findings on speed, time to the target and final metric."""
    metric, speed = one.group.metric, f"{one.group.unit}/s"
    goal = "" if target is None else metric.goal(target)
    more = (f"more {speed}", f"fewer {speed}")
    yield from _judged(one.speed, 1, more, speed, "{:.2f}".format, " times")
    later = (f"{goal} is reached later", f"{goal} is reached sooner")
    yield from _judged(one.time, 1, later, f"the time to {goal}", "{:.2f}".format, " times the time")
    if target is not None and one.time is None and one.speed is not None:
        yield f"the time to {goal} is not compared, as it was not measured in every run"
    final, unit = f"final {metric.name}", " points" if metric.unit == "%" else ""
    if one.metric_difference is None and one.speed is not None:
        yield f"the {final} is not compared, because it is missing in some runs"
    higher = (f"a higher {final}", f"a lower {final}")
    yield from _judged(one.metric_difference, 0, higher, f"the {final}", metric.signed, unit)


def _judged(
    found: Estimate | None, nothing: float, ways: tuple[str, str], what: str, text: Callable[[float], str], unit: str
) -> Iterator[str]:
    """Yield the finding on one number, if it was measured.

    Args:
      nothing: the value that means no difference.
      ways: the words for a larger value and for a smaller one.
      what: the name of the number, in words.
      text: returns a value as text, without its unit.
    """
    if found is None:
        return
    way = ways[0] if found.mean > nothing else ways[1]
    mean = f"{text(found.mean)}{unit}"
    if found.low is None or found.high is None:
        yield f"{way} in this run ({mean})" if found.mean != nothing else f"no difference in {what} in this run"
        return
    interval = f"({mean}, 95 % interval {text(found.low)} to {text(found.high)})"
    yield f"no clear difference in {what} {interval}" if found.holds(nothing) else f"{way} {interval}"


def notes(groups: Sequence[Group], target: float | None) -> Iterator[str]:
    """Yield sentences on the arms that diverged or did not learn, and on what could not be compared."""
    diverged, not_learned = [], []
    for arm in arms(groups):
        records = [record for group in groups if group.arm == arm for record in group.records]
        broken = sum(record.diverged for record in records)
        diverged += [f"{arm} ({broken} of {len(records)} runs)"] * bool(broken)
        not_learned += [arm] * any(record.summary.learned is False and not record.diverged for record in records)
    if diverged:
        yield f"Diverged: {_some(diverged)}."
    if not_learned:
        yield f"These arms have a run that is not better than guessing: {_some(not_learned)}."
    records = [record for group in groups for record in group.records]
    if unscored := sum(record.final is None and not record.diverged for record in records):
        yield (
            f"{unscored} of {len(records)} runs have no score at the time limit, so they have no final "
            f"{records[0].metric.name}. Set checkpoints.every_seconds to less than half of the limit."
        )
    reached = [record.reached(target) for record in records]
    if limits := sum(bool(one and one.is_limit) for one in reached):
        yield (
            f"{limits} of {len(reached)} runs may have reached the target long before they were scored. Their times to the "
            "target are only upper limits (≤), and are not used in ratios."
        )
    if target is None and not all(record.diverged for record in records):
        yield (
            "No time to a target is compared, because no round number is a suitable target: every run has to reach it after "
            "its first score, and a model that only guesses must not reach it. Choose a target with --target-score."
        )


def _some(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
