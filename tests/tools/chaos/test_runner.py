"""The runner against scripted rows and a clock that only `sleep` moves."""

import contextlib
import random
import signal

import pytest

from ps_cluster.config.tasks import ON_DEATH, Task
from ps_cluster.notices import ignore
from ps_cluster.runs.result_rows import WorkerRow
from ps_cluster.tools.chaos.chaos_run import Experiment, report_of
from ps_cluster.tools.chaos.kind import ChaosFailed, FaultKind, Injection, make_fault
from ps_cluster.tools.chaos.kinds import FAULTS
from ps_cluster.tools.chaos.namespaces import NotAllowed
from ps_cluster.tools.chaos.runner import ChaosBounds, Interrupted, Runner
from ps_cluster.tools.chaos.settings import ChaosSettings
from ps_cluster.tools.chaos.signs import TrainingContinues
from tests.helpers.rows import progress_row

CHIEF, PS, WORKER, EVALUATOR = (Task(kind, 0) for kind in ("chief", "ps", "worker", "evaluator"))
KILL, STOP = signal.SIGKILL, signal.SIGSTOP


def fault(kind):
    kind = FAULTS[kind] if isinstance(kind, str) else kind
    return make_fault(kind, random.Random(0), [CHIEF, PS, WORKER, EVALUATOR], ON_DEATH)


class FakeRun:
    """Trains at one update a look. `reaction` scripts what a victim's death causes: (seconds later, action), …"""

    def __init__(self, *reaction):
        self.time = 1000.0
        self.exit_code, self.last_line = None, "the last words"
        self.pids = {CHIEF: 10, PS: 11, WORKER: 12, EVALUATOR: 13}
        self.applied, self.updates, self.trains = 10, {12: 1}, True
        self.killed, self.interrupts, self.fault_times, self.resumes = [], 0, [], 0
        self.reaction = reaction
        self.rows, self.agenda = [], []

    def plan(self, *entries):
        self.agenda += [(self.time + later_s, action) for later_s, action in entries]

    def sleep(self, seconds):
        self.time += seconds
        for due in [entry for entry in self.agenda if entry[0] <= self.time]:
            self.agenda.remove(due)
            due[1](self)
        if self.trains:
            self.applied += 1
            self.row("training")

    def row(self, phase):
        workers = [WorkerRow(index=0, pid=pid, updates=count) for pid, count in self.updates.items()]
        self.rows.append(progress_row(monotonic=self.time, phase=phase, applied=self.applied, workers=workers))

    def new_rows(self):
        rows, self.rows = self.rows, []
        return rows

    def running(self):
        return dict(self.pids)

    def interrupt(self):
        self.interrupts += 1
        self.exit_code = 0

    def hang_up(self):
        self.plan((3, self.reaction[0][1] if self.reaction else FakeRun.drained))

    def drained(self):
        self.trains, self.exit_code = False, 0

    def resume(self):
        self.resumes, self.exit_code = self.resumes + 1, None
        self.plan((2, FakeRun.new_chief), (4, FakeRun.trains_again))

    def kill(self, pid, number):
        self.killed.append((pid, number))
        self.fault_times.append(self.time)
        self.agenda = []
        self.plan(*self.reaction)

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

    def no_evaluator(self):
        del self.pids[EVALUATOR]

    def new_evaluator(self):
        self.pids[EVALUATOR] = self.pids.get(EVALUATOR, 13) + 100

    def end(self):
        self.exit_code = 1


WORKER_IS_BACK = ((1, FakeRun.new_worker), (6, FakeRun.first_update))


@pytest.mark.parametrize(
    ("kind", "reaction", "killed", "recovery_s"),
    [
        # the first update of the worker's new process
        ("kill worker", WORKER_IS_BACK, [(12, KILL)], 6),
        # an update beyond what the new chief restored: neither the old chief's last rows nor the new one's first
        ("freeze ps", ((2, FakeRun.stop_training), (4, FakeRun.new_chief), (9, FakeRun.trains_again)), [(11, STOP)], 9),
        # a new process
        ("kill evaluator", ((0.1, FakeRun.no_evaluator), (2, FakeRun.new_evaluator)), [(13, KILL)], 2),
        # both of them
        (
            "kill worker+ps",
            ((1, FakeRun.stop_training), (2, FakeRun.new_chief), (3, FakeRun.trains_again), (4, FakeRun.new_worker),
             (8, FakeRun.first_update)),
            [(12, KILL), (11, KILL)],
            8,
        ),
    ],
)  # fmt: skip
def test_a_run_has_recovered_with_the_last_of_its_signs(kind, reaction, killed, recovery_s):
    run = FakeRun(*reaction)
    runner = run.runner()
    runner.disturb([fault(kind)])
    assert run.killed == killed
    (injected,) = runner.injected
    assert injected.kind == kind and injected.recovery_s == pytest.approx(recovery_s, abs=0.3)


def test_a_victim_that_ends_by_itself_just_then_ends_no_experiment():
    run, looks = FakeRun(*WORKER_IS_BACK), []

    def running():
        looks.append(1)
        return {task: pid for task, pid in run.pids.items() if len(looks) != 2 or task != WORKER}

    run.running = running
    run.runner().disturb([fault("kill worker")])
    assert run.killed == [(12, KILL)]


def test_a_victim_that_does_not_run_yet_is_waited_for():
    run = FakeRun((1, FakeRun.new_evaluator))
    run.no_evaluator()
    run.plan((10, FakeRun.new_evaluator))
    run.runner().disturb([fault("kill evaluator")])
    assert run.fault_times[0] == pytest.approx(1010, abs=0.2)


