from pathlib import Path

import pytest

from ps_cluster.catalogue.modes import MODES
from ps_cluster.catalogue.task_types import ON_DEATH, Task
from ps_cluster.cluster.policy import Limits
from ps_cluster.cluster.recovery import CLUSTER, Plans, Recovery
from ps_cluster.processes.supervisor import TaskExit


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def death_of(task_type, index=0, line="out of luck"):
    return TaskExit(Task(task_type, index), 1, 1, Path("log"), line, 0.0, False)


def delays(recovery, clock, deaths, every_s, updates=0):
    answers = []
    for death in deaths:
        answers.append(recovery.next_delay_s(death.task, death, updates))
        clock.now += every_s
    return answers


def test_the_first_restart_is_at_once_and_the_next_ones_back_off_until_it_is_given_up():
    clock = Clock()
    recovery = Recovery(Limits(stable_s=20), ON_DEATH, clock)
    assert delays(recovery, clock, [death_of("worker")] * 6, every_s=1) == [0.0, 0.5, 1.0, 2.0, 4.0, None]


def test_the_backoff_has_an_upper_bound():
    clock = Clock()
    recovery = Recovery(Limits(backoff_s=4, longest_backoff_s=10), ON_DEATH, clock)
    assert delays(recovery, clock, [death_of("worker")] * 5, every_s=1) == [0.0, 4.0, 8.0, 10.0, 10.0]


def test_a_worker_that_lived_long_enough_did_not_die_in_a_row():
    clock = Clock()
    recovery = Recovery(Limits(stable_s=20), ON_DEATH, clock)
    assert delays(recovery, clock, [death_of("worker")] * 10, every_s=21) == [0.0] * 10


def test_a_cluster_that_gets_no_further_is_given_up_however_long_it_lives():
    clock = Clock()
    recovery = Recovery(Limits(stable_s=20), ON_DEATH, clock)
    answers = []
    for _ in range(6):
        answers.append(recovery.next_delay_s(CLUSTER, death_of("chief"), 100))
        clock.now += 60
    assert answers == [0.0, 0.5, 1.0, 2.0, 4.0, None]


def test_a_cluster_that_gets_further_each_time_is_never_given_up():
    recovery = Recovery(Limits(), ON_DEATH, Clock())
    assert [recovery.next_delay_s(CLUSTER, death_of("ps"), updates) for updates in range(10)] == [0.0] * 10


def test_workers_are_counted_each_by_itself():
    recovery, clock = Recovery(Limits(), ON_DEATH, Clock()), Clock()
    assert delays(recovery, clock, [death_of("worker", 0), death_of("worker", 1)], every_s=1) == [0.0, 0.0]


def test_what_is_reported_in_the_end_is_the_first_cause():
    recovery = Recovery(Limits(), ON_DEATH, Clock())
    for death in [death_of("ps", line="first"), *[death_of("chief", line="later")] * 5]:
        delay_s = recovery.next_delay_s(CLUSTER, death, 0)
    cause = recovery.first_cause(CLUSTER)
    assert delay_s is None and "ps-0" in cause and "first" in cause and cause.endswith("(given up after 5 restarts)")


@pytest.mark.parametrize(
    ("mode", "whole_cluster", "dispensable"),
    [
        ("async", False, True),
        ("bounded", False, True),
        ("elastic", False, True),
        ("sync-ps", False, False),
        ("sync", True, False),
    ],
)
def test_a_worker_is_as_important_as_the_others_wait_for_it(mode, whole_cluster, dispensable):
    worker = MODES[mode].on_death["worker"]
    assert (worker.whole_cluster, worker.dispensable) == (whole_cluster, dispensable)


def test_the_evaluator_never_takes_the_cluster_with_it():
    assert not any(MODES[mode].on_death["evaluator"].whole_cluster for mode in MODES.names)


def test_plans_are_carried_out_when_they_are_due_and_not_when_dropped():
    clock, done = Clock(), []
    plans = Plans(clock)
    plans.add("a", 1.0, lambda: done.append("a"))
    plans.add("b", 2.0, lambda: done.append("b"))
    plans.add("c", 2.0, lambda: done.append("c"))
    assert not plans.carry_out()
    clock.now = 1.5
    assert plans.carry_out() and done == ["a"]
    plans.drop("c", "unknown")
    clock.now = 3.0
    assert plans.carry_out() and done == ["a", "b"] and not plans.carry_out()
