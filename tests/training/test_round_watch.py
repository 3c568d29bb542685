"""A wait for other workers that takes too long is ended, and only that."""

import threading
import time

from ps_cluster.training.all_reduce import RoundWatch


def test_a_round_that_takes_too_long_is_given_up():
    given_up = threading.Event()
    with RoundWatch(0.05, lambda limit_s: given_up.set()):
        assert given_up.wait(5)


def test_rounds_that_end_in_time_are_not_given_up_however_long_all_of_them_take():
    seconds, given_up = [0.0], []
    with RoundWatch(0.01, lambda limit_s: given_up.append(seconds[0]), clock=lambda: seconds[0]) as watch:
        for _ in range(20):
            seconds[0] += 0.009
            time.sleep(0.002)
            watch.moved(0.01)
    assert not given_up


def test_nothing_is_given_up_after_the_last_round():
    seconds, given_up = [0.0], []
    with RoundWatch(0.01, lambda limit_s: given_up.append(True), clock=lambda: seconds[0]):
        pass
    seconds[0] = 1.0
    time.sleep(0.02)
    assert not given_up
