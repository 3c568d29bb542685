"""What was found, in sentences. Nothing is called a difference whose 95 % interval holds none, or that has no interval."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ps_cluster.comparison.groups import NO_STRAGGLER, Group, View
from ps_cluster.comparison.records import Record
from ps_cluster.comparison.statistics import Difference, difference, estimate, log_ratio

NO_DIFFERENCE = "no difference shown"
ONE_SEED = "one seed: no interval"


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
        yield Findings(heading, tuple(_against(group, baseline, target) for group, baseline in new))


def _against(group: Group, baseline: Group, target: float | None) -> str:
    accuracies = (group.sample(_accuracy_percent), baseline.sample(_accuracy_percent))
    first, second = (math.fsum(sample.values) / len(sample.values) for sample in accuracies)
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
        found = difference(group.sample(_accuracy_percent), same.sample(_accuracy_percent))
        yield (
            f"{group.arm}, {group.batch_per_worker} images per worker, straggler {group.straggler}: throughput "
            f"{_ratio(group, same, _speed)}; final test accuracy: {_points(found)}. {_seeds(found)}"
        )


def _accuracy_percent(record: Record) -> float:
    return 100 * record.accuracy


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
    interval = f"{found.low:+.2f} to {found.high:+.2f}"
    if not found.shown:
        return f"{NO_DIFFERENCE} ({interval} points)"
    return f"{abs(found.mean):.2f} points {'higher' if found.mean > 0 else 'lower'} ({interval})"


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
