"""A data set of images that the package knows nothing of: gratings that it draws itself, varied as all images are."""

import numpy as np

from ps_cluster.config.datasets import Contents, ImageDataSet


def split(count, seed):
    """Return images uint8 [N, 24, 24, 1] and labels uint8 [N] of 4 classes."""
    draw = np.random.default_rng(seed)
    label = draw.integers(0, 4, count, np.uint8)
    angle, shift = label[:, None, None] * np.pi / 4, draw.uniform(0, 6, (count, 1, 1))
    rows, columns = np.mgrid[:24, :24]
    waves = np.sin(np.cos(angle) * rows + np.sin(angle) * columns + shift)
    return {"image": (127 + 120 * waves).astype(np.uint8)[..., None], "target": label}


class Toy(ImageDataSet):
    title = "generated gratings"
    generated = True

    def read(self, source, settings):
        return Contents.of(split(2_000, seed=0), split(500, seed=1), classes=("across", "down", "left", "right"))
