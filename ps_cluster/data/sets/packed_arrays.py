"""Arrays that were given to the Python API, in a folder that it has packed (`api/data.py`).

Nobody chooses them by their name: it is how the processes of a run open the folder that the settings name.
"""

from __future__ import annotations

from ps_cluster.config.datasets import NO_IMAGES, DataSet, ImageDataSet, OwnDataSettings, OwnImageSettings


class PackedArrays(DataSet):
    name = "packed_arrays"
    title = "arrays of your own"
    wanted = "a folder that ps_cluster.train has packed"
    offered = False
    Settings = OwnDataSettings
    recipe = NO_IMAGES


class PackedImages(ImageDataSet):
    """Images in arrays. They are not varied at random unless it is asked for: a mirrored picture may be another."""

    name = "packed_images"
    title = "images of your own"
    wanted = PackedArrays.wanted
    offered = False
    Settings = OwnImageSettings
    recipe = {"data": {"augmentation": {"crop_padding_pixels": 0, "flip": "none"}}}
