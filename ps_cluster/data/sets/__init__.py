"""The data sets of the package: a file for each, or for several that are read in the same way; and `auto`."""

from __future__ import annotations

from ps_cluster.config.datasets import ImageDataSet


class Auto(ImageDataSet):
    """CIFAR-10 if it is available, else the generated set, with a notice that cannot be overlooked."""

    name = "auto"
    candidates_of = ("cifar10", "synthetic")
