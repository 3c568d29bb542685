"""Create the directory of a run that has a best model, without training one."""

from pathlib import Path

import keras
import numpy as np

from ps_cluster.config import build_config
from ps_cluster.config.datasets import DATASETS, Contents
from ps_cluster.data.packed import PackedDataset, write_description, write_pointer
from ps_cluster.data.packing import write_packed
from ps_cluster.files.writing import write_whole
from ps_cluster.runs.run_dir import RunDir
from tests.helpers.own_data import packed

SHAPE, CLASSES = (12, 10, 3), ("ant", "bee", "cat")


def leave_run(root: Path, dataset: PackedDataset, model: keras.Model, name: str = "synthetic", **settings) -> RunDir:
    """Write the files that a training would leave. `name`: the name of the data set, as users give it."""
    run_dir = RunDir.create(root)
    named = DATASETS.allow_code_of(name, Path.cwd())
    write_whole(run_dir.config, build_config(None, {"data.dataset": named, **settings}).to_yaml())
    write_pointer(run_dir.dataset, dataset)
    write_description(run_dir.examples, dataset)
    run_dir.best.mkdir()
    model.save(run_dir.best_model)
    return run_dir


def pack_small_images(folder: Path, shape=SHAPE, count: int = 40) -> PackedDataset:
    """Pack images of noise, with the brightest channel as the class."""

    def split(seed: int) -> dict[str, np.ndarray]:
        draw = np.random.default_rng(seed)
        labels = draw.integers(0, len(CLASSES), count).astype(np.uint8)
        images = draw.integers(0, 200, (count, *shape), np.uint8)
        images[np.arange(count), ..., labels % shape[-1]] += 55
        return {"image": images, "target": labels}

    return write_packed(folder, "synthetic", "synthetic", Contents.of(split(0), split(1), classes=CLASSES))


def small_network(shape=SHAPE, outputs: int = len(CLASSES), dtype: str = "float32") -> keras.Model:
    """Return a network with random weights whose answer depends on the pixels."""
    keras.utils.set_random_seed(3)
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(shape, name="pixels"),
            layers.Rescaling(1 / 64, -2.0, dtype="float32"),
            layers.Conv2D(4, 3, activation="relu", dtype=dtype),
            layers.BatchNormalization(dtype=dtype),
            layers.GlobalAveragePooling2D(dtype=dtype),
            layers.Dense(outputs, kernel_initializer=keras.initializers.RandomNormal(stddev=3.0), dtype=dtype),
            layers.Activation("linear", dtype="float32", name="scores"),
        ]
    )


def leave_image_run(folder: Path, shape=SHAPE, dtype: str = "float32") -> RunDir:
    """Return the directory of a run on small images."""
    return leave_run(folder / "run", pack_small_images(folder / "packed", shape), small_network(shape, dtype=dtype))


TABLE = "size,city,price\n" + "".join(f"{row % 7}.5,{'Rome' if row % 3 else 'Oslo'},{row}.25\n" for row in range(40))


def leave_table_run(folder: Path) -> RunDir:
    """Return the directory of a run that predicts the prices of a table."""
    file = folder / "prices.csv"
    file.write_text(TABLE)
    dataset, _ = packed(file, target="price")
    return leave_run(folder / "run", dataset, table_network(), str(file), **{"data.target": "price"})


def table_network() -> keras.Model:
    """Return a network with the table's two inputs: ten times the standardised number, plus 100 times the code."""
    numbers, categories = keras.Input([1], name="numbers"), keras.Input([1], name="categories", dtype="int32")
    code = keras.layers.Embedding(3, 1, embeddings_initializer="zeros", name="codes")
    ten = keras.layers.Dense(1, use_bias=False, name="ten")
    output = keras.layers.Add()([ten(numbers), keras.layers.Flatten()(code(categories))])
    model = keras.Model({"numbers": numbers, "categories": categories}, output)
    code.set_weights([np.array([[0.0], [100.0], [200.0]], np.float32)])
    ten.set_weights([np.array([[10.0]], np.float32)])
    return model
