"""The data sets of the package: what they are called, where their files are looked for, and the generated one.

What reads files is imported only where a set is read: `archives.py`.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ps_cluster.config.datasets import (
    NO_IMAGES,
    Contents,
    DataSet,
    DataSettings,
    Download,
    ImageDataSet,
    OwnDataSettings,
    OwnImageSettings,
)
from ps_cluster.config.objectives import ExampleSpec, Field
from ps_cluster.data import texts


class Auto(ImageDataSet):
    """CIFAR-10 if it can be had, else the generated set, with a notice that nobody can miss."""

    name = "auto"
    candidates_of = ("cifar10", "synthetic")


# CIFAR-10 and CIFAR-100 as people have them on disk: the official python archive, or the folder inside it.


class BatchFile(NamedTuple):
    """A file of images."""

    name: str
    split: str
    rows: int


class Cifar(ImageDataSet):
    """One of the two sets.

    Attributes:
      folder: the name of the folder in the archive.
      batches: its files of images, in order. names_file: the one with the names of the classes.
      labels_key, names_key: the keys of labels and names in their pickles.
      spec: the form of the examples, and names for a copy without the names of the classes.
    """

    folder = ""
    batches: tuple[BatchFile, ...] = ()
    names_file = ""
    labels_key, names_key = "labels", "label_names"
    spec: ExampleSpec

    def candidates(self, place: Path) -> Iterator[Path]:
        """Yield every folder of batches and every archive that `place` is or contains, best first. Opens nothing."""
        if os.path.isfile(place):  # not Path.is_file, which raises for an unreadable folder
            yield place
            return
        # Keras unpacks into a folder of its own, and has renamed the archive twice.
        for name in (".", self.folder, f"{self.folder}-target/{self.folder}"):
            if any(os.path.isfile(place / name / batch.name) for batch in self.batches):
                yield place / name
        for name in dict.fromkeys((self.archive, f"{self.folder}.tar.gz", f"{self.folder}-target_archive")):
            if os.path.isfile(place / name):
                yield place / name

    def read(self, source: Path | None, settings: DataSettings) -> Contents:
        """Read an archive or a folder: images uint8 [N, 32, 32, 3] and labels uint8 [N], in the order of the batches.

        Raises:
          NotThisDataSet: damaged, truncated, incomplete, of another shape, or a pickle that asks for more than plain data.
        """
        from ps_cluster.data.archives import read_cifar

        assert source is not None  # it is always read from files
        return read_cifar(self, source)


# CIFAR-10: 60,000 photographs of 32x32 pixels in ten classes (Krizhevsky 2009, Learning Multiple Layers of Features).

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


# CIFAR-100: photographs as in CIFAR-10, with 100 fine labels in 20 coarse ones (Krizhevsky 2009).


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
    recipes = {"airbench": {"training": {"epochs": 6.5}, "schedule": {"image_scales": []}}}


class Cifar100Coarse(Cifar100):
    name = "cifar100_coarse"
    title = "CIFAR-100 with coarse labels"
    labels_key, names_key = "coarse_labels", "coarse_label_names"
    spec = _numbered(20)


# The form of MNIST: 70,000 grey images of 28x28 pixels, as four IDX files or as Keras's archive.

MNIST_ROWS = {"train": 60_000, "test": 10_000}
IDX_BEGINNING = {"train": "train", "test": "t10k"}  # the beginning of a file's name


class MnistForm(ImageDataSet):
    """A set in the form of MNIST.

    Attributes:
      keras_archive: the name of Keras's archive of it; "" if there is none.
      folders: where its IDX files may be in a folder with several data sets.
      classes: names of the ten classes.
      in_equal_parts: whether each class has equally many images. That tells sets of one form apart.
    """

    keras_archive = ""
    folders: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    in_equal_parts = False

    def candidates(self, place: Path) -> Iterator[Path]:
        """Yield every archive and every folder of IDX files that `place` is or contains, best first. Opens nothing."""
        if os.path.isfile(place):
            yield place
            return
        if self.keras_archive and os.path.isfile(place / self.keras_archive):
            yield place / self.keras_archive
        for name in (".", *self.folders):
            if any(idx_file(place / name, split, "images", 3) for split in MNIST_ROWS):
                yield place / name

    def read(self, source: Path | None, settings: DataSettings) -> Contents:
        """Read the four IDX files of a folder, or Keras's archive: images uint8 [N, 28, 28, 1] and labels uint8 [N].

        Raises:
          NotThisDataSet: damaged, incomplete, or another set.
        """
        from ps_cluster.data.archives import read_mnist

        assert source is not None  # it is always read from files
        return read_mnist(self, source)


def idx_file(folder: Path, split: str, what: str, dimensions: int) -> Path | None:
    """Return the file by any of the names that it is known by; None without one."""
    stem = f"{IDX_BEGINNING[split]}-{what}"
    names = (f"{stem}-idx{dimensions}-ubyte", f"{stem}.idx{dimensions}-ubyte")
    files = (folder / f"{name}{end}" for name in names for end in (".gz", ""))
    return next((file for file in files if os.path.isfile(file)), None)


# Fashion-MNIST: pictures of clothes in the form of MNIST (Xiao et al. 2017, arXiv:1708.07747).

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
    recipes = {"airbench": {"model": {"width": 0.5}, "training": {"epochs": 13.0}, "schedule": {"image_scales": []}}}
    folders = ("fashion-mnist", "fashion_mnist", "FashionMNIST", "FashionMNIST/raw")
    classes = (
        "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
    )  # fmt: skip
    in_equal_parts = True


# MNIST: handwritten digits (LeCun et al. 1998, Gradient-Based Learning Applied to Document Recognition).


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
    recipes = {"airbench": {"model": {"width": 0.25}, "training": {"epochs": 11.0}, "schedule": {"image_scales": []}}}
    keras_archive = "mnist.npz"
    folders = ("mnist", "MNIST", "MNIST/raw")
    classes = tuple("0123456789")


# Text that is on every machine that runs this.


class PythonSource(DataSet):
    """The source of the standard library of the Python that runs this, without its tests."""

    name = "python_source"
    title = "the source of Python's standard library"
    Settings = texts.TextSettings
    recipe = texts.RECIPE

    def read(self, source: Path | None, settings: DataSettings) -> Contents:
        """Return its windows; the notes have the digest of what was found."""
        assert isinstance(settings, texts.TextSettings)
        files = texts.read_texts(*texts.library())
        found = f"{len(files):,} files of Python {platform.python_version()}, SHA-256 {texts.digest(files)[:16]}"
        return texts.contents_of_texts(files, settings, (found,))

    def own_settings(self, settings: DataSettings) -> dict[str, Any]:
        """Return the settings, and what was found: another Python has another library, which is packed by itself."""
        folder, paths = texts.library()
        listed = "".join(f"{path.relative_to(folder)}\0{path.stat().st_size}\n" for path in paths)
        return super().own_settings(settings) | {"library": hashlib.sha256(listed.encode()).hexdigest()}


# Arrays that were given to the Python API, in a folder that it has packed (`api/sent.py`).
#
# Nobody chooses them by their name: it is how the processes of a run open the folder that the settings name.


class PackedArrays(DataSet):
    name = "packed_arrays"
    title = "arrays of your own"
    wanted = "a folder that ps_cluster.train has packed"
    offered = False
    Settings = OwnDataSettings
    recipe = NO_IMAGES


class PackedImages(ImageDataSet):
    """Images in arrays. They are not varied at random unless it is asked for: a mirrored picture may be another."""

    name = "packed_images"
    title = "images of your own"
    wanted = PackedArrays.wanted
    offered = False
    Settings = OwnImageSettings
    recipe = {"data": {"augmentation": {"crop_padding_pixels": 0, "flip": "none"}}}


# Generate a stand-in for CIFAR-10: blends of ten shapes, which a convolutional network can tell but no linear model.
#
# Every image shows one shape at a random place, size and rotation, in a random colour on a random background, under
# clutter that has nothing to do with the label. Shape and background colours have the same distribution in every class,
# so the mean of every pixel is the same for all classes: only relations between pixels tell them apart.
#
# The shape is a blend of two: its outline is where a weighted mean of the distances to both classes' outlines is 0. The
# class with the larger weight is the label. The smaller weight is uniform from `LEAST_OF_ANOTHER` to one half, so classes
# meet without a gap, and the error of a network measures how finely it tells them apart. There is always something left
# to learn, so training that goes wrong shows. No label is wrong: except where clutter and noise hide a shape, an accuracy
# of 100 % is possible. The default run ends near 90 %; a linear model of the pixels is below 20 %.

TRAIN_EXAMPLES = 20_000
TEST_EXAMPLES = 4_000

# Least weight of the other class in a blend. At the largest weight, 0.5, nothing tells which of the two is the label,
# so a larger least weight puts more images close to that: this one number sets how hard the set is.
LEAST_OF_ANOTHER = 0.2

_SIDE = 32
_CHUNK = 500  # images rendered at once, few enough for the float arrays to stay in the CPU's cache


def _cross(u: np.ndarray, v: np.ndarray, r: np.ndarray) -> np.ndarray:
    across, along = np.abs(u), np.abs(v)
    distance: np.ndarray = np.maximum(np.maximum(across, along) - 1, np.minimum(across, along) - 0.28)
    return distance


# Distance of a point from the shape (negative: inside), in units of the shape's radius. (u, v) is the point's place
# relative to the shape's centre, and r its distance from it.
_SHAPES: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]] = {
    "disk": lambda u, v, r: r - 0.95,
    "ring": lambda u, v, r: np.abs(r - 0.75) - 0.22,
    "square": lambda u, v, r: np.maximum(np.abs(u), np.abs(v)) - 0.8,
    "frame": lambda u, v, r: np.abs(np.maximum(np.abs(u), np.abs(v)) - 0.65) - 0.2,
    "triangle": lambda u, v, r: np.maximum(-v, 0.866 * np.abs(u) + 0.5 * v) - 0.55,
    "cross": _cross,
    "crescent": lambda u, v, r: np.maximum(r - 1, 0.8 - np.hypot(u - 0.5, v)),
    "stripes": lambda u, v, r: np.maximum(r - 1, np.sin(7.5 * u) / 7.5),
    "checks": lambda u, v, r: np.maximum(r - 1, np.sin(5.5 * u) * np.sin(5.5 * v) / 5.5),
    "star": lambda u, v, r: r - 0.68 - 0.32 * np.cos(5 * np.arctan2(v, u)),
}

SYNTHETIC_CLASSES = tuple(_SHAPES)
# It stands in for CIFAR-10, so networks normalise it alike.
SYNTHETIC_SPEC = ExampleSpec(SPEC.inputs, SPEC.target, classes=SYNTHETIC_CLASSES)


def generate(train_examples: int = TRAIN_EXAMPLES, test_examples: int = TEST_EXAMPLES, seed: int = 0) -> Contents:
    """Return the whole set. Equal arguments give an equal set (on one version of numpy).

    Returns:
        Images uint8 [N, 32, 32, 3] and labels uint8 [N] in 0..9. Classes are equally frequent (to within one image) and
        shuffled.
    """
    train_rng, test_rng = (np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(2))
    train, test = _split(train_examples, train_rng), _split(test_examples, test_rng)
    return Contents(SYNTHETIC_SPEC, {"train": train, "test": test})


def _split(examples: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    labels = rng.permutation(np.arange(examples) % len(SYNTHETIC_CLASSES)).astype(np.uint8)
    images = np.empty((examples, _SIDE, _SIDE, 3), np.uint8)
    for start in range(0, examples, _CHUNK):
        chunk = slice(start, start + _CHUNK)
        images[chunk] = _render(labels[chunk], rng)
    return {"image": images, "target": labels}


def _render(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return images uint8 [B, 32, 32, 3] of labels uint8 [B]."""
    count = len(labels)
    back = _uniform(rng, 0, 256, (count, 1, 1, 3))
    # At least 80 of 256 from the background in every channel, and still uniform over 0..255.
    colour = (back + _uniform(rng, 80, 176, (count, 1, 1, 3))) % 256
    # Uneven light: the same in squares of 8x8 pixels.
    images = back + _uniform(rng, -24, 24, (count, 4, 4, 3)).repeat(8, axis=1).repeat(8, axis=2)
    images += _coverage(labels, rng)[..., None] * (colour - images)
    images = np.where(_patch(count, rng)[..., None], _uniform(rng, 0, 256, (count, 1, 1, 3)), images)
    images += 12 * rng.standard_normal(images.shape, np.float32)
    return np.clip(images, 0, 255).astype(np.uint8)


