"""The forms of data that are read from a path: arrays, folders of other libraries, pictures, tables, text."""

from __future__ import annotations

import importlib.util
import io
import json
import mmap
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from pydantic import BaseModel, Field

from ps_cluster.config.datasets import (
    NO_IMAGES,
    Contents,
    DataSet,
    DataSettings,
    Form,
    ImageDataSet,
    OwnDataSettings,
    OwnImageSettings,
)
from ps_cluster.data import targets, texts
from ps_cluster.data.array_files import NAMES, form_of, is_image, open_folder, open_npz
from ps_cluster.data.folders import (
    SplitNames,
    endings_of,
    files_below,
    files_in,
    folders_in,
    is_split,
    not_read,
    splits_in,
)
from ps_cluster.data.pictures import ENDINGS, Picture, PictureSettings, contents_of_pictures, is_picture
from ps_cluster.data.sets import PackedImages
from ps_cluster.data.table_files import (
    BATCH_ROWS,
    TABLES,
    ArrowTable,
    Types,
    arrow_errors,
    ending_of,
    open_tables,
)
from ps_cluster.data.tables import TableSettings, contents_of_tables
from ps_cluster.data.targets import TRAIN
from ps_cluster.errors import UserError, did_you_mean
from ps_cluster.files.json_files import read_json
from ps_cluster.files.reading import open_regular
from ps_cluster.files.values import Malformed, one_line
from ps_cluster.installation import to_install
from ps_cluster.system.environment import for_child


class _OwnForm(Form, DataSet):
    """A form and its data sets, which are copies of it with a path. They are no images unless a subclass says so."""

    recipe: Mapping[str, Any] = NO_IMAGES
    version = 2
    path: Path

    def dataset(self, path: Path) -> DataSet:
        made = copy(self)
        made.path = path
        return made


class _PictureForm(_OwnForm, ImageDataSet):
    """A form of pictures that have to be decoded."""

    Settings: type[PictureSettings] = PictureSettings
    recipe = ImageDataSet.recipe


# The forms `arrays` and `image_arrays`: numpy's .npz, and a folder of .npy files, as x_train, y_train, x_test, y_test.


class Arrays(_OwnForm):
    name = "arrays"
    looks_for = "an .npz file, or a folder of .npy files, with x_train, y_train and perhaps x_test, y_test"
    endings = (".npz", ".npy")
    Settings: type[DataSettings] = OwnDataSettings

    def recognises(self, path: Path) -> bool:
        if not super().recognises(path) and not any(os.path.isfile(path / f"{name}.npy") for name in NAMES):
            return False
        form = form_of(path, "x_train")
        return isinstance(self, ImageDataSet) == (form is not None and is_image(form.dtype, form.shape[1:]))

    def read(self, source: Path | None, settings: DataSettings) -> Any:
        """Return the arrays by name."""
        if self.path.is_dir():
            return open_folder(self.path)
        if self.path.suffix.lower() == ".npz":
            return open_npz(self.path)
        raise Malformed("is one array, and y_train is missing: put x_train.npy and y_train.npy into a folder")


class ImageArrays(Arrays, ImageDataSet):
    name = "image_arrays"
    looks_for = "such arrays whose x_train is uint8 of [N, height, width], or of [N, height, width, 1 or 3]"
    Settings = OwnImageSettings
    recipe = PackedImages.recipe


# The forms `hugging_face_images` and `hugging_face`: a folder that `save_to_disk` of the library `datasets` has written.
#
# It holds Arrow streams, which are mapped. The library isn't needed to read them, and would open any path that they name.

_TARGETS = ("label", "labels", "target")
_SPLITS = "dataset_dict.json"  # names the splits, a folder each


class HuggingFaceImageSettings(PictureSettings):
    target: str | None = Field(default=None, description="The column of classes; null: label.")


