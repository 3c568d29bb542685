"""A cluster that nobody launches: every task is started by itself, with TF_CONFIG, as on machines of their own."""

import json
import os
import re
import signal
import urllib.request

import portpicker
import psutil
import pytest
from click.testing import CliRunner

from ps_cluster.cli.main import main
from ps_cluster.errors import RETRY, SUPERSEDED
from tests.helpers.finished_runs import ledger_rows
from tests.helpers.processes import wait_until
from tests.helpers.real_cluster import (
    BEHIND_A_PROXY,
    SNAPSHOTS,
    rows,
    small,
    start,
    stop,
    summary_of,
    unhurried,
    wait_for_snapshots,
    wait_for_training,
)

pytestmark = [pytest.mark.cluster, pytest.mark.exhaustive]
OPTIONS = ("--steps", 100_000, *unhurried(workers=2), *SNAPSHOTS)


class Machines:
    """Starts tasks of one cluster, each in a run directory of its own. All of these machines are behind a proxy."""

    def __init__(self, folder):
        self._folder = folder
        self._cluster = {"chief": 1, "ps": 1, "worker": 2}
        for kind in self._cluster:
            self.move(kind)

    def move(self, kind):
        """Give all tasks of a type new addresses."""
        number = len(self._cluster[kind]) if isinstance(self._cluster[kind], list) else self._cluster[kind]
        self._cluster[kind] = [f"127.0.0.1:{portpicker.pick_unused_port()}" for _ in range(number)]

    def start(self, kind, index, *options):
        own = json.dumps({"cluster": self._cluster, "task": {"type": kind, "index": index}})
        folder = self._folder / f"{kind}-{index}"
        environment = {"TF_CONFIG": own, **BEHIND_A_PROXY}
        return start("task", "--run-dir", folder, *small(*OPTIONS), *options, env=environment)


@pytest.mark.timeout(600)  # a minute, and more beside other tests
def test_a_training_outlives_a_worker_that_leaves_a_chief_that_is_frozen_and_a_server_that_is_killed(tmp_path):
    machines, run_dir = Machines(tmp_path), tmp_path / "chief-0"

    def chief():
        """Start a chief that begins with those that are there. Its lines are objects, and it has a page of metrics."""
        return machines.start("chief", 0, "--min-workers", 1, "--metrics-port", 0, "--log-format", "json")

    def trains_again(since):
        wait_until(lambda: any(row["phase"] == "training" for row in rows(run_dir)[since:]))

    server, worker, old = machines.start("ps", 0), machines.start("worker", 0), chief()
    wait_for_training(run_dir, updates=5)
    wait_until(lambda: scraped_updates(run_dir) >= 5)
    assert asked("health", run_dir, "--type", "chief", "--index", 0).startswith("ready: ")

    # A worker at a spare address joins, and is stopped: others take its steps.
    assert updates_by_worker(run_dir).keys() == {0}
    spare = machines.start("worker", 1)
    wait_until(lambda: updates_by_worker(run_dir).get(1, 0) > 5)
    spare.send_signal(signal.SIGTERM)
    assert spare.wait(timeout=60) == 128 + signal.SIGTERM
    before = updates_by_worker(run_dir)[0]
    wait_until(lambda: updates_by_worker(run_dir)[0] > before + 5)

    # A chief that was frozen stops without a word to the files of the newer one.
    wait_for_snapshots(run_dir)
    both = [old.pid, *(child.pid for child in psutil.Process(old.pid).children())]
    for pid in both:
        os.kill(pid, signal.SIGSTOP)  # its machine can't be reached any more
    machines.move("chief")
    stood, new = len(rows(run_dir)), chief()
    trains_again(stood)
    journal = run_dir / "metrics" / "journal" / "shard-0-term-000001.bin"
    content = journal.read_bytes()
    for pid in both:
        os.kill(pid, signal.SIGCONT)
    assert old.wait(timeout=60) == SUPERSEDED
    told = old.communicate()
    assert "a newer leader (term 2) has taken over" in "".join(told)
    assert journal.read_bytes().startswith(content), "its own file has what it had; it may add what it had on the way"
    assert "beginning with 1 of 2 workers; worker-1 (" in told[0] and "worker-1 takes part" in told[0]
    assert re.search(r"worker-1 is gone \(.*\); other workers take its steps", told[0]), "it had a dispatch under way"

    # A server that is killed takes the chief along: both commands are run again, and nothing else is.
    server.kill()
    assert new.wait(timeout=60) == RETRY
    stood, server, last = len(rows(run_dir)), machines.start("ps", 0), chief()
    trains_again(stood)
    lines = [json.loads(line) for line in stop(last).splitlines()]
    assert {"progress", "task_ended"} <= {line["event"] for line in lines if line["task"] == "chief-0"}
    assert [task.wait(timeout=60) for task in (server, worker)] == [0, 0], "all end with the leader"
    assert not list((run_dir / "metrics").glob("*.url")), "nobody answers there any more"

    result = json.loads((run_dir / "metrics" / "training.json").read_text())
    assert result["proof"]["holds"] and result["updates"]["applied"] == result["updates"]["scheduled"] > 40
    assert [int(row["step"]) for row in ledger_rows(run_dir)] == list(range(result["updates"]["applied"]))
    summary = summary_of(run_dir)
    assert (summary["outcome"], summary["leaders"], summary["sessions"]) == ("stopped", 3, 3)
    assert summary["proof"]["holds"] and summary["restarts"]["chief-0"] == 2
    assert {row["address"].partition(":")[0] for row in summary["workers"]} == {"127.0.0.1"}
    assert f"{result['updates']['applied']} applied" in asked("runs", "show", run_dir)
    assert "elsewhere" in asked("cluster", "show", run_dir)


def asked(*words):
    """Return what a command prints that needs no process of its own."""
    result = CliRunner().invoke(main, list(map(str, words)))
    assert result.exit_code == 0, result.output
    return result.stdout


def updates_by_worker(run_dir):
    return {worker["index"]: worker["updates"] for worker in rows(run_dir)[-1]["workers"]}


def scraped_updates(run_dir):
    url = (run_dir / "metrics" / "chief-0.url").read_text().strip()
    page = urllib.request.urlopen(url, timeout=10).read().decode()
    return float(re.search(r"^ps_cluster_updates_total (.+)$", page, re.MULTILINE)[1])
