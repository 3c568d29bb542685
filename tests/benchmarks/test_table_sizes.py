import pytest

from benchmarks.table_sizes import HARDLY_ANY, TABLES, Measurement, row_of


def test_a_size_is_compared_with_the_smallest_one_and_with_the_bytes_of_its_rows():
    of_rows = TABLES * 2_000 * 4 * 4 * 2
    found = {
        (HARDLY_ANY, 2): [Measurement(ms=9, distinct=1, training_bytes=1e8, peak_bytes=1e8)],
        (1_000, 2): [Measurement(ms=10, distinct=50, training_bytes=2e8, peak_bytes=3e8)],
        (2_000, 2): [Measurement(ms=11, distinct=60, training_bytes=1e8 + 1.1 * of_rows, peak_bytes=3e8)],
    }
    row = row_of(found, 2_000, 2, width=4)
    assert (row["rows"], row["servers"], row["ms"], row["distinct"]) == (TABLES * 2_000, 2, [11], [60])
    assert row["to_smallest"] == [1.1] and row["of_expected"] == pytest.approx([1.1]) and row["peak"] == [0.3]
