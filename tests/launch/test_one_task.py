"""The command `task` keeps limits for its process, and ends with the right code."""

import signal

import pytest

from ps_cluster.config.tasks import Task
from ps_cluster.errors import FAILED_FOR_GOOD, UserError
from ps_cluster.files import writing
from ps_cluster.files.json_rows import append_row
from ps_cluster.files.writing import write_json
from ps_cluster.launch import one_task as module
from ps_cluster.launch.one_task import RendezvousLimits, TaskSupervisor, failed_for_good
from ps_cluster.launch.rules import LauncherLimits
from ps_cluster.launch.topology import ClusterTopology
from ps_cluster.runs import checkpoints
from ps_cluster.runs.leaders import Superseded, claim
from ps_cluster.runs.result_rows import ProgressRow, Proof, TrainingResult
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.runs.times import TrainingTimes
from ps_cluster.system.stop_signals import StopRequests
from tests.helpers.fake_time import FakeTime

ALONE = ClusterTopology({"chief": ["a:1"]})
CLUSTER = ClusterTopology({"chief": ["a:1"], "ps": ["b:2"], "worker": ["c:3"]})


class Child:
    """A process that ends with `code` when it is told to, by the test or by a signal."""

    pid = 0

    def __init__(self):
        self.code, self.signals = None, []

    def poll(self):
        return self.code

    def wait(self, timeout):
        return self.code

    def send_signal(self, number):
        self.signals.append(number)


@pytest.fixture
def keep(tmp_path, monkeypatch):
    """keep(type) → the exit code of a task; `keep.time.at` says what happens meanwhile."""
    time, requests, child = FakeTime(), StopRequests(), Child()
    run_dir = RunDir.create(tmp_path / "run")
    monkeypatch.setattr(module.os, "killpg", lambda pid, number: child.signals.append(number))

    class View:
        def notice(self, line):
            call.said.append(str(line))

        progress = evaluation = lambda self, row: call.said.append(row)

    def call(kind, topology=CLUSTER, wait_s=600.0):
        def start(least):
            call.least = least
            return child

        return TaskSupervisor(
            Task(kind, 0), topology, run_dir, View(), requests, start, LauncherLimits(), RendezvousLimits(wait_s), total=7,
            note_workers=lambda pids: call.workers.append(pids),
            conclude=lambda outcome: call.concluded.append(outcome) or call.of_proof,
            reach=lambda addresses: {task for task, address in addresses.items() if address in call.there},
            unknown=lambda addresses: [one for one in addresses if one in call.unknown],
            clock=time.clock, sleep=time.sleep,
        ).run()  # fmt: skip

    def row(applied, phase="training", wait_s=0.0, pid=None):
        times = TrainingTimes().model_dump()
        fields = {"time": 0.0, "monotonic": 0.0, "phase": phase, "applied": applied, "scheduled": applied, "total": 100}
        fields |= {
            "examples": 0,
            "examples_per_second": 0.0,
            "train_seconds": 0.0,
            "times": times,
            "epoch": 0.0,
            "workers": [],
            "longest_wait_seconds": wait_s,
        }
        append_row(run_dir.progress, ProgressRow.model_validate(fields))
        if pid:
            workers = [{"index": 0, "pid": pid, "updates": applied, "examples": 1}]
            write_json(run_dir.work, {"workers": workers})

    call.time, call.requests, call.child, call.run_dir, call.row = time, requests, child, run_dir, row
    call.said, call.there = [], {"a:1", "b:2", "c:3"}
    call.concluded, call.of_proof, call.workers, call.unknown = [], 0, [], ()
    return call


def test_a_task_whose_leader_has_an_unknown_name_ends_with_that_reason_and_without_stacks(keep):
    keep.there, keep.unknown = set(), ("a:1",)
    assert keep("worker", wait_s=30.0) == 75
    assert "can't be reached: this machine can't resolve the name 'a:1'; correct the address" in keep.said[-1]
    assert signal.SIGUSR1 not in keep.child.signals


def ends(keep, code, at_s=5.0):
    keep.time.at(at_s, lambda: setattr(keep.child, "code", code))


@pytest.mark.parametrize(("code", "expected"), [(1, 1), (2, 2), (3, 3), (75, 75), (-9, 137), (143, 143)])
def test_the_code_of_the_process_is_that_of_the_command(keep, code, expected):
    ends(keep, code)
    assert keep("ps") == expected


@pytest.mark.parametrize("kind", ["ps", "worker"])
def test_a_server_ends_well_when_its_process_was_told_that_training_has_ended(keep, kind):
    ends(keep, 0)
    assert keep(kind) == 0 and keep.said[-1] == f"{kind}-0 has ended"


