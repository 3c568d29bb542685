"""The forms `hugging_face_images` and `hugging_face`: a folder that `save_to_disk` of the library `datasets` has written.

It holds Arrow streams, which are mapped. The library isn't needed to read them, and would open any path that they name.
"""

from __future__ import annotations

import io
import json
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from pydantic import BaseModel, Field

from ps_cluster.catalogue.datasets import NO_IMAGES, Contents, DataSet, DataSettings, ImageDataSet
from ps_cluster.catalogue.forms import Form
from ps_cluster.data import splits
from ps_cluster.data.column_types import Types, as_types, types_like
from ps_cluster.data.image_sets import PictureSettings, contents_of_pictures
from ps_cluster.data.pictures import Picture
from ps_cluster.data.table_files import BATCH_ROWS, arrow_errors
from ps_cluster.data.tables import TableSettings, contents_of_tables
from ps_cluster.errors import did_you_mean
from ps_cluster.files.json_files import read_json
from ps_cluster.files.malformed import Malformed
from ps_cluster.files.opening import open_regular, read_bytes

_TARGETS = ("label", "labels", "target")
_SPLITS = "dataset_dict.json"  # names the splits, a folder each
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
        train, target = found.rows["train"], found.target or "label"
        if target not in train.types:
            hint = did_you_mean(target, train.types).strip()
            known = f"{', '.join(train.types)}{f': {hint}' if hint else ''}"
            raise Malformed(f"data.target: there is no column '{target}', of {known}")
        names = _names_of(found, target)
        if names is None:
            in_order = sorted(set(train.values(target)), key=lambda label: (isinstance(label, str), label))
            names = [str(label) for label in in_order]  # 2 before 10
            label_of = {name: label for label, name in enumerate(names)}
        else:
            label_of = {str(label): label for label in range(len(names))}
        column = next((name for name, one in train.features.items() if one.get("_type") == "Image"), None)
        if column is None or column not in train.types:
            raise Malformed(f"there is no column of pictures, of {', '.join(train.types)}")
        pictures = {split: _labelled(split, rows, column, target, label_of) for split, rows in found.rows.items()}
        contents = contents_of_pictures(pictures, names, settings)
        return replace(contents, notes=(*found.notes, *contents.notes))


class HuggingFace(Form):
    name = "hugging_face"
    looks_for = "a folder that save_to_disk of Hugging Face's datasets has written"
    Settings: type[DataSettings] = TableSettings

    def recognises(self, path: Path) -> bool:
        return any(os.path.isfile(path / name) for name in (_SPLITS, "state.json"))

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

    def __init__(self, split: str, rows: _Rows, types: Types):
        self._rows, self._told = rows, f"the split '{split}'"
        self.columns = types_like(types, rows.types, self._told)

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        types = {name: self.columns[name] for name in columns}
        for batch in self._rows.table.select(list(columns)).to_batches(BATCH_ROWS):
            yield as_types(types, batch, self._told)


class _SplitNames(BaseModel):
    splits: list[str]


class _DataFile(BaseModel):
    filename: str


class _State(BaseModel):
    data_files: list[_DataFile] = Field(alias="_data_files", min_length=1)


class _Info(BaseModel):
    features: dict[str, Any]


@dataclass(frozen=True)
class _Rows:
    """The rows of a split. `features`: column → what the library knows of it. `table`: of pyarrow."""

    features: Mapping[str, Mapping[str, Any]]
    table: Any

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def types(self) -> Types:
        return {field.name: field.type for field in self.table.schema}

    def values(self, column: str) -> list[Any]:
        return list(self.table.column(column).to_pylist())

    def names(self, column: str) -> list[str] | None:
        """Return the names of the classes, where a column knows them."""
        names = self.features.get(column, {}).get("names")  # the library also writes a text: a class for each letter
        return [str(name) for name in names] if isinstance(names, list | str) else None


class _Found(NamedTuple):
    """The splits to read: "train" and perhaps "test". `target`: the column of labels; None if none is known."""

    rows: dict[str, _Rows]
    target: str | None
    notes: tuple[str, ...]


