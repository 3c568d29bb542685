"""The main findings of a report, in a few sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ps_cluster.comparison.groups import NO_STRAGGLER, Group, View, arms, stragglers
from ps_cluster.comparison.phrases import (
    NO_DIFFERENCE,
    ONE_SEED,
    fate,
    interval,
    mean_shown,
    points,
    ratio,
    seeds,
    shown,
    speed,
)
from ps_cluster.comparison.statistics import MeanDifference, difference, estimate, log_ratio
from ps_cluster.training.methods.none import NONE as NO_METHOD
from ps_cluster.training.modes.async_ import ASYNC
from ps_cluster.training.modes.sync import SYNC

_MOST_NAMES = 6  # listed in one sentence
_MOST_SENTENCES = 6


def headline(groups: Sequence[Group], views: Sequence[View]) -> list[str]:
    """Return the main findings; empty where there is nothing to compare.

    A single seed yields none: its numbers are in the table and in the details.
    """
    if len(groups) > 1 and all(len(group.records) == 1 for group in groups):
        return [_nothing_proved(groups)]
    sentences = [
        *_async_costs(views),
        *_slowdowns(groups, views),
        *_equal_workers(groups),
        *_diverged(groups),
        *_rescues(groups),
        *_no_difference(views),
    ]
    if not sentences and len(groups) > 1:
        sentences = [f"{NO_DIFFERENCE.capitalize()}."]
    return sentences[:_MOST_SENTENCES]


def _nothing_proved(groups: Sequence[Group]) -> str:
    trainings = [group.first.config.training for group in groups]
    short = all(training.steps is None and training.epochs <= 1 for training in trainings)
    epoch = " and one epoch is no more than the beginning of a training" if short else ""
    return (
        f"This proves nothing: one seed{epoch}. Two runs of one arm would differ too, and nobody knows by how much. "
        "--seeds 3 shows which differences are there."
    )


def _async_costs(views: Sequence[View]) -> Iterator[str]:
    """Yield what async costs in the metric without a straggler, for each kind of equal batch."""
    parts, ends = [], []
    for view in views:
        pair = _async_and_reference(view)
        if view.straggler != NO_STRAGGLER or pair is None:
            continue
        group, reference = pair
        if broken := [side for side in pair if side.diverged]:
            cost = " and ".join(map(fate, broken))
        else:
            found = difference(group.sample(shown), reference.sample(shown))
            cost = points(found, group.metric)
            ends.append(seeds(found))
        kind, _, size = view.batch.partition(": ")
        parts.append((f"{group.arm} against {reference.arm}", f"{cost} with the {kind} ({size})"))
    for names in dict.fromkeys(names for names, _ in parts):
        costs = "; ".join(cost for pair, cost in parts if pair == names)
        metric = views[0].groups[0].metric
        yield f"Final {metric.name} of {names}, no straggler: {costs}. {ends[0] if ends else ''}".rstrip()


def _async_and_reference(view: View) -> tuple[Group, Group] | None:
    """Return plain async and a reference without staleness: the baseline, or sync or one process if that is async."""
    fresh = [group for group in view.groups if _is_exact(group)]
    references = [view.baseline] if view.baseline and not _plain_async(view.baseline) else fresh
    plain = sorted(filter(_plain_async, view.groups), key=lambda group: group is not view.baseline)
    return (plain[0], references[0]) if plain and references else None


def _plain_async(group: Group) -> bool:
    config = group.first.config
    kind = config.mode_kind
    has_rule = kind.expected_staleness(config) is not None
    return has_rule and not kind.delay(config) and config.staleness.method == NO_METHOD.name


def _is_exact(group: Group) -> bool:
    """Return whether every update is computed from the weights it is applied to, and no gradient is dropped."""
    kind = group.first.config.mode_kind
    return not kind.is_stale and not kind.has_parameter_servers


def _slowdowns(groups: Sequence[Group], views: Sequence[View]) -> Iterator[str]:
    """Yield how many times as long the same work takes with each straggler; async and sync come first."""
    without = {(group.arm, group.batch_per_worker): group for group in groups if group.straggler == NO_STRAGGLER}
    for straggler in stragglers(groups):
        found: dict[str, list[MeanDifference]] = {}
        for group in (group for group in groups if group.straggler == straggler != NO_STRAGGLER):
            same = without.get((group.arm, group.batch_per_worker))
            if same and not group.diverged and not same.diverged:
                found.setdefault(group.arm, []).append(log_ratio(same.sample(speed), group.sample(speed)))
        if found:
            first = [name for name in (ASYNC.name, SYNC.name) if name in found]
            names = [*first, *(arm for arm in found if arm not in first)]
            costs = _some([f"{arm} {_times(found[arm])}" for arm in names])
            sure = "" if all(one.has_interval for ones in found.values() for one in ones) else f" ({ONE_SEED})"
            gain = next(filter(None, (_gain(view) for view in views if view.straggler == straggler)), "")
            unit = groups[0].unit
            yield f"How many times as long the same {unit} take with straggler {straggler}: {costs}{sure}.{gain}"


def _times(ratios: Sequence[MeanDifference]) -> str:
    """Return one ratio, or the range of several batches, as text."""
    if all(one.has_interval and not one.shown for one in ratios):
        return f"({NO_DIFFERENCE})"
    low, high = (f"{math.exp(choose(one.mean for one in ratios)):.2f}" for choose in (min, max))
    return low if low == high else f"{low} to {high}"


def _gain(view: View) -> str:
    pair = _async_and_reference(view)
    if pair is None or any(side.diverged for side in pair):
        return ""
    return f" Throughput of {pair[0].arm} against {pair[1].arm} then: {ratio(*pair, speed)}, {view.batch}."


def _equal_workers(groups: Sequence[Group]) -> Iterator[str]:
    plain = [group for group in groups if group.straggler == NO_STRAGGLER and _plain_async(group)]
    for workers in sorted({group.first.config.training_workers for group in plain}):
        mine = [group for group in plain if group.first.config.training_workers == workers]
        means = [found.mean for group in mine if (found := estimate(group.values(lambda run: run.staleness.mean)))]
        if means:
            low, high = f"{min(means):.2f}", f"{max(means):.2f}"
            mean = low if low == high else f"{low} to {high}"
            highest = max(max(group.values(lambda run: run.staleness.max), default=0) for group in mine)
            yield (
                f"Measured staleness of async with {workers} equal workers: {mean} versions on average, at most {highest} "
                f"(one update of each other worker in between would come to {workers - 1})."
            )


def _diverged(groups: Sequence[Group]) -> Iterator[str]:
    """Yield the arms of which every run diverged, then the arms of which some did, with their counts."""
    total: list[tuple[str, int, int]] = []
    some: list[tuple[str, int, int]] = []
    for arm in arms(groups):
        mine = [group for group in groups if group.arm == arm and group.diverged]
        if mine:
            runs = [record for group in groups if group.arm == arm for record in group.records]
            count = sum(group.diverged for group in mine)
            (total if count == len(runs) else some).append((arm, count, len(runs)))
    words = [f"every run of {_some([arm for arm, _, _ in total])}"] if total else []
    words += [_some([f"{count} of {of} runs of {arm}" for arm, count, of in some])] if some else []
    if words:
        yield f"Diverged: {'; '.join(words)}."


def _rescues(groups: Sequence[Group]) -> Iterator[str]:
    """Yield which staleness methods kept a network learning at the same number of simulated workers.

    Nothing where it is unknown what a guess would give.
    """
    methods = [group for group in groups if group.first.config.staleness.method != NO_METHOD.name]
    of = [group for group in methods if group.bar is not None]
    for simulated in dict.fromkeys(map(_simulated, of)):
        mine = [group for group in of if _simulated(group) == simulated]
        kept = [group for group in mine if _learned(group)]
        said = "async " if simulated is None else f"async k={simulated} "
        lost = [group.arm.removeprefix(said) for group in mine if not _learned(group)]
        names = [f"{group.arm.removeprefix(said)} ({_rounded(group)})" for group in kept]
        where = "" if simulated is None else f" at k={simulated} simulated workers"
        others = f" Not: {_some(lost)}." if lost and kept else ""
        yield f"Staleness methods that kept learning{where}: {_some(names) or 'none'}.{others}"


def _simulated(group: Group) -> int | None:
    """Return the number of simulated workers; None where the number was not simulated."""
    config = group.first.config
    return config.mode_kind.emulated_workers(config) if config.mode_kind.delay(config) else None


def _learned(group: Group) -> bool:
    bar = group.bar
    return not group.diverged and all(
        bar is not None and group.metric.reaches(value, bar) for value in group.values(lambda record: record.final)
    )


def _rounded(group: Group) -> str:
    return group.metric.text(mean_shown(group), group.metric.rough_spec)


def _no_difference(views: Sequence[View]) -> Iterator[str]:
    """Yield the arms that no view shows to differ in the metric from the baseline; nothing without intervals.

    Each comes with its widest interval: a wide one says that little is known, not that the two are equal.
    """
    by_pair: dict[tuple[str, str], list[MeanDifference]] = {}
    for view in views:
        reference = view.baseline
        if reference is None or reference.diverged:
            continue
        for group in (group for group in view.others if not group.diverged):
            found = difference(group.sample(shown), reference.sample(shown))
            by_pair.setdefault((group.arm, reference.arm), []).append(found)
    for baseline in dict.fromkeys(baseline for _, baseline in by_pair):
        metric, same = views[0].groups[0].metric, []
        for (arm, against), ones in by_pair.items():
            if against == baseline and all(one.has_interval and not one.shown for one in ones):
                widest = max(ones, key=_width)
                same.append(f"{arm} ({interval(widest, metric)}{metric.points})")
        if same:
            yield f"Final {metric.name} against {baseline}, {NO_DIFFERENCE}: {_some(same)}."


def _width(found: MeanDifference) -> float:
    """Return the width of the interval; infinity without one."""
    return math.inf if found.bounds is None else found.bounds[1] - found.bounds[0]


def _some(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
