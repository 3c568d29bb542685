"""Compute how many parameters each parameter server has, and how many bytes it has received and sent."""

from __future__ import annotations

from collections.abc import Sequence

from ps_cluster.runs.ledger import Counts
from ps_cluster.runs.result_rows import ServerSize, TableTraffic
from ps_cluster.server.shard import ParameterShard

ROW_NUMBER_BYTES = 8  # the index or key of a table row is an int64


def server_sizes(
    shards: Sequence[ParameterShard], counts: Sequence[Counts], tables: TableTraffic | None
) -> list[ServerSize]:
    """Return the size and the traffic of each shard.

    Args:
      counts: the counters of each shard.
      tables: the rows of embedding tables that all shards together have received and sent; None without tables.
    """
    # The number of a table row is sent when the row is requested, and again when it is pushed. All servers have
    # equal shares of the rows.
    row_bytes = ROW_NUMBER_BYTES * tables.rows + shards[0].wire.size * tables.row_values if tables else 0
    row_bytes_of_shard = row_bytes // len(shards)
    sizes = []
    for index, (shard, counted) in enumerate(zip(shards, counts, strict=True)):
        pushes = counted.accepted + counted.refused + counted.dropped  # about as many as the pulls
        sizes.append(
            ServerSize(
                index=index,
                parameters=shard.parameters,
                table_parameters=(shard.parameters - shard.length) if shard.tables else None,
                pushed_bytes=pushes * shard.push_message.bytes + row_bytes_of_shard,
                pulled_bytes=pushes * shard.pull_message.bytes + row_bytes_of_shard,
            )
        )
    return sizes
