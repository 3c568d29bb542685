"""Define the base classes of the forms of data at a path, e.g. arrays or tables. Each module here defines forms."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from pathlib import Path
from typing import Any

from ps_cluster.config.datasets import NO_IMAGES, DataSet, Form, ImageDataSet, OwnSettings
from ps_cluster.data.picture_sets import PictureSettings


class PathForm(Form, DataSet[OwnSettings]):
    """A form of data at a path, by default of data without images.

    `dataset` returns a copy of the form that has a path. This copy is a data set.
    """

    recipe: Mapping[str, Any] = NO_IMAGES
    version = 2
    path: Path

    def dataset(self, path: Path) -> DataSet[OwnSettings]:
        made = copy(self)
        made.path = path
        return made


class PictureForm(PathForm[PictureSettings], ImageDataSet[PictureSettings]):
    """A form of pictures that have to be decoded."""

    Settings: type[PictureSettings] = PictureSettings
    recipe = ImageDataSet.recipe
