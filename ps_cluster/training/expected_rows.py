"""Derive from the settings of a training which values the rows of its ledger must have. The proof compares them."""

from __future__ import annotations

from collections.abc import Sequence

from ps_cluster.config import RunConfig
from ps_cluster.data.recomputed_batches import RecomputedBatches
from ps_cluster.runs.journal import CountedWork, History
from ps_cluster.runs.proof import ExpectedRows
from ps_cluster.training.learning_rate import expected_rates, ledger_settings_digest
from ps_cluster.training.saver import workers_at_start


def expected_rows(
    config: RunConfig,
    train_examples: int,
    before: Sequence[CountedWork],
    histories: Sequence[History],
    *,
    examples_in_all: int,
) -> ExpectedRows:
    """Return the values that the rows of a training must have.

    Args:
      train_examples: the number of training examples of the data set.
      before: the work of the earlier leaders of this training, the oldest first.
      histories: for each shard, the parts of its journal that the leaders in `before` have written (`history_of`).
      examples_in_all: the number of examples that all rows of the training count.
    """
    mode, total_steps = config.chosen_mode, config.total_steps(train_examples)
    rules = ledger_settings_digest(config, total_steps)
    return ExpectedRows(
        examples=config.examples_of_rows,
        examples_unit=config.training.batch_size_per_worker if mode.takes_fewer_batches(config) else 0,
        most_staleness=mode.most_staleness(config),
        rates=expected_rates(config, total_steps),
        ids_checksums=RecomputedBatches(config, train_examples).checksums,
        examples_in_all=examples_in_all,
        highest_rate=config.optimizer.learning_rate,
        first_rows=[_rows_by_other_rules(rules, before, history) for history in histories],
        checks_factors=True,
        workers_at_start=workers_at_start(config, before) if mode.lowers_rate else None,
    )


def _rows_by_other_rules(rules: str, before: Sequence[CountedWork], history: History) -> int:
    """Return how many rows at the beginning of a shard's ledger were possibly written under other settings.

    These are all rows up to and including the last row of an earlier leader whose `ledger_settings_digest` differs from
    `rules`, that of this leader. Return 0 if there is no such leader.
    """
    rows = by_others = 0
    for leader, part in zip(before, history, strict=True):
        rows += part.rows
        if leader.rules != rules:
            by_others = rows
    return by_others
