"""Fashion-MNIST: pictures of clothes in the form of MNIST (Xiao et al. 2017, arXiv:1708.07747)."""

from ps_cluster.catalogue.datasets import Download
from ps_cluster.data.mnist_form import MnistForm

_FROM = "https://storage.googleapis.com/tensorflow/tf-keras-datasets"


class FashionMnist(MnistForm):
    name = "fashion_mnist"
    title = "Fashion-MNIST"
    archive = "the four files train-images-idx3-ubyte.gz and so on"
    wanted = "a folder with the four files train-images-idx3-ubyte(.gz) and so on"
    # As in torchvision (prototype/datasets/_builtin/mnist.py, 01c11a0) and in TensorFlow Datasets
    # (url_checksums/fashion_mnist.txt, 333639b).
    downloads = (
        Download(
            f"{_FROM}/train-images-idx3-ubyte.gz",
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            26_421_880,
        ),
        Download(
            f"{_FROM}/train-labels-idx1-ubyte.gz",
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            29_515,
        ),
        Download(
            f"{_FROM}/t10k-images-idx3-ubyte.gz",
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            4_422_102,
        ),
        Download(
            f"{_FROM}/t10k-labels-idx1-ubyte.gz",
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            5_148,
        ),
    )
    recipes = {"airbench": {"model": {"width": 0.5}, "training": {"epochs": 13.0}}}
    folders = ("fashion-mnist", "fashion_mnist", "FashionMNIST", "FashionMNIST/raw")
    classes = (
        "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
    )  # fmt: skip
    in_equal_parts = True


FASHION_MNIST = FashionMnist()
