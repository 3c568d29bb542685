"""The name of an array tells its form, and the form is all that a checkpoint needs to know about the array."""

import numpy as np
import pytest

from ps_cluster.files.values import Malformed
from ps_cluster.runs.checkpoint_arrays import BY_SHARD, BY_WEIGHT, form_of
from ps_cluster.server.arrangement import Arrangement, RowRange, contiguous

# The first shard has rows 0 and 2 of the network's vector, which has rows of 2 numbers; the second shard has row 1.
ROWS = Arrangement([[RowRange(0, 6, width=2, step=2)], [RowRange(0, 6, width=2, first=1, step=2)]])
FOUR, TWO = np.array([1, 2, 5, 6], np.float32), np.array([3, 4], np.float32)
IN_ROWS, IN_ORDER = [1, 2, 3, 4, 5, 6], [1, 2, 5, 6, 3, 4]


@pytest.mark.parametrize(
    ("name", "parts", "whole"),
    [
        ("weights", [FOUR, TWO], IN_ROWS),
        ("slot_momentum", [FOUR, TWO], IN_ROWS),
        ("slot_own", [np.stack([FOUR, -FOUR]), np.stack([TWO, -TWO])], [IN_ROWS, [-1, -2, -3, -4, -5, -6]]),
        ("statistics", [FOUR, TWO], IN_ORDER),
        ("clocks", [np.array([1, 2, 3]), np.array([4, 5])], [1, 2, 3, 4, 5]),
        ("toy_pairs", [np.eye(2), np.zeros([2, 1])], [[1, 0, 0], [0, 1, 0]]),
        ("keyed", [np.array([1, 2]), np.array([3])], [1, 2, 3]),
        ("each_rate", [np.float32(1), np.float32(2)], [1, 2]),
        ("each_ages", [FOUR, FOUR + 1], [[1, 2, 5, 6], [2, 3, 6, 7]]),
        ("counts", [np.arange(3), np.arange(3, 6)], [[0, 1, 2], [3, 4, 5]]),
    ],
)
def test_what_the_form_of_a_name_joins_it_cuts_again(name, parts, whole):
    form, shapes = form_of(name), [part.shape for part in parts]
    found = form.joined(parts, ROWS)
    assert found.tolist() == whole and found.dtype == parts[0].dtype and found.shape == form.joined_shape(shapes)
    cut = form.cut(found, shapes, ROWS)
    assert [part.tolist() for part in cut] == [part.tolist() for part in parts]


def test_the_shards_parts_of_dynamic_tables_are_joined_by_the_arrangement_of_these_tables():
    arrangement, parts = Arrangement([[RowRange(0, 6)]], keyed=ROWS), [FOUR, TWO]
    found = form_of("keyed").joined(parts, arrangement)
    assert found.tolist() == IN_ROWS
    cut = form_of("keyed").cut(found, [(4,), (2,)], arrangement)
    assert [part.tolist() for part in cut] == [part.tolist() for part in parts]


def test_shorter_lists_of_accepted_steps_are_padded_with_zeros():
    joined = form_of("accepted_steps").joined([np.array([4, 5]), np.array([3, 4, 6])], contiguous([1, 1]))
    assert joined.tolist() == [[4, 5, 0], [3, 4, 6]]


@pytest.mark.parametrize(
    ("name", "shards", "expected"),
    [
        ("counts", 3, [[3, 4]] * 3),
        ("accepted_steps", 1, [[1, 4]]),
        ("accepted_steps", 3, [[1, 4], [3, 2], [1, 4]]),
        ("each_ages", 3, [[1, 4], [3, 2], [1, 4]]),
        ("slot_own", 3, [[1, 4], [3, 2]]),
        ("waiting", 3, [[1, 4], [3, 2]]),
        ("toy_pairs", 3, [[1, 4], [3, 2]]),
    ],
)
def test_only_arrays_with_a_row_for_each_shard_change_with_the_number_of_shards(name, shards, expected):
    assert form_of(name).resharded(np.array([[1, 4], [3, 2]]), shards).tolist() == expected


@pytest.mark.parametrize(
    ("name", "dtype", "shape"),
    [
        ("weights", "float64", [3]),
        ("weights", "float32", [1, 3]),
        ("slot_own", "int64", [3]),
        ("slot_own", "float32", [1, 1, 3]),
        ("each_rate", "float32", []),
        ("counts", "int32", [2, 4]),
        ("waiting", "float32", [0, 3]),
        ("changed", "int64", [2]),
        ("toy_whole", "int64", []),
    ],
)
def test_an_array_of_another_form_than_its_name_tells_is_refused(name, dtype, shape):
    with pytest.raises(Malformed, match=f"array '{name}' has the wrong dtype or shape: {dtype} "):
        form_of(name).check(name, np.zeros(shape, dtype))


@pytest.mark.parametrize("dtype", ["int64", "float64", "bool"])
@pytest.mark.parametrize("shape", [[0], [3], [2, 3], [2, 2, 2]])
def test_an_array_of_a_mode_of_ones_own_may_have_any_dtype_and_any_axes(dtype, shape):
    form_of("toy_whole").check("toy_whole", np.zeros(shape, dtype))


def test_the_names_of_slots_in_files_stay_as_they_are():
    assert (BY_WEIGHT.array_name("momentum"), BY_SHARD.array_name("rate_factor")) == (
        "slot_momentum",
        "each_rate_factor",
    )
    assert form_of("slot_momentum") is BY_WEIGHT and form_of("each_rate_factor") is BY_SHARD
