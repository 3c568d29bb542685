"""Train on pictures in a folder, <split>/<class>/*.png, and name new ones: python examples/own_images.py [FOLDER]"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

import ps_cluster

SMALL = "--small" in sys.argv
CLASSES, SIDE = ("circle", "cross", "square"), 32


def picture(label, draw):
    """Return a generated picture of a shape, somewhere, in any colour."""
    image = Image.fromarray(draw.integers(0, 60, (SIDE, SIDE, 3), np.uint8))
    x, y, r = (int(value) for value in (*draw.integers(8, SIDE - 8, 2), draw.integers(5, 8)))
    colour, pen = tuple(draw.integers(120, 256, 3).tolist()), ImageDraw.Draw(image)
    if CLASSES[label] == "cross":
        pen.line((x - r, y - r, x + r, y + r), colour, 2)
        pen.line((x - r, y + r, x + r, y - r), colour, 2)
    else:
        (pen.ellipse if CLASSES[label] == "circle" else pen.rectangle)((x - r, y - r, x + r, y + r), outline=colour)
    return image


def generate(folder):
    """Fill a folder with generated pictures, in place of your own."""
    draw = np.random.default_rng(0)
    for split, count in (("train", 300 if SMALL else 3000), ("test", 90 if SMALL else 600)):
        for number in range(count):
            file = folder / split / CLASSES[number % 3] / f"{number:05}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            picture(number % 3, draw).save(file)


given = [argument for argument in sys.argv[1:] if argument != "--small"]
folder = Path(given[0]) if given else Path(tempfile.mkdtemp(prefix="pictures-"))
if not given:
    generate(folder)


def load():
    """Return the pictures and the numbers of their classes, as Keras's data sets do."""
    classes = sorted(path.name for path in (folder / "train").iterdir())
    for split in ("train", "test"):
        files = sorted((folder / split).glob("*/*.png"))
        pixels = [np.asarray(Image.open(file).convert("RGB").resize((SIDE, SIDE))) for file in files]
        yield np.stack(pixels), np.array([classes.index(file.parent.name) for file in files])


result = ps_cluster.train(
    model="tutorial_cnn", data=load, workers=2, epochs=8, batch_size=32, settings={"data.augmentation.flip": "random"}
)
new = np.stack([np.asarray(picture(label, np.random.default_rng(label))) for label in range(3)])
print("three new pictures:", [CLASSES[best] for best in result.model.predict(new, verbose=0).argmax(1)])
