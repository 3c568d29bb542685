"""The forms `hugging_face_images` and `hugging_face`: a folder that `save_to_disk` of the library `datasets` has written."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import Field

from ps_cluster.catalogue.datasets import Contents, DataSet, DataSettings, ImageDataSet
from ps_cluster.catalogue.forms import Form
from ps_cluster.data.image_sets import PictureSettings, contents_of_pictures
from ps_cluster.data.pictures import Picture
from ps_cluster.data.tables import TableSettings, contents_of_tables
from ps_cluster.errors import UserError
from ps_cluster.files.malformed import Malformed
from ps_cluster.files.opening import read_bytes

_TESTS = ("test", "validation", "valid", "val")
_TARGETS = ("label", "labels", "target")
_MOST_JSON_BYTES = 2**24


class HuggingFaceImageSettings(PictureSettings):
    target: str | None = Field(default=None, description="The column of classes; null: label.")


class HuggingFaceAt(DataSet):
    """The columns of numbers and names of a folder."""

    Settings: type[DataSettings] = TableSettings

    def __init__(self, path: Path):
        self.path: Path = path

    def read(self, source: Path | None, settings: DataSettings) -> Contents:
        assert isinstance(settings, TableSettings)
        tables = {split: _ArrowTable(rows) for split, rows in _opened(self.path).items()}
        if settings.target is None:
            columns = tables["train"].columns
            settings = settings.model_copy(update={"target": next((one for one in _TARGETS if one in columns), None)})
        contents = contents_of_tables(tables, settings)
        names = tables["train"].names_of(settings.target)
        classes = tuple(names[int(label)] for label in contents.spec.classes) if names else contents.spec.classes
        return replace(contents, spec=replace(contents.spec, classes=classes))


class HuggingFaceImagesAt(ImageDataSet):
    """The pictures of a folder."""

    Settings = HuggingFaceImageSettings

    def __init__(self, path: Path):
        self.path: Path = path

    def read(self, source: Path | None, settings: DataSettings) -> Contents:
        assert isinstance(settings, HuggingFaceImageSettings)
        splits = _opened(self.path)
        column = _image_column(splits["train"].features)
        target = settings.target or next((name for name in _TARGETS if name in splits["train"].features), "label")
        if target not in splits["train"].features:
            raise Malformed(f"data.target: there is no column '{target}', of {', '.join(splits['train'].features)}")
        names = getattr(splits["train"].features[target], "names", None)
        if names is None:
            found = set(splits["train"][target])
            in_order = sorted(found, key=lambda label: (isinstance(label, str), label))  # 2 before 10
            names = [str(label) for label in in_order]
            label_of = {name: label for label, name in enumerate(names)}
        else:
            label_of = {str(label): label for label in range(len(names))}
        return contents_of_pictures(
            {split: _labelled(split, rows, column, target, label_of) for split, rows in splits.items()}, names, settings
        )


class HuggingFace(Form):
    name = "hugging_face"
    looks_for = "a folder that save_to_disk of Hugging Face's datasets has written"
    Settings: type[DataSettings] = TableSettings

    def recognises(self, path: Path) -> bool:
        return any(os.path.isfile(path / name) for name in ("dataset_dict.json", "state.json"))

    def dataset(self, path: Path) -> DataSet:
        return HuggingFaceAt(path)


class HuggingFaceImages(HuggingFace):
    name = "hugging_face_images"
    looks_for = "such a folder with a column of pictures"
    Settings = HuggingFaceImageSettings

    def recognises(self, path: Path) -> bool:
        return super().recognises(path) and "Image" in _types_of_columns(path)

    def dataset(self, path: Path) -> DataSet:
        return HuggingFaceImagesAt(path)


class _ArrowTable:
    """A split, as pyarrow's batches."""

    def __init__(self, rows: Any):
        self._rows = rows
        self.columns: dict[str, Any] = {field.name: field.type for field in rows.features.arrow_schema}

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        for table in self._rows.select_columns(list(columns)).with_format("arrow").iter(2**16):
            yield from table.select(list(columns)).combine_chunks().to_batches()

    def names_of(self, column: str | None) -> list[str] | None:
        """Return the names of the classes, where the column knows them."""
        return getattr(self._rows.features.get(column), "names", None)


def _opened(path: Path) -> dict[str, Any]:
    """Return the splits "train" and perhaps "test"."""
    try:
        import datasets
    except ImportError as error:
        raise UserError(
            f"dataset: '{path}' is a folder of Hugging Face's datasets, which is not installed: "
            'pip install "ps-cluster[huggingface]"'
        ) from error
    found = datasets.load_from_disk(str(path))
    if not isinstance(found, Mapping):
        return {"train": found}
    if "train" not in found:
        raise Malformed(f"there is no split 'train', of {', '.join(found)}")
    tests = [found[name] for name in _TESTS if name in found]
    return {"train": found["train"]} | {"test": one for one in tests[:1]}


def _types_of_columns(path: Path) -> set[str | None]:
    """Return the types of the columns, as the file beside them names them, without the library."""
    try:
        if os.path.isfile(path / "dataset_dict.json"):
            path = path / json.loads(read_bytes(path / "dataset_dict.json", _MOST_JSON_BYTES))["splits"][0]
        features = json.loads(read_bytes(path / "dataset_info.json", _MOST_JSON_BYTES))["features"]
        return {feature.get("_type") for feature in features.values() if isinstance(feature, dict)}
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        return set()


def _image_column(features: Mapping[str, Any]) -> str:
    return next(name for name, feature in features.items() if type(feature).__name__ == "Image")


def _labelled(
    split: str, rows: Any, column: str, target: str, label_of: Mapping[str, int]
) -> list[tuple[Picture, int]]:
    """Return the pictures of a split, undecoded, with their labels."""
    import datasets

    undecoded = rows.cast_column(column, datasets.Image(decode=False))
    found = []
    for place, label in enumerate(rows[target]):
        if str(label) not in label_of:
            raise Malformed(f"the {split} split has the class '{label}', which no training example has")
        found.append((Picture(f"{split}[{place}]", partial(_open, undecoded, place, column)), label_of[str(label)]))
    return found


def _open(rows: Any, place: int, column: str) -> BinaryIO:
    picture = rows[place][column]
    return io.BytesIO(picture["bytes"]) if picture["bytes"] is not None else Path(picture["path"]).open("rb")


HUGGING_FACE_IMAGES = HuggingFaceImages()  # before the other, which takes all that is left
HUGGING_FACE = HuggingFace()
