"""Draw pictures with their predicted classes, and the true classes where they differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from ps_cluster.report.pictures import CELL, letters, scaled, write_line

_SMALL = 12  # size of letters
_COLUMNS, _WIDTH, _LINE, _SPACE = 4, CELL + 20, 16, 6  # pixels, but for the columns
_RIGHT, _WRONG, _NEITHER = "#0072B2", "#D55E00", "#1c2126"


class Answer(NamedTuple):
    """A picture, uint8 [H, W, 1 or 3], with its target in words, and the network's. `right`: None: it is a matter of degree."""

    picture: np.ndarray
    truth: str
    predicted: str
    right: bool | None


def draw_predictions(answers: Sequence[Answer]) -> Image.Image:
    """Return a sheet of the pictures. Below each stands the prediction, and the truth where it differs."""
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
        write_line(pen, (left, below), answer.predicted, colour, _WIDTH - _SPACE, letters(_SMALL))
        if not answer.right:
            write_line(pen, (left, below + _LINE), f"is {answer.truth}", _NEITHER, _WIDTH - _SPACE, letters(_SMALL))
    return sheet
