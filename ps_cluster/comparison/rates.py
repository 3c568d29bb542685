"""Tell whether the learning rate of an arm was found for its mode, or only scaled from that of its network."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ps_cluster.comparison.groups import Group
from ps_cluster.config import RunConfig, build_config, rates_found


def warn_of_scaled(groups: Sequence[Group]) -> Iterator[str]:
    """Yield a sentence for what is on top of a report where learning rates were only scaled."""
    scaled = {_named(group): group.first.config for group in groups if was_scaled(group.first.config)}
    if not scaled:
        return
    rules = ", ".join(sorted({config.optimizer.rule for config in scaled.values()}))
    yield (
        f"Learning rates that were not found for their mode but scaled from the network's by the images of an update: "
        f"{', '.join(scaled)}. That is a rule for SGD (Goyal et al. 2017), and the optimizer is {rules}: at rates of their own "
        "these arms may come out otherwise. `python -m benchmarks.rates` finds such."
    )


def was_found(config: RunConfig) -> bool:
    """Return whether rate and momentum are those that the network's recipe has for this mode, workers and batch."""
    found = rates_found(config)
    optimizer = config.optimizer
    return found is not None and (found.learning_rate, found.momentum) == (
        optimizer.learning_rate,
        getattr(optimizer, "momentum", 0.0),
    )


def was_scaled(config: RunConfig) -> bool:
    """Return whether the rate is the network's own times the images of an update over its batch, and was not found."""
    # With a rule that is given nothing comes from the recipe's table: this is the network's own rate.
    own = build_config(None, {"model.name": config.model.name, "optimizer.rule": config.optimizer.rule})
    images = config.training.batch_size_per_worker * config.gradients_per_update
    times = images / own.training.batch_size_per_worker
    scaled = math.isclose(config.optimizer.learning_rate, own.optimizer.learning_rate * times, rel_tol=1e-6)
    return scaled and not math.isclose(times, 1) and not was_found(config)


def _named(group: Group) -> str:
    return f"{group.arm} {group.batch_per_worker}/{group.batch} ({group.first.config.optimizer.learning_rate:.3g})"
