from dataclasses import replace
from pathlib import Path

import pytest

from ps_cluster.config.tasks import ON_DEATH, Task
from ps_cluster.errors import PORT_IN_USE
from ps_cluster.launch.recovery import Recovery, RestartPolicy
from ps_cluster.launch.stages import RunLimits
from ps_cluster.system.supervisor import TaskExit


def death_of(name, code=1):
    kind, index = name.split("-")
    return TaskExit(Task(kind, int(index)), 1, code, Path("log"), "out of luck")


BACKS_OFF = [0.0, 0.5, 1.0, 2.0, 4.0, None]


@pytest.mark.parametrize(
    ("who", "every_s", "updates_each", "delays"),
    [
        pytest.param("worker-0", 1, 9, BACKS_OFF, id="a worker is not spared because others train"),
        pytest.param("worker-0", 25, 0, [0.0] * 9, id="a worker that lived long enough did not die in a row"),
        pytest.param(
            "chief-0", 60, 0, BACKS_OFF, id="a cluster that gets no further is given up however long it lives"
        ),
        pytest.param("ps-0", 1, 1, [0.0] * 9, id="a cluster that gets further each time is never given up"),
    ],
)
def test_restarts_in_a_row_back_off_until_the_task_is_given_up(who, every_s, updates_each, delays):
    recovery = Recovery(RunLimits(stable_s=20), ON_DEATH)
    answers = [recovery.record_death(death_of(who), n * updates_each, n * every_s) for n in range(len(delays))]
    assert answers == delays


def test_a_task_that_the_machine_refuses_to_start_is_tried_again_after_the_longest_delay():
    recovery = Recovery(RunLimits(restart_delays_s=(0.0, 4.0, 10.0)), ON_DEATH)
    refused = replace(death_of("worker-0"), pid=None)
    assert [recovery.record_death(one, 0, now_s=0.0) for one in (refused, refused)] == [10.0, 10.0]
    assert recovery.record_death(death_of("worker-1"), 0, now_s=0.0) == 0.0


def test_the_last_delay_is_that_of_all_further_restarts_and_a_new_streak_begins_with_the_first():
    policy = RestartPolicy(delays_s=(0.0, 4.0))
    assert [policy.record_death("a", 3) for _ in range(4)] == [0.0, 4.0, 4.0, None] and policy.deaths("a") == 4
    assert policy.record_death("b", 3) == 0.0
    policy.end_streak("a")
    assert policy.record_death("a", 3) == 0.0


def test_time_in_which_it_was_silent_is_no_life():
    recovery = Recovery(RunLimits(stable_s=20), ON_DEATH)
    recovery.record_death(death_of("worker-0"), 0, now_s=0.0)
    assert recovery.record_death(death_of("worker-0"), 0, now_s=25.0, silent_s=10.0) == 0.5


def test_deaths_that_restart_the_cluster_are_counted_together_and_the_first_one_is_told():
    recovery = Recovery(RunLimits(), ON_DEATH)
    for death in [death_of("ps-0"), death_of("worker-1", PORT_IN_USE), *[death_of("chief-0")] * 4]:
        assert recovery.restarts_all(death)
        delay_s = recovery.record_death(death, 0, 1.0)
    cause = recovery.first_cause(death)
    assert delay_s is None and cause.startswith("ps-0") and cause.endswith("(given up after 5 restarts)")


def test_only_deaths_of_its_own_type_say_that_a_parameter_server_is_not_at_fault():
    recovery = Recovery(RunLimits(), ON_DEATH)
    for who in ("worker-0", "ps-1"):
        recovery.record_death(death_of(who, PORT_IN_USE), 0, 1.0)
    assert not recovery.others_died(Task("ps", 1))
    recovery.record_death(death_of("ps-0"), 0, 1.0)
    assert recovery.others_died(Task("ps", 1))
