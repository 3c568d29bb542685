"""Define the base classes of data formats that are read from a user's path, e.g. arrays or tables.

Each module of this package defines one or two data formats.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from pathlib import Path
from typing import Any

from ps_cluster.config.datasets import NO_IMAGES, DataFormat, DataSet, ImageDataSet, OwnSettings
from ps_cluster.data.picture_sets import PictureSettings


class PathFormat(DataFormat, DataSet[OwnSettings]):
    """A data format that is read from a user's path.

    `recipe` contains the settings for the data that differ from configs/default.yaml. Subclasses that do not set it get
    the settings for data without images.

    Call `dataset` with a path to get a data set: a copy of this object that stores the path in `path`.
    """

    recipe: Mapping[str, Any] = NO_IMAGES
    version = 2
    path: Path

    def dataset(self, path: Path) -> DataSet[OwnSettings]:
        made = copy(self)
        made.path = path
        return made


class PictureFormat(PathFormat[PictureSettings], ImageDataSet[PictureSettings]):
    """A data format for pictures that have to be decoded, e.g. from .png or .jpg files."""

    Settings: type[PictureSettings] = PictureSettings
    recipe = ImageDataSet.recipe