class HuggingFace(_OwnForm):
    name = "hugging_face"
    looks_for = "a folder that save_to_disk of Hugging Face's datasets has written"
    Settings: type[DataSettings] = TableSettings

    def recognises(self, path: Path) -> bool:
        is_one = any(os.path.isfile(path / name) for name in (_SPLITS, "state.json"))
        return is_one and isinstance(self, ImageDataSet) == ("Image" in _types_of_columns(path))

    def read(self, source: Path | None, settings: DataSettings) -> Contents:
        """Return the columns of numbers and names."""
        assert isinstance(settings, TableSettings)
        found = _opened(self.path, settings.target)
        names = found.rows["train"].names(found.target)
        objective = "classification" if names and settings.objective == "auto" else settings.objective
        tables: dict[str, ArrowTable] = {}
        for split, rows in found.rows.items():  # the first is "train"
            wanted = tables["train"].columns if tables else {}
            tables[split] = ArrowTable(rows.types, wanted, f"the split '{split}'", rows.batches)
        chosen = settings.model_copy(update={"target": found.target, "objective": objective})
        contents = contents_of_tables(tables, chosen)
        classes = tuple(names[int(label)] for label in contents.spec.classes) if names else contents.spec.classes
        spec = replace(contents.spec, classes=classes)
        return replace(contents, spec=spec, notes=(*found.notes, *contents.notes))


class HuggingFaceImages(HuggingFace, ImageDataSet):
    name = "hugging_face_images"
    looks_for = "such a folder with a column of pictures"
    Settings = HuggingFaceImageSettings
    recipe = ImageDataSet.recipe

    def read(self, source: Path | None, settings: DataSettings) -> Contents:
        """Return the pictures."""
        assert isinstance(settings, HuggingFaceImageSettings)
        found = _opened(self.path, settings.target)
        train, target = found.rows["train"], found.target or "label"
        if target not in train.types:
            hint = did_you_mean(target, train.types).strip()
            known = f"{', '.join(train.types)}{f': {hint}' if hint else ''}"
            raise Malformed(f"data.target: there is no column '{target}', of {known}")
        names = train.names(target)
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

    def batches(self, columns: list[str]) -> Iterator[Any]:
        return iter(self.table.select(columns).to_batches(BATCH_ROWS))

    def values(self, column: str) -> list[Any]:
        return list(self.table.column(column).to_pylist())

    def names(self, column: str | None) -> list[str] | None:
        """Return the names of the classes, where a column knows them."""
        names = self.features.get(column or "", {}).get(
            "names"
        )  # the library also writes a text: a class for each letter
        return [str(name) for name in names] if isinstance(names, list | str) else None


class _Found(NamedTuple):
    """The splits to read: "train" and perhaps "test". `target`: the column of labels; None if none is known."""

    rows: dict[str, _Rows]
    target: str | None
    notes: tuple[str, ...]


def _opened(path: Path, target: str | None) -> _Found:
    """Return the splits whose examples have labels. Raises Malformed if some of them have none."""
    if os.path.isfile(path / _SPLITS):
        found = {name: _rows(_inside(path, name)) for name in read_json(path / _SPLITS, _SplitNames).splits}
    else:
        found = {"train": _rows(path)}
    there = found["train"].types if "train" in found else ()
    target = target or next((name for name in _TARGETS if name in there), None)
    unlabelled = {name: _unlabelled(rows, target) for name, rows in found.items()}
    which = targets.chosen(found, lambda name: unlabelled[name] < len(found[name]))
    used = {"train": "train"} | ({"test": which.test} if which.test else {})
    for name in used.values():
        targets.check_all_labelled(name, unlabelled[name], len(found[name]))
    return _Found({split: found[name] for split, name in used.items()}, target, which.notes)


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


def _unlabelled(rows: _Rows, target: str | None) -> int:
    """Return how many rows have no label. In a column without names of classes, -1 may be a label beside others."""
    if target is None or target not in rows.types:
        return 0
    labels = rows.values(target)
    without = sum(label is None or label == targets.NO_LABEL for label in labels)
    secret = rows.names(target) is not None or without == len(labels)
    return without if secret else sum(label is None for label in labels)


def _types_of_columns(path: Path) -> set[str | None]:
    """Return the types of the columns, as the file beside them names them, without the library."""
    try:
        if os.path.isfile(path / _SPLITS):
            path = path / read_json(path / _SPLITS, _SplitNames).splits[0]
        features = read_json(path / "dataset_info.json", _Info).features
    except (OSError, UserError, IndexError):
        return set()
    return {feature.get("_type") for feature in features.values() if isinstance(feature, dict)}


def _labelled(split: str, rows: _Rows, column: str, target: str, label_of: Mapping[str, int]) -> list[Picture]:
    """Return the pictures of a split, undecoded, with their labels."""
    pictures, found = rows.table.column(column), []
    for place, label in enumerate(rows.values(target)):
        if str(label) not in label_of:
            raise Malformed(f"the {split} split has the class '{label}', which no training example has")
        found.append(Picture(f"{split}[{place}]", partial(_open, pictures, place), label_of[str(label)]))
    return found


