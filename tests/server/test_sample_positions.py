"""At which positions a sampled update keeps the vectors of a shard."""

import tensorflow as tf

from ps_cluster.config.equations import Matrix
from ps_cluster.runs.update_samples import LARGEST_MATRIX
from ps_cluster.server.sample_positions import WHOLE_UP_TO, SamplePositions


def sets_of(positions, numbers):
    """Return the set of positions that each of some random numbers selects, as lists."""
    return [
        positions.beginning_at(tf.constant(positions.first(number), tf.int64)).numpy().tolist() for number in numbers
    ]


def test_a_vector_that_is_small_enough_is_kept_as_a_whole_whichever_number_is_drawn():
    for length in (0, 1, 7, WHOLE_UP_TO):
        positions = SamplePositions(length, [], vectors=6)
        assert all(sorted(one) == list(range(length)) for one in sets_of(positions, (0, 5, 2**62)))


def test_of_a_larger_vector_evenly_spaced_positions_are_kept_and_each_position_has_its_turn():
    length, vectors = 60_001, 6
    positions = SamplePositions(length, [], vectors)
    sets = sets_of(positions, range(2**40, 2**40 + vectors))
    assert sets[0] == [(2**40 + vectors * index) % length for index in range(length // vectors)]
    assert {len(one) for one in sets} == {positions.count} == {length // vectors}
    assert len(set().union(*sets, *sets_of(positions, [2**40 - 1]))) == length


def test_for_a_rule_that_needs_whole_matrices_each_is_kept_as_a_whole_sometimes_and_so_is_every_other_weight():
    length, matrices = 200_000, [Matrix(50_000, 10, 10), Matrix(60_000, 200, 200), Matrix(180_000, 100, 200)]
    positions = SamplePositions(length, matrices, vectors=6)
    sets = sets_of(positions, range(100))
    assert all(one == list(range(one[0], one[0] + 40_000)) for one in sets)
    found = {matrix for matrix in matrices for one in sets if one[0] <= matrix.begin and matrix.end <= one[-1] + 1}
    assert found == set(matrices) and set().union(*sets) == set(range(length))


def test_a_matrix_that_is_too_large_for_a_sample_does_not_make_the_sample_larger():
    length = 2 * LARGEST_MATRIX
    positions = SamplePositions(length, [Matrix(0, 1, LARGEST_MATRIX + 1)], vectors=8)
    assert positions.count == length // 8
    assert SamplePositions(length, [Matrix(5, 1, LARGEST_MATRIX)], vectors=8).count == LARGEST_MATRIX
