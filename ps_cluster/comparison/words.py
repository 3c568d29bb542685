"""Detailed findings, in sentences under headings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ps_cluster.comparison.groups import NO_STRAGGLER, Group, View
from ps_cluster.comparison.phrases import (
    ONE_SEED,
    fate,
    mean_shown,
    points,
    ratio,
    seeds,
    shown,
    speed,
    straggler_words,
)
from ps_cluster.comparison.run_records import Record
from ps_cluster.comparison.statistics import difference, estimate

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
