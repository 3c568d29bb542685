"""The bytes that parameter servers receive and send."""

from types import SimpleNamespace

from ps_cluster.runs.ledger import Counts
from ps_cluster.runs.result_rows import ServerSize, TableTraffic
from ps_cluster.server.traffic import server_sizes


def shard(parameters, length, tables=()):
    """Return a shard whose pushes have 100 bytes and whose answers to a pull have 60."""
    messages = {"push_message": SimpleNamespace(bytes=100), "pull_message": SimpleNamespace(bytes=60)}
    return SimpleNamespace(
        parameters=parameters, length=length, tables=tables, wire=SimpleNamespace(size=2), **messages
    )


def test_pushes_count_whether_they_were_accepted_refused_or_dropped():
    counts = [Counts(version=4, accepted=5, refused=2, dropped=1), Counts(version=4, accepted=5, refused=0, dropped=0)]
    assert server_sizes([shard(20, 20), shard(19, 19)], counts, None) == [
        ServerSize(index=0, parameters=20, pushed_bytes=800, pulled_bytes=480),
        ServerSize(index=1, parameters=19, pushed_bytes=500, pulled_bytes=300),
    ]


def test_servers_share_the_rows_of_tables_which_are_sent_both_ways_with_their_numbers_and_in_the_dtype_of_the_wire():
    counts = [Counts(version=1, accepted=1, refused=0, dropped=0)] * 2
    tables = TableTraffic(rows=6, row_values=18)  # 6 * 8 + 18 * 2 bytes
    assert server_sizes([shard(50, 20, ["table"]), shard(45, 19, ["table"])], counts, tables) == [
        ServerSize(index=0, parameters=50, table_parameters=30, pushed_bytes=142, pulled_bytes=102),
        ServerSize(index=1, parameters=45, table_parameters=26, pushed_bytes=142, pulled_bytes=102),
    ]
