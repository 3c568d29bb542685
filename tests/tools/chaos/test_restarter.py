"""Tasks that are started again when they end, with processes and a clock of the test."""

import pytest

from ps_cluster.config.tasks import Task
from ps_cluster.tools.chaos.hosted_run import RESTART_DELAY_S, Restarter

WORKER, CHIEF = Task("worker", 0), Task("chief", 0)


class Processes:
    """Start processes that end when the test says so; the clock too is moved by hand."""

    def __init__(self):
        self.time, self.started, self.codes = 0.0, [], {}

    def start(self, task):
        process = type("Fake", (), {"pid": len(self.started), "poll": lambda process: self.codes.get(process.pid)})()
        self.started.append(task)
        return process

    def restarter(self, *tasks):
        restarter = Restarter(tasks, self.start, clock=lambda: self.time)
        restarter.poll()
        return restarter

    def end(self, restarter, code, pid=None):
        """End the newest process, and look until a restart would be due."""
        self.codes[len(self.started) - 1 if pid is None else pid] = code
        restarter.poll()
        self.time += RESTART_DELAY_S
        restarter.poll()


@pytest.mark.parametrize(("code", "again"), [(0, 0), (2, 0), (3, 0), (4, 0), (75, 6), (-9, 6), (143, 6), (1, 3)])
def test_the_exit_code_says_how_often_a_task_is_started_again(code, again):
    processes = Processes()
    restarter = processes.restarter(WORKER)
    for _ in range(6):
        processes.end(restarter, code)
    assert restarter.restarts[WORKER] == len(processes.started) - 1 == again
    assert restarter.final == ({} if again == 6 else {WORKER: code})


def test_nothing_is_started_before_the_delay_is_over():
    processes = Processes()
    restarter = processes.restarter(WORKER)
    processes.codes[0] = 75
    for processes.time in (10.0, 9.9 + RESTART_DELAY_S):
        restarter.poll()
    assert len(processes.started) == 1 and restarter.running == {}
    processes.time = 10.0 + RESTART_DELAY_S
    restarter.poll()
    assert len(processes.started) == 2 and restarter.running[WORKER].pid == 1


def test_a_task_that_is_held_starts_only_when_it_is_released_and_the_others_go_on():
    processes = Processes()
    restarter = processes.restarter(CHIEF, WORKER)
    restarter.held.add(WORKER)
    processes.end(restarter, -9, pid=1)
    assert list(restarter.running) == [CHIEF]
    processes.end(restarter, 75, pid=0)
    assert list(restarter.running) == [CHIEF] and restarter.restarts[WORKER] == 0
    restarter.held.remove(WORKER)
    restarter.poll()
    assert set(restarter.running) == {CHIEF, WORKER}
