"""The forms `arrays` and `image_arrays`: numpy's .npz, and a folder of .npy files, as x_train, y_train, x_test, y_test."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ps_cluster.catalogue.datasets import (
    NO_IMAGES,
    Contents,
    DataSet,
    DataSettings,
    ImageDataSet,
    OwnDataSettings,
    OwnImageSettings,
)
from ps_cluster.catalogue.forms import Form
from ps_cluster.data.array_files import form_of, open_folder, open_npz
from ps_cluster.data.own_arrays import NAMES, as_contents, is_image, settings_of
from ps_cluster.data.sets.packed_arrays import PACKED_IMAGES
from ps_cluster.files.malformed import Malformed


class ArraysAt(DataSet):
    """The arrays of a file or folder."""

    Settings: type[DataSettings] = OwnDataSettings
    recipe: Mapping[str, Any] = NO_IMAGES

    def __init__(self, path: Path):
        self.path = path

    def read(self, source: Path | None, settings: DataSettings) -> Contents:
        assert self.path is not None  # it is given above
        if self.path.is_dir():
            arrays = open_folder(self.path)
        elif self.path.suffix.lower() == ".npz":
            arrays = open_npz(self.path)
        else:
            raise Malformed("is one array, and y_train is missing: put x_train.npy and y_train.npy into a folder")
        return as_contents(arrays, **settings_of(settings))


class ImageArraysAt(ArraysAt, ImageDataSet):
    """Arrays of which x_train holds images."""

    Settings = OwnImageSettings
    recipe = PACKED_IMAGES.recipe


class Arrays(Form):
    name = "arrays"
    looks_for = "an .npz file, or a folder of .npy files, with x_train, y_train and perhaps x_test, y_test"
    endings = (".npz", ".npy")
    Settings = OwnDataSettings

    def recognises(self, path: Path) -> bool:
        return super().recognises(path) or any(os.path.isfile(path / f"{name}.npy") for name in NAMES)

    def dataset(self, path: Path) -> DataSet:
        return ArraysAt(path)


class ImageArrays(Arrays):
    name = "image_arrays"
    looks_for = "such arrays whose x_train is uint8 of [N, height, width], or of [N, height, width, 1 or 3]"
    Settings = OwnImageSettings

    def recognises(self, path: Path) -> bool:
        form = form_of(path, "x_train") if super().recognises(path) else None
        return form is not None and is_image(form.dtype, form.shape[1:])

    def dataset(self, path: Path) -> DataSet:
        return ImageArraysAt(path)


IMAGE_ARRAYS = ImageArrays()  # before the other, which takes all that is left
ARRAYS = Arrays()