def _open(pictures: Any, place: int) -> BinaryIO:
    content = (pictures[place].as_py() or {}).get("bytes")
    if not isinstance(content, bytes):
        raise Malformed(
            "the folder has its path alone: save_to_disk of a newer version of datasets puts the picture in"
        )
    return io.BytesIO(content)


# The form `image_folder`: a folder for each class, with its pictures.


_OTHER_PICTURES = {".avif", ".heic", ".heif", ".jp2", ".jxl", ".nef", ".ppm", ".pgm", ".raw", ".svg"}
_MOST_LOOKED_AT = 1_000  # files in sub-folders of classes, to recognise the form


class ImageFolder(_PictureForm):
    name = "image_folder"
    version = 2
    looks_for = f"a folder with {TRAIN}/<class>/*.png (or {', '.join(ENDINGS[1:])}) and test/<class>/, or with <class>/"

    def recognises(self, path: Path) -> bool:
        if not os.path.isdir(path):
            return False
        inner = path / _splits(path).train
        classes = [inner / name for name in folders_in(inner)]
        if any(is_picture(name) for folder in classes for name in files_in(folder)):
            return True
        # Pictures that lie deeper may be those of pages of text, or plots of a table. They are not looked for in whole trees.
        if _has_texts_alone(path) or any(name.lower().endswith((*TABLES, *Arrays.endings)) for name in files_in(path)):
            return False
        below = (file for folder in classes for file in files_below(folder))
        return any(is_picture(file.name) for file in islice(below, _MOST_LOOKED_AT))

    def one_change(self, path: Path) -> str:
        lay = "put the pictures of each class into a folder of its own, such as"
        if os.path.isfile(path):
            return f"is one picture: {lay} pets/cat/1.png and pets/dog/2.png, and give the folder pets" * is_picture(
                path.name
            )
        if not os.path.isdir(path):
            return ""
        inner = path / _splits(path).train
        if any(map(is_picture, files_in(inner))):
            return f"has pictures in no folder of a class: {lay} '{inner / 'cat'}'"
        found = [file for name in folders_in(inner) for file in files_in(inner / name)]
        unknown = sorted({Path(name).suffix.lower() for name in found} & _OTHER_PICTURES)
        return (
            f"has pictures in {', '.join(unknown)}, which are not read: convert them to .png or .jpg" if unknown else ""
        )

    def read(self, source: Path | None, settings: DataSettings) -> Contents:
        assert isinstance(settings, PictureSettings)
        splits = _splits(self.path)
        train = _ClassFolders(self.path, self.path / splits.train)
        folders = {"train": train}
        if splits.test:
            folders["test"] = _ClassFolders(self.path, self.path / splits.test)
            if strange := [name for name in folders["test"].classes if name not in train.classes]:
                raise Malformed(f"the class '{strange[0]}' is in '{splits.test}' and not in '{splits.train}'")
        train.check_classes()
        pictures = {split: folder.pictures(train.classes) for split, folder in folders.items()}
        contents = contents_of_pictures(pictures, train.classes, settings)
        notes = [note for folder in folders.values() for note in folder.notes]
        return replace(contents, notes=(*contents.notes, *splits.notes, *notes))


def _splits(path: Path) -> SplitNames:
    """Return the names of the folders of a split, which hold those of the classes; "" if the classes are here.

    A class may be called like a split: `bus`, `car` and `train`.
    """
    there = folders_in(path)
    holding = [name for name in there if not any(map(is_picture, files_in(path / name)))]
    exact = [TRAIN] if TRAIN in there and folders_in(path / TRAIN) else []
    found = splits_in([*exact, *(name for name in holding if name not in exact)])
    if found is None:
        return SplitNames("")
    return found._replace(others=tuple(name for name in there if name not in (found.train, found.test, *found.unused)))


