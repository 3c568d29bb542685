import json
import os
import signal
import sys
from dataclasses import replace

import pytest

from ps_cluster.config.tasks import Task
from ps_cluster.system.child_process import ProcessCalls
from ps_cluster.system.supervisor import Supervisor, TaskSpec
from tests.helpers import processes

TERM, KILL = signal.SIGTERM, signal.SIGKILL


class FakeMachine:
    """Processes that end at the times of a table, and a clock that moves only when somebody sleeps.

    `ends` says when and with which exit code a pid ends by itself, `after_term` how long it takes to end once it got
    TERM (None: it ignores that), `outlives` which group has members that outlive its leader until they are killed.
    """

    def __init__(self, ends=(), after_term=(), outlives=()):
        self.now = 0.0
        self.ends = dict(ends)
        self.after_term = dict(after_term)
        self.outlives = set(outlives)
        self.signals = []
        self._pids = iter(range(100, 200))

    def popen(self, argv, stdout, **options):
        assert options["start_new_session"]
        machine, process = self, type("FakePopen", (), {})()
        process.pid = next(self._pids)
        process.poll = lambda: machine.code_of(process.pid)
        return process

    def code_of(self, pid):
        at, code = self.ends.get(pid, (float("inf"), None))
        return code if at <= self.now else None

    def signal_group(self, group, number):
        self.signals.append((round(self.now, 2), group, number))
        delay = self.after_term.get(group, 0.0) if number == TERM else 0.0
        if number == KILL:
            self.outlives.discard(group)
        if delay is not None and self.code_of(group) is None:
            self.ends[group] = (self.now + delay, -number)

    def group_members(self, group):
        return [group + 1000] if group in self.outlives else []

    def sleep(self, seconds):
        self.now += seconds

    def supervisor(self):
        return Supervisor(
            popen=self.popen, calls=ProcessCalls(lambda: self.now, self.sleep, self.signal_group, self.group_members)
        )


@pytest.fixture
def spec(tmp_path):
    def make(kind="worker", index=0, argv=("task",)) -> TaskSpec:
        name = f"{kind}-{index}"
        return TaskSpec(
            Task(kind, index), argv, os.environ, tmp_path, tmp_path / f"{name}.log", tmp_path / f"{name}.json"
        )

    return make


def start(machine, spec, *tasks):
    supervisor = machine.supervisor()
    for kind, index in tasks:
        supervisor.start(spec(kind, index))
    return supervisor


def test_only_a_task_that_forks_is_started_by_the_function_for_forks(spec):
    own, forked = [], []

    def starter(started):
        return lambda argv, **options: started.append(argv) or FakeMachine().popen(argv, **options)

    supervisor = Supervisor(popen=starter(own), fork=starter(forked))
    supervisor.start(spec("ps", argv=("with a GPU",)))
    supervisor.start(replace(spec("worker", argv=("without",)), forks=True))
    assert (own, forked) == ([["with a GPU"]], [["without"]])


def write_error(spec, kind, time, message="ValueError: no", **more):
    spec(kind).error.write_text(json.dumps({"time": time, "message": message, **more}))


def test_poll_reports_each_end_once_and_touches_nothing(spec):
    machine = FakeMachine(ends={100: (1.0, 3)})
    supervisor = start(machine, spec, ("ps", 0), ("worker", 0))
    assert supervisor.poll() == []
    machine.now = 2.0
    (ended,) = supervisor.poll()
    assert (ended.task, ended.pid, ended.how_ended) == (Task("ps", 0), 100, "exit code 3")
    assert supervisor.poll() == [] and machine.signals == []


def test_earliest_failure_comes_first_by_the_time_that_the_tasks_wrote_down(spec):
    machine = FakeMachine(ends={100: (1.0, 1), 101: (1.0, 1)})
    supervisor = start(machine, spec, ("chief", 0), ("worker", 0))
    write_error(spec, "chief", time=20.5, message="UnavailableError: worker is gone")
    write_error(spec, "worker", time=20.1, message="MemoryError: no more")
    machine.now = 1.0
    first, second = supervisor.poll()
    assert (first.task.type, second.task.type) == ("worker", "chief")
    assert "MemoryError: no more" in str(first)


def test_killed_task_comes_before_those_that_could_still_write_an_error(spec):
    machine = FakeMachine(ends={100: (1.0, 1), 101: (1.0, -9)})
    supervisor = start(machine, spec, ("chief", 0), ("ps", 0))
    write_error(spec, "chief", time=20.5)
    spec("ps").log.write_text("allocating\nmuch more\n\n")
    machine.now = 1.0
    first = supervisor.poll()[0]
    assert str(first) == f"ps-0 (pid 101) ended with SIGKILL, its last line: much more (log: {spec('ps').log})"


