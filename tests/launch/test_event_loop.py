"""The loop over a cluster that follows a table of events, on a clock that moves only when somebody waits.

These tests show what the loop sees, in which order it reports this to the rules, and that it carries out their actions.
The rules themselves are tested in test_decisions.py.
"""

import itertools
import signal
from collections import Counter

import pytest

from ps_cluster.clock import AwakeClock
from ps_cluster.config import build_config
from ps_cluster.config.tasks import Task
from ps_cluster.files.json_rows import append_row
from ps_cluster.files.writing import write_json
from ps_cluster.launch.launcher import EventLoop
from ps_cluster.launch.stages import RunLimits
from ps_cluster.launch.topology import ClusterTopology
from ps_cluster.report.run_state import TaskState
from ps_cluster.runs import checkpoints
from ps_cluster.runs.result_rows import TrainingResult
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.runs.scale_requests import ScaleRequest
from ps_cluster.system.stop_signals import StopRequests
from ps_cluster.system.supervisor import TaskExit
from tests.helpers.rows import progress_row

pytestmark = pytest.mark.slow

CHIEF, STUCK = Task("chief", 0), Task("worker", 1)


class Machine:
    """Time, and a cluster in it: its leader writes rows, its workers have ten updates a second each.

    Workers in `silent` make no updates. `at`: time in seconds → a function that is called at that time. Training ends after
    2,000 updates.
    """

    shards = 1

    def __init__(self, run_dir, config, *, at=()):
        self.now = 0.0
        self.at = sorted(dict(at).items())
        self.silent, self.signals = set(), []
        self.refusals = 0  # the number of starts that the machine refuses from now on
        self.pids, self.restarts, self.started_at = {}, Counter(), []
        self._config, self.run_dir = config, run_dir
        self._numbers, self._exits, self._updates = itertools.count(100), [], Counter()
        self._next_row = 0.0

    def sleep(self, seconds):
        self.now += seconds
        while self.at and self.at[0][0] <= self.now:
            self.at.pop(0)[1](self)
        if self.now >= self._next_row and CHIEF in self.pids:
            self._next_row = self.now + 0.5
            self._row()

    def _row(self):
        for task in self.pids:
            if task.type == "worker" and task not in self.silent:
                self._updates[task.index, self.pids[task]] += 5
        workers = [{"index": i, "pid": pid, "updates": count} for (i, pid), count in self._updates.items()]
        applied = self._updates.total()
        fields = {"train_seconds": self.now, "workers": workers, "dispatches": [None] * 9}
        append_row(self.run_dir.progress, progress_row(applied, scheduled=applied + 9, **fields))
        if applied >= 2000:
            self.complete()

    def complete(self):
        write_json(self.run_dir.training_result, TrainingResult(outcome="completed").model_dump())
        self.end(CHIEF, 0)

    def end(self, task, code):
        self._exits.append(TaskExit(task, self.pids.pop(task), code, self.run_dir.launcher_log, ""))

    def start(self):
        self.restart_training(resume=False)

    def _start(self, tasks):
        refused = tasks[: self.refusals]
        self.refusals -= len(refused)
        self.pids |= {task: next(self._numbers) for task in tasks if task not in refused}
        return [TaskExit(task, None, 1, self.run_dir.launcher_log, "no more processes") for task in refused]

    def restart_training(self, *, resume):
        self.started_at.append(self.now)
        ports, config = itertools.count(4000), self._config
        types, absent = config.chosen_mode.cluster.types, frozenset(range(config.training_workers, config.most_workers))
        self.topology = ClusterTopology.local(
            types, config.most_workers, 1, evaluator=False, absent=absent, pick_port=lambda: next(ports)
        )
        self.pids = {}
        return self._start(self.topology.tasks)

    def restart(self, task):
        self.restarts[task] += 1
        self.silent.discard(task)
        return self._start((task,))

    def scale(self, *, start, stop, grace_s):
        self.topology = self.topology.with_workers(started=start, stopped=stop)
        return self._start(start)

    def frozen(self):
        return []

    def poll(self):
        exits, self._exits = self._exits, []
        return exits

    def signal(self, task, number):
        self.signals.append((round(self.now, 1), task, signal.Signals(number).name))
        if number == signal.SIGKILL and task in self.pids:
            self.end(task, -number)

    def stop(self, types, grace_s):
        self.pids = {task: pid for task, pid in self.pids.items() if task.type not in types}

    def stop_all(self, grace_s):
        self.pids = {}

    def states(self):
        return [TaskState(task, pid, "running") for task, pid in self.pids.items()]


class View:
    def __init__(self):
        self.notices = []
        self.notice = lambda line: self.notices.append(str(line))
        self.tasks = self.progress = self.evaluation = lambda _: None


@pytest.fixture
def looped(tmp_path):
    """looped(at={seconds: event}, …) → how it ended; the machine and the notices are looped.machine, looped.notices."""

    def call(*, most_workers=None, **events):
        config = build_config(None, {"data.dataset": "synthetic", "cluster.max_workers": most_workers})
        run_dir = RunDir.create(tmp_path / "run")
        machine, view = Machine(run_dir, config, **events), View()
        clock, limits, call.requests = AwakeClock(lambda: machine.now), RunLimits(), StopRequests()
        call.loop = EventLoop(config, machine, run_dir, view, call.requests, limits, clock=clock, sleep=machine.sleep)
        call.machine, call.notices = machine, view.notices
        return call.loop.until_the_end()

    return call


def fall_silent(machine):
    machine.silent.add(STUCK)


