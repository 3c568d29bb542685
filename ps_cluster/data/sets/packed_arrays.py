"""Arrays that were given to the Python API, in a folder that it has packed (`api/arrays.py`)."""

from ps_cluster.catalogue.datasets import DataSet, ImageDataSet, OwnDataSettings, OwnImageSettings

_WANTED = "a folder that ps_cluster.train has packed"


class PackedArrays(DataSet):
    name = "packed_arrays"
    title = "arrays of your own"
    wanted = _WANTED
    Settings = OwnDataSettings


class PackedImages(ImageDataSet):
    """Images in arrays. They are not varied at random unless it is asked for: a mirrored picture may be another."""

    name = "packed_images"
    title = "images of your own"
    wanted = _WANTED
    Settings = OwnImageSettings
    recipe = {"data": {"augmentation": {"crop_padding_pixels": 0, "flip": "none"}}}


PACKED_ARRAYS, PACKED_IMAGES = PackedArrays(), PackedImages()
