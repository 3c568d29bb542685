"""CIFAR-100: photographs as in CIFAR-10, with 100 fine labels in 20 coarse ones (Krizhevsky 2009)."""

from ps_cluster.catalogue.datasets import Download
from ps_cluster.catalogue.examples import ExampleSpec, Field
from ps_cluster.data.cifar import BatchFile, Cifar


def _numbered(count: int) -> ExampleSpec:
    """Return the form of the examples, for a copy without the names of its classes."""
    return ExampleSpec(
        {"image": Field("uint8", (32, 32, 3))}, Field("uint8", ()), classes=tuple(str(label) for label in range(count))
    )


class Cifar100(Cifar):
    name = "cifar100"
    title = "CIFAR-100"
    folder = "cifar-100-python"
    archive = "cifar-100-python.tar.gz"
    wanted = f"{archive}, the folder {folder}"
    # As in Keras (datasets/cifar100.py, 3.15) and in torchvision (prototype/datasets/_builtin/cifar.py, 0b02d42); the size as
    # both print it when they download.
    downloads = (
        Download(
            f"https://www.cs.toronto.edu/~kriz/{archive}",
            "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
            169_001_437,
        ),
    )
    batches = (BatchFile("train", "train", 50_000), BatchFile("test", "test", 10_000))
    names_file = "meta"
    labels_key, names_key = "fine_labels", "fine_label_names"
    spec = _numbered(100)
    recipes = {"airbench": {"training": {"epochs": 6.5}}}


class Cifar100Coarse(Cifar100):
    name = "cifar100_coarse"
    title = "CIFAR-100 with coarse labels"
    labels_key, names_key = "coarse_labels", "coarse_label_names"
    spec = _numbered(20)


CIFAR100 = Cifar100()
CIFAR100_COARSE = Cifar100Coarse()
