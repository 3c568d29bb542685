"""Draw a contact sheet: examples of each class of a data set of images, as they are and varied, and how many there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from ps_cluster.data.samples import Group, Sample
from ps_cluster.files.plain_text import one_line

CELL = 84  # pixels of the longer side of an image at most; small images are enlarged by a whole number
_MARGIN, _GAP, _BLOCK_GAP, _COLUMN_GAP = 28, 4, 22, 40  # pixels: around the sheet, between images, blocks, columns
_BAR, _LONGEST_LABEL = 130, 170  # pixels
_INK, _DIM, _RULE, _TRAIN, _TEST = "#1c2126", "#5b6570", "#e3e6ea", "#0072B2", "#E69F00"
_TITLE, _TEXT, _SMALL = 22, 14, 12  # sizes of letters


class Shape(NamedTuple):
    """The arrangement of a sheet: groups stand in columns, with samples of each beside each other."""

    columns: int
    samples: int
    variations: int


def shape_for(groups: int, varied: bool) -> Shape:
    """Return the arrangement for a number of groups; the more there are the less room each has."""
    columns, samples, variations = (1, 2, 5) if groups <= 20 else (2, 1, 4) if groups <= 50 else (3, 1, 3)
    return Shape(columns, samples, variations) if varied else Shape(columns, samples * (variations + 1), 0)


def draw_sheet(title: str, lines: Sequence[str], groups: Sequence[Group], shape: Shape) -> Image.Image:
    """Return the sheet.

    Args:
      lines: what stands below the title.
      shape: the arrangement for which the groups were drawn.
    """
    plan = _Plan.of(groups, shape, lines)
    sheet = Image.new("RGB", plan.size, "white")
    pen = ImageDraw.Draw(sheet)
    pen.text((_MARGIN, _MARGIN), _cut(title, _font(_TITLE, bold=True), plan.text_width), _INK, _font(_TITLE, bold=True))
    for number, line in enumerate(lines):
        place = _MARGIN, _MARGIN + _TITLE + 12 + number * (_TEXT + 6)
        pen.text(place, _cut(line, _font(_TEXT), plan.text_width), _DIM, _font(_TEXT))
    most = max(group.train_examples + group.test_examples for group in groups)
    for column in range(shape.columns):
        mine = groups[column * plan.rows : (column + 1) * plan.rows]
        if mine:
            left = _MARGIN + column * (plan.column + _COLUMN_GAP)
            _draw_heads(pen, plan, left)
            for row, group in enumerate(mine):
                _draw_group(sheet, pen, plan, group, (left, plan.top + row * plan.pitch), most)
    return sheet


@dataclass(frozen=True)
class _Plan:
    """All sizes, in pixels. `cell`: width and height of an image. `pitch`: from row to row; `top`: of the first."""

    shape: Shape
    cell: tuple[int, int]
    label: int
    counts: int
    rows: int
    top: int

    @classmethod
    def of(cls, groups: Sequence[Group], shape: Shape, lines: Sequence[str]) -> _Plan:
        samples = [sample for group in groups for sample in group.samples]
        cell = scaled(samples[0].image).size
        label = max(_width(_cut(group.name, _font(_TEXT), _LONGEST_LABEL), _font(_TEXT)) for group in groups) + 12
        counts = max(_width(_counts(group), _font(_SMALL)) for group in groups)
        top = _MARGIN + _TITLE + 12 + len(lines) * (_TEXT + 6) + 16 + _SMALL + 8
        return cls(shape, cell, max(label, 60), counts, -(-len(groups) // shape.columns), top)

    @property
    def pitch(self) -> int:
        return max(self.cell[1] + 6, _TEXT + 10)

    @property
    def block(self) -> int:
        """The width of a sample and its variations."""
        width, gaps = self.cell[0], self.shape.variations * _GAP + (8 if self.shape.variations else 0)
        return width * (1 + self.shape.variations) + gaps

    @property
    def step(self) -> int:
        """From one sample to the next."""
        return self.block + (_BLOCK_GAP if self.shape.variations else _GAP)

    @property
    def bars(self) -> int:
        """From the left of a column to its bars."""
        return self.label + (self.shape.samples - 1) * self.step + self.block + _BLOCK_GAP

    @property
    def column(self) -> int:
        return self.bars + _BAR + 8 + self.counts

    @property
    def size(self) -> tuple[int, int]:
        width = self.shape.columns * (self.column + _COLUMN_GAP) - _COLUMN_GAP
        return 2 * _MARGIN + width, self.top + self.rows * self.pitch + _MARGIN - 6

    @property
    def text_width(self) -> int:
        return self.size[0] - 2 * _MARGIN


def _draw_heads(pen: ImageDraw.ImageDraw, plan: _Plan, left: int) -> None:
    """Write what the columns of pictures and the bars are, with a rule below."""
    font, line = _font(_SMALL), plan.top - _SMALL - 10
    for number in range(plan.shape.samples if plan.shape.variations else 1):
        place = left + plan.label + number * plan.step
        pen.text((place, line), "as it is", _DIM, font)
        if plan.shape.variations:
            pen.text((place + plan.cell[0] + _GAP + 8, line), "as training draws it", _DIM, font)
    bars = left + plan.bars
    pen.text((bars, line), "training", _TRAIN, font)
    pen.text((bars + _width("training ", font), line), "+ test", _TEST, font)
    pen.line([(left, plan.top - 5), (left + plan.column, plan.top - 5)], _RULE)


def _draw_group(
    sheet: Image.Image, pen: ImageDraw.ImageDraw, plan: _Plan, group: Group, place: tuple[int, int], most: int
) -> None:
    left, top = place
    middle = top + plan.cell[1] // 2
    pen.text((left, middle), _cut(group.name, _font(_TEXT), plan.label - 12), _INK, _font(_TEXT), anchor="lm")
    if not group.samples:
        pen.text((left + plan.label, middle), "no training examples", _DIM, _font(_SMALL), anchor="lm")
    for number, sample in enumerate(group.samples):
        _draw_sample(sheet, pen, plan, sample, (left + plan.label + number * plan.step, top))
    bars = left + plan.bars
    train, test = (round(_BAR * count / most) for count in (group.train_examples, group.test_examples))
    if train:
        pen.rectangle([bars, middle - 6, bars + train - 1, middle + 5], _TRAIN)
    if test:
        pen.rectangle([bars + train, middle - 6, bars + train + test - 1, middle + 5], _TEST)
    pen.text((bars + train + test + 6, middle), _counts(group), _DIM, _font(_SMALL), anchor="lm")


def _draw_sample(
    sheet: Image.Image, pen: ImageDraw.ImageDraw, plan: _Plan, sample: Sample, place: tuple[int, int]
) -> None:
    left, top = place
    width, height = plan.cell
    sheet.paste(scaled(sample.image), place)
    around = _INK if sample.varied else _RULE
    pen.rectangle([left - 1, top - 1, left + width, top + height], outline=around)
    for number, image in enumerate(sample.varied, start=1):
        start = left + number * (width + _GAP) + 8
        sheet.paste(scaled(image), (start, top))
        pen.rectangle([start - 1, top - 1, start + width, top + height], outline=_RULE)


def scaled(image: np.ndarray, cell: int = CELL) -> Image.Image:
    """Return an image, uint8 [H, W, 1 or 3], whose longer side fits `cell` pixels; enlarged pixels stay squares."""
    picture = Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).convert("RGB")
    width, height = picture.size
    times = cell // max(width, height)
    if times >= 1:
        return picture.resize((width * times, height * times), Image.Resampling.NEAREST)
    share = cell / max(width, height)
    return picture.resize((max(1, round(width * share)), max(1, round(height * share))), Image.Resampling.LANCZOS)


def write_small(pen: ImageDraw.ImageDraw, place: tuple[int, int], text: str, colour: str, width: int) -> None:
    """Write a line of small letters, cut where it is wider than `width` pixels."""
    pen.text(place, _cut(text, _font(_SMALL), width), colour, _font(_SMALL))


def _counts(group: Group) -> str:
    return f"{group.train_examples:,} + {group.test_examples:,}"


def _cut(text: str, font: ImageFont.FreeTypeFont, width: int) -> str:
    """Return the text, with its end replaced by … where it is wider than `width` pixels."""
    text = one_line(text)
    if _width(text, font) <= width:
        return text
    while text and _width(f"{text}…", font) > width:
        text = text[:-1]
    return f"{text}…"


def _width(text: str, font: ImageFont.FreeTypeFont) -> int:
    return round(font.getlength(text))


@lru_cache
def _font(size: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    """Return the letters that matplotlib brings along: they are the same on every machine."""
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts/ttf" / name), size)
