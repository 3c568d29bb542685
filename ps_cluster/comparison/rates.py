"""Tell whether an arm's learning rate was found for its mode, or is its network's rate, scaled or as it is."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from ps_cluster.comparison.groups import Group
from ps_cluster.comparison.run_records import Record
from ps_cluster.config import RunConfig, build_config, has_rates, rates_found
from ps_cluster.files.yaml_files import read_yaml
from ps_cluster.installation import PROGRAM

PLAN = "comparison.yaml"  # beside runs/
SCALED = "rates_scaled"  # key in it: names of the runs whose rate the comparison multiplied


def warn_of_scaled(groups: Sequence[Group]) -> Iterator[str]:
    """Yield a warning for the top of a report where learning rates were only scaled."""
    outputs = {_output(record) for group in groups for record in group.records}
    noted = {output: _noted(output / PLAN) for output in outputs}

    def is_scaled(record: Record) -> bool:
        names = noted[_output(record)]
        return looks_scaled(record.config) if names is None else record.root.name in names

    scaled = {_named(group): group.first.config for group in groups if any(map(is_scaled, group.records))}
    if not scaled:
        return
    rules = ", ".join(sorted({config.optimizer.rule for config in scaled.values()}))
    yield (
        f"Learning rates that were not found for their mode but scaled by the {groups[0].unit} of an update: "
        f"{', '.join(scaled)}. That is a rule for SGD (Goyal et al. 2017), and the optimizer is {rules}: at rates of their own "
        f"these arms may come out otherwise. `{PROGRAM} sweep --mode MODE --vary optimizer.learning_rate=LOW..HIGH:log` finds "
        "such."
    )


def warn_of_unknown(groups: Sequence[Group]) -> Iterator[str]:
    """Yield a warning for the top of a report whose network has no rates of single modes at all."""
    configs = [record.config for group in groups for record in group.records]
    models = dict.fromkeys(config.model.name for config in configs if not has_rates(config))
    if models:
        yield (
            f"No learning rates were found for single modes of {', '.join(models)}: the network's recipe has none. At rates "
            "of their own the modes may come out otherwise."
        )


def was_found(config: RunConfig) -> bool:
    """Return whether rate and momentum are those of the network's recipe for this mode, workers and batch."""
    found = rates_found(config)
    optimizer = config.optimizer
    return found is not None and (found.learning_rate, found.momentum) == (
        optimizer.learning_rate,
        getattr(optimizer, "momentum", 0.0),
    )


def looks_scaled(config: RunConfig) -> bool:
    """Return whether the rate is the network's own x examples per update / its batch, and was not found for the mode.

    For runs whose comparison did not record it. A batch or rate that the user chose can't be judged.
    """
    # With a given rule nothing comes from the recipe's table: this is the network's own rate.
    own = build_config(None, {"model.name": config.model.name, "optimizer.rule": config.optimizer.rule})
    examples = config.training.batch_size_per_worker * config.gradients_per_update
    times = examples / own.training.batch_size_per_worker
    scaled = math.isclose(config.optimizer.learning_rate, own.optimizer.learning_rate * times, rel_tol=1e-6)
    return scaled and not math.isclose(times, 1) and not was_found(config)


def _output(record: Record) -> Path:
    """Return the folder of the comparison that a run would belong to."""
    return record.root.parent.parent


def _noted(plan: Path) -> Collection[str] | None:
    """Return the names of the runs whose rate a comparison scaled; None if no comparison recorded them."""
    names = read_yaml(plan).get(SCALED) if plan.is_file() else None
    return names if isinstance(names, list) else None


def _named(group: Group) -> str:
    return f"{group.arm} {group.batch_per_worker}/{group.batch} ({group.first.config.optimizer.learning_rate:.3g})"
