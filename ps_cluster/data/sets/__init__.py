"""Define the data set `auto`.

Each other data set of the package has its own module, or shares one with data sets that are read in the same way.
"""

from __future__ import annotations

from ps_cluster.config.datasets import ImageDataSet, ImageSettings


class Auto(ImageDataSet[ImageSettings]):
    """The data set `auto`: CIFAR-10 if that is available, else the generated data set, with a notice that says so."""

    name = "auto"
    candidates_of = ("cifar10", "synthetic")
