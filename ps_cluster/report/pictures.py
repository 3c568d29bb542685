"""Scale pictures, and put them into pages."""

from __future__ import annotations

import base64
import io

import numpy as np
from PIL import Image

CELL = 84  # the longer side of a picture, in pixels; a picture that is enlarged may be smaller


def scaled(image: np.ndarray, cell: int = CELL) -> Image.Image:
    """Return an image, uint8 [H, W, 1 or 3], scaled so that its longer side fits into `cell` pixels.

    A small image is enlarged by a whole number, so that its pixels stay squares of the same size.
    """
    picture = Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).convert("RGB")
    width, height = picture.size
    times = cell // max(width, height)
    if times >= 1:
        return picture.resize((width * times, height * times), Image.Resampling.NEAREST)
    share = cell / max(width, height)
    return picture.resize((max(1, round(width * share)), max(1, round(height * share))), Image.Resampling.LANCZOS)


def as_source(image: np.ndarray, cell: int = CELL) -> str:
    """Return a scaled image, uint8 [H, W, 1 or 3], as the source of an <img>, so that the page needs no other file."""
    content = io.BytesIO()
    scaled(image, cell).save(content, "PNG")
    return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"