@pytest.mark.parametrize(
    ("outcome", "number", "code"),
    [
        ("completed", None, 0),
        ("completed", signal.SIGTERM, 0),
        ("stopped", signal.SIGINT, 0),
        ("stopped", signal.SIGTERM, 75),
    ],
)
def test_a_leader_that_was_preempted_is_to_be_started_again_unless_all_is_trained(keep, outcome, number, code):
    checkpoints.mark_ended(keep.run_dir.checkpoints, last_step=7, outcome=outcome)
    keep.time.at(1, lambda: keep.row(3))
    if number:
        keep.time.at(2, lambda: keep.requests._note(number, None))
    ends(keep, 0)
    assert keep("chief") == code
    assert keep.child.signals == ([number] if number else []), "its process is asked to drain by the same signal"


def test_a_leader_whose_proof_does_not_hold_has_failed_although_training_is_complete(keep):
    checkpoints.mark_ended(keep.run_dir.checkpoints, last_step=7, outcome="completed")
    keep.of_proof = FAILED_FOR_GOOD
    ends(keep, 0)
    assert keep("chief") == FAILED_FOR_GOOD and keep.concluded == ["completed"]


def test_a_leader_that_was_preempted_does_not_hide_that_its_proof_does_not_hold(keep):
    checkpoints.mark_ended(keep.run_dir.checkpoints, last_step=5, outcome="stopped", goes_on=True)
    keep.of_proof = FAILED_FOR_GOOD
    keep.time.at(1, lambda: keep.row(3))
    keep.time.at(2, lambda: keep.requests._note(signal.SIGTERM, None))
    ends(keep, 0)
    assert keep("chief") == FAILED_FOR_GOOD


def test_a_training_that_diverged_has_failed_for_good(keep):
    checkpoints.mark_ended(keep.run_dir.checkpoints, last_step=5, outcome="diverged")
    ends(keep, 0)
    assert keep("chief") == FAILED_FOR_GOOD and "the training diverged: after 5 updates" in keep.said[-1]


def test_a_run_directory_tells_that_its_training_has_failed_however_often_it_is_started(keep):
    def proved(holds):
        proof = Proof(holds=holds, problems=[] if holds else ["step 3 has two rows"])
        write_json(run_dir.training_result, TrainingResult(outcome="completed", proof=proof).model_dump())

    run_dir, marked = keep.run_dir, keep.run_dir.checkpoints
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


def test_a_leader_without_a_result_has_failed(keep):
    ends(keep, 0)
    assert keep("chief") == 1 and keep.concluded == ["failed"]


@pytest.mark.parametrize(("code", "concluded"), [(1, ["failed"]), (75, ["failed"]), (-9, ["failed"]), (2, []), (3, [])])
def test_a_leader_whose_process_ends_by_itself_has_failed_unless_it_changed_nothing(keep, code, concluded):
    ends(keep, code)
    keep("chief")
    assert keep.concluded == concluded, "not by bad input, nor where a newer leader writes"


def test_servers_and_workers_leave_the_end_to_the_leader(keep):
    for kind in ("ps", "worker"):
        ends(keep, 1)
        assert keep(kind) == 1 and keep.concluded == []


def test_the_pids_of_workers_are_told_whenever_they_change(keep):
    for second, pid in ((1, 71), (2, 71), (3, 72)):
        keep.time.at(second, lambda pid=pid: keep.row(pid, pid=pid))
    ends(keep, 1)
    keep("chief")
    assert keep.workers == [{0: 71}, {0: 72}]


