"""Draw a contact sheet: examples of each class of a data set of images, as they are and varied, and how many there are."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageDraw

from ps_cluster.config.datasets import DATASETS, Augmentation, DataSettings, ImageSettings
from ps_cluster.data.describing import ExampleGroup, groups_of, variation, with_samples
from ps_cluster.data.packed import PackedDataset
from ps_cluster.errors import UserError
from ps_cluster.files.writing import create_beside
from ps_cluster.quiet_import import without_first_lines
from ps_cluster.report.pictures import letters, scaled, write_line
from ps_cluster.system import environment

_MARGIN, _GAP, _BLOCK_GAP, _COLUMN_GAP = 28, 4, 22, 40  # pixels: around the sheet, between images, blocks, columns
_LABEL, _BAR, _COUNTS = 180, 130, 110  # pixels: room for the name of a class, the longest bar, and counts
_INK, _DIM, _RULE, _TRAIN, _TEST = "#1c2126", "#5b6570", "#e3e6ea", "#0072B2", "#E69F00"
_TITLE, _TEXT, _SMALL = 22, 14, 12  # sizes of letters
MOST_GROUPS = 100  # on one sheet


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
    write_line(pen, (_MARGIN, _MARGIN), title, _INK, whole - 2 * _MARGIN, letters(_TITLE, bold=True))
    for number, line in enumerate(lines):
        place = _MARGIN, _MARGIN + _TITLE + 12 + number * (_TEXT + 6)
        write_line(pen, place, line, _DIM, whole - 2 * _MARGIN, letters(_TEXT))
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
    font, (left, line) = letters(_SMALL), place
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
    write_line(pen, (left, middle), group.name, _INK, _LABEL - 12, letters(_TEXT), anchor="lm")
    if not group.samples:
        pen.text((left + _LABEL, middle), "no training examples", _DIM, letters(_SMALL), anchor="lm")
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
    pen.text((end + 6, middle), counts, _DIM, letters(_SMALL), anchor="lm")


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
    os.environ.update(environment.for_tensorflow(os.environ))  # it may be imported now, without its lines
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
