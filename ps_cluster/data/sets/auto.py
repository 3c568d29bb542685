"""The data set `auto`: CIFAR-10 if it can be had, else the generated set, with a notice that nobody can miss."""

from ps_cluster.catalogue.datasets import ImageDataSet


class Auto(ImageDataSet):
    name = "auto"
    candidates_of = ("cifar10", "synthetic")


AUTO = Auto()
