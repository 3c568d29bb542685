"""A machine that refuses for a while, because its disk is full or it has too many processes, does not end a training."""

import errno
import json
import os
import sys

import pytest

from ps_cluster.config import build_config
from ps_cluster.config.tasks import Task
from ps_cluster.launch import local_cluster
from ps_cluster.launch.local_cluster import LocalCluster
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.system.private_network import RunNetwork
from ps_cluster.system.supervisor import Supervisor


@pytest.fixture
def cluster(tmp_path):
    """A cluster of processes that only sleep, and what it has told."""
    told, config = [], build_config(None, {"cluster.workers": 2, "cluster.evaluator": False})
    sleeping = (sys.executable, "-c", "import time; time.sleep(60)")
    run_dir = RunDir.create(tmp_path / "run")

    def popen(*arguments, **options):
        if made.refuses:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return RunNetwork().popen(*arguments, **options)

    made = LocalCluster(
        config, run_dir, Supervisor(popen=popen), RunNetwork(), resume=False, task_argv=sleeping, notify=told.append
    )
    made.refuses = False
    made.start()
    yield made, run_dir, told
    assert made.stop_all(grace_s=0) == []


def test_a_worker_starts_again_on_a_full_disk_and_is_in_the_file_as_soon_as_there_is_room(cluster, monkeypatch):
    made, run_dir, told = cluster

    def refuse(path, content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    write_json = local_cluster.write_json
    monkeypatch.setattr(local_cluster, "write_json", refuse)
    worker = Task("worker", 1)
    before = made.pids[worker]
    made.restart(worker)
    made.poll()
    assert made.pids[worker] != before
    (line,) = told
    assert str(line) == "training continues, but cluster.json can't be written: No space left on device"
    monkeypatch.setattr(local_cluster, "write_json", write_json)
    made.poll()
    tasks = json.loads(run_dir.cluster.read_text())["tasks"]
    assert made.pids[worker] in [task["pid"] for task in tasks]


def test_tasks_that_the_machine_refuses_to_start_are_named_and_start_once_it_allows_it(cluster):
    made, run_dir, _ = cluster
    worker = Task("worker", 1)
    made.refuses = True
    (refused,) = made.restart(worker)
    log = run_dir.log(worker)
    assert str(refused) == f"worker-1 could not be started: [Errno 11] Resource temporarily unavailable (log: {log})"
    assert [one.task for one in made.restart_training(resume=False)] == list(made.topology.tasks)
    assert made.pids == {} and made.poll() == []
    made.refuses = False
    assert made.restart_training(resume=False) == [] and set(made.pids) == set(made.topology.tasks)


def test_the_first_file_has_to_be_written(cluster, monkeypatch):
    made, run_dir, _ = cluster
    run_dir.cluster.unlink()
    monkeypatch.setattr(local_cluster, "write_json", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
    with pytest.raises(OSError, match="full"):
        made.restart(Task("worker", 1))
