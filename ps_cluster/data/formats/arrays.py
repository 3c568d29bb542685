"""Read the data formats `arrays` and `image_arrays`: an .npz file or a folder of .npy files with x_train, y_train …"""

from __future__ import annotations

import os
from pathlib import Path

from ps_cluster.config.datasets import Contents, DataSettings, ImageDataSet, OwnDataSettings, OwnImageSettings
from ps_cluster.data.array_files import layout_of, open_npy, open_npz
from ps_cluster.data.formats import PathFormat
from ps_cluster.data.own_arrays import NAMES, as_contents, is_image
from ps_cluster.data.sets.packed_arrays import PackedImages
from ps_cluster.files.values import Malformed


class Arrays(PathFormat[OwnDataSettings]):
    name = "arrays"
    looks_for = "an .npz file, or a folder of .npy files, with x_train, y_train and perhaps x_test, y_test"
    endings = (".npz", ".npy")
    Settings: type[DataSettings] = OwnDataSettings

    def recognises(self, path: Path) -> bool:
        if not super().recognises(path) and not any(os.path.isfile(path / f"{name}.npy") for name in NAMES):
            return False
        layout = layout_of(path, "x_train")
        return isinstance(self, ImageDataSet) == (layout is not None and is_image(layout.dtype, layout.shape[1:]))

    def read(self, source: Path | None, settings: OwnDataSettings) -> Contents:
        if self.path.is_dir():
            return as_contents({file.stem: open_npy(file) for file in sorted(self.path.glob("*.npy"))}, settings)
        if self.path.suffix.lower() == ".npz":
            return as_contents(open_npz(self.path), settings)
        raise Malformed("it is a single array, and y_train is missing: put x_train.npy and y_train.npy into a folder")


class ImageArrays(Arrays, ImageDataSet[OwnImageSettings]):
    name = "image_arrays"
    looks_for = (
        "the same files as for 'arrays', if x_train is uint8 of shape [N, height, width] or [N, height, width, 1 or 3]"
    )
    Settings = OwnImageSettings
    recipe = PackedImages.recipe
