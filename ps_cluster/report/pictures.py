"""Scale pictures and write lines of text, for the pictures that are drawn of data sets and predictions."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from ps_cluster.files.values import one_line

CELL = 84  # pixels of the longer side of an image at most; small images are enlarged by a whole number


def scaled(image: np.ndarray, cell: int = CELL) -> Image.Image:
    """Return an image, uint8 [H, W, 1 or 3], whose longer side fits `cell` pixels; enlarged pixels stay squares."""
    picture = Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).convert("RGB")
    width, height = picture.size
    times = cell // max(width, height)
    if times >= 1:
        return picture.resize((width * times, height * times), Image.Resampling.NEAREST)
    share = cell / max(width, height)
    return picture.resize((max(1, round(width * share)), max(1, round(height * share))), Image.Resampling.LANCZOS)


def write_line(
    pen: ImageDraw.ImageDraw,
    place: tuple[int, int],
    text: str,
    colour: str,
    width: int,
    font: ImageFont.FreeTypeFont,
    anchor: str = "la",
) -> None:
    """Write a line; where it is wider than `width` pixels its end is replaced by …."""
    text = whole = one_line(text)
    while text and font.getlength(text if text == whole else f"{text}…") > width:
        text = text[:-1]
    pen.text(place, text if text == whole else f"{text}…", colour, font, anchor=anchor)


@lru_cache
def letters(size: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    """Return the letters that matplotlib contains: they are the same on every machine."""
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts/ttf" / name), size)
