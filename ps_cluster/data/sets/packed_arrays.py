"""Arrays that were given to the Python API, in a folder that it has packed (`api/arrays.py`).

Nobody chooses them by their name: it is how the processes of a run open the folder that the settings name.
"""

from ps_cluster.catalogue.datasets import NO_IMAGES, DataSet, ImageDataSet, OwnDataSettings, OwnImageSettings

_WANTED = "a folder that ps_cluster.train has packed"


class PackedArrays(DataSet):
    name = "packed_arrays"
    title = "arrays of your own"
    wanted = _WANTED
    offered = False
    Settings = OwnDataSettings
    recipe = NO_IMAGES


class PackedImages(ImageDataSet):
    """Images in arrays. They are not varied at random unless it is asked for: a mirrored picture may be another."""

    name = "packed_images"
    title = "images of your own"
    wanted = _WANTED
    offered = False
    Settings = OwnImageSettings
    recipe = {"data": {"augmentation": {"crop_padding_pixels": 0, "flip": "none"}}}


PACKED_ARRAYS, PACKED_IMAGES = PackedArrays(), PackedImages()
