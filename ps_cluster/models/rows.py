"""The rows of embedding tables that a step needs. The launcher imports this module without TensorFlow."""

from __future__ import annotations

from typing import NamedTuple

from ps_cluster.config.lazy import tf


class Rows(NamedTuple):
    """The distinct rows that a step looks up. Each field has a tensor for each group of tables; without tables, none."""

    # int64 [u], the numbers of the rows within the group, or their keys, sorted by the servers that have the rows
    ids: tuple[tf.Tensor, ...] = ()
    places: tuple[tf.Tensor, ...] = ()  # int32 [k], for each id that is looked up, its index in `ids`
    sizes: tuple[tf.Tensor, ...] = ()  # int32 [calls], how many ids each call of a table's layer looks up
    counts: tuple[tf.Tensor, ...] = ()  # int32 [servers], how many of the rows each server has


NO_ROWS = Rows()
