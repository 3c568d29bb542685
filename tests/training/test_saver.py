import numpy as np
import pytest

from ps_cluster.config import build_config
from ps_cluster.run_dir import RunDir
from ps_cluster.training import checkpoints
from ps_cluster.training.journal import JournalNotWritten
from ps_cluster.training.ledger import COUNTS
from ps_cluster.training.run_progress import RunProgress
from ps_cluster.training.saver import SNAPSHOTS_KEPT, Saver
from ps_cluster.training.training_clock import Times


class FakeBooks:
    """A version more with each snapshot; the second of two slices is one ahead."""

    def __init__(self, clock):
        self.clock, self.version, self.takes, self.refuse = clock, 0, 0.0, False

    def snapshot(self):
        if self.refuse:
            raise JournalNotWritten("a journal can't be written")
        self.version += 1
        self.clock.now += self.takes
        counts = np.zeros([2, len(COUNTS)], np.int64)
        counts[:, COUNTS.index("version")] = self.version, self.version + 1
        return {"weights": np.full(3, self.version, np.float32), "counts": counts}


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def saving(tmp_path):
    """saving(seconds) lets so many seconds pass, one look a second."""
    settings = {"every_seconds": 10.0, "snapshot_every_seconds": 2.0, "keep": 2}
    config = build_config(overrides={f"checkpoints.{name}": value for name, value in settings.items()})
    clock, said = Clock(), []

    def let_pass(seconds):
        for _ in range(seconds):
            clock.now += 1
            let_pass.saver.save_when_due()

    let_pass.run_dir, let_pass.said = RunDir.create(tmp_path / "run"), said
    let_pass.books = FakeBooks(clock)
    let_pass.saver = Saver(
        config, let_pass.run_dir, "synthetic", let_pass.books, RunProgress(config, 100), notify=said.append, clock=clock
    )
    return let_pass


def test_snapshots_and_checkpoints_are_written_each_at_its_interval(saving):
    saving(1)
    assert not checkpoints.newest_first(saving.run_dir.states)
    saving(8)
    assert len(checkpoints.steps(saving.run_dir.snapshots)) == SNAPSHOTS_KEPT
    assert checkpoints.steps(saving.run_dir.checkpoints) == []
    saving(3)
    assert len(checkpoints.steps(saving.run_dir.checkpoints)) == 1


def test_saving_that_takes_long_is_done_less_often(saving):
    saving.books.takes = 0.5  # of the snapshot at 2 s
    saving(10)
    assert saving.books.version == 1, "nothing for 20 times as long, not even the checkpoint that is due"
    saving(4)
    assert [len(checkpoints.steps(folder)) for folder in saving.run_dir.states] == [1, 1]
    saving.books.takes = 1000.0
    saving(12)
    assert saving.books.version == 3
    saving.books.takes = 0.0
    saving(65)
    assert saving.books.version > 4, "a minute at most"


def test_what_a_restart_begins_from_is_the_newest_of_both(saving):
    saving(11)
    newest = checkpoints.load_newest_good(saving.run_dir.states, print)
    everything = [*checkpoints.steps(saving.run_dir.snapshots), *checkpoints.steps(saving.run_dir.checkpoints)]
    assert newest.step == max(everything)


def test_a_checkpoint_says_where_the_run_is_and_what_it_took(saving):
    saving(2)
    found = checkpoints.load_newest_good([saving.run_dir.snapshots], print)
    assert (found.step, found.arrays["weights"].tolist()) == (1, [1, 1, 1])
    assert (found.meta.dataset_kind, found.meta.examples, found.meta.train_seconds) == ("synthetic", 0, 0)
    assert found.meta.times == Times()
    progress = RunProgress(build_config(), 100)
    assert found.meta.progress == progress.state


def test_training_goes_on_when_the_disk_refuses_a_snapshot_and_says_so(saving):
    saving.run_dir.snapshots.write_text("a file where the folder should be")
    saving(4)
    assert len(saving.said) == 2 and all("training goes on, but: checkpoint" in line for line in saving.said)
    saving.run_dir.snapshots.unlink()
    saving(2)
    assert len(checkpoints.steps(saving.run_dir.snapshots)) == 1


def test_a_snapshot_whose_rows_are_not_on_the_disk_is_put_off_and_training_goes_on(saving):
    saving.books.refuse = True
    saving(4)
    assert saving.said == ["training goes on, but: a journal can't be written"] * 2
    assert checkpoints.load_newest_good(saving.run_dir.states, print) is None
    saving.books.refuse = False
    saving(2)
    assert len(checkpoints.steps(saving.run_dir.snapshots)) == 1


def test_the_last_checkpoint_replaces_the_snapshots_or_fails_loudly(saving):
    saving(4)
    saving.saver.save_last()
    assert not saving.run_dir.snapshots.exists() and len(checkpoints.steps(saving.run_dir.checkpoints)) == 1
    saving.run_dir.checkpoints.rename(saving.run_dir.root / "elsewhere")
    saving.run_dir.checkpoints.write_text("in the way")
    with pytest.raises(checkpoints.CheckpointNotWritten, match="checkpoint"):
        saving.saver.save_last()
