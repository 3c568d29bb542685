"""The runner against scripted rows and a clock that only `sleep` moves."""

import random
import signal
from types import SimpleNamespace

import pytest

from ps_cluster.config.tasks import ON_DEATH, Task
from ps_cluster.system.private_network import RunNetwork
from ps_cluster.tools.chaos.chaos_run import ChaosBounds, Interrupted, Runner
from ps_cluster.tools.chaos.disturbed_runs import HostedRun, placed
from ps_cluster.tools.chaos.hosts import Host, NotAllowed
from ps_cluster.tools.chaos.kind import (
    ChaosFailed,
    FaultKind,
    Injection,
    TrainingGoesOn,
    new_file,
)
from ps_cluster.tools.chaos.kinds import FAULTS
from ps_cluster.tools.chaos.settings import ChaosSettings, make_fault

CHIEF, PS, WORKER, EVALUATOR = (Task(kind, 0) for kind in ("chief", "ps", "worker", "evaluator"))


def fault(name):
    return make_fault(FAULTS[name], random.Random(0), [CHIEF, PS, WORKER, EVALUATOR], ON_DEATH)


class FakeRun:
    """Trains at one update a look; what a victim's death brings about is scripted as (seconds later, action)."""

    def __init__(self):
        self.time = 1000.0
        self.exit_code, self.last_line = None, "the last words"
        self.pids = {CHIEF: 10, PS: 11, WORKER: 12, EVALUATOR: 13}
        self.applied, self.updates, self.trains = 0, {12: 1}, True
        self.killed, self.interrupts, self.fault_times, self.resumes = [], 0, [], 0
        self.reaction = lambda: []
        self._rows, self._agenda = [], []

    def sleep(self, seconds):
        self.time += seconds
        for due in [entry for entry in self._agenda if entry[0] <= self.time]:
            self._agenda.remove(due)
            due[1]()
        if self.trains:
            self.applied += 1
            self.row("training")

    def row(self, phase):
        workers = [{"index": 0, "pid": pid, "updates": count} for pid, count in self.updates.items()]
        self._rows.append({"monotonic": self.time, "phase": phase, "applied": self.applied, "workers": workers})

    def new_rows(self):
        rows, self._rows = self._rows, []
        return rows

    def running(self):
        return dict(self.pids)

    def interrupt(self):
        self.interrupts += 1
        self.exit_code = 0

    def hang_up(self):
        self._agenda.append((self.time + 3, self.drained))

    def drained(self):
        self.trains, self.exit_code = False, 0

    def resume(self):
        self.resumes, self.exit_code = self.resumes + 1, None
        self._agenda += [(self.time + 2, self.new_chief), (self.time + 4, self.trains_again)]

    def kill(self, pid, number):
        self.killed.append((pid, number))
        self.fault_times.append(self.time)
        self._agenda = [(self.time + later_s, action) for later_s, action in self.reaction()]

    def runner(self, **options):
        return Runner(
            self, kill=self.kill, clock=lambda: self.time, sleep=self.sleep, notify=lambda line: None, **options
        )

    def new_worker(self):
        self.updates[112] = 0
        self.pids[WORKER] = 112

    def first_update(self):
        self.updates[112] = 1

    def stop_training(self):
        self.trains = False

    def new_chief(self):
        self.applied -= 5
        self.row("connecting")

    def trains_again(self):
        self.row("training")
        self.trains = True

    def end(self):
        self.exit_code = 1


def test_a_worker_has_recovered_with_the_first_update_of_its_new_process():
    run = FakeRun()
    run.reaction = lambda: [(1, run.new_worker), (6, run.first_update)]
    runner = run.runner()
    runner.disturb([fault("kill worker")])
    assert run.killed == [(12, signal.SIGKILL)]
    assert runner.injected[0].recovery_s == pytest.approx(6, abs=0.2)
    assert runner.injected[0].victims == ("worker-0",)


def test_a_victim_that_ends_by_itself_just_then_ends_no_experiment():
    run = FakeRun()
    run.reaction = lambda: [(1, run.new_worker), (6, run.first_update)]
    looks = []

    def running():
        looks.append(1)
        return {task: pid for task, pid in run.pids.items() if len(looks) != 2 or task != WORKER}

    run.running = running
    run.runner().disturb([fault("kill worker")])
    assert run.killed == [(12, signal.SIGKILL)]