def test_a_wait_for_a_process_is_ended_by_requests_that_stop_the_run_at_once_and_not_by_a_first_one(looped):
    seen = []

    def ask(machine):
        for looped.requests.count in (1, 2, 0):
            seen.append(looped.loop.stops_at_once())

    assert looped(at={20: ask}).outcome == "completed"
    assert seen == [False, True, False]


def test_a_silent_worker_leaves_its_stacks_is_killed_and_started_again(looped):
    assert looped(at={20: fall_silent}).outcome == "completed"
    (stacks, kill) = looped.machine.signals
    assert stacks[1:] == (STUCK, "SIGUSR1") and kill[1:] == (STUCK, "SIGKILL") and stacks[0] < kill[0] < 32
    assert looped.machine.restarts == {STUCK: 1} and len(looped.machine.started_at) == 1
    assert looped.notices[0].startswith("worker-1 (pid 103) is silent: no update for 10 s, after ")
    (silent,) = looped.loop.decisions.silences
    assert (silent.worker, silent.pid) == (1, 103)


@pytest.mark.parametrize("dies_at", [30.5, "SIGUSR1"])
def test_a_silent_worker_that_dies_before_it_is_killed_is_started_again_once(looped, dies_at):
    def dies(machine):
        if STUCK in machine.pids and STUCK in machine.silent:
            machine.end(STUCK, -signal.SIGSEGV)

    def dies_of_sigusr1(machine):
        kill = machine.signal
        machine.signal = lambda task, number: (kill(task, number), dies(machine))

    events = {0.2: dies_of_sigusr1} if dies_at == "SIGUSR1" else {dies_at: dies}
    assert looped(at={20: fall_silent} | events).outcome == "completed"
    assert looped.machine.restarts == {STUCK: 1}


def test_a_machine_that_stood_still_costs_no_process_its_life(looped):
    def sleep(machine):
        machine.now += 8 * 3600

    assert looped(at={20: sleep}).outcome == "completed"
    assert looped.machine.signals == [] and looped.notices == []


def test_who_dies_in_the_look_in_which_the_leader_ends_is_not_started_again(looped):
    def ends_beside_a_death(machine):
        machine.end(STUCK, 1)
        machine.complete()

    assert looped(at={20: ends_beside_a_death}).outcome == "completed"
    assert looped.machine.restarts == {} and looped.notices == []


@pytest.mark.parametrize("task", [STUCK, CHIEF], ids=str)
def test_tasks_that_the_machine_refuses_to_start_again_are_tried_again_later(looped, task):
    def dies_and_has_no_successor(machine):
        machine.end(task, 1)
        machine.refusals = 2

    assert looped(at={20: dies_and_has_no_successor}).outcome == "completed"
    first, *later = looped.notices
    assert first.startswith(f"{task} (pid ") and ": no output (log: " in first
    refused = f"could not be started: no more processes (log: {looped.machine.run_dir.launcher_log}); starting "
    if task == STUCK:
        assert later == [f"worker-1 {refused}it again in 10 s"] * 2
    else:  # all start again, so what is refused besides is no news
        assert later == [f"chief-0 {refused}chief, ps and workers again in 10 s from the beginning"]


def test_the_answer_to_a_request_for_more_workers_names_those_that_the_machine_has_refused(looped):
    def ask_for_one_more(machine):
        machine.refusals = 1
        write_json(machine.run_dir.scale_request("1"), ScaleRequest(workers=4).model_dump())

    assert looped(at={20: ask_for_one_more}, most_workers=4).outcome == "completed"
    refused = f"worker-3 could not be started: no more processes (log: {looped.machine.run_dir.launcher_log})"
    assert looped.notices == [
        f"{refused}; starting it again in 10 s",
        f"scale: {refused}; the launcher tries to start it again in 10 s; now 3 workers",
    ]
    assert looped.machine.restarts == {Task("worker", 3): 1}


def test_nothing_is_begun_anew_over_a_state_that_can_not_be_read(looped):
    def lose_the_leader(machine):
        file = checkpoints.path_of(machine.run_dir.snapshots, 100)
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"damaged")
        machine.run_dir.journal(0, 1).parent.mkdir(parents=True)
        machine.run_dir.journal(0, 1).write_bytes(b"rows")
        machine.end(CHIEF, -9)

    ending = looped(at={20: lose_the_leader})
    assert (ending.outcome, ending.exit_code) == ("failed", 1) and len(looped.machine.started_at) == 1
    run_dir = looped.machine.run_dir
    assert (
        f"training can't continue from any checkpoint or snapshot in '{run_dir.root}', and does not start over while "
        "such files exist" in ending.message
    )
    assert [file.read_bytes() for file in (*run_dir.snapshots.iterdir(), run_dir.journal(0, 1))] == [
        b"damaged",
        b"rows",
    ]


def test_who_dies_beside_one_whose_port_is_taken_is_not_started_twice(looped):
    def delay_training(machine):
        machine._next_row = 30

    def find_a_port_taken(machine):
        machine.end(CHIEF, 1)
        machine.end(STUCK, 98)

    assert looped(at={0: delay_training, 3: find_a_port_taken}).outcome == "completed"
    assert len(looped.machine.started_at) == 2 and looped.machine.restarts == {}
    assert looped.notices == ["another program took the port of worker-1: starting again on other ports"]


def test_who_asks_to_stop_because_of_a_row_finds_that_row_read(looped):
    """The row and the request may come while the loop looks. The request then waits for the next look."""

    def writes_the_first_row_and_is_asked(machine):
        machine._next_row, poll = 5.0, machine.poll

        def polled():
            machine.poll = poll
            machine._row()
            looped.requests.count += 1
            return poll()

        machine.poll = polled

    looped(at={0.2: writes_the_first_row_and_is_asked})
    assert looped.notices[0].startswith("stopping: no new steps"), "and not stopped at once, before training began"
