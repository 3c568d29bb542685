"""Draw a contact sheet: examples of each class of a data set of images, as they are and varied, and how many there are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from ps_cluster.config.datasets import DATASETS, Augmentation, DataSettings, ImageSettings
from ps_cluster.data.describing import ExampleGroup, groups_of, variation, with_samples
from ps_cluster.data.packed import PackedDataset
from ps_cluster.errors import UserError
from ps_cluster.files.values import one_line
from ps_cluster.files.writing import create_beside
from ps_cluster.quiet_import import without_first_lines
from ps_cluster.system.environment import prepare_for_tensorflow

CELL = 84  # pixels of the longer side of an image at most; small images are enlarged by a whole number
_MARGIN, _GAP, _BLOCK_GAP, _COLUMN_GAP = 28, 4, 22, 40  # pixels: around the sheet, between images, blocks, columns
_LABEL, _BAR, _COUNTS = 180, 130, 110  # pixels: room for the name of a class, the longest bar, and counts
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


class _Sizes(NamedTuple):
    """In pixels: an image, a sample with its variations and the gap behind it, and from a row's left to its bars."""

    width: int
    height: int
    block: int
    bars: int


def draw_sheet(title: str, lines: Sequence[str], groups: Sequence[ExampleGroup], shape: Shape) -> Image.Image:
    """Return the sheet.

    Args:
      lines: what stands below the title.
      shape: the arrangement for which the groups were drawn.
    """
    width, height = scaled(next(sample for group in groups for sample in group.samples).image).size
    block = width + shape.variations * (width + _GAP) + (8 + _BLOCK_GAP if shape.variations else _GAP)
    sizes = _Sizes(width, height, block, _LABEL + shape.samples * block + (0 if shape.variations else _BLOCK_GAP))
    column, pitch, rows = sizes.bars + _BAR + _COUNTS, max(height + 6, _TEXT + 10), -(-len(groups) // shape.columns)
    top = _MARGIN + _TITLE + 12 + len(lines) * (_TEXT + 6) + 16 + _SMALL + 8
    whole = 2 * _MARGIN + shape.columns * (column + _COLUMN_GAP) - _COLUMN_GAP
    sheet = Image.new("RGB", (whole, top + rows * pitch + _MARGIN - 6), "white")
    pen = ImageDraw.Draw(sheet)
    _write(pen, (_MARGIN, _MARGIN), title, _INK, whole - 2 * _MARGIN, _font(_TITLE, bold=True))
    for number, line in enumerate(lines):
        place = _MARGIN, _MARGIN + _TITLE + 12 + number * (_TEXT + 6)
        _write(pen, place, line, _DIM, whole - 2 * _MARGIN, _font(_TEXT))
    most = max(group.train_examples + group.test_examples for group in groups)
    for number, group in enumerate(groups):
        place_of_column, row = divmod(number, rows)
        left = _MARGIN + place_of_column * (column + _COLUMN_GAP)
        if not row:
            _draw_heads(pen, shape, sizes, (left, top - _SMALL - 10))
            pen.line([(left, top - 5), (left + column, top - 5)], _RULE)
        _draw_group(sheet, pen, group, sizes, (left, top + row * pitch), most)
    return sheet


def _draw_heads(pen: ImageDraw.ImageDraw, shape: Shape, sizes: _Sizes, place: tuple[int, int]) -> None:
    """Write what the columns of pictures and the bars are."""
    font, (left, line) = _font(_SMALL), place
    for number in range(shape.samples if shape.variations else 1):
        start = left + _LABEL + number * sizes.block
        pen.text((start, line), "as it is", _DIM, font)
        if shape.variations:
            pen.text((start + sizes.width + _GAP + 8, line), "as training draws it", _DIM, font)
    pen.text((left + sizes.bars, line), "training", _TRAIN, font)
    pen.text((left + sizes.bars + round(font.getlength("training ")), line), "+ test", _TEST, font)


def _draw_group(
    sheet: Image.Image, pen: ImageDraw.ImageDraw, group: ExampleGroup, sizes: _Sizes, place: tuple[int, int], most: int
) -> None:
    (left, top), middle = place, place[1] + sizes.height // 2
    _write(pen, (left, middle), group.name, _INK, _LABEL - 12, _font(_TEXT), anchor="lm")
    if not group.samples:
        pen.text((left + _LABEL, middle), "no training examples", _DIM, _font(_SMALL), anchor="lm")
    for number, sample in enumerate(group.samples):
        for index, image in enumerate((sample.image, *sample.varied)):
            start = left + _LABEL + number * sizes.block + index * (sizes.width + _GAP) + (8 if index else 0)
            sheet.paste(scaled(image), (start, top))
            around = _INK if sample.varied and not index else _RULE
            pen.rectangle([start - 1, top - 1, start + sizes.width, top + sizes.height], outline=around)
    end = left + sizes.bars
    for count, colour in ((group.train_examples, _TRAIN), (group.test_examples, _TEST)):
        if length := round(_BAR * count / most):
            pen.rectangle([end, middle - 6, end + length - 1, middle + 5], colour)
            end += length
    counts = f"{group.train_examples:,} + {group.test_examples:,}"
    pen.text((end + 6, middle), counts, _DIM, _font(_SMALL), anchor="lm")


def scaled(image: np.ndarray, cell: int = CELL) -> Image.Image:
    """Return an image, uint8 [H, W, 1 or 3], whose longer side fits `cell` pixels; enlarged pixels stay squares."""
    picture = Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).convert("RGB")
    width, height = picture.size
    times = cell // max(width, height)
    if times >= 1:
        return picture.resize((width * times, height * times), Image.Resampling.NEAREST)
    share = cell / max(width, height)
    return picture.resize((max(1, round(width * share)), max(1, round(height * share))), Image.Resampling.LANCZOS)


def _write(
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
    prepare_for_tensorflow()  # it may be imported now, without its lines
    with without_first_lines():
        vary = variation(kind, settings, dataset, seed)
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
        _write(pen, (left, below), answer.predicted, colour, _WIDTH - _SPACE, _font(_SMALL))
        if not answer.right:
            _write(pen, (left, below + _LINE), f"is {answer.truth}", _NEITHER, _WIDTH - _SPACE, _font(_SMALL))
    return sheet
