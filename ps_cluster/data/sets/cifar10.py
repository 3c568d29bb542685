"""CIFAR-10: 60,000 photographs of 32x32 pixels in ten classes (Krizhevsky 2009, Learning Multiple Layers of Features)."""

from ps_cluster.catalogue.datasets import Download
from ps_cluster.catalogue.examples import ExampleSpec, Field
from ps_cluster.data.cifar import BatchFile, Cifar

# Mean and standard deviation of each channel of the training set, as published, in pixel units (0..255).
PIXEL_MEAN = (0.4914 * 255, 0.4822 * 255, 0.4465 * 255)
PIXEL_STD = (0.2470 * 255, 0.2435 * 255, 0.2616 * 255)
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SPEC = ExampleSpec({"image": Field("uint8", (32, 32, 3), PIXEL_MEAN, PIXEL_STD)}, Field("uint8", ()), classes=CLASSES)


class Cifar10(Cifar):
    name = "cifar10"
    title = "CIFAR-10"
    folder = "cifar-10-batches-py"
    archive = "cifar-10-python.tar.gz"
    wanted = f"{archive}, the folder {folder}"
    # As in Keras (datasets/cifar10.py, 3.15) and in torchvision (prototype/datasets/_builtin/cifar.py, 0b02d42); the size as
    # both print it when they download.
    downloads = (
        Download(
            f"https://www.cs.toronto.edu/~kriz/{archive}",
            "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
            170_498_071,
        ),
    )
    batches = (
        *(BatchFile(f"data_batch_{number}", "train", 10_000) for number in range(1, 6)),
        BatchFile("test_batch", "test", 10_000),
    )
    names_file = "batches.meta"
    spec = SPEC


CIFAR10 = Cifar10()
