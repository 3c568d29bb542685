"""Draw a contact sheet: examples of each class of a data set of images, as they are and varied, and how many there are."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from ps_cluster.config.datasets import DATASETS, Augmentation, DataSettings, ImageSettings
from ps_cluster.data.packed import PackedDataset
from ps_cluster.data.samples import Group, Sample, groups_of, variation, with_samples
from ps_cluster.errors import UserError
from ps_cluster.files.values import one_line
from ps_cluster.files.writing import create_beside
from ps_cluster.quiet_import import without_first_lines
from ps_cluster.system import environment

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
        counts = max(_width(f"{group.train_examples:,} + {group.test_examples:,}", _font(_SMALL)) for group in groups)
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
    pen.text(
        (bars + train + test + 6, middle),
        f"{group.train_examples:,} + {group.test_examples:,}",
        _DIM,
        _font(_SMALL),
        anchor="lm",
    )


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


# Write the contact sheet of a packed data set of images.

MOST_GROUPS = 100  # on one sheet


def write_sheet(dataset: PackedDataset, settings: DataSettings, output: Path | None, seed: int) -> Path:
    """Draw the sheet of a data set of images, and return the file that it was written to.

    Args:
      settings: the section `data`, which says how training varies images.
      output: None: a file with the data set's name in the working directory.

    Raises:
      UserError: a variation does not fit the images.
    """
    kind = DATASETS[dataset.name]
    (image,) = dataset.spec.inputs.values()
    try:
        if isinstance(settings, ImageSettings):
            settings.augmentation.check(image.shape)
    except ValueError as error:
        raise UserError(str(error)) from error
    make = variation(kind, settings, dataset)
    vary = None
    if make:
        os.environ.update(environment.for_tensorflow(os.environ))  # it is imported now, without its lines
        with without_first_lines():
            vary = make(seed)
    found = groups_of(dataset)
    shape = shape_for(min(len(found), MOST_GROUPS), varied=vary is not None)
    groups = with_samples(
        dataset, found[:MOST_GROUPS], vary,
        samples=shape.samples, variations=shape.variations, seed=seed,
    )  # fmt: skip
    lines = [_about(dataset), _about_variations(settings, vary is not None, seed)]
    if len(found) > MOST_GROUPS:
        lines.append(f"the first {MOST_GROUPS} of {len(found):,} classes")
    sheet = draw_sheet(kind.full_name, lines, groups, shape)
    path = output or Path(f"{re.sub(r'[^A-Za-z0-9_]+', '-', dataset.name).strip('-')[-60:]}.png")
    with create_beside(path.absolute()) as file:
        sheet.save(file, "PNG")
    return path


def _about(dataset: PackedDataset) -> str:
    (image,) = dataset.spec.inputs.values()
    origin = "generated" if dataset.kind == "synthetic" else f"from {dataset.source}" if dataset.source else "real"
    what = f"{len(dataset.spec.classes):,} classes" if dataset.spec.classes else dataset.spec.objective
    counts = f"{dataset.train_examples:,} training + {dataset.test_examples:,} test images"
    return f"{counts} of {'x'.join(map(str, image.shape))} · {what} · {origin}"


def _about_variations(settings: DataSettings, varied: bool, seed: int) -> str:
    if not varied:
        return f"training takes them as they are · seed {seed}"
    usual = Augmentation().model_dump()
    given = getattr(settings, "augmentation", None)
    chosen = {} if given is None else {key: value for key, value in given.model_dump().items() if value != usual[key]}
    texts = (
        f"{key} {value if not isinstance(value, tuple) else ' to '.join(map(str, value))}"
        for key, value in chosen.items()
    )
    return f"training draws: {', '.join(texts) or 'variations of its own'} · seed {seed}"


# Draw pictures with what a network takes them for, beside what they are.

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
        write_small(pen, (left, below), answer.predicted, colour, _WIDTH - _SPACE)
        if not answer.right:
            write_small(pen, (left, below + _LINE), f"is {answer.truth}", _NEITHER, _WIDTH - _SPACE)
    return sheet
