"""Decide which embeddings of a run are tables, and name the settings that prevent it, with the reasons."""

from __future__ import annotations

from collections.abc import Iterator

import keras

from ps_cluster.config import RunConfig
from ps_cluster.config.objectives import ExampleSpec
from ps_cluster.config.optimizer_rules import RULES
from ps_cluster.config.staleness_methods import METHODS
from ps_cluster.errors import UserError
from ps_cluster.models.embedding_tables import Tables
from ps_cluster.models.finding_tables import find_tables
from ps_cluster.notices import Notify, ignore
from ps_cluster.server.shard import ParameterShard


def reason_against_rows(config: RunConfig) -> str | None:
    """Return the first setting, with its value, that needs all rows of a table at every step; None if there is none."""
    return next(_reasons(config), None)


def tables_of(model: keras.Model, config: RunConfig, spec: ExampleSpec, notify: Notify = ignore) -> Tables:
    """Return the embedding tables whose rows a run pulls and pushes individually. See `find_tables`, also for `notify`."""
    return find_tables(
        model,
        spec,
        rows_from=config.model.rows_from,
        against=reason_against_rows(config),
        matrices=config.optimizer.matrix_patterns,
        notify=notify,
    )


def check_keyed(config: RunConfig, tables: Tables) -> None:
    """Raise UserError if the network has a `DynamicEmbedding`, but the mode averages the gradients of workers."""
    if tables.keyed and config.chosen_mode.averages:
        raise UserError(
            f"mode.name: got '{config.mode.name}': an update of the DynamicEmbedding "
            f"'{next(iter(tables.keyed.values())).name}' can't be the mean of several gradients: take async, bounded or single"
        )


def _reasons(config: RunConfig) -> Iterator[str]:
    mode, optimizer = config.chosen_mode, config.optimizer
    if not mode.has_tables or mode.shard.change is not ParameterShard.change:
        yield f"mode.name is {mode.name}, which exchanges or changes all weights"
    if not RULES[optimizer.rule].row_update:
        able = ", ".join(one.name for one in RULES if one.row_update)
        yield f"optimizer.rule is {optimizer.rule}, which changes all rows at every update (these do not: {able})"
    if not METHODS[config.staleness.method].works_by_row:
        yield f"staleness.method is {config.staleness.method}, which compares all weights of two versions"
    if mode.delay(config):
        yield "mode.simulate_workers keeps older versions of all weights"
    if config.lookahead.every_updates:
        yield f"lookahead.every_updates is {config.lookahead.every_updates}, which keeps slow weights of every row"
    if config.cluster.wire in ("int8", "top_k"):
        yield f"cluster.wire is {config.cluster.wire}: each worker keeps the unsent remainder of every weight's gradient"
    if optimizer.weight_decay:
        yield f"optimizer.weight_decay is {optimizer.weight_decay:g}, which shrinks every row at every update"
    if optimizer.clip_norm is not None:
        yield f"optimizer.clip_norm is {optimizer.clip_norm:g}, which needs the norm of each variable"
    if optimizer.learning_rate_factors:
        yield "optimizer.learning_rate_factors is set, and a factor applies to a whole variable, not to single rows"
