"""The main findings of a report, in a few sentences."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ps_cluster.server.staleness import NONE as NO_METHOD
from ps_cluster.tools.compare.groups import NO_STRAGGLER, Group, View, arms, stragglers
from ps_cluster.tools.compare.metrics import MeanDifference, Metric, difference, estimate, log_ratio
from ps_cluster.tools.compare.records import Record
from ps_cluster.training.modes import ASYNC, SYNC

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


# Phrases that the sentences of a report are made of.
#
# A difference is called one only if it has a 95 % interval and the interval excludes 0.

NO_DIFFERENCE = "no difference shown"
ONE_SEED = "one seed: no interval"


def straggler_words(straggler: str) -> str:
    return "no straggler" if straggler == NO_STRAGGLER else f"straggler {straggler}"


def fate(group: Group) -> str:
    return f"{group.arm}: {group.diverged} of {len(group.records)} seeds diverged"


def shown(record: Record) -> float | None:
    """Return the number that is shown as a run's metric, e.g. in percent; None for a run that diverged."""
    return record.shown


def mean_shown(group: Group) -> float:
    """Return the mean of these numbers over the runs that have one."""
    values = group.values(shown)
    return math.fsum(values) / len(values)


def speed(record: Record) -> float:
    return record.examples_per_second


def seeds(found: MeanDifference) -> str:
    """Return how many seeds support the sentence before, and whether they are paired."""
    if not found.has_interval:
        return f"{ONE_SEED.capitalize()}."
    return f"{found.n} seeds, paired." if found.paired else f"At least {found.n} seeds each, not paired."


def points(found: MeanDifference, metric: Metric) -> str:
    """Return e.g. "1.15 points lower (-1.41 to -0.88)"; without an interval only the number, which claims nothing."""
    if not found.has_interval:
        return f"{metric.signed(found.mean)}{metric.points}"
    if not found.shown:
        return f"{NO_DIFFERENCE} ({interval(found, metric)}{metric.points})"
    side = "higher" if found.mean > 0 else "lower"
    return f"{metric.difference(found.mean)}{metric.points} {side} ({interval(found, metric)})"


def interval(found: MeanDifference, metric: Metric) -> str:
    """Return the interval of a difference of shown numbers."""
    if found.bounds is None:
        return ONE_SEED
    low, high = found.bounds
    return f"{metric.signed(low)} to {metric.signed(high)}"


def ratio(of: Group, against: Group, read: Callable[[Record], float | None]) -> str:
    """Return e.g. "1.52 times (1.40 to 1.65)". Every run of both groups must have the number."""
    found = log_ratio(of.sample(read), against.sample(read))
    times = f"{math.exp(found.mean):.2f} times"
    if found.bounds is None:
        return times
    low, high = map(math.exp, found.bounds)
    between = f"{low:.2f} to {high:.2f}"
    return f"{times} ({between})" if found.shown else f"{times}, {NO_DIFFERENCE} ({between})"


# Detailed findings, in sentences under headings.

_FEW = 12  # sentences of detail up to which they are shown unfolded


@dataclass(frozen=True)
class Findings:
    """Sentences under one heading."""

    about: str
    sentences: tuple[str, ...]


def findings(groups: Sequence[Group], views: Sequence[View], target: float | None) -> list[Findings]:
    """Return everything that the numbers say, by heading; headings without a sentence are left out."""
    sections = [*_against_baselines(views, target)]
    sections.append(Findings("What a straggler costs each arm, against itself without one", tuple(_costs(groups))))
    sections.append(Findings("Staleness that was measured", tuple(_staleness_sentences(groups))))
    sections.append(Findings(f"The target {groups[0].metric.noun}", tuple(_too_easy_a_target(groups, target))))
    return [section for section in sections if section.sentences]


def are_few(sections: Sequence[Findings]) -> bool:
    """Return whether the details are few enough to be shown unfolded."""
    return sum(len(section.sentences) for section in sections) <= _FEW


def _against_baselines(views: Sequence[View], target: float | None) -> Iterator[Findings]:
    """Yield the differences from the baselines. A group that shares both batches with the baseline is named once."""
    said: set[tuple[object, object]] = set()
    for view in views:
        if (baseline := view.baseline) is None:
            continue
        new = [group for group in view.others if (group.key, baseline.key) not in said]
        said.update((group.key, baseline.key) for group in view.others)
        heading = f"Against {baseline.arm}: {straggler_words(view.straggler)}, {view.batch}"
        if baseline.diverged:
            yield Findings(heading, (f"{fate(baseline)}: nothing can be held against it.",))
        else:
            yield Findings(heading, tuple(_against(group, baseline, target) for group in new))


