from pathlib import Path

import numpy as np
import pytest

from ps_cluster.config.datasets import Contents
from ps_cluster.data.packed import PackingProgress, write_packed
from ps_cluster.errors import UserError


def contents(x):
    train = {"x": x, "target": np.arange(len(x)) % 2}
    return Contents.of(train, train)


def test_progress_is_told_at_most_once_in_five_seconds():
    now, told = [0.0], []
    progress = PackingProgress("mine", 4_000_000_000, told.append, clock=lambda: now[0])
    for now[0] in (1.0, 4.9, 5.0, 9.9, 11.0):
        progress.add(500_000_000)
    assert told == ["packed 37 % of 4.00 GB of 'mine'", "packed 62 % of 4.00 GB of 'mine'"]


def test_a_disk_without_room_is_told_before_anything_is_written(tmp_path):
    with pytest.raises(UserError, match="takes 0.00 GB, and the disk of .* has 0.00 GB free: set PS_CLUSTER_CACHE"):
        write_packed(tmp_path / "set", "mine", "real", contents(np.zeros((4, 2))), free_bytes=lambda folder: 63)
    assert not list(tmp_path.iterdir())


class Interrupted:
    """Rows that the user interrupts."""

    dtype, shape = np.dtype("float64"), (4, 2)

    def __len__(self):
        return 4

    def __getitem__(self, part):
        raise KeyboardInterrupt


def test_packing_that_is_interrupted_leaves_nothing_behind(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        write_packed(tmp_path / "set", "mine", "real", contents(Interrupted()))
    assert not list(Path(tmp_path).iterdir())
