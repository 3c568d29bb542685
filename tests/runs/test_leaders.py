"""A run directory has one leader, the newest. Older leaders no longer change anything."""

import json
import os
import threading

import numpy as np
import pytest

from ps_cluster.files import writing
from ps_cluster.files.writing import folder_beside, path_beside, remove, write_whole
from ps_cluster.runs import checkpoints, journal
from ps_cluster.runs.checkpoints import Checkpoint, CheckpointMeta
from ps_cluster.runs.leaders import Superseded, claim
from ps_cluster.runs.run_dir import RunDir
from tests.helpers.ledgers import rows_of


@pytest.fixture
def run_dir(tmp_path):
    yield RunDir.create(tmp_path / "run")
    writing.set_fence(None)


def test_each_claim_is_the_next_term_and_only_the_newest_leader_may_write(run_dir):
    first, second, third = (claim(run_dir) for _ in range(3))
    assert [one.term for one in (first, second, third)] == [1, 2, 3]
    told = json.loads((run_dir.leaders / "term-000002.json").read_text())
    assert told["pid"] == os.getpid() and told["host"]
    assert len(list(run_dir.leaders.iterdir())) == 3, "without a gap, by which a leader could miss the newer one"
    third.check()
    with pytest.raises(Superseded, match=r"a newer leader \(term 3\).*this one has term 2"):
        second.check()


def test_of_many_who_claim_at_once_each_gets_an_epoch_of_its_own(run_dir):
    found, begin = [], threading.Barrier(8)

    def one():
        begin.wait()
        found.append(claim(run_dir).term)

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(1, 9))


def test_a_file_that_is_no_claim_counts_for_nothing(run_dir):
    run_dir.leaders.mkdir()
    for name in ("term-7.json", "term-000009.json.tmp", "notes"):
        (run_dir.leaders / name).touch()
    assert claim(run_dir).term == 1


def write_as_a_library(path):
    with path_beside(path) as unfinished:
        unfinished.write_text("new")


def write_folder(path):
    with folder_beside(path.with_name("folder")) as unfinished:
        (unfinished / "file").write_text("new")


@pytest.mark.parametrize("change", [lambda path: write_whole(path, "new"), remove, write_as_a_library, write_folder])
def test_an_older_leader_renames_and_removes_nothing(run_dir, change):
    writing.set_fence(claim(run_dir).check)
    path = run_dir.checkpoints / "file"
    write_whole(path, "old")
    claim(run_dir)
    with pytest.raises(Superseded):
        change(path)
    assert [one.name for one in run_dir.checkpoints.iterdir()] == ["file"] and path.read_text() == "old"


def test_an_older_leader_that_still_writes_rows_does_not_reach_the_journal_of_the_newer_one(run_dir):
    run_dir.journals.mkdir(parents=True)
    rows = rows_of(range(4), version=range(1, 5))
    old = journal.Journal(run_dir.journal(0, 1))
    old.append(rows[:2])
    snapshot = journal.counted_work([old.piece], term=1, step=2)
    old.append(rows[2:3])
    new = journal.Journal(run_dir.journal(0, 2), snapshot.checksums[0])
    old.append(rows[3:])
    new.append(rows[3:])
    leaders_until_now = [snapshot, journal.counted_work([new.piece], term=2, step=3)]
    history = journal.history_of(run_dir, leaders_until_now, 0)
    assert [row["step"].item() for chunk in journal.read(history) for row in chunk] == [0, 1, 3]


class Leader:
    """Does what a leader of one shard does on the disk: each save adds a row to its journal, and a state."""

    def __init__(self, run_dir):
        self.run_dir, self.term = run_dir, claim(run_dir).term
        resumed = checkpoints.load_newest_good([run_dir.checkpoints], print)
        self.before = resumed.meta.leaders if resumed else []
        self.step = resumed.step if resumed else 0
        run_dir.journals.mkdir(parents=True, exist_ok=True)
        history = journal.history_of(run_dir, self.before, 0)
        self.journal = journal.Journal(run_dir.journal(0, self.term), history[-1].checksum if history else 0)
        if resumed:
            checkpoints.remove_abandoned(run_dir.checkpoints, resumed, self.term)

    def save(self, keep=2):
        self.journal.append(rows_of([self.step], version=self.step + 1))
        self.step += 1
        done = journal.counted_work([self.journal.piece], term=self.term, step=self.step)
        arrays = {"weights": np.full(3, self.term, np.float32)}
        state = Checkpoint(self.step, arrays, CheckpointMeta(leaders=[*self.before, done]))
        checkpoints.save(self.run_dir.checkpoints, state, keep)


@pytest.mark.parametrize("newer", ["goes on", "goes on and saves", "goes on, saves and dies"])
@pytest.mark.parametrize("check", range(4))
def test_a_leader_that_wakes_up_between_its_check_and_its_change_harms_nothing_of_the_newer_one(run_dir, check, newer):
    """It falls asleep when it looks at the fence, before a rename or a removal. Meanwhile a newer leader leads."""
    old = Leader(run_dir)
    for _ in range(3):
        old.save(keep=3)
    others, looks = [], []

    def sleep():
        looks.append(len(looks))
        if looks[-1] == check:
            writing.set_fence(None)
            others.append(Leader(run_dir))
            for _ in range(2 * ("saves" in newer)):
                others[0].save()

    writing.set_fence(sleep)
    old.save(keep=1)  # four looks: at the rename, and at the removal of three
    writing.set_fence(None)
    assert len(looks) >= check and others
    if "dies" in newer:
        others.append(Leader(run_dir))
    newest = others[-1]
    newest.save()
    found = checkpoints.load_newest_good([run_dir.checkpoints], pytest.fail)
    assert (found.term, found.step) == (newest.term, newest.step) and found.arrays["weights"][0] == newest.term
    rows = np.concatenate(list(journal.read(journal.history_of(run_dir, found.meta.leaders, 0))))
    assert rows["step"].tolist() == list(range(newest.step)), "each step once, whoever made it"
    assert [leader.term for leader in found.meta.leaders][-1] == newest.term
