"""One leader a run directory: the newest. An older one changes nothing any more."""

import json
import os
import threading

import pytest

from ps_cluster.files import fence
from ps_cluster.files.writing import remove, remove_folder, write_whole
from ps_cluster.run import journal, leaders
from ps_cluster.run.leaders import Superseded, claim
from ps_cluster.run.ledger import ROW
from ps_cluster.run.run_dir import RunDir


@pytest.fixture
def run_dir(tmp_path):
    yield RunDir.create(tmp_path / "run")
    fence.set_fence(None)


def test_each_claim_is_the_next_epoch_and_says_whose_it_is(run_dir):
    assert [claim(run_dir).epoch for _ in range(3)] == [1, 2, 3]
    told = json.loads((run_dir.leaders / "epoch-000002.json").read_text())
    assert told["pid"] == os.getpid() and told["host"]


def test_the_newest_leader_may_write_and_an_older_one_is_told_by_whom_it_was_replaced(run_dir):
    first = claim(run_dir)
    first.check()
    second = claim(run_dir)
    with pytest.raises(Superseded, match=r"a newer leader \(epoch 2\).*this one is of epoch 1"):
        first.check()
    second.check()


def test_of_many_who_claim_at_once_each_gets_an_epoch_of_its_own(run_dir):
    found, begin = [], threading.Barrier(8)

    def one():
        begin.wait()
        found.append(claim(run_dir).epoch)

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(1, 9))


def test_a_file_that_is_no_claim_counts_for_nothing(run_dir):
    run_dir.leaders.mkdir()
    for name in ("epoch-7.json", "epoch-000009.json.tmp", "notes"):
        (run_dir.leaders / name).touch()
    assert claim(run_dir).epoch == 1


@pytest.mark.parametrize(
    "change", [lambda path: write_whole(path, "new"), remove, lambda path: remove_folder(path.parent)]
)
def test_an_older_leader_renames_and_removes_nothing(run_dir, change):
    fence.set_fence(claim(run_dir).check)
    path = run_dir.checkpoints / "file"
    write_whole(path, "old")
    claim(run_dir)
    with pytest.raises(Superseded):
        change(path)
    assert [one.name for one in run_dir.checkpoints.iterdir()] == ["file"] and path.read_text() == "old"


def test_an_older_leader_that_still_writes_rows_does_not_reach_the_journal_of_the_newer_one(run_dir):
    path = run_dir.journal(0)
    path.parent.mkdir(parents=True)
    rows = _rows(4)
    old = journal.Journal(path)
    old.append(rows[:3])
    new = journal.Journal(path, 2)  # goes on from a snapshot that counts two rows
    old.append(rows[3:])
    new.append(rows[3:])
    assert [chunk["step"].tolist() for chunk in journal.read(path)] == [[0, 1, 3]]


def _rows(count):
    import numpy as np

    rows = np.zeros(count, ROW)
    rows["step"] = np.arange(count)
    rows["version"] = np.arange(1, count + 1)
    return rows


def test_a_leader_can_tell_only_by_the_next_claim_so_claims_have_no_gaps(run_dir):
    claims = [claim(run_dir) for _ in range(3)]
    assert {one.name for one in run_dir.leaders.iterdir()} == {f"epoch-{one.epoch:06d}.json" for one in claims}
    assert leaders._newest(run_dir.leaders) == 3
