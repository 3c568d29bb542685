import numpy as np
import pytest

from ps_cluster.config import build_config
from ps_cluster.run_dir import RunDir
from ps_cluster.training import checkpoints
from ps_cluster.training.run_progress import RunProgress
from ps_cluster.training.saver import SNAPSHOTS_KEPT, Saver


class FakeStore:
    def __init__(self, clock):
        self.clock, self.version, self.takes = clock, 0, 0.0

    def snapshot(self, steps):
        self.version += 1
        self.clock.now += self.takes
        return {"weights": np.full(3, self.version, np.float32), "counts": np.array([[self.version, 0]])}


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
    let_pass.store = FakeStore(clock)
    let_pass.saver = Saver(
        config, let_pass.run_dir, "synthetic", let_pass.store, RunProgress(config, 100), notify=said.append, clock=clock
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
    saving.store.takes = 0.5  # of the snapshot at 2 s
    saving(10)
    assert saving.store.version == 1, "nothing for 20 times as long, not even the checkpoint that is due"
    saving(4)
    assert [len(checkpoints.steps(folder)) for folder in saving.run_dir.states] == [1, 1]
    saving.store.takes = 1000.0
    saving(12)
    assert saving.store.version == 3
    saving.store.takes = 0.0
    saving(65)
    assert saving.store.version > 4, "a minute at most"


def test_what_a_restart_begins_from_is_the_newest_of_both(saving):
    saving(11)
    newest = checkpoints.load_newest_good(saving.run_dir.states, print)
    everything = [*checkpoints.steps(saving.run_dir.snapshots), *checkpoints.steps(saving.run_dir.checkpoints)]
    assert newest.step == max(everything)


def test_training_goes_on_when_the_disk_refuses_a_snapshot_and_says_so(saving):
    saving.run_dir.snapshots.write_text("a file where the folder should be")
    saving(4)
    assert len(saving.said) == 2 and all("training goes on, but: checkpoint" in line for line in saving.said)
    saving.run_dir.snapshots.unlink()
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
