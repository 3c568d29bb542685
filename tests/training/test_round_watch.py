import math
import threading

from ps_cluster.training.round_watch import RoundWatch
from tests.helpers.fake_time import FakeTime


def watch_of(time, *, longest_s=60.0, saving_s=0.0):
    """Return a watch that only looks when it is asked, at the beginning of a round."""
    watch = RoundWatch(lambda: longest_s, lambda limit_s: None, check_every_s=math.inf, clock=time.clock)
    watch.moved(saving_s=saving_s)
    return watch


def threads_of_watches():
    return [thread for thread in threading.enumerate() if thread.name == "rounds"]


def test_rounds_that_end_in_time_exceed_no_limit_however_long_all_of_them_take():
    time = FakeTime()
    watch = watch_of(time)
    for _ in range(20):
        time.sleep(60.0)
        assert watch.exceeded_s is None
        watch.moved()


def test_a_round_exceeds_its_limit_and_a_save_before_it_extends_the_limit():
    for saving_s, limit_s in ((0.0, 60.0), (600.0, 660.0)):
        time = FakeTime()
        watch = watch_of(time, saving_s=saving_s)
        time.sleep(limit_s)
        assert watch.exceeded_s is None
        time.sleep(0.1)
        assert watch.exceeded_s == limit_s


def test_the_time_that_a_save_has_taken_does_not_count_for_the_round_after_it():
    time = FakeTime()
    watch = watch_of(time, saving_s=600.0)
    time.sleep(600.0)
    watch.moved()
    time.sleep(60.0)
    assert watch.exceeded_s is None
    time.sleep(0.1)
    assert watch.exceeded_s == 60.0


def test_without_a_limit_no_round_takes_too_long():
    time = FakeTime()
    watch = watch_of(time, longest_s=math.inf)
    time.sleep(1e9)
    assert watch.exceeded_s is None


def test_a_round_that_takes_too_long_is_given_up_once():
    time, given_up = FakeTime(), []
    with RoundWatch(lambda: 60.0, given_up.append, check_every_s=0.001, clock=time.clock):
        (thread,) = threads_of_watches()
        time.sleep(61.0)
        thread.join(timeout=10)
        assert not thread.is_alive()
    assert given_up == [60.0]


def test_the_watch_ends_after_the_last_round_even_if_it_would_wait_for_ever():
    with RoundWatch(lambda: math.inf, lambda limit_s: None, check_every_s=math.inf):
        pass
    assert not threads_of_watches()
