"""Read the data formats `hugging_face` and `hugging_face_images`: folders that `save_to_disk` of `datasets` wrote.

The folder holds Arrow streams, which this module memory-maps. It does not use the library `datasets` to read them,
because the library would open any path that the folder's files name.
"""

from __future__ import annotations

import io
import mmap
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from pydantic import BaseModel, Field

from ps_cluster.config.datasets import Contents, ImageDataSet, OwnSettings
from ps_cluster.data import splits
from ps_cluster.data.arrow import Column, RecordBatch, Table, pyarrow
from ps_cluster.data.formats import PathFormat
from ps_cluster.data.picture_sets import PictureSettings, contents_of_pictures
from ps_cluster.data.pictures import Picture
from ps_cluster.data.table_files import BATCH_ROWS, ArrowTable, Types, arrow_errors
from ps_cluster.data.table_sets import TableSettings, contents_of_tables
from ps_cluster.errors import UserError, did_you_mean
from ps_cluster.files.json_files import read_json
from ps_cluster.files.reading import open_regular
from ps_cluster.files.values import Malformed

_TARGET_COLUMNS = ("label", "labels", "target")
_SPLITS_FILE = "dataset_dict.json"  # names the splits, which have a folder each


class HuggingFaceImageSettings(PictureSettings):
    target: str | None = Field(
        default=None, description="The column with the classes. null: the column 'label', else 'labels', else 'target'."
    )


class HuggingFaceFormat(PathFormat[OwnSettings]):
    """A folder that `save_to_disk` of Hugging Face's library `datasets` has written.

    The subclass `HuggingFaceImages` reads a folder that has a column of pictures, and `HuggingFace` any other one.
    """

    def recognises(self, path: Path) -> bool:
        is_one = any(os.path.isfile(path / name) for name in (_SPLITS_FILE, "state.json"))
        return is_one and isinstance(self, ImageDataSet) == ("Image" in _types_of_columns(path))


class HuggingFace(HuggingFaceFormat[TableSettings]):
    name = "hugging_face"
    version = 3
    looks_for = "a folder that save_to_disk of Hugging Face's datasets has written"
    Settings = TableSettings

    def read(self, source: Path | None, settings: TableSettings) -> Contents:
        """Return the contents of the folder, which is read as a table of numbers, categories and texts."""
        found = _open_splits(self.path, settings.target)
        names = found.rows["train"].names(found.target)
        objective = "classification" if names and settings.objective == "auto" else settings.objective
        tables: dict[str, ArrowTable] = {}
        for split, rows in found.rows.items():  # the first split is "train"
            wanted = tables["train"].columns if tables else {}
            tables[split] = ArrowTable(rows.types, wanted, f"the split '{split}'", rows.batches)
        chosen = settings.model_copy(update={"target": found.target, "objective": objective})
        contents = contents_of_tables(tables, chosen)
        spec = contents.spec
        if names:
            name_of = {str(label): name for label, name in enumerate(names)}
            if unnamed := [label for label in spec.classes if label not in name_of]:
                raise Malformed(
                    f"the column '{found.target}' contains the label '{unnamed[0]}', but has names only for the "
                    f"labels 0 to {len(names) - 1}: correct the names or the labels"
                )
            spec = replace(spec, classes=tuple(name_of[label] for label in spec.classes))
        return replace(contents, spec=spec, notes=(*found.notes, *contents.notes))


class HuggingFaceImages(HuggingFaceFormat[HuggingFaceImageSettings], ImageDataSet[HuggingFaceImageSettings]):
    name = "hugging_face_images"
    looks_for = "the same folder as for 'hugging_face', if it has a column of pictures"
    Settings = HuggingFaceImageSettings
    recipe = ImageDataSet.recipe

    def read(self, source: Path | None, settings: HuggingFaceImageSettings) -> Contents:
        """Return the contents of the folder: pictures and their classes."""
        found = _open_splits(self.path, settings.target)
        train, target = found.rows["train"], found.target or "label"
        if target not in train.types:
            hint = did_you_mean(target, train.types).strip()
            known = f"{', '.join(train.types)}{f': {hint}' if hint else ''}"
            raise Malformed(f"data.target: there is no column '{target}' among {known}")
        names = train.names(target)
        if names is None:
            in_order = sorted(set(train.values(target)), key=lambda label: (isinstance(label, str), label))
            names = [str(label) for label in in_order]  # numbers are sorted as numbers: 2 comes before 10
            label_of = {name: label for label, name in enumerate(names)}
        else:
            label_of = {str(label): label for label in range(len(names))}
        column = next((name for name, one in train.features.items() if one.get("_type") == "Image"), None)
        if column is None or column not in train.types:
            raise Malformed(f"there is no column of pictures among {', '.join(train.types)}")
        pictures = {
            split: _labelled_pictures(split, rows, column, target, label_of) for split, rows in found.rows.items()
        }
        contents = contents_of_pictures(pictures, names, settings)
        return replace(contents, notes=(*found.notes, *contents.notes))


class _SplitNames(BaseModel):
    splits: list[str]


class _DataFile(BaseModel):
    filename: str


class _State(BaseModel):
    data_files: list[_DataFile] = Field(alias="_data_files", min_length=1)


class _Info(BaseModel):
    features: dict[str, object]


