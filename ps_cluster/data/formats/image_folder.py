"""Read the data format `image_folder`: a folder that has a folder of pictures for each class."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

from ps_cluster.config.datasets import Contents
from ps_cluster.data.folders import endings_of, files_below, files_in, folders_in, not_read
from ps_cluster.data.formats import PictureFormat
from ps_cluster.data.formats.arrays import Arrays
from ps_cluster.data.formats.text import holds_only_texts
from ps_cluster.data.picture_sets import PictureSettings, contents_of_pictures
from ps_cluster.data.pictures import ENDINGS, Picture, is_picture
from ps_cluster.data.splits import TRAIN, SplitNames, is_split, splits_in
from ps_cluster.data.table_files import TABLES
from ps_cluster.files.reading import open_regular
from ps_cluster.files.values import Malformed, one_line

_OTHER_PICTURES = {".avif", ".heic", ".heif", ".jp2", ".jxl", ".nef", ".ppm", ".pgm", ".raw", ".svg"}
_MOST_FILES_SEARCHED = 1_000  # to recognise the format, at most this many files in sub-folders of classes are searched


class ImageFolder(PictureFormat):
    name = "image_folder"
    looks_for = (
        f"a folder with {TRAIN}/<class>/*.png (or {', '.join(ENDINGS[1:])}) and test/<class>/, or with only <class>/"
    )

    def recognises(self, path: Path) -> bool:
        if not os.path.isdir(path):
            return False
        inner = path / _split_folders(path).train
        classes = [inner / name for name in folders_in(inner)]
        if any(is_picture(name) for folder in classes for name in files_in(folder)):
            return True
        # Pictures further down may belong to pages of text, or be plots of a table. Only part of a large tree is
        # searched.
        if holds_only_texts(path) or any(name.lower().endswith((*TABLES, *Arrays.endings)) for name in files_in(path)):
            return False
        below = (file for folder in classes for file in files_below(folder))
        return any(is_picture(file.name) for file in islice(below, _MOST_FILES_SEARCHED))

    def one_change(self, path: Path) -> str:
        advice = "put the pictures of each class into a folder of its own, such as"
        if os.path.isfile(path):
            change = f"is one picture: {advice} pets/cat/1.png and pets/dog/2.png, and give the folder pets"
            return change if is_picture(path.name) else ""
        if not os.path.isdir(path):
            return ""
        inner = path / _split_folders(path).train
        if any(map(is_picture, files_in(inner))):
            return f"has pictures outside the folders of classes: {advice} '{inner / 'cat'}'"
        found = [file for name in folders_in(inner) for file in files_in(inner / name)]
        unknown = sorted({Path(name).suffix.lower() for name in found} & _OTHER_PICTURES)
        return f"has {', '.join(unknown)} pictures, which are not read: convert them to .png or .jpg" if unknown else ""

    def read(self, source: Path | None, settings: PictureSettings) -> Contents:
        splits = _split_folders(self.path)
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


def _split_folders(path: Path) -> SplitNames:
    """Return the names of the splits. Each split is a folder that contains a folder for each class.

    If `path` itself contains the folders of classes, the name of the split to train on is "".

    A folder that has pictures but no folders is taken for a class, even if it has the name of a split, e.g. `train`
    next to the classes `bus` and `car`.
    """
    there = folders_in(path)
    holding = [name for name in there if not any(map(is_picture, files_in(path / name)))]
    exact = [TRAIN] if TRAIN in there and folders_in(path / TRAIN) else []
    found = splits_in([*exact, *(name for name in holding if name not in exact)])
    if found is None:
        return SplitNames("")
    return found._replace(
        not_splits=tuple(name for name in there if name not in (found.train, found.test, *found.unused))
    )


class _ClassFolders:
    """The folders of a split, one for each class.

    The pictures of a class may be at any depth in the folder of the class, as in Keras's
    `image_dataset_from_directory`.
    """

    def __init__(self, root: Path, folder: Path):
        """List all files. `root`: the folder of the data set. `folder`: the folder of the split."""
        self._root, self._folder = root, folder
        self.classes = folders_in(folder)
        self._files = {name: list(files_below(folder / name)) for name in self.classes}

    def check_classes(self) -> None:
        """Raise Malformed if the folders do not seem to be classes, or if one has files but no picture.

        They do not seem to be classes if all of them have names of splits, or if there is only one folder, and all its
        pictures are in two or more sub-folders.
        """
        if self.classes and all(is_split(name) for name in self.classes):
            if TRAIN in self.classes:
                raise Malformed(
                    f"its folders {', '.join(self.classes)} contain pictures, but no folders of classes: put the "
                    f"pictures of each class into a folder, such as {TRAIN}/cat"
                )
            raise Malformed(
                f"its folders are {', '.join(self.classes)}, and none is called {TRAIN}: rename the folder with the training "
                "pictures to that name"
            )
        for name, files in self._files.items():
            inner = {file.relative_to(self._folder / name).parts[0] for file in files if is_picture(file.name)}
            if not inner and files:
                raise Malformed(
                    f"the class '{name}' has no picture that can be read, only {endings_of(files)}: convert its "
                    "pictures to .png or .jpg, or remove the class"
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
                f"pictures in sub-folders: {len(deeper):,}; those in '{first.parent}', for example, belong to the class "
                f"'{first.parts[0]}'"
            )
        yield from not_read(
            [file for file in files if not is_picture(file.name)], self._root, "not pictures of a known format"
        )
        beside = [self._folder / name for name in files_in(self._folder) if is_picture(name)]
        yield from not_read(beside, self._root, "outside the folders of classes")