@pytest.mark.parametrize(("hosts", "reason"), [(2, "it needs workers on two hosts"), (3, None)])
def test_a_host_vanishes_only_where_workers_are_left(hosts, reason):
    machines = [Host(f"host-{number}", "", None, number, RunNetwork(()), RunNetwork(())) for number in range(hosts)]
    run, tasks = HostedRun.__new__(HostedRun), ChaosSettings().topology
    run.places = placed(tasks, machines)
    assert FAULTS["host vanishes"].why_not(run) == reason


def test_a_host_may_vanish_while_one_of_its_workers_waits_to_be_started_again(monkeypatch):
    """It has no process then, so whichever comes is a new one."""
    host = Host("host-1", "", None, 1, RunNetwork(()), RunNetwork(()))
    for name in ("vanish", "restore"):
        monkeypatch.setattr(Host, name, lambda self: None)
    there, waiting = WORKER, Task("worker", 2)
    held = []
    run = SimpleNamespace(
        places={there: host, waiting: host},
        running=lambda: {there: 12},
        restarter=SimpleNamespace(hold=held.append, release=held.append),
    )
    scene = SimpleNamespace(
        hosted=run, victims={there: 12}, now=lambda: 5.0, wait=lambda seconds: None, worker_back=lambda *told: told
    )
    injected = FAULTS["host vanishes"].inject(scene)
    assert injected.signs[1:] == [(there, 12), (waiting, 0)] and held == [[there, waiting]] * 2


def test_training_is_back_with_an_update_beyond_what_the_new_chief_restored():
    run = FakeRun()
    run.reaction = lambda: [(2, run.stop_training), (4, run.new_chief), (9, run.trains_again)]
    runner = run.runner()
    runner.disturb([fault("freeze ps")])
    assert run.killed == [(11, signal.SIGSTOP)]
    # The old chief's last rows, and the new one's first before any update, are no recovery.
    assert runner.injected[0].recovery_s == pytest.approx(9, abs=0.3)


def test_an_evaluator_has_recovered_when_a_new_process_of_it_runs():
    run = FakeRun()
    run.reaction = lambda: [(0.1, lambda: run.pids.pop(EVALUATOR)), (2, lambda: run.pids.update({EVALUATOR: 113}))]
    runner = run.runner()
    runner.disturb([fault("kill evaluator")])
    assert runner.injected[0].recovery_s == pytest.approx(2, abs=0.2)


def test_a_fault_of_two_has_recovered_when_both_have():
    run = FakeRun()
    back = [(1, run.stop_training), (2, run.new_chief), (3, run.trains_again), (4, run.new_worker)]
    run.reaction = lambda: [*back, (8, run.first_update)]
    runner = run.runner()
    runner.disturb([fault("kill worker+ps")])
    assert [pid for pid, _ in run.killed] == [12, 11]
    assert runner.injected[0].recovery_s == pytest.approx(8, abs=0.2)


def test_a_victim_that_does_not_run_yet_is_waited_for():
    run = FakeRun()
    run.pids.pop(EVALUATOR)
    run._agenda = [(run.time + 10, lambda: run.pids.update({EVALUATOR: 13}))]
    run.reaction = lambda: [(1, lambda: run.pids.update({EVALUATOR: 113}))]
    run.runner().disturb([fault("kill evaluator")])
    assert run.fault_times[0] == pytest.approx(1010, abs=0.2)


def test_faults_that_take_the_cluster_along_are_further_apart_than_what_the_launcher_gives_up_on():
    run = FakeRun()
    run.reaction = lambda: [(0, run.stop_training), (1, run.new_chief), (2, run.trains_again)]
    run.runner().disturb([fault("kill ps"), fault("kill chief")])
    assert run.fault_times[1] - run.fault_times[0] >= ChaosBounds.whole_cluster_spacing_s


def test_no_recovery_in_time_fails_and_says_what_is_missing():
    run = FakeRun()
    runner = run.runner()
    with pytest.raises(ChaosFailed, match="no update by a new process of worker-0 within 60 s after kill worker"):
        runner.disturb([fault("kill worker")])
    assert runner.injected[0].recovery_s is None


def test_a_run_that_ends_by_itself_fails_with_the_count_and_its_last_line():
    run = FakeRun()
    run.reaction = lambda: [(1, run.end)]
    with pytest.raises(ChaosFailed, match=r"ended by itself after 1 faults \(exit code 1\): the last words"):
        run.runner().disturb([fault("kill worker"), fault("kill worker")])


