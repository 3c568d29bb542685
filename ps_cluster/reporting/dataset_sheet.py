"""Write the contact sheet of a packed data set of images."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from ps_cluster.catalogue.augmentation import Augmentation
from ps_cluster.catalogue.datasets import DATASETS, DataSettings, ImageSettings
from ps_cluster.data.packed import PackedDataset
from ps_cluster.data.samples import Vary, groups_of, variation, with_samples
from ps_cluster.errors import UserError
from ps_cluster.files.writing import create_beside
from ps_cluster.processes import environment
from ps_cluster.quiet_import import without_first_lines
from ps_cluster.reporting.contact_sheet import draw_sheet, shape_for

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
    found = groups_of(dataset)
    shape = shape_for(min(len(found), MOST_GROUPS), varied=make is not None)
    groups = with_samples(
        dataset, found[:MOST_GROUPS], make and _quietly(make, seed),
        samples=shape.samples, variations=shape.variations, seed=seed,
    )  # fmt: skip
    lines = [_about(dataset), _about_variations(settings, make is not None, seed)]
    if len(found) > MOST_GROUPS:
        lines.append(f"the first {MOST_GROUPS} of {len(found):,} classes")
    sheet = draw_sheet(kind.full_name, lines, groups, shape)
    path = output or Path(f"{re.sub(r'[^A-Za-z0-9_]+', '-', dataset.name).strip('-')[-60:]}.png")
    with create_beside(path.absolute()) as file:
        sheet.save(file, "PNG")
    return path


def _quietly(make: Callable[[int], Vary], seed: int) -> Vary:
    """Return what `make` makes, without the lines of TensorFlow, which it imports."""
    os.environ.update(environment.for_tensorflow(os.environ))
    with without_first_lines():
        return make(seed)


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
