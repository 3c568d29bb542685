"""Pack data that users bring as a path, in a cache of the test."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from ps_cluster.config.datasets import DATASETS
from ps_cluster.data import sources
from ps_cluster.data.packed import PackedDataset
from ps_cluster.errors import UserError


def packed(path: Path, **settings) -> tuple[PackedDataset, list[str]]:
    """Return the packed copy of the data at a path, and the lines for the user."""
    name, lines = DATASETS.allow_code_of(str(path), Path.cwd()), []
    chosen = DATASETS[name].Settings(dataset=name, **settings)
    cache = (path.parent if path.parent.is_dir() else path) / "cache"
    return sources.resolve(chosen, cache, notify=lines.append), lines


def refused(path: Path, **settings) -> str:
    """Return the message with which the data at a path is refused."""
    with pytest.raises(UserError) as error:
        packed(path, **settings)
    assert "\n" not in str(error.value) and not list(path.parent.glob("cache/**/dataset.json"))
    return str(error.value)


def save_hugging_face(path: Path, features: dict, *batches: pa.RecordBatch, files: int = 1, options=None) -> Path:
    """Write a folder like `save_to_disk` of Hugging Face's library. `features`: column → its description."""
    path.mkdir(parents=True)
    names = [f"data-{number}.arrow" for number in range(files)]
    for number, name in enumerate(names):
        with pa.ipc.new_stream(path / name, batches[0].schema, options=options) as stream:
            for batch in batches[number::files]:
                stream.write(batch)
    (path / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    (path / "dataset_info.json").write_text(json.dumps({"features": features}))
    return path


def draw(file: Path, size=(8, 6), colour=(200, 30, 30), **save) -> Path:
    """Write a picture of one colour; `size` is height and width."""
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.full((*size, len(colour)) if len(colour) > 1 else size, colour, np.uint8)
    Image.fromarray(pixels).save(file, **save)
    return file
