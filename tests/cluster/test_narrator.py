"""A task that nobody launched says what it waits for, and how far training is."""

import socket
import threading
import time

import pytest

from ps_cluster.catalogue.task_types import Task
from ps_cluster.cluster.narrator import Narrator, answers
from ps_cluster.cluster.topology import ClusterTopology
from ps_cluster.files.json_rows import append_row
from ps_cluster.run.rows.progress import ProgressRow
from ps_cluster.run.run_dir import RunDir

TOPOLOGY = ClusterTopology({"chief": ["a:1"], "ps": ["b:2"], "worker": ["c:3", "d:4"]})


class View:
    """Notes what it is told."""

    def __init__(self):
        self.told = []
        self.notice = self.progress = self.evaluation = self.told.append

    def close(self):
        self.told.append("closed")


@pytest.fixture
def narrate(tmp_path):
    """narrate(type, index) → a narrator that reaches the addresses in `narrate.up`, and its view."""
    run_dir = RunDir.create(tmp_path / "run")

    def call(kind, index=0):
        view = View()
        return Narrator(Task(kind, index), TOPOLOGY, run_dir, view, reaches=lambda address: address in call.up), view

    call.up, call.run_dir = set(), run_dir
    return call


def test_the_chief_names_whom_it_waits_for_until_all_answer(narrate):
    narrator, view = narrate("chief")
    narrator.look()
    assert view.told == ["waiting for ps-0 (b:2), worker-0 (c:3), worker-1 (d:4)"]
    narrate.up = {"b:2", "c:3"}
    narrator.look()
    narrator.look()
    assert view.told[1:] == ["waiting for worker-1 (d:4)"], "said once"
    narrate.up.add("d:4")
    narrator.look()
    narrate.up.clear()
    narrator.look()
    assert view.told[2:] == ["all other tasks answer"], "who dies later is not waited for"


def test_a_worker_says_when_the_chief_answers_and_when_it_has_ended(narrate):
    narrator, view = narrate("worker", 1)
    for up in (set(), {"a:1"}, {"a:1"}, set(), {"a:1"}):
        narrate.up = up
        narrator.look()
    assert view.told == [
        "waiting for chief-0 (a:1)",
        "connected: chief-0 (a:1) answers; training, until chief-0 ends or this is stopped",
        "chief-0 has ended; waiting for it to be started again, or to be stopped (Ctrl-C)",
        "connected: chief-0 (a:1) answers; training, until chief-0 ends or this is stopped",
    ]


def test_rows_of_this_training_are_shown_and_not_those_of_one_before(narrate):
    narrate.up = {"b:2", "c:3", "d:4"}
    append_row(narrate.run_dir.progress, ProgressRow(phase="training", applied=5))
    narrator, view = narrate("chief")
    narrator.start()
    append_row(narrate.run_dir.progress, ProgressRow(phase="training", applied=6))
    narrator.end()
    assert view.told[0] == "chief-0 at a:1" and view.told[-1] == "closed"
    assert [row["applied"] for row in view.told if isinstance(row, dict)] == [6]


def test_rows_of_the_leader_are_not_told_by_another_task_that_shares_its_folder(narrate):
    narrate.up = {"a:1"}
    narrator, view = narrate("worker")
    narrator.start()
    append_row(narrate.run_dir.progress, ProgressRow(phase="training", applied=5))
    narrator.end()
    assert not [told for told in view.told if isinstance(told, dict)]


def test_a_task_that_ends_does_not_wait_until_all_others_are_looked_for(tmp_path):
    topology = ClusterTopology({"chief": ["a:1"], "ps": ["b:2"], "worker": [f"c:{port}" for port in range(1, 20)]})
    probed, began, view = [], threading.Event(), View()

    def reaches(address):
        probed.append(address)
        began.set()
        time.sleep(0.05)
        return False

    narrator = Narrator(Task("chief", 0), topology, RunDir.create(tmp_path / "run"), view, reaches=reaches)
    narrator.start()
    assert began.wait(5)
    narrator.end()
    assert len(probed) < 10 and view.told == ["chief-0 at a:1", "closed"]


def test_an_address_answers_when_somebody_listens_there():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert answers(f"127.0.0.1:{port}")
    assert not answers(f"127.0.0.1:{port}")
