"""Check whether runs may be compared at all."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from ps_cluster.comparison.differences import in_settings, in_surroundings
from ps_cluster.comparison.groups import Group
from ps_cluster.comparison.run_records import Record
from ps_cluster.errors import UserError
from ps_cluster.files.plain_text import one_line

EXAMPLES_TOLERANCE = 0.02


def check(records: Sequence[Record], groups: Sequence[Group], force: bool, own: Collection[str] = ()) -> list[str]:
    """Return what is unequal among the runs, one sentence each, to be shown above everything made of them.

    Args:
      own: dotted keys of settings that the arms of this comparison set on purpose.
    Raises:
      UserError: something is unequal and `force` is not set, the metrics differ, there are no runs, or one run was given
        twice.
    """
    if not records:
        raise UserError("nothing to compare: give run directories of finished runs")
    roots = [record.root for record in records]
    twice = next((root for root in roots if roots.count(root) > 1), None)
    if twice is not None:
        raise UserError(f"run directory '{twice}' is given twice: it would count as two runs")
    metrics = list(dict.fromkeys(record.metric.name for record in records))
    if len(metrics) > 1:
        raise UserError(
            f"these runs can't be compared: some have a {metrics[0]}, others a {metrics[1]}: give runs of one data set"
        )
    unequal = [
        *(f"they differ in {difference}" for difference in in_settings(records, own)),
        *_unequal_seeds(groups),
        *_unequal_examples(records),
    ]
    if unequal and not force:
        raise UserError(_refusal(unequal))
    surroundings = (
        f"The runs differ in {difference}. A difference between arms may come from that."
        for difference in in_surroundings(records)
    )
    return [*(f"Not a fair comparison (--force): {text}." for text in unequal), *surroundings]


def _refusal(unequal: Sequence[str]) -> str:
    """Return one line for a terminal. It names one difference: enough to see that the runs don't match."""
    more = f" (and {len(unequal) - 1} more)" if len(unequal) > 1 else ""
    return (
        f"these runs can't be compared: {one_line(unequal[0], 140)}{more}; look into their config.yaml, or compare them with "
        "--force: the report then has every difference on top"
    )


def _unequal_seeds(groups: Sequence[Group]) -> Iterator[str]:
    by_seeds: dict[tuple[int, ...], list[str]] = {}
    for group in groups:
        by_seeds.setdefault(group.seeds, []).append(_place(group))
    if len(by_seeds) > 1:
        described = (f"{_list(seeds)} ({_some(places)})" for seeds, places in by_seeds.items())
        yield f"they differ in seeds: {' against '.join(described)}"
    repeated = next((group for group in groups if len(set(group.seeds)) < len(group.seeds)), None)
    if repeated:
        yield f"a seed comes more than once in one group: {_list(repeated.seeds)} ({_place(repeated)})"


def _unequal_examples(records: Sequence[Record]) -> Iterator[str]:
    least, most = (choose(records, key=lambda record: record.examples) for choose in (min, max))
    if most.examples > least.examples * (1 + EXAMPLES_TOLERANCE):
        yield (
            f"they differ in examples trained on by more than {EXAMPLES_TOLERANCE:.0%}: {least.examples:,} "
            f"('{least.root.name}') to {most.examples:,} ('{most.root.name}')"
        )


def _place(group: Group) -> str:
    return f"{group.arm}, batch {group.batch_per_worker} per worker, straggler {group.straggler}"


def _some(places: Sequence[str]) -> str:
    return places[0] if len(places) == 1 else f"{places[0]} and {len(places) - 1} more"


def _list(seeds: Sequence[int]) -> str:
    return ",".join(map(str, seeds))
