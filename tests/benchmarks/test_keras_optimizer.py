import pytest

from benchmarks.keras_optimizer import of_keras, of_kernel


def test_a_locked_kernel_loses_no_update_of_several_threads():
    counted = of_kernel(threads=3, updates=100, numbers=1000)
    assert (counted.updates, counted.seen, counted.lost) == (300, 300, 0.0)


@pytest.mark.parametrize("index", [0, 1])
def test_one_thread_alone_loses_none_with_keras_either(index):
    counted = of_keras(threads=1, updates=50, numbers=10)[index]
    assert (counted.updates, counted.seen) == (50, 50)
