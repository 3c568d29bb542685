"""A cluster that nobody launches: every task is started by itself, with TF_CONFIG, as on machines of their own."""

import json
import os
import re
import signal
import urllib.request

import portpicker
import psutil
import pytest

from ps_cluster.config.modes import Task
from ps_cluster.errors import BAD_INPUT, RETRY, SUPERSEDED
from ps_cluster.tools.chaos.runs import Restarter
from tests.helpers.finished_runs import ledger_rows
from tests.helpers.processes import assert_none_left, wait_until
from tests.helpers.real_cluster import (
    SNAPSHOTS,
    finish,
    rows,
    small,
    start,
    stop,
    summary_of,
    unhurried,
    wait_for_snapshots,
    wait_for_training,
)

pytestmark = pytest.mark.cluster
CHIEF, SERVERS = ("chief", 0), (("ps", 0), ("worker", 0), ("worker", 1))
WORKERS = (("worker", 0), ("worker", 1))


@pytest.fixture
def cluster_of(tmp_path):
    """cluster_of(tasks) → machine(type, index, *options), which starts a task in a run directory of its own;
    `machine.folder(...)` is that.
    """
    started = []

    def of(tasks):
        cluster: dict[str, list[str]] = {}
        for kind, _ in tasks:
            cluster.setdefault(kind, []).append(f"127.0.0.1:{portpicker.pick_unused_port()}")

        def machine(kind, index, *options):
            tf_config = json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})
            folder = machine.folder(kind, index)
            process = start("task", "--run-dir", folder, *small(*options), env={"TF_CONFIG": tf_config})
            started.append(process)
            return process

        def moves(kind):
            cluster[kind] = [f"127.0.0.1:{portpicker.pick_unused_port()}" for _ in cluster[kind]]

        machine.folder = lambda kind, index: tmp_path / f"{kind}-{index}"
        machine.moves = moves
        return machine

    yield of
    for process in started:
        process.kill()
        process.communicate()
    assert_none_left(tmp_path)


@pytest.fixture
def machine(cluster_of):
    return cluster_of((CHIEF, *SERVERS))


