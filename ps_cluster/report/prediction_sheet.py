"""Draw pictures with their predicted classes, and the true classes where they differ."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from ps_cluster.files.values import one_line
from ps_cluster.report.pictures import CELL, scaled

_COLUMNS = 4
_WIDTH, _LINE, _SPACE = CELL + 20, 16, 6  # pixels: of a column, of a line of text, and between two pictures
_RIGHT, _WRONG, _NEITHER = "#0072B2", "#D55E00", "#1c2126"


class Answer(NamedTuple):
    """A picture, uint8 [H, W, 1 or 3], with its true and its predicted target in words.

    `right`: whether the prediction is right; None if the target is a number.
    """

    picture: np.ndarray
    truth: str
    predicted: str
    right: bool | None


def draw_predictions(answers: Sequence[Answer]) -> Image.Image:
    """Return a sheet of the pictures. Below each picture is its prediction and, if they differ, the truth."""
    pictures = [scaled(answer.picture) for answer in answers]
    pitch = max(picture.height for picture in pictures) + 2 * _LINE + _SPACE
    columns = min(_COLUMNS, len(answers))
    sheet = Image.new("RGB", (columns * _WIDTH + _SPACE, -(-len(answers) // columns) * pitch + _SPACE), "white")
    pen = ImageDraw.Draw(sheet)
    for number, (answer, picture) in enumerate(zip(answers, pictures)):
        left, top = _SPACE + number % columns * _WIDTH, _SPACE + number // columns * pitch
        sheet.paste(picture, (left, top))
        below = top + pitch - 2 * _LINE - _SPACE
        colour = {True: _RIGHT, False: _WRONG, None: _NEITHER}[answer.right]
        _write(pen, (left, below), answer.predicted, colour)
        if not answer.right:
            _write(pen, (left, below + _LINE), f"is {answer.truth}", _NEITHER)
    return sheet


def _write(pen: ImageDraw.ImageDraw, place: tuple[int, int], text: str, colour: str) -> None:
    """Write a line. If it is too wide, "…" replaces its end."""
    text = whole = one_line(text)
    while text and _font().getlength(text if text == whole else f"{text}…") > _WIDTH - _SPACE:
        text = text[:-1]
    pen.text(place, text if text == whole else f"{text}…", colour, _font())


@cache
def _font() -> ImageFont.FreeTypeFont:
    """Return the font from matplotlib's files, which is the same on every machine.

    Matplotlib itself is not imported, because that would take 0.5 s.
    """
    package = find_spec("matplotlib")
    assert package is not None and package.origin is not None
    file = Path(package.origin).parent / "mpl-data/fonts/ttf/DejaVuSans.ttf"
    return ImageFont.truetype(str(file), size=12)  # pixels
