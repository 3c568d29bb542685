"""Define the data set `auto`.

The other data sets of the package have a module each, or share one if they are read alike.
"""

from __future__ import annotations

from ps_cluster.config.datasets import ImageDataSet, ImageSettings


class Auto(ImageDataSet[ImageSettings]):
    """CIFAR-10 if it is available, else the generated set, with a notice that nobody can miss."""

    name = "auto"
    candidates_of = ("cifar10", "synthetic")