def _against(group: Group, baseline: Group, target: float | None) -> str:
    if group.diverged:
        return f"{fate(group)}.{_survivors(group)}"
    metric = group.metric
    first, second = (metric.text(mean_shown(side)) for side in (group, baseline))
    found = difference(group.sample(shown), baseline.sample(shown))
    parts = [f"final {metric.name} {first} against {second}: {points(found, metric)}"]
    parts.append(f"throughput {ratio(group, baseline, speed)}")
    if target is not None:
        parts.extend(_time_to_target(group, baseline, target))
    return f"{group.arm}: {'; '.join(parts)}. {seeds(found)}"


def _costs(groups: Sequence[Group]) -> Iterator[str]:
    without = {(group.arm, group.batch_per_worker): group for group in groups if group.straggler == NO_STRAGGLER}
    for group in groups:
        same = without.get((group.arm, group.batch_per_worker))
        if group.straggler == NO_STRAGGLER or same is None:
            continue
        if group.diverged or same.diverged:
            yield (
                f"{fate(group)} with straggler {group.straggler} and {group.batch_per_worker} {group.unit} per worker, "
                f"{same.diverged} of {len(same.records)} without."
            )
            continue
        found = difference(group.sample(shown), same.sample(shown))
        yield (
            f"{group.arm}, {group.batch_per_worker} {group.unit} per worker, straggler {group.straggler}: throughput "
            f"{ratio(group, same, speed)}; final {group.metric.name}: {points(found, group.metric)}. {seeds(found)}"
        )


def _survivors(group: Group) -> str:
    """Return the metric of the runs that did not diverge, one by one. They are a selection, so they get no mean."""
    values = ", ".join(map(group.metric.text, group.values(shown)))
    return f" Final {group.metric.name} of the others: {values}." if values else ""


def _time_to_target(group: Group, baseline: Group, target: float) -> Iterator[str]:
    """Yield the ratio of times to target; nothing if a first score was as good already (two upper limits have no ratio)."""

    def seconds(record: Record) -> float | None:
        found = record.reached(target)
        return found.seconds if found else None

    reached = [record.reached(target) for side in (group, baseline) for record in side.records]
    counts = [len(side.values(seconds)) for side in (group, baseline)]
    if counts != [len(group.records), len(baseline.records)]:
        yield (
            f"{counts[0]} of {len(group.records)} runs reached {group.metric.at(target)}, "
            f"{counts[1]} of {len(baseline.records)} of {baseline.arm}"
        )
    elif not any(found and found.at_first_score for found in reached):
        yield f"time to {group.metric.at(target)} {ratio(group, baseline, seconds)}"


def _too_easy_a_target(groups: Sequence[Group], target: float | None) -> Iterator[str]:
    if target is None:
        return
    reached = [record.reached(target) for group in groups for record in group.records]
    at_first = sum(bool(found and found.at_first_score) for found in reached)
    if at_first:
        metric = groups[0].metric
        yield (
            f"The first score of {at_first} of {len(reached)} runs was at {metric.at(target)} or {metric.beyond}: their "
            f"times to it are upper limits, and are left out of the comparisons. A {metric.harder} target says more."
        )


def _staleness_sentences(groups: Sequence[Group]) -> Iterator[str]:
    for group in groups:
        measured = estimate(group.values(lambda record: record.staleness.mean))
        highest = max(group.values(lambda record: record.staleness.max), default=None)
        if measured is None or highest is None or (highest == 0 and _bound(group) is None):
            continue
        spread = ONE_SEED if measured.sd is None else f"sd {measured.sd:.2f} over {measured.n} seeds"
        yield (
            f"{group.arm}, {group.batch_per_worker} {group.unit} per worker, {straggler_words(group.straggler)}: "
            f"mean staleness {measured.mean:.2f} ({spread}), at most {highest}{_expectation(group, highest)}."
        )


def _expectation(group: Group, highest: float) -> str:
    if (bound := _bound(group)) is not None:
        return f"; the bound of {bound} was {'never exceeded' if highest <= bound else 'EXCEEDED'}"
    config = group.first.config
    kind = config.mode_kind
    expected = kind.expected_staleness(config)
    if expected is None:
        return ""
    who = "simulated workers" if kind.delay(config) else "equally fast workers"
    return f"; {kind.emulated_workers(config)} {who} would come to about {expected}"


def _bound(group: Group) -> int | None:
    """Return the staleness bound of a mode whose updates may be stale; None without a bound."""
    config = group.first.config
    return config.mode_kind.most_staleness(config) if config.mode_kind.is_stale else None
