"""Data sets of pictures with a class each, wherever the pictures are."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator, BeforeValidator, Field

from ps_cluster.catalogue.datasets import MOST_CLASSES, Contents, OwnImageSettings
from ps_cluster.catalogue.examples import TARGET
from ps_cluster.data.holding_out import hold_out
from ps_cluster.data.pictures import Images, Looked, Picture, look_at_all, size_of, unreadable
from ps_cluster.files.malformed import Malformed

_MOST_PIXELS = 10_000  # of a side
_NAMED = 5  # pictures that were skipped and are named


def _sides(text: str) -> str:
    match = re.fullmatch(r"([0-9]{1,5})(?:x([0-9]{1,5}))?", text)
    sides = [int(side) for side in match.groups(match[1])] if match else []
    if not sides or not all(1 <= side <= _MOST_PIXELS for side in sides):
        raise ValueError(f"give height x width, such as 48x64, or one number, of 1 to {_MOST_PIXELS:,}")
    return "x".join(map(str, sides))


ImageSize = Annotated[
    str, BeforeValidator(lambda given: str(given) if type(given) is int else given), AfterValidator(_sides)
]


class PictureSettings(OwnImageSettings):
    """Settings of pictures that have to be decoded."""

    image_size: ImageSize | None = Field(
        default=None,
        description=(
            "Size of the images, 64 or 48x64 (height x width): the shorter side is resized, then the middle cut out. "
            "null: the one that all pictures have."
        ),
    )
    skip_bad: bool = Field(default=False, description="Go on without pictures that can't be read, and name them.")

    @property
    def sides(self) -> tuple[int, int] | None:
        """Height and width that were asked for."""
        if self.image_size is None:
            return None
        height, width = self.image_size.split("x")
        return int(height), int(width)


Labelled = Sequence[tuple[Picture, int]]
"""Pictures with their labels."""


def contents_of_pictures(splits: Mapping[str, Labelled], classes: Sequence[str], settings: PictureSettings) -> Contents:
    """Return the contents of a data set of pictures.

    Args:
      splits: "train" and perhaps "test" → pictures with their labels.
      classes: their names.

    Raises:
      Malformed: a picture can't be read, sizes differ, or the classes can't be learned.
    """
    given = {split: list(pictures) for split, pictures in splits.items()} | {"train": _shuffled(list(splits["train"]))}
    sound, found, notes = _readable(given, settings.skip_bad)
    _check_classes(sound, classes)
    size = size_of(found, settings.sides)
    if "test" not in sound:
        labels = np.array([label for _, label in sound["train"]])
        split = hold_out(settings.held_out, len(labels), labels)
        everything = sound["train"]
        sound = {name: [everything[i] for i in ids] for name, ids in (("train", split.train), ("test", split.test))}
        notes.append(split.note)
    dtype = np.uint8 if len(classes) <= 2**8 else np.uint16
    arrays: dict[str, dict[str, Any]] = {
        split: {
            "image": Images([picture for picture, _ in pictures], size),
            TARGET: np.array([label for _, label in pictures], dtype),
        }
        for split, pictures in sound.items()
    }
    contents = Contents.of(arrays["train"], arrays["test"], classes=classes)
    return replace(contents, notes=tuple(notes))


def _shuffled(pictures: list[tuple[Picture, int]]) -> list[tuple[Picture, int]]:
    """Return the pictures in an order without meaning: a folder has one class after the other.

    Examples to choose on are the last ones of the training examples (`evaluation.validation_examples`).
    """
    return [pictures[i] for i in np.random.default_rng(0).permutation(len(pictures))]


def _readable(
    splits: Mapping[str, list[tuple[Picture, int]]], skip_bad: bool
) -> tuple[dict[str, list[tuple[Picture, int]]], list[Looked], list[str]]:
    """Return the pictures that can be read, what was found of each, and a note about the others."""
    sound: dict[str, list[tuple[Picture, int]]] = {}
    looked: list[Looked] = []
    bad: list[str] = []
    for split, pictures in splits.items():
        found = look_at_all([picture for picture, _ in pictures], wholly=skip_bad)
        sound[split] = []
        for one, (picture, label) in zip(found, pictures, strict=True):
            if not one.wrong:
                sound[split].append((picture, label))
                looked.append(one)
            elif skip_bad:
                bad.append(picture.name)
            else:
                raise Malformed(unreadable(picture.name, one.wrong))
    return sound, looked, [_skipped(bad)] if bad else []


def _skipped(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    which = ", ".join(f"'{name}'" for name in names[:_NAMED])
    return f"skipped {len(names):,} picture{'s' * (len(names) > 1)} that can't be read: {which}{more}"


def _check_classes(splits: Mapping[str, Labelled], classes: Sequence[str]) -> None:
    if len(classes) > MOST_CLASSES:
        raise Malformed(f"there are {len(classes):,} classes, of at most {MOST_CLASSES:,}")
    if len(classes) < 2:
        one = f"only one class, '{classes[0]}'" if classes else "no class"
        raise Malformed(f"there is {one}: there is nothing to tell apart")
    present = {label for _, label in splits["train"]}
    if missing := [name for label, name in enumerate(classes) if label not in present]:
        raise Malformed(f"the class '{missing[0]}' has no picture to train on: add some, or remove the class")
    if not splits.get("test", (1,)):
        raise Malformed("there is no picture to test on: add some, or remove the folder")
