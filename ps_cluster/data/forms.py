"""The forms of data that are read from a path: arrays, folders of other libraries, pictures, tables, text."""

from __future__ import annotations

import importlib.util
import io
import json
import mmap
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
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
from ps_cluster.data.pictures import ENDINGS, Picture, PictureSettings, contents_of_pictures
from ps_cluster.data.sets import PackedImages
from ps_cluster.data.tables import (
    BATCH_ROWS,
    TABLES,
    ArrowTable,
    CsvTable,
    TableSettings,
    Types,
    arrow_errors,
    contents_of_tables,
    open_tables,
)
from ps_cluster.data.targets import TESTS, TRAIN
from ps_cluster.errors import UserError, did_you_mean
from ps_cluster.files.json_files import read_json
from ps_cluster.files.untrusted import open_regular
from ps_cluster.files.values import Malformed, one_line
from ps_cluster.installation import to_install
from ps_cluster.system.environment import for_child


class _OwnForm(Form, DataSet):
    """A form and its data sets, which are copies of it with a path. They are no images unless a subclass says so."""

    recipe: Mapping[str, Any] = NO_IMAGES
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


class ImageFolder(_PictureForm):
    name = "image_folder"
    looks_for = f"a folder with {TRAIN}/<class>/*.png (or {', '.join(ENDINGS[1:])}) and test/<class>/, or with <class>/"

    def recognises(self, path: Path) -> bool:
        if not os.path.isdir(path):
            return False
        inner = path / TRAIN if os.path.isdir(path / TRAIN) else path
        return any(next(_pictures(inner / name), None) for name in _classes(inner))

    def read(self, source: Path | None, settings: DataSettings) -> Contents:
        assert isinstance(settings, PictureSettings)
        folders, note = _splits(self.path)
        classes = _classes(folders["train"])
        if strange := [name for name in _classes(folders.get("test", folders["train"])) if name not in classes]:
            raise Malformed(f"the class '{strange[0]}' is in '{folders['test'].name}' and not in '{TRAIN}'")
        splits = {split: _pictures_of(folder, classes, self.path) for split, folder in folders.items()}
        contents = contents_of_pictures(splits, classes, settings)
        return replace(contents, notes=(*contents.notes, *note))


def _splits(path: Path) -> tuple[dict[str, Path], tuple[str, ...]]:
    """Return split → folder, and a note about a folder that is not used."""
    if not os.path.isdir(path / TRAIN):
        return {"train": path}, ()
    tests = [name for name in TESTS if os.path.isdir(path / name)]
    folders = {"train": path / TRAIN} | {"test": path / name for name in tests[:1]}
    unused = [f"'{name}' is not used: '{tests[0]}' has the pictures to test on" for name in tests[1:]]
    return folders, tuple(unused)


def _classes(folder: Path) -> list[str]:
    """Return the sorted names of the classes."""
    found = (entry.name for entry in os.scandir(folder) if entry.is_dir())
    return sorted(name for name in found if not name.startswith((".", "__")))


def _pictures(folder: Path) -> Iterator[str]:
    return (entry.name for entry in os.scandir(folder) if entry.name.lower().endswith(ENDINGS) and entry.is_file())


def _pictures_of(folder: Path, classes: list[str], root: Path) -> list[Picture]:
    """Return the pictures of a split with their labels, in the order of classes and names."""
    found = []
    for label, name in enumerate(classes):
        place = folder / name
        for file in sorted(_pictures(place)) if os.path.isdir(place) else ():
            found.append(Picture(str((place / file).relative_to(root)), partial(open_regular, place / file), label))
    return found


# The form `table`: CSV or Parquet, in one file or in two.


class TableForm(_OwnForm):
    name = "table"
    looks_for = "a .csv or .parquet file whose first line names the columns, or a folder with train.csv and test.csv"
    endings = tuple(TABLES)
    Settings = TableSettings

    def recognises(self, path: Path) -> bool:
        return super().recognises(path) or _file(path, "train") is not None

    def read(self, source: Path | None, settings: DataSettings) -> Contents:
        assert isinstance(settings, TableSettings)
        files = {"train": self.path}
        if self.path.is_dir():
            found = {split: _file(self.path, split) for split in ("train", "test")}
            files = {split: file for split, file in found.items() if file is not None}
        tables = open_tables(files, settings.categorical)
        csv = {split: table for split, table in tables.items() if isinstance(table, CsvTable)}
        with_commas = [f"'{files[split].name}'" for split, table in csv.items() if table.has_decimal_commas]
        contents = contents_of_tables(tables, settings)
        notes = (f"{' and '.join(with_commas)}: numbers are read with decimal commas",) if with_commas else ()
        return replace(contents, notes=(*notes, *contents.notes))


def _file(folder: Path, split: str) -> Path | None:
    return next((file for ending in TABLES if os.path.isfile(file := folder / f"{split}{ending}")), None)


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
        if os.path.isdir(path):
            files = [one.name.lower() for one in os.scandir(path) if one.is_file() and not one.name.startswith(".")]
            return bool(files) and all(name.endswith(texts.TEXTS) for name in files)
        return super().recognises(path)

    def read(self, source: Path | None, settings: DataSettings) -> Contents:
        assert isinstance(settings, texts.OwnTextSettings)
        if not os.path.isdir(self.path):
            return texts.contents_of_texts(texts.read_texts(self.path.parent, [self.path]), settings)
        paths = list(texts.files_below(self.path, settings.files))
        if not paths:
            raise Malformed(f"no file in it is called {' or '.join(settings.files)}: name others by data.files")
        return texts.contents_of_texts(texts.read_texts(self.path, paths), settings)


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
