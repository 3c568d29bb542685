"""What was found, in sentences. Nothing is called a difference whose 95 % interval holds none, or that has no interval."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ps_cluster.comparison.groups import NO_STRAGGLER, Group, View, arms, stragglers
from ps_cluster.comparison.records import Record
from ps_cluster.comparison.statistics import Difference, difference, estimate, log_ratio

NO_DIFFERENCE = "no difference shown"
ONE_SEED = "one seed: no interval"
LEARNED = 0.15  # test accuracy from which a network has learned something: guessing gives 0.10
_FEW = 12  # sentences of detail that are shown without being asked for
_MOST_NAMES = 6  # in one sentence
_MOST_SENTENCES = 6  # of the headline


@dataclass(frozen=True)
class Findings:
    """Sentences under one heading."""

    about: str
    sentences: tuple[str, ...]


def findings(groups: Sequence[Group], views: Sequence[View], target: float | None) -> list[Findings]:
    """Everything that the numbers say, heading by heading; headings without a sentence are left out."""
    sections = [*_against_baselines(views, target)]
    sections.append(Findings("What a straggler costs each arm, against itself without one", tuple(_costs(groups))))
    sections.append(Findings("Staleness that was measured", tuple(_staleness_sentences(groups))))
    sections.append(Findings("The target accuracy", tuple(_too_low_a_target(groups, target))))
    return [section for section in sections if section.sentences]


def are_few(sections: Sequence[Findings]) -> bool:
    """Whether the details need no folding away."""
    return sum(len(section.sentences) for section in sections) <= _FEW


def headline(groups: Sequence[Group], views: Sequence[View]) -> list[str]:
    """What a reader remembers: a few sentences, or none where there is nothing to hold against anything."""
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


def straggler_words(straggler: str) -> str:
    return "no straggler" if straggler == NO_STRAGGLER else f"straggler {straggler}"


def percent(share: float) -> str:
    return f"{100 * share:g} %"


def _against_baselines(views: Sequence[View], target: float | None) -> Iterator[Findings]:
    """A group that shares both batches with the baseline is spoken of once."""
    said = set()
    for view in (view for view in views if view.baseline):
        pairs = [(group, view.baseline) for group in view.others]
        new = [pair for pair in pairs if tuple(side.key for side in pair) not in said]
        said.update(tuple(side.key for side in pair) for pair in pairs)
        heading = f"Against {view.baseline.arm}: {straggler_words(view.straggler)}, {view.batch}"
        if view.baseline.diverged:
            yield Findings(heading, (f"{_fate(view.baseline)}: nothing can be held against it.",))
        else:
            yield Findings(heading, tuple(_against(group, baseline, target) for group, baseline in new))


def _against(group: Group, baseline: Group, target: float | None) -> str:
    if group.diverged:
        return f"{_fate(group)}.{_survivors(group)}"
    accuracies = (group.sample(_accuracy_percent), baseline.sample(_accuracy_percent))
    first, second = _mean_accuracy(group), _mean_accuracy(baseline)
    found = difference(*accuracies)
    parts = [f"final test accuracy {first:.2f} % against {second:.2f} %: {_points(found)}"]
    parts.append(f"throughput {_ratio(group, baseline, _speed)}")
    if target is not None:
        parts.extend(_time_to_target(group, baseline, target))
    return f"{group.arm}: {'; '.join(parts)}. {_seeds(found)}"


def _costs(groups: Sequence[Group]) -> Iterator[str]:
    without = {(group.arm, group.batch_per_worker): group for group in groups if group.straggler == NO_STRAGGLER}
    for group in groups:
        same = without.get((group.arm, group.batch_per_worker))
        if group.straggler == NO_STRAGGLER or same is None:
            continue
        if group.diverged or same.diverged:
            yield (
                f"{_fate(group)} with straggler {group.straggler} and {group.batch_per_worker} images per worker, "
                f"{same.diverged} of {len(same.records)} without."
            )
            continue
        found = difference(group.sample(_accuracy_percent), same.sample(_accuracy_percent))
        yield (
            f"{group.arm}, {group.batch_per_worker} images per worker, straggler {group.straggler}: throughput "
            f"{_ratio(group, same, _speed)}; final test accuracy: {_points(found)}. {_seeds(found)}"
        )


def _fate(group: Group) -> str:
    return f"{group.arm}: {group.diverged} of {len(group.records)} seeds diverged"


def _survivors(group: Group) -> str:
    """The others' accuracies one by one: they are a choice, and their mean would not be the arm's."""
    values = ", ".join(f"{value:.2f} %" for value in group.values(_accuracy_percent))
    return f" Final test accuracy of the others: {values}." if values else ""


def _accuracy_percent(record: Record) -> float | None:
    return None if record.accuracy is None else 100 * record.accuracy


def _speed(record: Record) -> float:
    return record.examples_per_second


def _seeds(found: Difference) -> str:
    """How sure all of the sentence before is."""
    if not found.has_interval:
        return f"{ONE_SEED.capitalize()}."
    return f"{found.n} seeds, paired." if found.paired else f"At least {found.n} seeds each, not paired."


def _points(found: Difference) -> str:
    """E.g. "1.15 points lower (-1.41 to -0.88)"; without an interval just the number, which claims nothing."""
    if not found.has_interval:
        return f"{found.mean:+.2f} points"
    if not found.shown:
        return f"{NO_DIFFERENCE} ({_interval(found)} points)"
    return f"{abs(found.mean):.2f} points {'higher' if found.mean > 0 else 'lower'} ({_interval(found)})"


def _interval(found: Difference) -> str:
    """Of a difference of accuracies in percent: no two are more than 100 points apart."""
    return f"{max(found.low, -100.0):+.2f} to {min(found.high, 100.0):+.2f}"


def _ratio(of: Group, against: Group, read: Callable[[Record], float | None]) -> str:
    """E.g. "1.52 times (1.40 to 1.65)"; every run of both groups must have the number."""
    found = log_ratio(of.sample(read), against.sample(read))
    ratio = f"{math.exp(found.mean):.2f} times"
    if not found.has_interval:
        return ratio
    interval = f"{math.exp(found.low):.2f} to {math.exp(found.high):.2f}"
    return f"{ratio} ({interval})" if found.shown else f"{ratio}, {NO_DIFFERENCE} ({interval})"


def _time_to_target(group: Group, baseline: Group, target: float) -> Iterator[str]:
    """Nothing where a first score was above the target already: two upper limits have no ratio."""

    def seconds(record: Record) -> float | None:
        found = record.reached(target)
        return found.seconds if found else None

    counts = [len(side.values(seconds)) for side in (group, baseline)]
    if counts != [len(group.records), len(baseline.records)]:
        yield (
            f"{counts[0]} of {len(group.records)} runs reached {percent(target)} test accuracy, "
            f"{counts[1]} of {len(baseline.records)} of {baseline.arm}"
        )
    elif not any(record.reached(target).at_first_score for side in (group, baseline) for record in side.records):
        yield f"time to {percent(target)} test accuracy {_ratio(group, baseline, seconds)}"


def _too_low_a_target(groups: Sequence[Group], target: float | None) -> Iterator[str]:
    if target is None:
        return
    reached = [record.reached(target) for group in groups for record in group.records]
    at_first = sum(bool(found and found.at_first_score) for found in reached)
    if at_first:
        yield (
            f"The first score of {at_first} of {len(reached)} runs was at {percent(target)} test accuracy or above: their "
            "times to it are upper limits, and are left out of the comparisons. A higher target says more."
        )


def _staleness_sentences(groups: Sequence[Group]) -> Iterator[str]:
    for group in groups:
        measured = estimate(group.values(lambda record: record.staleness.mean))
        highest = max(group.values(lambda record: record.staleness.max), default=None)
        if measured is None or highest is None or (highest == 0 and group.first.config.training.mode != "bounded"):
            continue
        spread = ONE_SEED if measured.sd is None else f"sd {measured.sd:.2f} over {measured.n} seeds"
        yield (
            f"{group.arm}, {group.batch_per_worker} images per worker, {straggler_words(group.straggler)}: mean staleness "
            f"{measured.mean:.2f} ({spread}), at most {highest}{_expectation(group, highest)}."
        )


def _expectation(group: Group, highest: int) -> str:
    config = group.first.config
    if config.training.mode == "bounded":
        bound = config.training.max_staleness
        return f"; the bound of {bound} was {'never exceeded' if highest <= bound else 'EXCEEDED'}"
    if config.training.mode != "async":
        return ""
    simulated = config.training.simulate_workers
    workers = simulated or config.training_workers
    kind = "simulated workers" if simulated else "equally fast workers"
    return f"; {workers} {kind} would come to about {workers - 1}"


def _async_costs(views: Sequence[View]) -> Iterator[str]:
    """What async costs in accuracy without a straggler, at each kind of equal batch."""
    parts, ends = [], []
    for view in views:
        pair = _async_and_reference(view)
        if view.straggler != NO_STRAGGLER or pair is None:
            continue
        group, reference = pair
        if broken := [side for side in pair if side.diverged]:
            cost = " and ".join(map(_fate, broken))
        else:
            found = difference(group.sample(_accuracy_percent), reference.sample(_accuracy_percent))
            cost = _points(found)
            ends.append(_seeds(found))
        kind, _, size = view.batch.partition(": ")
        parts.append((f"{group.arm} against {reference.arm}", f"{cost} with the {kind} ({size})"))
    for names in dict.fromkeys(names for names, _ in parts):
        costs = "; ".join(cost for pair, cost in parts if pair == names)
        yield f"Final test accuracy of {names}, no straggler: {costs}. {ends[0] if ends else ''}".rstrip()


def _async_and_reference(view: View) -> tuple[Group, Group] | None:
    """Plain async, and what has no staleness: the baseline, or where that is async itself, sync or one process."""
    fresh = [group for group in view.groups if group.first.config.training.mode in ("sync", "single")]
    references = [view.baseline] if view.baseline and not _plain_async(view.baseline) else fresh
    plain = sorted(filter(_plain_async, view.groups), key=lambda group: group is not view.baseline)
    return (plain[0], references[0]) if plain and references else None


def _plain_async(group: Group) -> bool:
    training = group.first.config.training
    return training.mode == "async" and training.simulate_workers is None and training.staleness_method == "none"


def _slowdowns(groups: Sequence[Group], views: Sequence[View]) -> Iterator[str]:
    """How many times as long the same images take with a straggler, async and sync first."""
    without = {(group.arm, group.batch_per_worker): group for group in groups if group.straggler == NO_STRAGGLER}
    for straggler in stragglers(groups):
        found: dict[str, list[Difference]] = {}
        for group in (group for group in groups if group.straggler == straggler != NO_STRAGGLER):
            same = without.get((group.arm, group.batch_per_worker))
            if same and not group.diverged and not same.diverged:
                found.setdefault(group.arm, []).append(log_ratio(same.sample(_speed), group.sample(_speed)))
        if found:
            first = [arm for arm in ("async", "sync") if arm in found]
            names = [*first, *(arm for arm in found if arm not in first)]
            costs = _some([f"{arm} {_times(found[arm])}" for arm in names])
            sure = "" if all(one.has_interval for ones in found.values() for one in ones) else f" ({ONE_SEED})"
            gain = next(filter(None, (_gain(view) for view in views if view.straggler == straggler)), "")
            yield f"How many times as long the same images take with straggler {straggler}: {costs}{sure}.{gain}"


def _times(ratios: Sequence[Difference]) -> str:
    """One ratio, or the lowest and the highest of several batches."""
    if all(ratio.has_interval and not ratio.shown for ratio in ratios):
        return f"({NO_DIFFERENCE})"
    low, high = (f"{math.exp(choose(ratio.mean for ratio in ratios)):.2f}" for choose in (min, max))
    return low if low == high else f"{low} to {high}"


def _gain(view: View) -> str:
    pair = _async_and_reference(view)
    if pair is None or any(side.diverged for side in pair):
        return ""
    return f" Throughput of {pair[0].arm} against {pair[1].arm} then: {_ratio(*pair, _speed)}, {view.batch}."


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
    """Arms of which every run diverged, and then those with how many of theirs."""
    total, some = [], []
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
    """Which staleness methods kept a network learning at the same number of simulated workers."""
    of = [group for group in groups if group.first.config.training.staleness_method != "none"]
    for simulated in dict.fromkeys(group.first.config.training.simulate_workers for group in of):
        mine = [group for group in of if group.first.config.training.simulate_workers == simulated]
        kept = [group for group in mine if _learned(group)]
        said = "async " if simulated is None else f"async k={simulated} "
        lost = [group.arm.removeprefix(said) for group in mine if not _learned(group)]
        names = [f"{group.arm.removeprefix(said)} ({_mean_accuracy(group):.1f} %)" for group in kept]
        where = "" if simulated is None else f" at k={simulated} simulated workers"
        others = f" Not: {_some(lost)}." if lost and kept else ""
        yield f"Staleness methods that kept learning{where}: {_some(names) or 'none'}.{others}"


def _learned(group: Group) -> bool:
    return not group.diverged and min(group.values(_accuracy_percent)) >= 100 * LEARNED


def _mean_accuracy(group: Group) -> float:
    values = group.values(_accuracy_percent)
    return math.fsum(values) / len(values)


def _no_difference(views: Sequence[View]) -> Iterator[str]:
    """Arms whose accuracy is in no view shown to differ from the baseline's; nothing without intervals.

    The widest interval stands beside each: a wide one says that little is known, not that the two are equal.
    """
    by_pair: dict[tuple[str, str], list[Difference]] = {}
    for view in (view for view in views if view.baseline and not view.baseline.diverged):
        for group in (group for group in view.others if not group.diverged):
            found = difference(group.sample(_accuracy_percent), view.baseline.sample(_accuracy_percent))
            by_pair.setdefault((group.arm, view.baseline.arm), []).append(found)
    for baseline in dict.fromkeys(baseline for _, baseline in by_pair):
        same = []
        for (arm, against), ones in by_pair.items():
            if against == baseline and all(one.has_interval and not one.shown for one in ones):
                widest = max(ones, key=lambda one: one.high - one.low)
                same.append(f"{arm} ({_interval(widest)} points)")
        if same:
            yield f"Final test accuracy against {baseline}, {NO_DIFFERENCE}: {_some(same)}."


def _some(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
