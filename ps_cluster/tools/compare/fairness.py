"""Check whether runs may be compared, and find the differences that a reader has to know."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from ps_cluster.config import has_rates
from ps_cluster.config.sections import uses
from ps_cluster.errors import UserError
from ps_cluster.files.values import one_line, one_line_text
from ps_cluster.installation import PROGRAM
from ps_cluster.launch.pinning import keeps_to_cores
from ps_cluster.tools.compare.comparison_plan import read_plan
from ps_cluster.tools.compare.groups import Group
from ps_cluster.tools.compare.labels import flat_settings
from ps_cluster.tools.compare.records import TIME_TOLERANCE, Record, limit_of, work_of

EXAMPLES_TOLERANCE = 0.02
_ISOLATION = "cluster.isolation"  # depends on the machine, does not change training

# An arm's own settings: its method and the rate it is trained with. Tables, labels and pages show them, so they can't be
# overlooked.
_OF_AN_ARM = {
    "cluster.workers", "cluster.parameter_servers", "cluster.straggler", "training.seed",
    "training.batch_size_per_worker", "optimizer.learning_rate", "optimizer.momentum", "optimizer.beta_2",
    "optimizer.global_clip_norm",
}  # fmt: skip
_SECTIONS_OF_AN_ARM = ("mode.", "staleness.")
# Settings that other checks of this module compare (`work_of`, the number of examples, the surroundings), and paths on
# this machine.
_NOT_COMPARED_HERE = {
    "data.dataset", "data.data_dir", "model.name", "model.precision", "training.epochs", "training.steps", _ISOLATION
}  # fmt: skip


def differences_in_settings(records: Sequence[Record], arm_keys: Collection[str] = ()) -> list[str]:
    """Return, in words, the differences in what all runs must have in common: data, network, precision, most settings.

    Args:
      arm_keys: dotted keys that individual arms of this comparison set. Runs may differ in these settings, and in the
        settings that every comparison may vary, e.g. the mode, the number of workers and the learning rate.
    """
    may_differ = {*_OF_AN_ARM, *_NOT_COMPARED_HERE, *arm_keys}
    settings = [
        {
            key: value
            for key, value in flat_settings(record.config).items()
            if key not in may_differ and not key.startswith(_SECTIONS_OF_AN_ARM) and uses(record.config.mode.name, key)
        }
        for record in records
    ]
    return [*_differing([work_of(record.summary) for record in records]), *_differing(settings, absent=None)]


def differences_in_surroundings(records: Sequence[Record]) -> list[str]:
    """Return, in words, the differences in what surrounds the training, such as the machine and TensorFlow's version.

    This includes the commit of this code, `cluster.isolation`, and whether each worker has its own cores.
    """
    pinned = [
        {"whether each worker has its own cores": keeps_to_cores(record.config)}
        for record in records
        if record.config.training_workers > 1
    ]
    machines = [record.summary.machine.model_dump() if record.summary.machine else {} for record in records]
    isolated = [{_ISOLATION: record.config.cluster.isolation} for record in records]
    return [difference for rows in (machines, isolated, pinned) for difference in _differing(rows)]


def _differing(rows: Sequence[Mapping[str, object]], absent: str | None = "not recorded") -> Iterator[str]:
    """Yield the name and the distinct values of each field that is not the same in all rows.

    A missing value is shown as `absent`, or left out if `absent` is None.
    """
    for name in dict.fromkeys(key for row in rows for key in row):
        found = (one_line_text(row[name]) if name in row else absent for row in rows)
        values = list(dict.fromkeys(value for value in found if value is not None))
        if len(values) > 1:
            yield f"{name}: {', '.join(values)}"


def check(records: Sequence[Record], groups: Sequence[Group], force: bool, arm_keys: Collection[str] = ()) -> list[str]:
    """Return a sentence on each unequal property of the runs. A report shows these sentences above its results.

    Args:
      force: if an unequal property makes the comparison unfair, return a sentence on it instead of raising an error.
      arm_keys: dotted keys that individual arms of this comparison set.
    Raises:
      UserError: the comparison would be unfair and `force` is not set, the metrics differ, or one run was given twice.
    """
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
        *(f"they differ in {difference}" for difference in differences_in_settings(records, arm_keys)),
        *_unequal_seeds(groups),
        *(_unequal_examples(records) if (limit_s := limit_of(records)) is None else _too_short(records, limit_s)),
    ]
    if unequal and not force:
        # The message names only one difference. That is enough to see that the runs don't match.
        more = f" (and {len(unequal) - 1} more)" if len(unequal) > 1 else ""
        raise UserError(
            f"these runs can't be compared: {one_line(unequal[0], 140)}{more}; look into their config.yaml, or compare them "
            "with --force: the report then begins with all differences"
        )
    surroundings = (
        f"The runs differ in {difference}. A difference between arms may come from that."
        for difference in differences_in_surroundings(records)
    )
    return [*(f"Not a fair comparison of these runs (--force): {text}." for text in unequal), *surroundings]


def _unequal_seeds(groups: Sequence[Group]) -> Iterator[str]:
    by_seeds: dict[tuple[int, ...], list[str]] = {}
    for group in groups:
        by_seeds.setdefault(group.seeds, []).append(_name_of(group))
    if len(by_seeds) > 1:
        described = (
            f"{_list(seeds)} ({names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''})"
            for seeds, names in by_seeds.items()
        )
        yield f"they differ in seeds: {' against '.join(described)}"
    repeated = next((group for group in groups if len(set(group.seeds)) < len(group.seeds)), None)
    if repeated:
        yield f"a seed occurs more than once in one group: {_list(repeated.seeds)} ({_name_of(repeated)})"


def _unequal_examples(records: Sequence[Record]) -> Iterator[str]:
    not_diverged = [record for record in records if not record.diverged]  # a run ends early when it diverges
    if not not_diverged:
        return
    least, most = (choose(not_diverged, key=lambda record: record.examples) for choose in (min, max))
    if most.examples > least.examples * (1 + EXAMPLES_TOLERANCE):
        yield (
            f"they differ by more than {EXAMPLES_TOLERANCE:.0%} in the number of examples trained on: {least.examples:,} "
            f"('{least.root.name}') to {most.examples:,} ('{most.root.name}')"
        )


def _too_short(records: Sequence[Record], limit_s: float) -> Iterator[str]:
    """Yield a sentence on the shortest run if it ended before the limit.

    A run that ends after the limit is normal, because a run still finishes its last steps.
    """
    shortest = min(
        (record for record in records if not record.diverged), key=lambda record: record.summary.train_seconds
    )
    if shortest.summary.train_seconds < (1 - TIME_TOLERANCE) * limit_s:
        yield f"'{shortest.root.name}' trained for only {shortest.summary.train_seconds:,.1f} of {limit_s:g} s"


def _name_of(group: Group) -> str:
    return f"{group.arm}, batch {group.batch_per_worker} per worker, straggler {group.straggler}"


def _list(seeds: Sequence[int]) -> str:
    return ",".join(map(str, seeds))


def warn_of_rates(groups: Sequence[Group]) -> Iterator[str]:
    """Yield warnings about learning rates that were scaled instead of tuned, and about networks without tuned rates.

    A network has tuned rates if its recipe, the settings that were found for it, lists rates for individual modes.
    """
    scaled = {
        f"{group.arm} (batch {group.batch_per_worker} / {group.batch}, rate {group.first.config.optimizer.learning_rate:.3g})"
        for group in groups
        if any(record.root.name in read_plan(record.root.parent.parent).rates_scaled for record in group.records)
    }
    if scaled:
        rules = ", ".join(sorted({group.first.config.optimizer.rule for group in groups}))
        yield (
            f"These learning rates were not tuned for their mode, but scaled by the number of {groups[0].unit} in an update: "
            f"{', '.join(sorted(scaled))}. That is a rule for SGD (Goyal et al. 2017), and the optimizer is {rules}: with "
            f"tuned rates these arms may give other results. To tune a rate, run `{PROGRAM} sweep --mode MODE --vary "
            "optimizer.learning_rate=LOW..HIGH:log`."
        )
    configs = [record.config for group in groups for record in group.records]
    models = dict.fromkeys(config.model.name for config in configs if not has_rates(config))
    if models:
        yield (
            f"There are no learning rates for individual modes in the recipe of {', '.join(models)}. With rates that are "
            "tuned for each mode, the modes may give other results."
        )
