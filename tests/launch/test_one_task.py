"""The loop of the command `task` carries out what its rules decide (test_one_task_decisions.py) with its process and files."""

import signal

import pytest

from ps_cluster.config import build_config
from ps_cluster.config.modes import MODES
from ps_cluster.config.tasks import Task
from ps_cluster.errors import FAILED, FAILED_FOR_GOOD, RETRY, UserError
from ps_cluster.files import writing
from ps_cluster.files.json_rows import append_row
from ps_cluster.files.writing import write_json
from ps_cluster.launch.one_task import TaskOptions, failed_for_good, rendezvous_of
from ps_cluster.launch.one_task_decisions import RendezvousLimits, decisions_for
from ps_cluster.launch.one_task_loop import Surroundings, TaskLoop
from ps_cluster.launch.stages import RunLimits
from ps_cluster.launch.topology import ClusterTopology
from ps_cluster.runs import checkpoints
from ps_cluster.runs.leaders import Superseded, claim
from ps_cluster.runs.monitor import EarlyStopping
from ps_cluster.runs.result_rows import Proof, TrainingResult
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.system.stop_signals import StopRequests
from tests.helpers.fake_time import FakeTime
from tests.helpers.rows import progress_row

CLUSTER = ClusterTopology({"chief": ["a:1"], "ps": ["b:2"], "worker": ["c:3"]})


class Child:
    """A process that ends with `exit_code` when the test says so, and notes its signals."""

    def __init__(self):
        self.exit_code, self.is_frozen, self.signals = None, False, []

    def signal(self, number):
        self.signals.append(number)

    def kill(self):
        self.signals.append(signal.SIGKILL)


class Work:
    """Notes what the loop asks for. `proof_code`: the exit code of the proof."""

    def __init__(self):
        self.child, self.least, self.endings, self.workers, self.proof_code = Child(), None, [], [], 0
        self.refusals = []  # errors of the disk, one for each attempt to write the workers

    def start(self, least_workers):
        self.least = least_workers
        return self.child

    def write_ending(self, outcome, early_stop):
        self.endings.append(outcome)
        return self.proof_code

    def write_workers(self, pids):
        if self.refusals:
            raise self.refusals.pop()
        self.workers.append(pids)


@pytest.fixture
def loop(tmp_path):
    """loop(type) → the exit code of a task; `loop.time.at` says what happens meanwhile."""

    class View:
        def notice(self, line):
            call.said.append(str(line))

        progress = evaluation = lambda self, row: call.said.append(row)

    def call(kind):
        surroundings = Surroundings(
            call.time.clock,
            call.time.sleep,
            lambda addresses: {task for task, address in addresses.items() if address in call.there},
            lambda addresses: [],
        )
        decisions = decisions_for(
            Task(kind, 0), CLUSTER, RunLimits(), RendezvousLimits(600.0),
            total_updates=7, early_stopping=EarlyStopping(build_config()),
        )  # fmt: skip
        return TaskLoop(decisions, call.run_dir, View(), call.requests, call.work, surroundings).run()

    call.time, call.requests, call.work = FakeTime(), StopRequests(), Work()
    call.run_dir, call.said, call.there = RunDir.create(tmp_path / "run"), [], {"a:1", "b:2", "c:3"}
    yield call
    writing.set_fence(None)


def row(loop, applied, *, pid=None):
    append_row(loop.run_dir.progress, progress_row(applied))
    if pid:
        write_json(loop.run_dir.work, {"workers": [{"index": 0, "pid": pid, "updates": applied, "examples": 1}]})


def asks_to_stop(loop, at_s, number):
    def ask():
        loop.requests.count += 1
        loop.requests.last_signal = number

    loop.time.at(at_s, ask)


def ends(loop, code, at_s=5.0):
    loop.time.at(at_s, lambda: setattr(loop.work.child, "exit_code", code))


@pytest.mark.parametrize(("kind", "endings"), [("ps", []), ("chief", ["failed"])])
def test_a_process_that_a_signal_has_ended_ends_the_command(loop, kind, endings):
    ends(loop, -9)
    assert loop(kind) == 137 and loop.work.endings == endings and loop.time.now_s < 6


def test_a_leader_hands_the_signal_on_and_the_proof_decides_about_its_exit_code(loop):
    checkpoints.mark_ended(loop.run_dir.checkpoints, last_step=5, outcome="stopped", is_continued=True)
    loop.time.at(1, lambda: row(loop, 3))
    asks_to_stop(loop, 2, signal.SIGTERM)
    ends(loop, 0)
    loop.work.proof_code = FAILED_FOR_GOOD
    assert loop("chief") == FAILED_FOR_GOOD and loop.work.endings == ["stopped"]
    assert loop.work.child.signals == [signal.SIGTERM] and loop.work.least == 1


