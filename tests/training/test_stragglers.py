import time

import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.config.stragglers import Slowness, machine_means, parse_stragglers
from ps_cluster.training.slow_down import SlowDown, sleep


def seconds(text, worker, step=0, own=0.1):
    slow_down = SlowDown(parse_stragglers(text), workers=3, seed=7)
    return float(slow_down.seconds(*(tf.constant(n, tf.int64) for n in (worker, step)), tf.constant(own, tf.float64)))


def test_a_factor_is_of_the_workers_own_time_and_an_addition_is_not():
    assert seconds("2:5x", 2) == pytest.approx(0.4) and seconds("2:5x", 1) == 0
    assert seconds("1:+0.2s", 1) == pytest.approx(0.2) and seconds("1:+0.2s", 1, own=3.0) == pytest.approx(0.2)
    both = "0:2x;2:+0.5s"
    assert (seconds(both, 0), seconds(both, 1), seconds(both, 2)) == pytest.approx((0.1, 0, 0.5))


def test_an_addition_is_divided_among_the_waits_of_a_step_and_a_factor_is_not():
    for text, expected in (("1:+0.2s", 0.05), ("1:5x", 0.4)):
        slow_down = SlowDown(parse_stragglers(text), workers=3, seed=7, parts=4)
        waited = slow_down.seconds(tf.constant(1, tf.int64), tf.constant(0, tf.int64), tf.constant(0.1, tf.float64))
        assert float(waited) == pytest.approx(expected)


def test_gamma_times_vary_by_worker_and_step_and_come_from_the_seed():
    means = machine_means(1000, seed=0)
    assert means.min() == 1 and np.std(means) / np.mean(means) == pytest.approx(0.6, abs=0.05)
    own = machine_means(3, seed=7)
    slowest = int(own.argmax())
    draws = np.array([seconds("random:gamma", slowest, step, own=1.0) for step in range(60)]) + 1
    assert draws.mean() == pytest.approx(own[slowest], rel=0.06)
    assert draws.std() / draws.mean() == pytest.approx(0.1, abs=0.04)
    assert seconds("random:gamma", slowest, 5) == seconds("random:gamma", slowest, 5)


@pytest.mark.parametrize(
    "text",
    [
        "2", "2:x", "2:0.5x", "2:1001x", "2:infx", "2:1e400x", "2:+3601s", "02:5x", "\uff12:5x", "2:\uff15x", "two:5x",
        "1:0.2s", "random", "1:5x,2:5x", "1:5x;1:+1s", "", f"2:{'9' * 400}x", f"{'9' * 400}:2x",
    ],
)  # fmt: skip
def test_what_is_no_straggler_is_refused_with_what_to_write(text):
    with pytest.raises(ValueError, match=r"write 2:5x|twice|in 1 to 1000|at most 3600 s|at most 200 characters"):
        parse_stragglers(text)


def test_what_is_a_straggler_is_read():
    assert not parse_stragglers("none") and parse_stragglers("random:gamma").gamma
    assert parse_stragglers("2:5x;1:+0.2s").slow == (Slowness(2, 5.0, 0.0), Slowness(1, 1.0, 0.2))


@pytest.mark.parametrize(
    ("text", "workers", "among"),
    [("2:5x", 3, True), ("0:2x;2:5x", 2, False), ("none", 1, True), ("random:gamma", 1, True)],
)
def test_a_straggler_must_be_one_of_the_workers(text, workers, among):
    assert parse_stragglers(text).are_among(workers) == among


def test_a_sleep_takes_at_least_its_time():
    wait = tf.function(sleep, autograph=False)
    wait(tf.constant(0.0, tf.float64))
    started = time.monotonic()
    wait(tf.constant(0.2, tf.float64))
    assert time.monotonic() - started >= 0.2


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("none", 2.0), ("1:5x", 10.0), ("0:+3s", 5.0), ("0:+3s;1:5x", 10.0), ("random:gamma", 2 * 2.11 * 1.5)],
)
def test_the_longest_step_is_that_of_the_slowest_worker(text, seconds):
    assert parse_stragglers(text).longest_step_s(2.0, workers=3, seed=0) == pytest.approx(seconds, abs=0.05)
