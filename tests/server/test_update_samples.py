"""What the buffers for sampled updates keep of a pull and a push."""

import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.server import samples
from ps_cluster.server.samples import ANY_WORKER, KeptState, SampleKey, UpdateSamples
from tests.helpers.waiting import identity

LENGTH, WORKERS = 4, 3
DEVICE = "/device:CPU:0"


def buffers(state, **settings):
    length = state.weights.shape[0]
    section = tf.CriticalSection(shared_name=f"samples of {id(state)}")
    return UpdateSamples(state, section, given=length, wire=tf.float32, device=DEVICE, **settings)


def key(update, worker, version):
    return SampleKey(identity(update), identity(worker), identity(version))


def numbered(*shape, begin):
    """Return a variable, float32, whose elements are `begin`, `begin` + 1, ..."""
    return tf.Variable(begin + tf.reshape(tf.range(np.prod(shape, initial=1), dtype=tf.float32), shape))


class SmallShard:
    """A shard with a slot of each shape, and the buffers for its samples. Each push adds 100 to all variables."""

    def __init__(self):
        weights, statistics, vector = (numbered(LENGTH, begin=begin) for begin in (0.0, 10.0, 20.0))
        slots = {"vector": vector, "of_workers": numbered(WORKERS, LENGTH, begin=30.0), "number": numbered(begin=50.0)}
        of_pull = {"vector": vector, "number_of_workers": numbered(WORKERS, begin=60.0)}
        self._state = KeptState(weights, statistics, slots, of_pull)
        self.samples = buffers(self._state)

    def pull(self, key):
        self.samples.keep_given(key, self._state.weights.read_value(), self._state.statistics.read_value())

    def push(self, key):
        def change():
            for variable in (self._state.weights, self._state.statistics, *self._state.slots.values()):
                variable.assign_add(tf.fill(variable.shape, 100.0))
            return key.version + 1

        gradient, fresh = numbered(LENGTH, begin=70.0).read_value(), numbered(LENGTH, begin=80.0).read_value()
        return int(self.samples.keep_change(key, gradient, fresh, change))


def as_lists(value):
    if isinstance(value, dict):
        return {name: array.tolist() for name, array in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value


def test_a_sample_has_the_values_of_its_worker_at_the_pull_and_before_and_after_the_push():
    shard, of_update = SmallShard(), key(7, 1, 5)
    shard.samples.reserve(0, 7, offset=0)
    shard.pull(of_update)
    assert shard.push(of_update) == 6
    sample = shard.samples.take(0)
    assert {name: as_lists(value) for name, value in vars(sample).items()} == {
        "update": 7, "worker": 1, "version": 5, "positions": [0, 1, 2, 3],
        "given": [0, 1, 2, 3], "given_positions": [0, 1, 2, 3], "given_statistics": [10, 11, 12, 13],
        "at_pull": {"weights": [0, 1, 2, 3], "vector": [20, 21, 22, 23], "number_of_workers": [61]},
        "rows_at_pull": [], "gradient": [70, 71, 72, 73],
        "before": {
            "weights": [0, 1, 2, 3], "vector": [20, 21, 22, 23], "of_workers": [34, 35, 36, 37], "number": [50],
        },
        "after": {
            "weights": [100, 101, 102, 103], "vector": [120, 121, 122, 123], "of_workers": [134, 135, 136, 137],
            "number": [150],
        },
        "fresh": [80, 81, 82, 83], "statistics_before": [10, 11, 12, 13], "statistics_after": [110, 111, 112, 113],
        "keyed": {},
    }  # fmt: skip
    assert shard.samples.take(0) is None, "the buffer is free again"


@pytest.mark.parametrize("other", [(8, 1, 5), (7, 2, 5), (7, 1, 4)], ids=["update", "worker", "version"])
def test_a_push_whose_key_differs_from_that_of_the_pull_is_applied_and_not_kept(other):
    shard = SmallShard()
    shard.samples.reserve(0, 7, offset=0)
    shard.pull(key(7, 1, 5))
    assert shard.push(key(*other)) == other[-1] + 1
    assert shard.samples.take(0) is None


@pytest.mark.parametrize(
    ("worker", "update", "pulled", "is_kept"),
    [
        (ANY_WORKER, 7, (7, 2, 5), True),
        (ANY_WORKER, 7, (8, 2, 5), False),
        (2, 7, (7, 2, 5), True),
        (2, 7, (9, 2, 5), True),
        (2, 7, (6, 2, 5), False),
        (2, 7, (9, 1, 5), False),
    ],
)
def test_a_buffer_keeps_the_update_for_which_it_is_reserved_or_the_next_one_of_its_worker(
    worker, update, pulled, is_kept
):
    shard = SmallShard()
    shard.samples.reserve(0, update, worker=worker, offset=0)
    shard.pull(key(*pulled))
    shard.push(key(*pulled))
    sample = shard.samples.take(0)
    assert (sample is not None and (sample.update, sample.worker, sample.version) == pulled) == is_kept


def test_a_buffer_that_was_taken_keeps_nothing_until_it_is_reserved_again():
    shard = SmallShard()
    shard.samples.reserve(0, 0, offset=0)
    for update, is_reserved in ((0, True), (0, False), (1, True)):
        if update:
            shard.samples.reserve(0, update, offset=0)
        shard.pull(key(update, 0, 0))
        shard.push(key(update, 0, 0))
        assert (shard.samples.take(0) is not None) == is_reserved


@pytest.mark.parametrize("length", [100, 3_000_000])
def test_the_buffers_take_the_memory_of_two_vectors_or_4_mb(length):
    weights, momentum = (tf.Variable(tf.zeros([length])) for _ in range(2))
    kept = buffers(KeptState(weights, tf.Variable(tf.zeros([10])), {"momentum": momentum}, {}))
    variables = [value for value in tf.nest.flatten(vars(kept)) if isinstance(value, tf.Variable)]
    taken = sum(variable.dtype.size * variable.shape.num_elements() for variable in variables)
    assert 2 * 4 * 100 < taken <= max(2 * 4 * length, samples.MOST_BYTES) + 1000
    assert kept.buffers >= 1