def test_a_mark_that_can_not_be_read_when_the_process_has_ended_is_no_mark(loop):
    (loop.run_dir.checkpoints / checkpoints.ENDED).write_text("{")
    ends(loop, 0)
    assert loop("chief") == FAILED and loop.work.endings == ["failed"]


def test_of_two_signals_in_one_look_the_first_drains_and_the_second_ends(loop):
    loop.time.at(1, lambda: row(loop, 3))
    for _ in range(2):
        asks_to_stop(loop, 2, signal.SIGTERM)
    assert loop("chief") == 143 and loop.time.now_s < 4
    assert loop.work.child.signals == [signal.SIGTERM, signal.SIGKILL]


def test_a_process_that_may_hang_writes_its_stacks_before_it_is_killed(loop):
    assert loop("chief") == RETRY and "training did not begin for 180 s" in loop.said[-1]
    assert loop.work.child.signals == [signal.SIGUSR1, signal.SIGKILL] and loop.work.endings == ["failed"]


def test_a_frozen_process_is_ended(loop):
    loop.time.at(10, lambda: setattr(loop.work.child, "is_frozen", True))
    assert loop("ps") == RETRY and loop.time.now_s == pytest.approx(10 + RunLimits.frozen_s, abs=1.5)


def test_a_server_reads_in_the_run_directory_that_all_is_trained(loop):
    checkpoints.mark_ended(loop.run_dir.checkpoints, last_step=7, outcome="completed")
    loop.time.at(20, lambda: loop.there.discard("a:1"))
    assert loop("worker") == 0 and loop.time.now_s < 35


def test_the_pids_of_workers_are_written_whenever_they_change_and_again_where_the_disk_refuses(loop):
    loop.work.refusals = [OSError(28, "No space left on device")]
    for second, pid in ((1, 71), (2, 71), (3, 71), (4, 72)):
        loop.time.at(second, lambda second=second, pid=pid: row(loop, second, pid=pid))
    ends(loop, 1)
    loop("chief")
    assert loop.work.workers == [{0: 71}, {0: 72}]
    assert "training continues, but cluster.json can't be written: No space left on device" in loop.said


def test_a_port_that_is_taken_is_the_users_error(loop):
    ends(loop, 98)
    with pytest.raises(UserError, match="'b:2': ps-0 can't listen there"):
        loop("ps")


def test_a_leader_whose_process_hangs_ends_when_a_newer_one_has_made_its_claim(loop):
    writing.set_fence(claim(loop.run_dir).check)
    loop.time.at(7, lambda: claim(loop.run_dir))
    with pytest.raises(Superseded, match="a newer leader"):
        loop("chief")
    assert loop.work.child.signals == [signal.SIGKILL] and loop.time.now_s < 8


def test_a_folder_that_can_not_be_read_just_now_ends_no_task(loop):
    def check():
        if loop.time.now_s < 9:
            raise OSError(116, "Stale file handle")
        loop.work.child.exit_code = RETRY

    writing.set_fence(check)
    assert loop("chief") == RETRY and loop.time.now_s >= 9


def test_a_run_directory_tells_that_its_training_has_failed_however_often_it_is_started(loop):
    def proved(holds):
        proof = Proof(holds=holds, problems=[] if holds else ["step 3 has two rows"])
        write_json(run_dir.training_result, TrainingResult(outcome="completed", proof=proof).model_dump())

    run_dir, marked = loop.run_dir, loop.run_dir.checkpoints
    assert failed_for_good(run_dir) is None, "nothing has ended"
    checkpoints.mark_ended(marked, last_step=7, outcome="completed")
    assert failed_for_good(run_dir) is None, "there is no result yet"
    proved(True)
    assert failed_for_good(run_dir) is None
    proved(False)
    assert "the proof of this run fails: step 3 has two rows" in failed_for_good(run_dir)
    checkpoints.mark_ended(marked, last_step=5, outcome="diverged")
    assert "the training diverged: after 5 updates" in failed_for_good(run_dir)
    checkpoints.clear_ended(marked)
    assert failed_for_good(run_dir) is None, "another leader is at work"


def test_training_begins_without_a_worker_only_in_modes_that_another_worker_can_join_later():
    begin_without = {mode.name for mode in MODES if not rendezvous_of(mode, TaskOptions()).needs_all}
    assert begin_without == {"async", "bounded", "diloco"}