@dataclass(frozen=True)
class _SplitRows:
    """The rows of a split."""

    features: Mapping[str, Mapping[str, object]]  # column → its description by the library
    table: Table

    def __len__(self) -> int:
        return self.table.num_rows

    @property
    def types(self) -> Types:
        return {field.name: field.type for field in self.table.schema}

    def batches(self, columns: list[str]) -> Iterator[RecordBatch]:
        return iter(self.table.select(columns).to_batches(BATCH_ROWS))

    def values(self, column: str) -> list[Any]:
        return self.table.column(column).to_pylist()

    def names(self, column: str | None) -> list[str] | None:
        """Return the names of the classes of a column; None if `datasets` has stored no names for it."""
        names = self.features.get(column or "", {}).get("names")  # a string is read as a list of its characters
        return [str(name) for name in names] if isinstance(names, list | str) else None


class _LabelledSplits(NamedTuple):
    """The splits to read: "train" and perhaps "test"."""

    rows: dict[str, _SplitRows]
    target: str | None  # the column of labels, if one is known
    notes: tuple[str, ...]


def _open_splits(path: Path, target: str | None) -> _LabelledSplits:
    """Return the splits to train and to test on. Raises Malformed if examples in these splits have no label."""
    if os.path.isfile(path / _SPLITS_FILE):
        found = {
            name: _read_split(_path_inside(path, name)) for name in read_json(path / _SPLITS_FILE, _SplitNames).splits
        }
    else:
        found = {"train": _read_split(path)}
    there = found["train"].types if "train" in found else ()
    target = target or next((name for name in _TARGET_COLUMNS if name in there), None)
    unlabelled = {name: _count_unlabelled(rows, target) for name, rows in found.items()}

    def is_labelled(name: str) -> bool:
        has_column = target is None or target in found[name].types
        return has_column and unlabelled[name] < len(found[name])

    which = splits.choose_test_split(found, is_labelled)
    used = {"train": "train"} | ({"test": which.test} if which.test else {})
    for name in used.values():
        splits.check_all_labelled(name, unlabelled[name], len(found[name]))
    return _LabelledSplits({split: found[name] for split, name in used.items()}, target, which.notes)


def _read_split(folder: Path) -> _SplitRows:
    """Return the rows of a split. Raises Malformed or UserError if its files are missing or damaged."""
    known = read_json(folder / "dataset_info.json", _Info).features
    features = {name: feature for name, feature in known.items() if isinstance(feature, dict)}
    tables = []
    for one in read_json(folder / "state.json", _State).data_files:
        with open_regular(_path_inside(folder, one.filename)) as file, arrow_errors(f"'{one.filename}'"):
            if not os.fstat(file.fileno()).st_size:
                raise Malformed(f"'{one.filename}' is empty")
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            table = pyarrow.ipc.open_stream(pyarrow.py_buffer(content)).read_all()
            table.validate(full=True)  # otherwise offsets that point outside the file would be followed
            tables.append(table)
    with arrow_errors("it"):
        return _SplitRows(features, pyarrow.concat_tables(tables))


def _path_inside(folder: Path, name: str) -> Path:
    """Return the path of the file or folder `name` in `folder`. Raises Malformed if `name` leads elsewhere."""
    if name != os.path.basename(name) or name in ("", ".", ".."):
        raise Malformed(f"it refers to '{name:.100}', which is outside its folder")
    return folder / name


def _count_unlabelled(rows: _SplitRows, target: str | None) -> int:
    """Return how many rows have no label in the column `target`; 0 if there is no such column.

    None always means that there is no label. -1 means the same if the column has names for its classes, or if it
    contains nothing but None and -1. Otherwise, -1 is an ordinary label.
    """
    if target is None or target not in rows.types:
        return 0
    labels = rows.values(target)
    without = sum(label is None or label == splits.NO_LABEL for label in labels)
    is_missing_mark = rows.names(target) is not None or without == len(labels)
    return without if is_missing_mark else sum(label is None for label in labels)


def _types_of_columns(path: Path) -> set[str | None]:
    """Return the set of types that columns have in dataset_info.json, e.g. "Image".

    None in the set stands for a column without a type. The result is empty if a file can't be read.
    """
    try:
        if os.path.isfile(path / _SPLITS_FILE):
            path = path / read_json(path / _SPLITS_FILE, _SplitNames).splits[0]
        features = read_json(path / "dataset_info.json", _Info).features
    except (OSError, UserError, IndexError):
        return set()
    return {feature.get("_type") for feature in features.values() if isinstance(feature, dict)}


def _labelled_pictures(
    split: str, rows: _SplitRows, column: str, target: str, label_of: Mapping[str, int]
) -> list[Picture]:
    """Return the pictures of a split, undecoded, with their labels."""
    pictures, found = rows.table.column(column), []
    for place, label in enumerate(rows.values(target)):
        if str(label) not in label_of:
            raise Malformed(f"the {split} split has the class '{label}', which no training example has")
        found.append(Picture(f"{split}[{place}]", partial(_open_picture, pictures, place), label_of[str(label)]))
    return found


def _open_picture(pictures: Column, place: int) -> BinaryIO:
    content = (pictures[place].as_py() or {}).get("bytes")
    if not isinstance(content, bytes):
        raise Malformed(
            "the folder holds only its path, not its content: save the data set again with a newer version of datasets, "
            "which stores the pictures themselves"
        )
    return io.BytesIO(content)