class _ClassFolders:
    """The folders of a split, one for each class. A picture in a sub-folder is of the class that the sub-folder is in.

    Keras's `image_dataset_from_directory` reads sub-folders so too.
    """

    def __init__(self, root: Path, folder: Path):
        """Look at all names. `root`: the folder of the data set."""
        self._root, self._folder = root, folder
        self.classes = folders_in(folder)
        self._files = {name: list(files_below(folder / name)) for name in self.classes}

    def check_classes(self) -> None:
        """Raise Malformed for folders that are no classes, or have no picture."""
        if self.classes and all(is_split(name) for name in self.classes):
            if TRAIN in self.classes:
                raise Malformed(
                    f"its folders {', '.join(self.classes)} have pictures in no folder of a class: put those of each class "
                    f"into a folder, such as {TRAIN}/cat"
                )
            raise Malformed(
                f"its folders are {', '.join(self.classes)}, and none is called {TRAIN}: call the one to train on so"
            )
        for name, files in self._files.items():
            inner = {file.relative_to(self._folder / name).parts[0] for file in files if is_picture(file.name)}
            if not inner and files:
                raise Malformed(
                    f"the class '{name}' has no picture that can be read, but {endings_of(files)}: convert its pictures to "
                    ".png or .jpg, or remove the class"
                )
            if len(self.classes) == 1 and len(inner) > 1 and not any(is_picture(one) for one in inner):
                raise Malformed(
                    f"there is only one class, '{name}'; if the folders in it are the classes "
                    f"({one_line(', '.join(sorted(inner)), 200)}), give '{self._folder / name}'"
                )

    def pictures(self, classes: Sequence[str]) -> list[Picture]:
        """Return the pictures with their labels, in the order of classes and names."""
        return [
            Picture(str(file.relative_to(self._root)), partial(open_regular, file), label)
            for label, name in enumerate(classes)
            for file in self._files.get(name, ())
            if is_picture(file.name)
        ]

    @property
    def notes(self) -> Iterator[str]:
        """Yield lines about pictures in sub-folders, and about files that are not read."""
        files = [file for files in self._files.values() for file in files]
        deeper = [file for file in files if is_picture(file.name) and len(file.relative_to(self._folder).parts) > 2]
        if deeper:
            first = deeper[0].relative_to(self._folder)
            yield (
                f"pictures in sub-folders: {len(deeper):,}; e.g. those in '{first.parent}' are of the class "
                f"'{first.parts[0]}'"
            )
        yield from not_read([file for file in files if not is_picture(file.name)], self._root, "no pictures")
        beside = [self._folder / name for name in files_in(self._folder) if is_picture(name)]
        yield from not_read(beside, self._root, "in no folder of a class")


# The form `table`: CSV or Parquet, in one file or in two.


class TableForm(_OwnForm):
    name = "table"
    version = 3
    looks_for = (
        "a .csv, .tsv or .parquet file whose first line names the columns (.csv.gz too), a folder with train.csv and test.csv, "
        "or a folder of the parts of one table"
    )
    endings = tuple(TABLES)
    Settings = TableSettings

    def recognises(self, path: Path) -> bool:
        return super().recognises(path) or os.path.isdir(path) and bool(_table_files(path))

    def one_change(self, path: Path) -> str:
        if os.path.isfile(path):
            ending = next((one for one in _OTHER_TABLES if path.name.lower().endswith(one)), "")
            return f"is a {ending} file: {_OTHER_TABLES[ending]}" if ending else ""
        inner = [name for name in folders_in(path) if _table_files(path / name)] if os.path.isdir(path) else []
        return f"has tables in its folder '{inner[0]}': give that folder" if inner else ""

    def read(self, source: Path | None, settings: DataSettings) -> Contents:
        assert isinstance(settings, TableSettings)
        notes: tuple[str, ...] = ()
        files = {"train": [self.path]}
        if self.path.is_dir():
            files, notes = _files_of_splits(self.path)
        tables = open_tables(files, settings.categorical)
        with_commas = [table.what for table in tables.values() if table.has_decimal_commas]
        contents = contents_of_tables(tables, settings)
        commas = (f"{' and '.join(with_commas)}: numbers are read with decimal commas",) if with_commas else ()
        return replace(contents, notes=(*commas, *contents.notes, *notes))


