import numpy as np
import pytest

from ps_cluster.data.lazy_rows import ChangedRows, SelectedRows, StreamedRows

WHOLE = np.arange(30).reshape(10, 3)


@pytest.fixture
def streamed():
    """Rows that come in pieces of four, and how often they were read from the beginning."""

    def read():
        read.times += 1
        yield from (WHOLE[start : start + 4] for start in range(0, 10, 4))

    read.times = 0
    rows = StreamedRows("int64", WHOLE.shape, read)
    rows.read = read
    return rows


def test_a_stream_is_read_once_from_piece_to_piece(streamed):
    for part in (slice(0, 3), slice(3, 9), slice(9, 10)):
        np.testing.assert_array_equal(streamed[part], WHOLE[part])
    assert streamed.read.times == 1 and len(streamed) == 10


def test_a_stream_skips_what_is_not_wanted_and_begins_again_for_what_has_passed(streamed):
    for part in (slice(5, 7), slice(9, 12), slice(0, 2), slice(1, 1), np.array([1, 3, 8]), np.array([2])):
        np.testing.assert_array_equal(streamed[part], WHOLE[part])
    assert streamed.read.times == 3


def test_selected_and_changed_rows_are_those_of_the_array():
    ids = np.array([1, 4, 9])
    assert (SelectedRows(WHOLE, ids)[1:] == WHOLE[[4, 9]]).all() and SelectedRows(WHOLE, ids).shape == (3, 3)
    halves = ChangedRows(WHOLE, lambda rows: rows[:, :1] / 2)
    assert (halves.shape, halves.dtype) == ((10, 1), np.float64)
    assert SelectedRows(halves, ids)[:].tolist() == [[1.5], [6.0], [13.5]]