def test_training_that_never_begins_fails():
    run = FakeRun()
    run.trains = False
    with pytest.raises(ChaosFailed, match="no update was applied within"):
        run.runner().wait_for_training()


class Lasting(FaultKind):
    """Holds training up for some seconds, and takes that back."""

    name = "lasting"

    def inject(self, scene):
        scene.run.trains = False
        try:
            scene.wait(5)
        finally:
            scene.run.trains = True
        return Injection(scene.now(), [TrainingGoesOn(scene.now())])


def lasting():
    return make_fault(Lasting(), random.Random(0), [], ON_DEATH)


def test_recovery_from_a_fault_that_lasts_counts_from_its_end():
    run = FakeRun()
    runner = run.runner()
    runner.disturb([lasting()])
    assert runner.injected[0].recovery_s < 1 and runner.injected[0].victims == ()


def test_a_fault_that_lasts_is_taken_back_when_the_user_stops():
    run = FakeRun()
    with pytest.raises(Interrupted):
        run.runner(stop_requested=lambda: not run.trains).disturb([lasting()])
    assert run.trains


class Forbidden(FaultKind):
    name = "forbidden"

    def inject(self, scene):
        raise NotAllowed("no longer")


def test_a_fault_that_the_system_refuses_in_the_end_is_told():
    with pytest.raises(ChaosFailed, match="forbidden could not be injected: no longer"):
        FakeRun().runner().disturb([make_fault(Forbidden(), random.Random(0), [], ON_DEATH)])


def test_a_run_whose_terminal_is_closed_has_recovered_when_it_was_resumed_and_trains():
    run = FakeRun()
    runner = run.runner()
    runner.disturb([fault("hang up")])
    assert run.resumes == 1 and runner.injected[0].recovery_s == pytest.approx(7, abs=0.3)


def test_a_run_that_fails_where_it_should_drain_is_told():
    run = FakeRun()
    run.drained = run.end
    with pytest.raises(ChaosFailed, match="failed with exit code 1: the last words"):
        run.runner().disturb([fault("hang up")])


def test_a_worker_goes_on_with_an_update_of_its_own_and_training_with_one_of_anybody():
    rows = [
        {"monotonic": time, "applied": applied, "workers": [{"index": 0, "updates": 1}, {"index": 1, "updates": own}]}
        for time, applied, own in ((9.0, 5, 4), (10.5, 9, 4), (11.0, 4, 4), (11.5, 5, 4), (12.0, 6, 5))
    ]
    training, worker = TrainingGoesOn(10.0), TrainingGoesOn(10.0, of=Task("worker", 1))
    for sign in (training, worker):
        sign.look(rows, {}, 20.0)
    # What the first row after the fault holds may be from before it, and a restart goes back.
    assert (training.seen_at, worker.seen_at) == (11.5, 12.0)


def test_a_file_that_was_there_before_is_not_a_new_one(tmp_path):
    (tmp_path / "step-1.safetensors").touch()
    sign = new_file(tmp_path, "*.safetensors")
    sign.look([], {}, 1.0)
    assert sign.seen_at is None
    (tmp_path / "step-2.safetensors").touch()
    sign.look([], {}, 2.0)
    assert sign.seen_at == 2.0


def test_ctrl_c_ends_every_wait():
    run = FakeRun()
    with pytest.raises(Interrupted):
        run.runner(stop_requested=lambda: run.time > 1020).disturb([fault("kill worker")])
    assert run.time < 1021


def test_no_fault_is_injected_after_the_time_is_over_and_then_the_run_is_drained():
    run = FakeRun()
    run.reaction = lambda: [(1, lambda: run.pids.update({EVALUATOR: run.pids[EVALUATOR] + 100}))]
    runner = run.runner()
    runner.disturb(iter(lambda: fault("kill evaluator"), None), until=run.time + 60)
    runner.drain()
    assert len(runner.injected) > 10 and max(run.fault_times) < 1060 and run.interrupts == 1


def test_a_drain_that_fails_or_never_ends_is_told():
    run = FakeRun()
    with pytest.raises(ChaosFailed, match="did not end within 5 s"):
        run.runner().wait_for_end(5)
    run.exit_code = 1
    with pytest.raises(ChaosFailed, match="exit code 1: the last words"):
        run.runner().wait_for_end(5)
