"""The rows of embedding tables that a step needs. The launcher imports this module, so it needs no TensorFlow."""

from __future__ import annotations

from typing import NamedTuple

from ps_cluster.config.lazy import tf


class Rows(NamedTuple):
    """The distinct rows that a step looks up. Each field has a tensor for each group of tables; without tables, none.

    Attributes:
      ids: int64 [u], the rows' numbers within the group, or their keys, in the order of the servers that have them.
      places: int32 [k], the index in `ids` of each id that is looked up.
      sizes: int32 [calls], how many ids each call of a table's layer looks up.
      counts: int32 [servers], how many of the rows each server has.
    """

    ids: tuple[tf.Tensor, ...] = ()
    places: tuple[tf.Tensor, ...] = ()
    sizes: tuple[tf.Tensor, ...] = ()
    counts: tuple[tf.Tensor, ...] = ()


NO_ROWS = Rows()
