"""Train on pictures in a folder, train/<class>/*.png, and name some: python examples/own_images.py [FOLDER]"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageOps

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
        for name in CLASSES:
            (folder / split / name).mkdir(parents=True)
        for number in range(count):
            picture(number % 3, draw).save(folder / split / CLASSES[number % 3] / f"{number:05}.png")


def first_of_each_class(folder):
    """Return class → a picture of it, in the order of the network's outputs: that of the sorted names."""
    files = [file for file in folder.rglob("*") if file.suffix.lower() in (".png", ".jpg", ".jpeg")]
    return {file.parent.name: file for file in sorted(files, key=lambda file: file.parent.name)}


with tempfile.TemporaryDirectory(prefix="pictures-") as generated:
    given = [argument for argument in sys.argv[1:] if argument != "--small"]
    folder = Path(given[0] if given else generated)
    if not given:
        generate(folder)

    # `image_size` makes pictures of any sizes alike.
    result = ps_cluster.train(
        model="tutorial_cnn", data=folder, image_size=SIDE, workers=2, epochs=3 if SMALL else 8, batch_size=32
    )
    chosen = first_of_each_class(folder)
    mode = "RGB" if result.model.input_shape[-1] == 3 else "L"  # L: all pictures were grey
    images = [ImageOps.fit(Image.open(file).convert(mode), (SIDE, SIDE)) for file in chosen.values()]

pixels = np.stack([np.asarray(image).reshape(SIDE, SIDE, -1) for image in images])
best = result.model.predict(pixels, verbose=0).argmax(axis=1)
classes = list(chosen)
print("one picture of each class:", {name: classes[found] for name, found in zip(classes, best)})