def test_error_and_log_of_an_earlier_process_are_not_taken_for_those_of_this_one(spec):
    write_error(spec, "ps", time=1.0, message="of before")
    spec("ps").log.write_text("of before\n")
    machine = FakeMachine(ends={100: (0.0, 1)})
    supervisor = start(machine, spec, ("ps", 0))
    (ended,) = supervisor.poll()
    assert ended.last_line == "" and "no output" in str(ended)


def test_an_exit_records_whether_the_error_is_the_users_and_whether_it_is_final(spec):
    machine = FakeMachine(ends={100: (0.0, 2)})
    supervisor = start(machine, spec, ("chief", 0))
    write_error(spec, "chief", time=1.0, message="no checkpoint", user_error=True, final=True)
    (ended,) = supervisor.poll()
    assert ended.error.user_error and ended.error.final and ended.last_line == "no checkpoint"


def test_stop_terminates_all_at_once_and_kills_only_who_stays_beyond_the_grace(spec):
    machine = FakeMachine(after_term={100: 0.3})
    start(machine, spec, ("chief", 0), ("worker", 0)).stop_all(grace_s=60.0)
    assert machine.now < 0.5, "as soon as nobody is left"
    machine = FakeMachine(after_term={100: 0.3, 101: None})
    supervisor = start(machine, spec, ("chief", 0), ("worker", 0))
    assert supervisor.stop_all(grace_s=2.0) == []
    assert machine.signals[:2] == [(0.0, 100, TERM), (0.0, 101, TERM)]
    assert [(group, number) for _, group, number in machine.signals[2:]] == [(101, KILL)]
    assert 2.0 <= machine.now < 2.2, "one deadline for all"


def test_children_of_a_task_that_ended_are_killed_with_its_group(spec):
    machine = FakeMachine(ends={100: (0.0, 0)}, outlives={100})
    supervisor = start(machine, spec, ("worker", 0))
    assert supervisor.stop_all(grace_s=1.0) == []
    assert machine.signals[-1][1:] == (100, KILL)


def test_nothing_is_done_to_a_group_that_was_seen_empty_though_its_number_is_in_use_again(spec):
    machine = FakeMachine(ends={100: (1.0, 0)})
    supervisor = start(machine, spec, ("evaluator", 0))
    machine.now = 1.0
    assert len(supervisor.poll()) == 1
    machine.outlives.add(100)  # somebody else's
    supervisor.signal(Task("evaluator", 0), signal.SIGUSR1)
    assert supervisor.stop_all(grace_s=1.0) == [] and machine.signals == []
    supervisor.start(spec("evaluator", 0))
    supervisor.signal(Task("evaluator", 0), TERM)
    assert machine.signals == [(1.0, 101, TERM)]


def test_stop_says_who_could_not_be_ended(spec):
    machine = FakeMachine(after_term={100: None})
    machine.signal_group = lambda group, number: None
    supervisor = start(machine, spec, ("ps", 0))
    (left,) = supervisor.stop_all(grace_s=1.0)
    assert left.task == Task("ps", 0) and machine.now < 7.0


def test_stopped_tasks_are_no_failures(spec):
    machine = FakeMachine()
    supervisor = start(machine, spec, ("ps", 0), ("chief", 0))
    supervisor.stop([Task("ps", 0)], grace_s=1.0)
    assert supervisor.poll() == [] and [group for _, group, _ in machine.signals] == [100]


def test_real_processes_are_stopped_with_their_own_children(spec, tmp_path):
    script = (
        "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        f"subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)', {str(tmp_path)!r}]);"
        "print('started', flush=True); time.sleep(60)"
    )
    supervisor = Supervisor()
    stubborn = supervisor.start(spec(argv=(sys.executable, "-c", script, str(tmp_path))))
    processes.wait_until(lambda: "started" in stubborn.spec.log.read_text())
    assert supervisor.stop_all(grace_s=0.2) == []
    processes.assert_none_left(tmp_path, within_s=0)


def test_output_goes_to_the_log_behind_what_is_there(spec, tmp_path):
    supervisor = Supervisor()
    spec().log.write_text("before\n")
    supervisor.start(spec(argv=(sys.executable, "-c", "import sys; sys.exit('wrong')")))
    ended = []
    processes.wait_until(lambda: ended or ended.extend(supervisor.poll()))
    assert spec().log.read_text() == "before\nwrong\n"
    assert ended[0].exit_code == 1 and ended[0].last_line == "wrong"