_AS_TABLE = "save the table as .csv or .parquet"
_OTHER_TABLES = {
    **dict.fromkeys(
        (".xlsx", ".xls", ".ods", ".json", ".jsonl", ".ndjson", ".feather", ".arrow", ".orc", ".avro"), _AS_TABLE
    ),
    **dict.fromkeys(
        (".db", ".sqlite", ".h5", ".hdf5", ".pkl", ".pickle", ".mat"), f"{_AS_TABLE}, or its arrays as .npz"
    ),
    **dict.fromkeys(
        (".csv.bz2", ".csv.xz", ".csv.zip", ".csv.zst"), "compress the table by gzip, as .csv.gz, or unpack it"
    ),
    **dict.fromkeys((".zip", ".tar", ".tar.gz", ".tgz", ".7z"), "unpack it, and give the folder"),
    **dict.fromkeys((".gz", ".bz2", ".xz", ".zst"), "unpack it"),
}
"""Ending of the name of a file that is no table here → what to do."""

# A part as programs name it: train.csv, train-00000-of-00002.parquet, test_1.csv.gz.
_PART = re.compile(r"([A-Za-z]+)(?:[-_.]?\d.*)?")


def _table_files(folder: Path) -> dict[str, list[Path]]:
    """Return the tables in a folder, and in its folders that are called like a split: by the name of what they belong to.

    Names that begin with "_" are those of files about others, which some programs leave.
    """
    found: dict[str, list[Path]] = {}
    for name in files_in(folder):
        if not name.startswith("_") and (ending := ending_of(folder / name)):
            part = _PART.fullmatch(name[: -len(ending)])
            found.setdefault(part[1] if part and is_split(part[1]) else name, []).append(folder / name)
    for name in filter(is_split, folders_in(folder)):
        parts = [one for inner in _table_files(folder / name).values() for one in inner]
        found.setdefault(name, []).extend(sorted(parts))
    return {name: files for name, files in found.items() if files}


def _files_of_splits(folder: Path) -> tuple[dict[str, list[Path]], tuple[str, ...]]:
    """Return split → files, and lines about those that are not used.

    Raises:
      Malformed: there is something to test on, and nothing to train on.
    """
    found = _table_files(folder)
    notes: tuple[str, ...] = ()
    if splits := splits_in(found):
        files = {"train": found[splits.train]} | ({"test": found[splits.test]} if splits.test else {})
        others = tuple(name for name in found if name not in (splits.train, splits.test, *splits.unused))
        notes = splits._replace(others=others).notes
    elif tests := [name for name in found if is_split(name)]:
        raise Malformed(f"it has '{tests[0]}' and no '{TRAIN}': call the table to train on {TRAIN}.csv")
    else:
        files = {"train": [file for parts in found.values() for file in parts]}
    for split, parts in files.items():
        files[split], copies = _without_copies(folder, parts)
        notes = (*notes, *copies)
    for first, *more in files.values():
        if more:
            names = f"{first.relative_to(folder)} to {more[-1].relative_to(folder)}"
            notes = (*notes, f"{len(more) + 1:,} files are the parts of one table: {names}")
    return files, (*notes, *not_read(_no_tables(folder), folder, "no tables"))


def _without_copies(folder: Path, files: Sequence[Path]) -> tuple[list[Path], tuple[str, ...]]:
    """Return one file of each name, sorted, and lines about those that are not used.

    Files whose names differ only in their endings hold the same rows: train.csv, train.csv.gz, and the parts in a folder train.
    The first in the order of TABLES is used, and a file rather than a folder.
    """
    by_ending = sorted(files, key=lambda file: (list(TABLES).index(ending_of(file)), file))
    used: dict[Path, Path] = {}  # path without an ending → file
    for file in by_ending:
        used.setdefault(_without_ending(file), file)
    kept, notes = [], []
    for file in sorted(files):
        copy_of = next((place for place in file.parents if place in used), None)
        if copy_of is not None:
            notes.append(f"'{copy_of.relative_to(folder)}/' is not used: '{used[copy_of].name}' has the same name")
        elif (first := used[_without_ending(file)]) != file:
            notes.append(f"'{file.relative_to(folder)}' is not used: '{first.name}' has the same name")
        else:
            kept.append(file)
    return kept, tuple(dict.fromkeys(notes))


def _without_ending(file: Path) -> Path:
    return file.parent / file.name[: -len(ending_of(file))]


def _no_tables(folder: Path) -> list[Path]:
    """Return the files that are no tables, of a folder and of its folders that are called like a split."""
    names = [name for name in files_in(folder) if not name.startswith("_") and not ending_of(folder / name)]
    inner = [file for name in folders_in(folder) if is_split(name) for file in _no_tables(folder / name)]
    return [*(folder / name for name in names), *inner]