@pytest.mark.parametrize("kind", ["ps", "worker"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_a_server_at_once(keep, kind, number, code):
    keep.time.at(3, lambda: keep.requests._note(number, None))
    assert keep(kind) == code
    assert keep.time.now_s < 4 and keep.child.signals == [signal.SIGKILL]


def test_a_second_signal_ends_a_leader_at_once(keep):
    keep.time.at(1, lambda: keep.row(3))
    for second in (2, 3):
        keep.time.at(second, lambda: keep.requests._note(signal.SIGTERM, None))
    assert keep("chief") == 143 and keep.concluded == ["stopped"]
    assert keep.child.signals == [signal.SIGTERM, signal.SIGKILL] and keep.time.now_s < 4


def test_a_leader_that_waits_ends_at_once_by_a_signal(keep):
    keep.there = set()
    keep.time.at(3, lambda: keep.requests._note(signal.SIGTERM, None))
    assert keep("chief") == 143 and keep.time.now_s < 5 and not hasattr(keep, "least") and keep.concluded == []


def test_a_leader_that_waits_in_vain_is_to_be_started_again(keep):
    keep.there = {"b:2"}
    assert keep("chief", wait_s=50) == 75 and 50 <= keep.time.now_s < 53


def test_the_leaders_process_learns_how_many_workers_are_there(keep):
    checkpoints.mark_ended(keep.run_dir.checkpoints, last_step=7, outcome="completed")
    ends(keep, 0)
    assert keep("chief") == 0 and keep.least == 1


def test_training_that_does_not_begin_or_stands_still_is_ended_to_be_started_again(keep):
    assert keep("chief") == 75 and keep.time.now_s == pytest.approx(LauncherLimits.startup_s, abs=2)
    assert "training did not begin" in keep.said[-1]
    assert keep.child.signals == [signal.SIGUSR1, signal.SIGKILL], "first its stacks"


def test_a_standstill_counts_from_the_last_update(keep):
    for second, applied in ((1, 1), (40, 2), (90, 3), (120, 3)):
        keep.time.at(second, lambda applied=applied: keep.row(applied))
    assert keep("chief") == 75 and keep.time.now_s == pytest.approx(90 + LauncherLimits.standstill_s, abs=2)


def test_slow_steps_are_no_standstill_while_the_leader_says_to_wait_for_them(keep):
    for second, applied, wait_s in ((1, 0, 600), (500, 1, 600), (564, 2, 192)):
        keep.time.at(second, lambda applied=applied, wait_s=wait_s: keep.row(applied, wait_s=wait_s))
    assert keep("chief") == 75 and keep.time.now_s == pytest.approx(564 + 192, abs=2)


def test_a_server_without_a_leader_waits_as_long_as_it_was_told(keep):
    keep.there = set()
    assert keep("worker", wait_s=45) == 75
    assert 45 <= keep.time.now_s < 48
    assert sum(line.startswith("waiting for chief-0 (a:1) (") for line in keep.said) == 5, "every 10 s"


def test_the_wait_begins_anew_when_the_leader_was_there(keep):
    keep.time.at(100, lambda: keep.there.discard("a:1"))
    assert keep("worker", wait_s=45) == 75 and 143 <= keep.time.now_s < 149


def test_a_server_that_shares_the_run_directory_sees_there_that_all_is_trained(keep):
    checkpoints.mark_ended(keep.run_dir.checkpoints, last_step=7, outcome="completed")
    keep.time.at(20, lambda: keep.there.discard("a:1"))
    assert keep("worker") == 0 and keep.time.now_s < 35


def test_a_frozen_process_is_ended(keep, monkeypatch):
    monkeypatch.setattr(module, "is_stopped", lambda pid: keep.time.now_s > 10)
    assert keep("ps") == 75 and keep.time.now_s == pytest.approx(10 + LauncherLimits.frozen_s, abs=1.5)


def test_a_port_that_is_taken_is_one_line(keep):
    ends(keep, 98)
    with pytest.raises(UserError, match="'b:2': ps-0 can't listen there"):
        keep("ps")


def test_a_task_without_others_starts_at_once(keep):
    checkpoints.mark_ended(keep.run_dir.checkpoints, last_step=7, outcome="completed")
    keep.there = set()
    ends(keep, 0)
    assert keep("chief", ALONE) == 0 and keep.least is None


def test_a_leader_whose_process_hangs_ends_when_a_newer_one_has_made_its_claim(keep):
    first = claim(keep.run_dir)
    keep.time.at(7, lambda: claim(keep.run_dir))
    writing.set_fence(first.check)
    try:
        with pytest.raises(Superseded, match="a newer leader"):
            keep("chief")
    finally:
        writing.set_fence(None)
    assert keep.child.signals == [signal.SIGKILL] and keep.time.now_s < 8


def test_a_save_that_takes_long_is_no_standstill_while_it_is_told(keep):
    for second, phase in ((1, "training"), (50, "saving"), (100, "saving")):
        keep.time.at(second, lambda phase=phase: keep.row(1, phase))
    assert keep("chief") == 75 and keep.time.now_s == pytest.approx(100 + LauncherLimits.standstill_s, abs=2)


def test_time_in_which_all_processes_were_frozen_counts_for_no_limit(keep):
    keep.time.at(1, lambda: keep.row(1))
    keep.time.at(30, lambda: setattr(keep.time, "now_s", 1000.0))
    assert keep("chief") == 75
    assert keep.time.now_s == pytest.approx(1000 + LauncherLimits.standstill_s - 31, abs=2)


def test_a_leader_that_hangs_after_its_last_word_has_ended_well(keep):
    keep.time.at(1, lambda: keep.row(7))
    keep.time.at(2, lambda: checkpoints.mark_ended(keep.run_dir.checkpoints, last_step=7, outcome="completed"))
    assert keep("chief") == 0 and keep.child.signals == [signal.SIGKILL]


def test_a_folder_that_can_not_be_read_just_now_ends_nobody(keep):
    def check():
        if keep.time.now_s < 9:
            raise OSError(116, "Stale file handle")
        keep.child.code = 75

    writing.set_fence(check)
    try:
        assert keep("chief") == 75 and keep.time.now_s >= 9
    finally:
        writing.set_fence(None)


# A chief waits for those it needs, says for whom, and does not wait for ever.

THREE = ClusterTopology({"chief": ["a:1"], "ps": ["b:2"], "worker": ["c:3", "d:4", "e:5"]})


@pytest.fixture
def gather(tmp_path):
    """gather(patience, {address: second}) → the workers to begin with, when servers come at these seconds."""
    time, requests = FakeTime(), StopRequests()

    class View:
        notice = staticmethod(lambda line: call.said.append(str(line)))

    def call(patience, comes):
        def reach(addresses):
            return {task for task, address in addresses.items() if comes.get(address, 1e9) <= time.now_s}

        return TaskSupervisor(
            Task("chief", 0), THREE, RunDir(tmp_path), View(), requests, None, LauncherLimits(), patience,
            reach=reach, unknown=lambda addresses: [one for one in addresses if one in call.unknown],
            clock=time.clock, sleep=time.sleep,
        ).gather()  # fmt: skip

    call.said, call.time, call.requests, call.unknown = [], time, requests, ()
    return call


def test_the_chief_begins_when_all_are_there_whatever_the_order(gather):
    assert gather(RendezvousLimits(600), {"e:5": 0, "d:4": 3, "c:3": 5, "b:2": 7}) == 3
    assert 7 <= gather.time.now_s < 9
    assert gather.said[0] == "waiting for ps-0 (b:2), worker-0 (c:3), worker-1 (d:4) (0 of 600 s)"
    assert gather.said[-1] == "all other tasks answer"


def test_a_host_whose_name_is_not_known_is_named_as_such(gather):
    gather.unknown = ("b:2",)
    assert gather(RendezvousLimits(35), {"c:3": 0, "d:4": 0, "e:5": 0}) is None
    why = ": this machine can't resolve the name 'b:2'; correct the address, or wait until the name service knows it"
    assert gather.said[0] == f"waiting for ps-0 (b:2) (0 of 35 s){why}"
    assert gather.said[-1] == f"ps-0 (b:2) did not answer for 35 s{why}"


def test_every_ten_seconds_it_says_for_whom_it_waits_until_the_bound(gather):
    assert gather(RendezvousLimits(35), {"c:3": 0, "d:4": 0, "e:5": 0}) is None
    waits = [line for line in gather.said if line.startswith("waiting for ps-0 (b:2) (")]
    assert len(waits) == 4, "at 0, 10, 20 and 30 s"
    assert gather.said[-1] == "ps-0 (b:2) did not answer for 35 s" and gather.time.now_s < 37


def test_a_worker_that_does_not_come_back_is_waited_for_a_minute(gather):
    assert gather(RendezvousLimits(600), {"b:2": 0, "c:3": 10, "d:4": 0}) == 2
    assert 60 <= gather.time.now_s < 63
    assert gather.said[-1] == "beginning with 2 of 3 workers; worker-2 (e:5) may come later"


def test_as_many_as_were_asked_for_are_enough_at_once(gather):
    assert gather(RendezvousLimits(600, least_workers=2), {"b:2": 4, "c:3": 0, "d:4": 6}) == 2
    assert gather.time.now_s < 8


def test_without_a_parameter_server_nothing_begins(gather):
    assert gather(RendezvousLimits(100, least_workers=1), {"c:3": 0, "d:4": 0, "e:5": 0}) is None


def test_a_mode_that_needs_all_waits_for_all(gather):
    assert gather(RendezvousLimits(100, needs_all=True), {"b:2": 0, "c:3": 0, "d:4": 0}) is None


def test_a_stop_signal_ends_the_wait_at_once(gather):
    gather.time.at(12.0, lambda: gather.requests._note(signal.SIGTERM, None))
    assert gather(RendezvousLimits(600), {}) is None
    assert gather.time.now_s < 13
