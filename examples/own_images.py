"""Train on pictures in a folder, <split>/<class>/*.png, and name some: python examples/own_images.py [FOLDER]"""

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

# `image_size` makes pictures of any sizes alike.
result = ps_cluster.train(
    model="tutorial_cnn", data=folder, image_size=SIDE, workers=2, epochs=3 if SMALL else 8, batch_size=32
)
classes = sorted(path.name for path in (folder / "test").iterdir())
files = [min((folder / "test" / name).iterdir()) for name in classes]
pictures = np.stack([np.asarray(Image.open(file).convert("RGB").resize((SIDE, SIDE))) for file in files])
best = result.model.predict(pictures, verbose=0).argmax(axis=1)
print("one picture of each class:", {name: classes[found] for name, found in zip(classes, best)})