def test_faults_that_restart_the_cluster_are_further_apart_than_what_the_launcher_gives_up_on():
    run = FakeRun((0, FakeRun.stop_training), (1, FakeRun.new_chief), (2, FakeRun.trains_again))
    run.runner().disturb([fault("kill ps"), fault("kill chief")])
    assert run.fault_times[1] - run.fault_times[0] >= ChaosBounds.whole_cluster_spacing_s


def test_no_recovery_in_time_fails_and_says_what_is_missing():
    runner = FakeRun().runner()
    with pytest.raises(ChaosFailed, match="no update by a new process of worker-0 within 60 s after kill worker"):
        runner.disturb([fault("kill worker")])
    assert runner.injected[0].recovery_s is None


def test_a_run_that_ends_by_itself_fails_with_the_count_and_its_last_line():
    with pytest.raises(ChaosFailed, match=r"ended unexpectedly after 1 faults \(exit code 1\): the last words"):
        FakeRun((1, FakeRun.end)).runner().disturb([fault("kill worker"), fault("kill worker")])


def test_training_that_never_begins_fails():
    run = FakeRun()
    run.trains = False
    with pytest.raises(ChaosFailed, match="no update was applied within"):
        run.runner().wait_for_training()


class LastingFault(FaultKind):
    """Holds training up for some seconds, and takes that back."""

    name = "lasting"

    def inject(self, scene):
        scene.run.trains = False
        try:
            scene.wait(5)
        finally:
            scene.run.trains = True
        return Injection(scene.now(), [TrainingContinues(scene.now())])


def test_recovery_from_a_fault_that_lasts_counts_from_its_end():
    runner = FakeRun().runner()
    runner.disturb([fault(LastingFault())])
    assert runner.injected[0].recovery_s < 1 and runner.injected[0].victims == ()


def test_a_fault_that_lasts_is_taken_back_when_the_user_stops():
    run = FakeRun()
    with pytest.raises(Interrupted):
        run.runner(stop_requested=lambda: not run.trains).disturb([fault(LastingFault())])
    assert run.trains


class Harmless(LastingFault):
    """Holds training up, which no process should die of."""

    all_survive = True


@pytest.mark.parametrize("death", [FakeRun.no_evaluator, FakeRun.new_evaluator])
@pytest.mark.parametrize("kind", [Harmless(), LastingFault()])
def test_a_process_that_dies_of_a_fault_which_it_should_survive_fails_although_training_continues(death, kind):
    run = FakeRun()
    run.plan((4, death))  # The fault begins after a pause of 1 to 3 s, and lasts for 5 s.
    with contextlib.ExitStack() as expected:
        if kind.all_survive:
            problem = "evaluator-0 died of lasting, which every process should survive"
            expected.enter_context(pytest.raises(ChaosFailed, match=problem))
        run.runner().disturb([fault(kind)])


def test_a_fault_that_every_process_survives_passes():
    runner = FakeRun().runner()
    runner.disturb([fault(Harmless())])
    assert runner.injected[0].recovery_s is not None
    assert {kind.name for kind in FAULTS if kind.all_survive} == {"throttle", "clock set back"}


def test_a_fault_that_the_system_refuses_in_the_end_fails():
    class Forbidden(FaultKind):
        name = "forbidden"

        def inject(self, scene):
            raise NotAllowed("no longer")

    with pytest.raises(ChaosFailed, match="forbidden could not be injected: no longer"):
        FakeRun().runner().disturb([fault(Forbidden())])


def test_a_run_whose_terminal_is_closed_has_recovered_when_it_was_resumed_and_trains():
    run = FakeRun()
    runner = run.runner()
    runner.disturb([fault("hang up")])
    assert run.resumes == 1 and runner.injected[0].recovery_s == pytest.approx(7, abs=0.3)


def test_a_run_that_fails_where_it_should_drain_fails():
    with pytest.raises(ChaosFailed, match="failed with exit code 1: the last words"):
        FakeRun((3, FakeRun.end)).runner().disturb([fault("hang up")])


def test_no_fault_is_injected_after_the_time_is_over_and_then_the_run_is_drained():
    run = FakeRun((1, FakeRun.new_evaluator))
    runner = run.runner()
    runner.disturb(iter(lambda: fault("kill evaluator"), None), until=run.time + 60)
    runner.drain()
    assert len(runner.injected) > 10 and max(run.fault_times) < 1060 and run.interrupts == 1


class OfOneRun(Experiment):
    """Disturbs a fake run."""

    def carry_out(self):
        self.run = FakeRun((1, FakeRun.new_evaluator))
        self.run.applied = 0
        self.run.sleep(3600)  # The start of the run takes an hour.
        self._disturb(self.run, self.run.runner(), 0.0)
        return []


@pytest.mark.parametrize(("minutes", "problems"), [(1, []), (0.001, ["no fault was injected: give more --minutes"])])
def test_the_minutes_of_faults_begin_with_training_and_a_run_without_a_fault_fails(tmp_path, minutes, problems):
    settings = ChaosSettings(minutes=minutes, kinds=("kill evaluator",))
    experiment = OfOneRun(settings, tmp_path, None, ChaosBounds(), ignore, lambda: False)
    report = report_of(experiment)
    assert report.problems == problems and bool(report.faults) == (not problems)
    assert experiment.run.interrupts == len(report.faults[:1]), "a run without a fault is not drained"


def test_a_drain_that_fails_or_never_ends_fails():
    run = FakeRun()
    with pytest.raises(ChaosFailed, match="did not end within 5 s"):
        run.runner().wait_for_end(5)
    run.exit_code = 1
    with pytest.raises(ChaosFailed, match="exit code 1: the last words"):
        run.runner().wait_for_end(5)
