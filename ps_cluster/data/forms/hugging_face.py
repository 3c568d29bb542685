"""The forms `hugging_face_images` and `hugging_face`: a folder that `save_to_disk` of the library `datasets` has written."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from pydantic import Field

from ps_cluster.catalogue.datasets import NO_IMAGES, Contents, DataSet, DataSettings, ImageDataSet
from ps_cluster.catalogue.forms import Form
from ps_cluster.data import splits
from ps_cluster.data.column_types import Types, as_types, types_like
from ps_cluster.data.image_sets import PictureSettings, contents_of_pictures
from ps_cluster.data.pictures import Picture
from ps_cluster.data.tables import TableSettings, contents_of_tables
from ps_cluster.errors import UserError, did_you_mean
from ps_cluster.files.malformed import Malformed
from ps_cluster.files.opening import read_bytes
from ps_cluster.installation import to_install

_TARGETS = ("label", "labels", "target")
_MOST_JSON_BYTES = 2**24


class HuggingFaceImageSettings(PictureSettings):
    target: str | None = Field(default=None, description="The column of classes; null: label.")


class HuggingFaceAt(DataSet):
    """The columns of numbers and names of a folder."""

    Settings: type[DataSettings] = TableSettings
    recipe = NO_IMAGES

    def __init__(self, path: Path):
        self.path: Path = path

    def read(self, source: Path | None, settings: DataSettings) -> Contents:
        assert isinstance(settings, TableSettings)
        found = _opened(self.path, settings.target)
        names = _names_of(found, found.target)
        objective = "classification" if names and settings.objective == "auto" else settings.objective
        train = _ArrowTable("train", found.rows["train"], {})
        others = {
            split: _ArrowTable(split, rows, train.columns) for split, rows in found.rows.items() if split != "train"
        }
        chosen = settings.model_copy(update={"target": found.target, "objective": objective})
        contents = contents_of_tables({"train": train} | others, chosen)
        classes = tuple(names[int(label)] for label in contents.spec.classes) if names else contents.spec.classes
        spec = replace(contents.spec, classes=classes)
        return replace(contents, spec=spec, notes=(*found.notes, *contents.notes))


class HuggingFaceImagesAt(ImageDataSet):
    """The pictures of a folder."""

    Settings = HuggingFaceImageSettings

    def __init__(self, path: Path):
        self.path: Path = path

    def read(self, source: Path | None, settings: DataSettings) -> Contents:
        assert isinstance(settings, HuggingFaceImageSettings)
        found = _opened(self.path, settings.target)
        features, target = found.rows["train"].features, found.target or "label"
        if target not in features:
            hint = did_you_mean(target, features).strip()
            known = f"{', '.join(features)}{f': {hint}' if hint else ''}"
            raise Malformed(f"data.target: there is no column '{target}', of {known}")
        names = _names_of(found, target)
        if names is None:
            in_order = sorted(set(found.rows["train"][target]), key=lambda label: (isinstance(label, str), label))
            names = [str(label) for label in in_order]  # 2 before 10
            label_of = {name: label for label, name in enumerate(names)}
        else:
            label_of = {str(label): label for label in range(len(names))}
        column = _image_column(features)
        pictures = {split: _labelled(split, rows, column, target, label_of) for split, rows in found.rows.items()}
        contents = contents_of_pictures(pictures, names, settings)
        return replace(contents, notes=(*found.notes, *contents.notes))


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
    """A split, as pyarrow's batches. `types`: those of columns that are known."""

    def __init__(self, split: str, rows: Any, types: Types):
        self._rows, self._told = rows, f"the split '{split}'"
        self.columns = types_like(types, {field.name: field.type for field in rows.features.arrow_schema}, self._told)

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        types = {name: self.columns[name] for name in columns}
        for table in self._rows.select_columns(list(columns)).with_format("arrow").iter(2**16):
            for batch in table.combine_chunks().to_batches():
                yield as_types(types, batch, self._told)


class _Found(NamedTuple):
    """The splits to read: "train" and perhaps "test". `target`: the column of labels; None if none is known."""

    rows: dict[str, Any]
    target: str | None
    notes: tuple[str, ...]


def _opened(path: Path, target: str | None) -> _Found:
    """Return the splits whose examples have labels. Raises Malformed if some of them have none."""
    try:
        import datasets
    except ImportError as error:
        raise UserError(
            f"dataset: '{path}' is a folder of Hugging Face's datasets, which is not installed: "
            f"{to_install('huggingface')}"
        ) from error
    found = datasets.load_from_disk(str(path))
    return _chosen(found if isinstance(found, Mapping) else {"train": found}, target)


def _chosen(found: Mapping[str, Any], target: str | None) -> _Found:
    there = found["train"].features if "train" in found else ()
    target = target or next((name for name in _TARGETS if name in there), None)
    unlabelled = {name: _unlabelled(rows, target) for name, rows in found.items()}
    which = splits.chosen(found, lambda name: unlabelled[name] < len(found[name]))
    used = {"train": "train"} | ({"test": which.test} if which.test else {})
    for name in used.values():
        splits.check_all_labelled(name, unlabelled[name], len(found[name]))
    return _Found({split: found[name] for split, name in used.items()}, target, which.notes)


def _unlabelled(rows: Any, target: str | None) -> int:
    """Return how many rows have no label. In a column without names of classes, -1 may be a label beside others."""
    if target not in rows.features:
        return 0
    labels = rows.select_columns([target]).with_format("arrow")[:].column(target).to_pylist()
    without = sum(label is None or label == splits.NO_LABEL for label in labels)
    secret = getattr(rows.features[target], "names", None) is not None or without == len(labels)
    return without if secret else sum(label is None for label in labels)


def _names_of(found: _Found, column: str | None) -> list[str] | None:
    """Return the names of the classes, where the column knows them."""
    return getattr(found.rows["train"].features.get(column), "names", None)


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
