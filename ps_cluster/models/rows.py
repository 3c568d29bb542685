"""Describe which rows of embedding tables a step needs. The launcher imports this module without TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ps_cluster.config.lazy import tf


class Rows(NamedTuple):
    """The distinct rows of embedding tables that a step looks up.

    The first four fields have a tensor for each group of tables.
    """

    # int64 [u], the numbers of the rows within the group, or their keys, sorted by the servers that have the rows
    ids: tuple[tf.Tensor, ...] = ()
    indices: tuple[tf.Tensor, ...] = ()  # int32 [k], for each id that is looked up, its index in `ids`
    sizes: tuple[tf.Tensor, ...] = ()  # int32 [calls], how many ids each call of a table's layer looks up
    counts: tuple[tf.Tensor, ...] = ()  # int32 [servers], how many of the rows each server has
    # The packed batch that looks up the rows, name → [B, ...]. It is kept so that the step need not read it again.
    packed: Mapping[str, tf.Tensor] = {}


NO_ROWS = Rows()
