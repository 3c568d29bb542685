"""Fashion-MNIST: pictures of clothes in the form of MNIST (Xiao et al. 2017, arXiv:1708.07747)."""

from ps_cluster.catalogue.datasets import Download
from ps_cluster.data.mnist_form import MnistForm

_FROM = "https://storage.googleapis.com/tensorflow/tf-keras-datasets"


class FashionMnist(MnistForm):
    name = "fashion_mnist"
    title = "Fashion-MNIST"
    archive = "the four files train-images-idx3-ubyte.gz and so on"
    wanted = "a folder with the four files train-images-idx3-ubyte(.gz) and so on"
    downloads = (
        Download(
            f"{_FROM}/train-images-idx3-ubyte.gz", "08dc20ab1689590a0bcd66e874647b6ee8464e2d501b5a3f1f78831db19a3fdc"
        ),
        Download(
            f"{_FROM}/train-labels-idx1-ubyte.gz", "b0197879cbda89f3dc7b894f9fd52b858e68ea4182b6947c9d8c2b67e5f18dcc"
        ),
        Download(
            f"{_FROM}/t10k-images-idx3-ubyte.gz", "78dcbbfb5a27efaf1b6c1d616caca68560be8766c5bffcb2791df9273a534229"
        ),
        Download(
            f"{_FROM}/t10k-labels-idx1-ubyte.gz", "42bd18137a62d5998cdeae52bf3a0676ac6b706f5cf8439b47bb5b151ae3dccf"
        ),
    )
    recipes = {"airbench": {"model": {"width": 0.5}, "training": {"epochs": 13.0}}}
    folders = ("fashion-mnist", "fashion_mnist", "FashionMNIST", "FashionMNIST/raw")
    classes = (
        "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
    )  # fmt: skip
    in_equal_parts = True


FASHION_MNIST = FashionMnist()
