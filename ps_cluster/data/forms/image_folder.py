"""The form `image_folder`: a folder for each class, with its pictures."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from ps_cluster.catalogue.datasets import Contents, DataSet, DataSettings, ImageDataSet
from ps_cluster.catalogue.forms import Form
from ps_cluster.data.image_sets import Labelled, PictureSettings, contents_of_pictures
from ps_cluster.data.pictures import ENDINGS, Picture
from ps_cluster.files.malformed import Malformed
from ps_cluster.files.opening import open_regular

_TRAIN, _TEST = "train", ("test", "val", "valid", "validation")


class ImagesIn(ImageDataSet):
    """The pictures of a folder."""

    Settings = PictureSettings

    def __init__(self, path: Path):
        self.path: Path = path

    def read(self, source: Path | None, settings: DataSettings) -> Contents:
        assert isinstance(settings, PictureSettings)
        folders, note = _splits(self.path)
        classes = _classes(folders["train"])
        if strange := [name for name in _classes(folders.get("test", folders["train"])) if name not in classes]:
            raise Malformed(f"the class '{strange[0]}' is in '{folders['test'].name}' and not in '{_TRAIN}'")
        splits = {split: _labelled(folder, classes, self.path) for split, folder in folders.items()}
        contents = contents_of_pictures(splits, classes, settings)
        return replace(contents, notes=(*contents.notes, *note))


class ImageFolder(Form):
    name = "image_folder"
    looks_for = (
        f"a folder with {_TRAIN}/<class>/*.png (or {', '.join(ENDINGS[1:])}) and test/<class>/, or with <class>/"
    )
    Settings = PictureSettings

    def recognises(self, path: Path) -> bool:
        if not os.path.isdir(path):
            return False
        inner = path / _TRAIN if os.path.isdir(path / _TRAIN) else path
        return any(next(_pictures(inner / name), None) for name in _classes(inner))

    def dataset(self, path: Path) -> DataSet:
        return ImagesIn(path)


def _splits(path: Path) -> tuple[dict[str, Path], tuple[str, ...]]:
    """Return split → folder, and a note about a folder that is not used."""
    if not os.path.isdir(path / _TRAIN):
        return {"train": path}, ()
    tests = [name for name in _TEST if os.path.isdir(path / name)]
    folders = {"train": path / _TRAIN} | {"test": path / name for name in tests[:1]}
    unused = [f"'{name}' is not used: '{tests[0]}' has the pictures to test on" for name in tests[1:]]
    return folders, tuple(unused)


def _classes(folder: Path) -> list[str]:
    """Return the sorted names of the classes."""
    found = (entry.name for entry in os.scandir(folder) if entry.is_dir())
    return sorted(name for name in found if not name.startswith((".", "__")))


def _pictures(folder: Path) -> Iterator[str]:
    return (entry.name for entry in os.scandir(folder) if entry.name.lower().endswith(ENDINGS) and entry.is_file())


def _labelled(folder: Path, classes: list[str], root: Path) -> Labelled:
    """Return the pictures of a split with their labels, in the order of classes and names."""
    found = []
    for label, name in enumerate(classes):
        place = folder / name
        for file in sorted(_pictures(place)) if os.path.isdir(place) else ():
            found.append((Picture(str((place / file).relative_to(root)), partial(open_regular, place / file)), label))
    return found


IMAGE_FOLDER = ImageFolder()
