"""Arrays that were given to the Python API, in a folder that it has packed (`api/arrays.py`)."""

from ps_cluster.catalogue.datasets import DataSet, ImageDataSet

_WANTED = "a folder that ps_cluster.train has packed"


class Arrays(DataSet):
    name = "arrays"
    title = "arrays of your own"
    wanted = _WANTED


class ImageArrays(ImageDataSet):
    """Images in arrays. They are not varied at random unless it is asked for: a mirrored picture may be another."""

    name = "image_arrays"
    title = "images of your own"
    wanted = _WANTED
    recipe = {"data": {"augmentation": {"crop_padding_pixels": 0, "flip": "none"}}}


ARRAYS, IMAGE_ARRAYS = Arrays(), ImageArrays()