def _coverage(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the share of each pixel that its shape covers: float32 [B, 32, 32] in 0..1, from labels uint8 [B]."""
    one_each = (len(labels), 1, 1)
    radius = _uniform(rng, 7, 12, one_each)
    angle = _uniform(rng, 0, 2 * np.pi, one_each)
    rows, columns = np.mgrid[:_SIDE, :_SIDE].astype(np.float32)
    y = (rows - _uniform(rng, 11, 21, one_each)) / radius
    x = (columns - _uniform(rng, 11, 21, one_each)) / radius
    u = x * np.cos(angle) - y * np.sin(angle)
    v = x * np.sin(angle) + y * np.cos(angle)
    others = (labels + rng.integers(1, len(SYNTHETIC_CLASSES), len(labels))) % len(SYNTHETIC_CLASSES)
    part = _uniform(rng, LEAST_OF_ANOTHER, 0.5, one_each)
    inside: np.ndarray = np.clip(0.5 - _blend(labels, others, part, u, v) * radius, 0, 1)
    return inside


def _blend(labels: np.ndarray, others: np.ndarray, part: np.ndarray, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return the distance to an outline between those of two classes. `part`: float32 [B, 1, 1], weight of `others`."""
    distance: np.ndarray = (1 - part) * _outside(labels, u, v) + part * _outside(others, u, v)
    return distance


def _outside(labels: np.ndarray, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return the distance of each point (u, v) to its image's shape: float32 [B, 32, 32], in units of the radius."""
    outside = np.empty_like(u)
    for label, distance in enumerate(_SHAPES.values()):
        mine = labels == label
        outside[mine] = distance(u[mine], v[mine], np.hypot(u[mine], v[mine]))
    return outside


def _patch(count: int, rng: np.random.Generator) -> np.ndarray:
    """Return a rectangle that hides part of each image: bool [count, 32, 32]."""
    top, left = rng.integers(0, _SIDE - 4, (2, count, 1))
    height, width = rng.integers(4, 13, (2, count, 1))
    line = np.arange(_SIDE)
    rows = (line >= top) & (line < top + height)
    columns = (line >= left) & (line < left + width)
    hidden: np.ndarray = rows[:, :, None] & columns[:, None, :]
    return hidden


def _uniform(rng: np.random.Generator, low: float, high: float, shape: tuple[int, ...]) -> np.ndarray:
    return rng.uniform(low, high, shape).astype(np.float32)


class Synthetic(ImageDataSet):
    name = "synthetic"
    title = "the generated set"
    generated = True
    version = 2

    def read(self, source: Path | None, settings: DataSettings) -> Contents:
        return generate()
