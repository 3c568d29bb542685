"""Write a page about a data set of images.

For each class, the page shows the number of examples, some of the examples, and how data augmentation changes them.
"""

from __future__ import annotations

import re
from pathlib import Path

from ps_cluster.config.augmentation import Augmentation
from ps_cluster.config.datasets import DATASETS, DataSettings, ImageSettings
from ps_cluster.data.class_examples import groups_of, image_variation, with_samples
from ps_cluster.data.packed import PackedDataset
from ps_cluster.errors import UserError
from ps_cluster.files.writing import write_whole
from ps_cluster.quiet_import import without_first_lines
from ps_cluster.report.pages import rendered
from ps_cluster.report.pictures import as_source
from ps_cluster.system.environment import prepare_for_tensorflow

MOST_GROUPS = 100  # the largest number of classes on the page
FEW_GROUPS = 20  # up to this number of groups, each has two samples; if there are more, each has one
VARIATIONS = 5  # the number of variations of each sample


def write_data_page(dataset: PackedDataset, settings: DataSettings, output: Path | None, seed: int) -> Path:
    """Write the page of a data set of images, and return its file.

    Args:
      settings: the section `data` of the configuration, which says how training varies images.
      output: the file to write; None for a file in the working directory that is named after the data set.
      seed: decides which examples are chosen, and how they are varied.

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
    prepare_for_tensorflow()  # TensorFlow computes the variations of the images
    with without_first_lines():
        vary = image_variation(kind, settings, dataset, seed)
    found = groups_of(dataset)
    samples = 2 if len(found) <= FEW_GROUPS else 1
    wanted = {"samples": samples * (1 if vary else 1 + VARIATIONS), "variations": VARIATIONS if vary else 0}
    groups = with_samples(dataset, found[:MOST_GROUPS], vary, **wanted, seed=seed)
    lines = [_about(dataset), _about_variations(settings, vary is not None, seed)]
    if len(found) > MOST_GROUPS:
        lines.append(f"the first {MOST_GROUPS} of {len(found):,} classes")
    page = rendered(
        __package__,
        "data.html",
        title=kind.full_name,
        lines=lines,
        groups=groups,
        as_source=as_source,
        most=max(group.train_examples + group.test_examples for group in groups),
        has_variations=vary is not None,
    )
    path = output or Path(f"{re.sub(r'[^A-Za-z0-9_]+', '-', dataset.name).strip('-')[-60:]}.html")
    write_whole(path.absolute(), page)
    return path


def _about(dataset: PackedDataset) -> str:
    (image,) = dataset.spec.inputs.values()
    origin = "generated" if dataset.kind == "synthetic" else f"from {dataset.source}" if dataset.source else "real"
    what = f"{len(dataset.spec.classes):,} classes" if dataset.spec.classes else dataset.spec.objective
    counts = f"{dataset.train_examples:,} training + {dataset.test_examples:,} test images"
    return f"{counts} of {'x'.join(map(str, image.shape))} · {what} · {origin}"


def _about_variations(settings: DataSettings, varied: bool, seed: int) -> str:
    if not varied:
        return f"training does not vary the images · seed {seed}"
    usual = Augmentation().model_dump()
    given = settings.augmentation.model_dump() if isinstance(settings, ImageSettings) else {}
    chosen = {key: value for key, value in given.items() if value != usual[key]}
    texts = (
        f"{key} {' to '.join(map(str, value)) if isinstance(value, tuple) else value}" for key, value in chosen.items()
    )
    return f"training varies the images by: {', '.join(texts) or 'variations that the data set defines'} · seed {seed}"
