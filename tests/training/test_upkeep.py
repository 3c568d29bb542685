import threading

import pytest

from ps_cluster.training.chief import BackgroundPoller


def test_a_look_that_takes_long_is_awaited_a_moment_at_a_time_and_goes_on_meanwhile():
    go_on, seen = threading.Event(), []

    def look(what):
        assert go_on.wait(10)
        seen.append(what)

    with BackgroundPoller(look) as upkeep:
        assert upkeep.ended_within(0), "none was begun"
        upkeep.begin("rows")
        assert upkeep.is_under_way and not upkeep.ended_within(0) and not seen
        go_on.set()
        assert upkeep.ended_within(10) and not upkeep.is_under_way
        upkeep.begin("more")
    assert seen == ["rows", "more"], "the end waits for the look under way"


def refuse():
    raise OSError("the ps is gone")


def test_the_error_of_a_look_is_that_of_its_caller():
    with BackgroundPoller(refuse) as upkeep, pytest.raises(OSError, match="the ps is gone"):
        upkeep.begin()
        upkeep.ended_within(10)


def test_the_error_of_the_last_look_is_told_at_the_end():
    with pytest.raises(OSError, match="the ps is gone"), BackgroundPoller(refuse) as upkeep:
        upkeep.begin()


def test_after_another_error_nobody_waits_for_a_look_that_may_never_end():
    answer = threading.Event()
    with pytest.raises(ValueError, match="a worker failed"), BackgroundPoller(answer.wait) as upkeep:
        upkeep.begin(60)
        raise ValueError("a worker failed")
    assert upkeep.is_under_way
    answer.set()