def _opened(path: Path, target: str | None) -> _Found:
    """Return the splits whose examples have labels. Raises Malformed if some of them have none."""
    if not os.path.isfile(path / _SPLITS):
        return _chosen({"train": _rows(path)}, target)
    names = read_json(path / _SPLITS, _SplitNames).splits
    return _chosen({name: _rows(_inside(path, name)) for name in names}, target)


def _rows(folder: Path) -> _Rows:
    """Return the rows of a split. Raises Malformed, or UserError, for files that are no such rows."""
    import pyarrow

    known = read_json(folder / "dataset_info.json", _Info).features
    features = {name: feature for name, feature in known.items() if isinstance(feature, dict)}
    tables = []
    for one in read_json(folder / "state.json", _State).data_files:
        with open_regular(_inside(folder, one.filename)) as file, arrow_errors(f"'{one.filename}'"):
            if not os.fstat(file.fileno()).st_size:
                raise Malformed(f"'{one.filename}' is empty")
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            table = pyarrow.ipc.open_stream(pyarrow.py_buffer(content)).read_all()
            table.validate(full=True)  # offsets that lead out of the file would be followed
            tables.append(table)
    with arrow_errors("it"):
        return _Rows(features, pyarrow.concat_tables(tables))


def _inside(folder: Path, name: str) -> Path:
    """Return the path of what a file names in its own folder. Raises Malformed if it names something elsewhere."""
    if name != os.path.basename(name) or name in ("", ".", ".."):
        raise Malformed(f"it names '{name:.100}', which is no name in the folder")
    return folder / name


def _chosen(found: Mapping[str, _Rows], target: str | None) -> _Found:
    there = found["train"].types if "train" in found else ()
    target = target or next((name for name in _TARGETS if name in there), None)
    unlabelled = {name: _unlabelled(rows, target) for name, rows in found.items()}
    which = splits.chosen(found, lambda name: unlabelled[name] < len(found[name]))
    used = {"train": "train"} | ({"test": which.test} if which.test else {})
    for name in used.values():
        splits.check_all_labelled(name, unlabelled[name], len(found[name]))
    return _Found({split: found[name] for split, name in used.items()}, target, which.notes)


def _unlabelled(rows: _Rows, target: str | None) -> int:
    """Return how many rows have no label. In a column without names of classes, -1 may be a label beside others."""
    if target is None or target not in rows.types:
        return 0
    labels = rows.values(target)
    without = sum(label is None or label == splits.NO_LABEL for label in labels)
    secret = rows.names(target) is not None or without == len(labels)
    return without if secret else sum(label is None for label in labels)


def _names_of(found: _Found, column: str | None) -> list[str] | None:
    """Return the names of the classes, where the column knows them."""
    return found.rows["train"].names(column) if column else None


def _types_of_columns(path: Path) -> set[str | None]:
    """Return the types of the columns, as the file beside them names them, without the library."""
    try:
        if os.path.isfile(path / _SPLITS):
            path = path / json.loads(read_bytes(path / _SPLITS, _MOST_JSON_BYTES))["splits"][0]
        features = json.loads(read_bytes(path / "dataset_info.json", _MOST_JSON_BYTES))["features"]
        return {feature.get("_type") for feature in features.values() if isinstance(feature, dict)}
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        return set()


def _labelled(
    split: str, rows: _Rows, column: str, target: str, label_of: Mapping[str, int]
) -> list[tuple[Picture, int]]:
    """Return the pictures of a split, undecoded, with their labels."""
    pictures, found = rows.table.column(column), []
    for place, label in enumerate(rows.values(target)):
        if str(label) not in label_of:
            raise Malformed(f"the {split} split has the class '{label}', which no training example has")
        found.append((Picture(f"{split}[{place}]", partial(_open, pictures, place)), label_of[str(label)]))
    return found


def _open(pictures: Any, place: int) -> BinaryIO:
    content = (pictures[place].as_py() or {}).get("bytes")
    if not isinstance(content, bytes):
        raise Malformed(
            "the folder has its path alone: save_to_disk of a newer version of datasets puts the picture in"
        )
    return io.BytesIO(content)


HUGGING_FACE_IMAGES = HuggingFaceImages()  # before the other, which takes all that is left
HUGGING_FACE = HuggingFace()