# The form `text`: a file, or a folder of files.


class TextForm(_OwnForm):
    name = "text"
    looks_for = f"a file of text ({', '.join(texts.TEXTS)}), or a folder of such files"
    endings = texts.TEXTS
    Settings = texts.OwnTextSettings
    recipe = texts.RECIPE

    def recognises(self, path: Path) -> bool:
        """Return whether it is such a file, or a folder that has such files alone at its top.

        A README beside pictures makes no text of them. Any other folder is named `text:FOLDER`.
        """
        return _has_texts_alone(path) if os.path.isdir(path) else super().recognises(path)

    def read(self, source: Path | None, settings: DataSettings) -> Contents:
        assert isinstance(settings, texts.OwnTextSettings)
        if not os.path.isdir(self.path):
            return texts.contents_of_texts(texts.read_texts(self.path.parent, [self.path]), settings)
        below = list(files_below(self.path))
        paths = [path for path in below if texts.fits(path, settings.files)]
        if not paths:
            raise Malformed(f"no file in it is called {' or '.join(settings.files)}: name others by data.files")
        contents = texts.contents_of_texts(texts.read_texts(self.path, paths), settings)
        others = [path for path in below if path not in set(paths)]
        left = not_read(others, self.path, f"not called {' or '.join(settings.files)}; data.files names others")
        return replace(contents, notes=(*contents.notes, *left))


def _has_texts_alone(folder: Path) -> bool:
    """Return whether the files at the top of a folder are texts, and there are some."""
    names = files_in(folder)
    return bool(names) and all(name.lower().endswith(texts.TEXTS) for name in names)


# The form `tfds`: pictures with labels in a folder that TensorFlow Datasets has prepared.

_READER = "ps_cluster.data.tfds_reader"


class Tfds(_PictureForm):
    name = "tfds"
    looks_for = "the folder of a version of a data set of TensorFlow Datasets, with dataset_info.json"

    def recognises(self, path: Path) -> bool:
        return os.path.isfile(path / "dataset_info.json") and os.path.isfile(path / "features.json")

    def read(self, source: Path | None, settings: DataSettings) -> Contents:
        assert isinstance(settings, PictureSettings)
        if importlib.util.find_spec("tensorflow_datasets") is None:
            raise UserError(
                f"dataset: '{self.path}' is a folder of TensorFlow Datasets, which is not installed: "
                f"{to_install('tfds')}"
            )
        copied = _Copied(self.path)
        contents = contents_of_pictures(
            {split: copied.labelled(name) for split, name in copied.splits.items()}, copied.classes, settings
        )
        return replace(contents, notes=(*copied.notes, *contents.notes))


class _Copied:
    """The encoded pictures, in a temporary folder that is removed with this object.

    Another process reads them: that needs TensorFlow, which the launcher does not have.
    """

    def __init__(self, path: Path):
        self._folder = tempfile.TemporaryDirectory(prefix="ps-cluster-tfds-")
        place = Path(self._folder.name)
        done = subprocess.run(
            [sys.executable, "-m", _READER, str(path), str(place)],
            env=for_child(os.environ, os.getpid()) | {"TMPDIR": str(place)},  # it ends with this process
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        if done.returncode:
            last = (done.stderr.decode(errors="replace").strip() or "no reason").splitlines()[-1]
            raise Malformed(f"can't be read: {one_line(last, 300)}")
        about = json.loads((place / "about.json").read_text())
        self.classes: list[str] = about["classes"]
        self.notes: list[str] = about["notes"]
        self.splits = {"train": TRAIN} | ({"test": about["test"]} if about["test"] else {})

    def labelled(self, split: str) -> list[Picture]:
        """Return the pictures of a split with their labels."""
        place = Path(self._folder.name)
        labels, ends = (np.load(place / f"{split}.{what}.npy") for what in ("labels", "ends"))
        starts = [0, *ends[:-1].tolist()]
        return [
            Picture(f"{split}[{number}]", partial(self._open, split, start, end), label)
            for number, (start, end, label) in enumerate(zip(starts, ends.tolist(), labels.tolist()))
        ]

    def _open(self, split: str, start: int, end: int) -> BinaryIO:
        with (Path(self._folder.name) / f"{split}.pictures").open("rb") as file:
            file.seek(start)
            return io.BytesIO(file.read(end - start))