@pytest.mark.timeout(600)  # a minute, and more beside other tests
def test_commands_that_are_only_run_again_survive_the_death_of_a_worker_a_server_and_the_chief(machine):
    run_dir, steps = machine.folder(*CHIEF), 400
    options = ("--steps", steps, *unhurried(workers=2, seconds=0.1), *SNAPSHOTS)
    own = {"chief": ("--metrics-port", 0, "--log-format", "json"), "worker": ()}  # what only some tasks are given
    restarter = Restarter(
        [Task(*task) for task in (CHIEF, *SERVERS)],
        lambda task: machine(task.type, task.index, *options, *own.get(task.type, ())),
    )

    def passes(condition, within_s=90):
        def looked():
            restarter.poll()
            return condition()

        wait_until(looked, within_s=within_s)

    def codes(kind, index=0):
        return [end.exit_code for end in restarter.ends if end.task == Task(kind, index)]

    passes(lambda: any(row["applied"] >= 60 for row in rows(run_dir)[-1:]))
    passes(lambda: scraped_updates(run_dir) >= 60, within_s=20)
    assert finish(start("health", run_dir, "--type", "chief", "--index", 0)).startswith("ready: ")
    restarter.running[Task("worker", 1)].kill()
    own["worker"] = ("--seed", 5)
    passes(lambda: codes("worker", 1)[1:] == [BAD_INPUT])
    before = rows(run_dir)[-1]["applied"]
    restarter.running[Task("ps", 0)].kill()
    del own["worker"]
    restarter.start_anew()
    passes(lambda: codes("chief") == [RETRY])
    passes(lambda: rows(run_dir)[-1]["applied"] > before)
    restarter.running[Task("chief", 0)].kill()
    passes(lambda: len(codes("chief")) == 2 and Task("chief", 0) in restarter.running)
    last = restarter.running[Task("chief", 0)]
    passes(lambda: len(restarter.final) == 4)
    assert set(restarter.final.values()) == {0}, "all end by themselves"
    assert codes("chief") == [RETRY, -signal.SIGKILL, 0] and codes("worker") == [0], "a server outlives the chief"
    told = [json.loads(line) for line in last.communicate()[0].splitlines()]
    assert {"progress", "task_ended"} <= {line["event"] for line in told if line["task"] == "chief-0"}
    assert not list((run_dir / "metrics").glob("*.url")), "nobody answers there any more"
    result = json.loads((run_dir / "metrics" / "training.json").read_text())
    assert result["proof"]["holds"] and result["updates"]["applied"] == result["updates"]["scheduled"] == steps
    assert {worker["index"] for worker in result["workers"]} == {0, 1}
    assert len(list((run_dir / "leaders").iterdir())) == 3 and not (run_dir / ".lock").exists()
    summary = summary_of(run_dir)
    assert (summary["outcome"], summary["leaders"], summary["sessions"]) == ("completed", 3, 3)
    assert summary["proof"]["holds"] and summary["updates"] == result["updates"] | {
        "rolled_back": summary["updates"]["rolled_back"]
    }
    assert sum(worker["updates"] for worker in summary["workers"]) >= steps and summary["staleness"]["histogram"]
    assert summary["restarts"]["chief-0"] == 2 and summary["workers"][1]["restarts"] >= 1
    cluster = summary["workers"] + summary["parameter_servers"]
    assert [row["address"].partition(":")[0] for row in cluster] == ["127.0.0.1"] * 3
    assert f"step {steps}: test accuracy" in finish(start("evaluate", "--once", "--checkpoint-dir", run_dir))
    assert summary_of(run_dir)["evaluation"]["step"] == steps and (run_dir / "results" / "results.html").is_file()
    shown = finish(start("runs", "show", run_dir))
    assert "completed" in shown and f"{steps} scheduled · {steps} applied" in shown and "holds:" in shown
    assert "elsewhere" in finish(start("cluster", "show", run_dir))
    assert {task["pid"] is None for task in json.loads((run_dir / "cluster.json").read_text())["tasks"]} == {
        False,
        True,
    }


def test_a_chief_that_was_frozen_stops_without_a_word_to_the_files_of_the_newer_one(cluster_of):
    machine = cluster_of((CHIEF, *SERVERS))
    run_dir, steps = machine.folder(*CHIEF), 400
    options = ("--steps", steps, *unhurried(workers=2), *SNAPSHOTS)
    servers = [machine(*task, *options) for task in SERVERS]
    old = machine(*CHIEF, *options)
    wait_for_snapshots(run_dir)
    both = [
        old.pid,
        *(child.pid for child in psutil.Process(old.pid).children()),
    ]  # its machine can't be reached any more
    for pid in both:
        os.kill(pid, signal.SIGSTOP)
    machine.moves("chief")
    new = machine(*CHIEF, *options)
    wait_until(lambda: len(list((run_dir / "leaders").iterdir())) == 2, within_s=60)
    stood = len(rows(run_dir))
    wait_until(lambda: any(row["phase"] == "training" for row in rows(run_dir)[stood:]), within_s=90)
    journal = run_dir / "metrics" / "journal" / "slice-0-epoch-000001.bin"
    before = journal.read_bytes()
    for pid in both:
        os.kill(pid, signal.SIGCONT)
    assert old.wait(timeout=60) == SUPERSEDED
    assert "a newer leader (epoch 2) has taken over" in old.communicate()[1]
    finish(new)
    assert journal.read_bytes().startswith(before), "its own file has what it had; it may add what it had on the way"
    result = json.loads((run_dir / "metrics" / "training.json").read_text())
    assert result["proof"]["holds"] and result["updates"]["applied"] == result["updates"]["scheduled"] == steps
    assert {server.wait(timeout=60) for server in servers} == {0}


