import os

import numpy as np

from benchmarks.large_data import MemoryAt, growth, look, make, table


def test_the_set_has_the_size_that_is_asked_for_and_classes_that_differ(tmp_path):
    make(tmp_path / "set", 600)
    images, labels = (np.load(tmp_path / "set" / f"{name}_train.npy", mmap_mode="r") for name in "xy")
    assert images.shape == (600, 64, 64, 3) and labels.shape == (600,)
    assert images[labels == 9].mean() - images[labels == 0].mean() > 40


def test_own_memory_and_mapped_memory_are_told_apart():
    now = look(1.0, [os.getpid()])
    assert now.own[0] > 10 and now.mapped[0] > 5 and now.cached > 0


def test_growth_compares_the_beginning_with_the_end():
    looks = [MemoryAt(float(second), (100.0 + second, 50.0), (7.0, 8.0), 9.0) for second in range(8)]
    assert "152 MB in the second quarter, 156 MB in the last" in growth(looks)
    assert table(looks)[2] == "| 0 | 100, 50 | 7, 8 | 9 |"
