"""MNIST: handwritten digits (LeCun et al. 1998, Gradient-Based Learning Applied to Document Recognition)."""

from ps_cluster.catalogue.datasets import Download
from ps_cluster.data.mnist_form import MnistForm


class Mnist(MnistForm):
    name = "mnist"
    title = "MNIST"
    archive = "mnist.npz"
    wanted = "mnist.npz, or a folder with the four files train-images-idx3-ubyte(.gz) and so on"
    # As in Keras (datasets/mnist.py, 3.15) and in stagedml/pylightnix (docs/demos/MNIST.py); the size as Keras
    # prints it when it downloads.
    downloads = (
        Download(
            "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz",
            "731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1",
            11_490_434,
        ),
    )
    recipe = {"data": {"augmentation": {"flip": "none"}}}  # a mirrored digit is none
    recipes = {"airbench": {"model": {"width": 0.25}, "training": {"epochs": 11.0}}}
    keras_archive = "mnist.npz"
    folders = ("mnist", "MNIST", "MNIST/raw")
    classes = tuple("0123456789")


MNIST = Mnist()
