"""A fleet of small programs that write the files of a run, or die."""

import sys

import psutil
import pytest

from ps_cluster.config import build_config
from ps_cluster.tools.fleet import DRAIN_S, FROZEN_S, Fleet, Job, train_at_once
from tests.helpers.processes import assert_none_left, wait_until

# Its arguments are "--run-dir ROOT …" or "--resume ROOT". ROOT.plan has one word for each start, which says what to do.
PROGRAM = """
import json, os, pathlib, signal, sys, time
root = pathlib.Path(sys.argv[2])
plan = root.with_name(root.name + ".plan")
word, *rest = plan.read_text().split()
plan.write_text(" ".join(rest) or word)
with root.with_name(root.name + ".starts").open("a") as file: file.write(sys.argv[1] + " " + word + "\\n")
(root / "checkpoints").mkdir(parents=True, exist_ok=True)
(root / "config.yaml").touch()
def complete(*_):
    (root / "summary.json").write_text(json.dumps({"outcome": "completed", "evaluation": {"step": 9}}))
    (root / "checkpoints" / "ended.json").write_text(json.dumps({"last_step": 9, "outcome": "completed"}))
if word == "complete": complete()
if word == "stop-early":
    early = {"step": 8, "patience": 2, "monitor": "loss", "examples": "validation"}
    (root / "summary.json").write_text(json.dumps({"outcome": "stopped", "early_stop": early, "evaluation": {"step": 9}}))
    (root / "checkpoints" / "ended.json").write_text(json.dumps({"last_step": 9, "outcome": "stopped"}))
if word == "die": os.kill(os.getpid(), signal.SIGKILL)
if word == "save-and-die":
    (root / "checkpoints" / "step-000000001-term-000000.safetensors").touch()
    os.kill(os.getpid(), signal.SIGKILL)
if word == "refuse":
    print("Error: field: got 1", flush=True)
    sys.exit(2)
if word == "wait": time.sleep(60)
if word == "ignore":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (root / "deaf").touch()
    time.sleep(60)
"""


class Requests:
    """Stop requests of a user."""

    count, exit_code = 0, 143


@pytest.fixture
def make(tmp_path):
    """Return a function that gives a fleet, its jobs and its notices: a job for each plan."""
    fleets = []

    def fleet_of(*plans, at_once=4, **options):
        notices = []
        fleet = Fleet(at_once, notices.append, command=(sys.executable, "-c", PROGRAM), grace_s=0.2, **options)
        fleets.append(fleet)
        config = build_config(None, {"data.dataset": "synthetic"})
        jobs = [Job(index, f"trial {index}", tmp_path / f"{index}", config) for index, _ in enumerate(plans)]
        for job, plan in zip(jobs, plans):
            job.root.with_name(f"{job.root.name}.plan").write_text(plan)
        return fleet, jobs, notices

    yield fleet_of
    for fleet in fleets:
        fleet.end_all()
    assert_none_left(tmp_path)


def until_over(fleet, count):
    over = []
    wait_until(lambda: over.extend(fleet.poll()) or len(over) >= count)
    return {ended.job.index: ended for ended in over}


def starts(job):
    return job.root.with_name(f"{job.root.name}.starts").read_text().split("\n")[:-1]


def test_runs_are_trained_at_once_and_their_ends_are_told(make):
    fleet, jobs, _ = make("complete", "complete", "wait", at_once=3)
    for job in jobs:
        fleet.start(job)
    assert not fleet.has_room
    over = until_over(fleet, 2)
    assert {index: ended.outcome for index, ended in over.items()} == {0: "completed", 1: "completed"}
    assert fleet.has_room and fleet.jobs == (jobs[2],)


def test_a_run_that_dies_goes_on_from_its_checkpoint_or_begins_anew_without_one(make):
    fleet, jobs, notices = make("save-and-die complete", "die complete")
    for job in jobs:
        fleet.start(job)
    over = until_over(fleet, 2)
    assert [over[index].outcome for index in (0, 1)] == ["completed", "completed"]
    assert starts(jobs[0]) == ["--run-dir save-and-die", "--resume complete"]
    assert starts(jobs[1]) == ["--run-dir die", "--run-dir complete"]
    assert sorted(notices)[0].startswith("trial 0 died and is continued (retry 1 of 2): SIGKILL")


def test_a_run_whose_patience_has_run_out_counts_as_completed_and_is_not_continued(make):
    fleet, jobs, notices = make("stop-early complete")
    fleet.start(jobs[0])
    assert until_over(fleet, 1)[0].outcome == "completed"
    assert starts(jobs[0]) == ["--run-dir stop-early"] and not notices


def test_a_run_that_always_dies_fails_after_two_retries_and_names_its_log(make):
    fleet, jobs, _ = make("die")
    fleet.start(jobs[0])
    over = until_over(fleet, 1)
    assert over[0].outcome == "failed" and len(starts(jobs[0])) == 3
    assert "SIGKILL" in over[0].why and str(jobs[0].log) in over[0].why


def test_bad_input_is_not_tried_again(make):
    fleet, jobs, _ = make("refuse")
    fleet.start(jobs[0])
    over = until_over(fleet, 1)
    assert over[0].outcome == "failed" and len(starts(jobs[0])) == 1
    assert over[0].why == f"exit code 2: field: got 1 (log: {jobs[0].log})"


def test_a_run_that_was_asked_to_stop_is_not_started_again(make):
    fleet, jobs, _ = make("wait")
    fleet.start(jobs[0])
    wait_until(lambda: jobs[0].root.is_dir())
    fleet.ask_to_stop(jobs[0])
    assert until_over(fleet, 1)[0].outcome == "stopped" and len(starts(jobs[0])) == 1


def test_a_frozen_run_is_ended_after_its_time_and_goes_on(make):
    now = [0.0]
    fleet, jobs, notices = make("wait complete", clock=lambda: now[0])
    fleet.start(jobs[0])
    wait_until(lambda: jobs[0].root.is_dir())
    (process,) = [child for child in psutil.Process().children() if str(jobs[0].root) in child.cmdline()]
    process.suspend()
    wait_until(lambda: process.status() == psutil.STATUS_STOPPED)
    assert not fleet.poll() and not notices
    now[0] = FROZEN_S + 1
    over = until_over(fleet, 1)
    assert over[0].outcome == "completed" and "SIGSTOP" in notices[0]


def test_stop_requests_are_handed_on_and_the_wait_for_deaf_runs_has_a_limit(make):
    fleet, jobs, notices = make("ignore")
    requests, looks = Requests(), []
    times = [0.0, 0.0, DRAIN_S - 1, DRAIN_S, DRAIN_S + 1]

    def sleep(_):
        looks.append(len(notices))
        wait_until(lambda: (jobs[0].root / "deaf").exists())
        requests.count = 1

    left = [jobs[0]]
    code = train_at_once(
        fleet, requests, notices.append,
        start_next=lambda: bool(left) and fleet.start(left.pop()) is None,
        ended=pytest.fail, sleep=sleep, clock=lambda: times.pop(0),
    )  # fmt: skip
    assert code == 143 and not times
    assert looks == [0, 1, 1] and notices[0].startswith("stopping 1 run, within 120 s")