def test_a_worker_at_a_spare_address_joins_a_training_and_hands_back_its_steps_when_it_is_stopped(machine):
    run_dir = machine.folder(*CHIEF)
    options = ("--steps", 100_000, *unhurried(workers=2))
    others = [machine(*task, *options) for task in (("ps", 0), ("worker", 0))]
    chief = machine(*CHIEF, *options, "--min-workers", 1)
    wait_for_training(run_dir, updates=20)
    assert updates_by_worker(run_dir).keys() == {0}
    spare = machine("worker", 1, *options)
    wait_until(lambda: updates_by_worker(run_dir).get(1, 0) > 20, within_s=90)
    spare.send_signal(signal.SIGTERM)
    assert spare.wait(timeout=60) == 128 + signal.SIGTERM
    before = updates_by_worker(run_dir)
    wait_until(lambda: updates_by_worker(run_dir)[0] > before[0] + 40, within_s=60)
    told = stop(chief)
    assert "beginning with 1 of 2 workers; worker-1 (" in told and "worker-1 takes part" in told
    assert re.search(r"worker-1 is gone \(.*\); its steps go to others", told), "it had a dispatch under way"
    assert [process.wait(timeout=60) for process in others] == [0, 0]
    result = json.loads((run_dir / "metrics" / "training.json").read_text())
    by_worker = {worker["index"]: worker["updates"] for worker in result["workers"]}
    assert by_worker[0] >= before[0] + 40 and by_worker[1] > 20
    assert_all_steps_are_applied_once(run_dir, result, sum(by_worker.values()))


def updates_by_worker(run_dir):
    return {worker["index"]: worker["updates"] for worker in rows(run_dir)[-1]["workers"]}


def assert_all_steps_are_applied_once(run_dir, result, total):
    updates = result["updates"]
    assert result["proof"]["holds"] and (updates["scheduled"], updates["applied"]) == (total, total)
    assert updates["lost"] == updates["duplicated"] == 0
    assert sorted(int(row["step"]) for row in ledger_rows(run_dir)) == list(range(total))


def scraped_updates(run_dir):
    url = (run_dir / "metrics" / "chief-0.url").read_text().strip()
    page = urllib.request.urlopen(url, timeout=10).read().decode()
    return float(re.search(r"^ps_cluster_updates_total (.+)$", page, re.MULTILINE)[1])


def test_all_workers_of_an_all_reduce_end_when_one_is_killed_and_the_same_commands_go_on_to_an_exact_end(cluster_of):
    machine = cluster_of(WORKERS)
    run_dir, steps = machine.folder(*WORKERS[0]), 150
    options = ("--mode", "sync", "--steps", steps, *unhurried(workers=2), *SNAPSHOTS)
    codes = {task: [] for task in WORKERS}
    processes = {WORKERS[1]: machine(*WORKERS[1], *options)}  # the order does not matter
    processes[WORKERS[0]] = machine(*WORKERS[0], *options)
    wait_for_snapshots(run_dir)
    processes[WORKERS[1]].kill()

    def restarted_until_all_have_ended():
        for task, process in processes.items():
            if process.poll() not in (None, 0):
                codes[task].append(process.returncode)
                processes[task] = machine(*task, *options)
        return all(process.poll() == 0 for process in processes.values())

    wait_until(restarted_until_all_have_ended, within_s=120)
    assert codes[WORKERS[0]][0] == RETRY and codes[WORKERS[1]][0] == -signal.SIGKILL
    assert all(code == RETRY for ended in codes.values() for code in ended[1:])
    result = json.loads((run_dir / "metrics" / "training.json").read_text())
    updates = result["updates"]
    assert updates["scheduled"] == updates["applied"] == steps and updates["lost"] == updates["duplicated"] == 0
    assert result["gradients"]["applied"] == 2 * steps
    assert not list(machine.folder(*WORKERS[1]).glob("*/step-*.safetensors")), "only worker 0 has checkpoints"
