"""Make data sets of pictures that each have a class."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated

import numpy as np
from pydantic import AfterValidator, BeforeValidator, Field

from ps_cluster.config.datasets import MOST_CLASSES, Contents, OwnImageSettings
from ps_cluster.data.holding_out import contents_of, hold_out
from ps_cluster.data.pictures import Images, Picture, PictureInfo, common_size, inspect_pictures, unreadable_message
from ps_cluster.data.targets import Targets, label_dtype
from ps_cluster.files.values import Malformed

_LONGEST_SIDE = 10_000  # pixels
_LARGEST = 2**16 - 1  # the largest value of 16 bits
_MOST_NAMED = 5  # a note names at most this many skipped pictures


def _sides(text: str) -> str:
    match = re.fullmatch(r"([0-9]{1,5})(?:x([0-9]{1,5}))?", text)
    sides = [int(side) for side in match.groups(match[1])] if match else []
    if not sides or not all(1 <= side <= _LONGEST_SIDE for side in sides):
        raise ValueError(
            f"give height x width, such as 48x64, or one number; each side has to be from 1 to {_LONGEST_SIDE:,}"
        )
    return "x".join(map(str, sides))


ImageSize = Annotated[
    str, BeforeValidator(lambda given: str(given) if type(given) is int else given), AfterValidator(_sides)
]


class PictureSettings(OwnImageSettings):
    """Settings of data sets of pictures that have to be decoded, e.g. from .png or .jpg files."""

    image_size: ImageSize | None = Field(
        default=None,
        description=(
            "Size of the images, e.g. 64 or 48x64 (height x width). Pictures are resized to cover this size, "
            "and cropped to it. null: the pictures keep their size, which must be the same for all of them."
        ),
    )
    skip_bad: bool = Field(default=False, description="Skip pictures that can't be read, and report them in a notice.")

    @property
    def sides(self) -> tuple[int, int] | None:
        """Height and width as set by `image_size`; None if it is not set."""
        if self.image_size is None:
            return None
        height, width = self.image_size.split("x")
        return int(height), int(width)


def contents_of_pictures(
    splits: Mapping[str, Sequence[Picture]], classes: Sequence[str], settings: PictureSettings
) -> Contents:
    """Return the contents of a data set of pictures. `splits`: the pictures of "train", and perhaps of "test".

    `classes`: the name of each label. Raises Malformed if a picture can't be read, sizes differ, or the classes can't
    be learned, e.g. because there is only one.
    """
    if settings.objective not in ("auto", "classification"):
        raise Malformed(
            f"data.objective={settings.objective}: pictures have classes, so the objective has to be "
            "classification: remove this setting; to train on other targets, give arrays (x_train, y_train)"
        )
    # The examples are shuffled because a folder has one class after the other, and the last training examples may be
    # held out to choose a model (`evaluation.validation_examples`).
    order = np.random.default_rng(0).permutation(len(splits["train"]))
    mixed = {**splits, "train": [splits["train"][i] for i in order]}
    sound, found, notes = _split_readable(mixed, settings.skip_bad)
    _check_classes(sound, classes)
    size = common_size(found, settings.sides)
    dtype = label_dtype(len(classes))
    labels = {split: np.array([picture.label for picture in pictures], dtype) for split, pictures in sound.items()}
    images = {split: {"image": Images(pictures, size)} for split, pictures in sound.items()}
    targets = Targets(labels["train"], labels.get("test"), "classification", tuple(classes))
    contents = contents_of(targets, hold_out(targets, settings.held_out), images["train"], images.get("test"))
    return replace(contents, notes=(*notes, *_notes_on_16_bits(found), *contents.notes))


def _notes_on_16_bits(found: Sequence[PictureInfo]) -> Iterator[str]:
    """Yield a line if the 16-bit pictures use less than half of the range of values, e.g. because they hold 12 bits."""
    largest = max((one.largest for one in found if one.largest is not None), default=_LARGEST)
    if 0 < largest < _LARGEST // 2:
        yield (
            f"the largest value in the pictures of 16 bits is {largest:,}, not {_LARGEST:,}, so they get only "
            f"{largest // 256 + 1:,} of 256 levels of grey: multiply their values by {_LARGEST // largest:,}"
        )


def _split_readable(
    splits: Mapping[str, Sequence[Picture]], skip_bad: bool
) -> tuple[dict[str, list[Picture]], list[PictureInfo], list[str]]:
    """Return the readable pictures by split, the information about them, and a note about the unreadable pictures."""
    sound: dict[str, list[Picture]] = {split: [] for split in splits}
    looked: list[PictureInfo] = []
    bad: list[str] = []
    for split, pictures in splits.items():
        for picture, one in zip(pictures, inspect_pictures(pictures, wholly=skip_bad), strict=True):
            if not one.wrong:
                sound[split].append(picture)
                looked.append(one)
            elif skip_bad:
                bad.append(picture.name)
            else:
                raise Malformed(unreadable_message(picture.name, one.wrong))
    if not bad:
        return sound, looked, []
    more = f" and {len(bad) - _MOST_NAMED:,} more" if len(bad) > _MOST_NAMED else ""
    which = ", ".join(f"'{name}'" for name in bad[:_MOST_NAMED])
    return sound, looked, [f"skipped {len(bad):,} picture{'s' * (len(bad) > 1)} that can't be read: {which}{more}"]


def _check_classes(splits: Mapping[str, Sequence[Picture]], classes: Sequence[str]) -> None:
    if len(classes) > MOST_CLASSES:
        raise Malformed(f"there are {len(classes):,} classes, more than {MOST_CLASSES:,}")
    if len(classes) < 2:
        one = f"only one class, '{classes[0]}'" if classes else "no class"
        raise Malformed(f"there is {one}: give at least two classes")
    present = {picture.label for picture in splits["train"]}
    if missing := [name for label, name in enumerate(classes) if label not in present]:
        raise Malformed(f"the class '{missing[0]}' has no picture to train on: add some, or remove the class")
    if not splits.get("test", (1,)):
        raise Malformed("there is no picture to test on: add some, or remove the test split")
