"""Define the data sets of arrays that were passed to the Python API, which packs them into a folder (`api/data.py`).

Users do not choose these data sets by name. The API sets `data.dataset` to the name of one of them, and `data.data_dir`
to the folder, and the processes of the run open the folder.
"""

from __future__ import annotations

from ps_cluster.config.datasets import NO_IMAGES, DataSet, ImageDataSet, OwnDataSettings, OwnImageSettings


class PackedArrays(DataSet[OwnDataSettings]):
    name = "packed_arrays"
    title = "arrays of your own"
    wanted = "a folder that ps_cluster.train has packed"
    offered = False
    Settings = OwnDataSettings
    recipe = NO_IMAGES


class PackedImages(ImageDataSet[OwnImageSettings]):
    """Images in arrays. By default they are not augmented, because a mirrored image may mean something else."""

    name = "packed_images"
    title = "images of your own"
    wanted = PackedArrays.wanted
    offered = False
    Settings = OwnImageSettings
    recipe = {"data": {"augmentation": {"crop_padding_pixels": 0, "flip": "none"}}}
