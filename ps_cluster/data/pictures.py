"""Decode pictures of any size to images of one size."""

from __future__ import annotations

import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, NamedTuple

import numpy as np
from pydantic import AfterValidator, BeforeValidator, Field

from ps_cluster.config.datasets import MOST_CLASSES, Contents, OwnImageSettings
from ps_cluster.data.targets import Targets, contents_of, smallest, split_of
from ps_cluster.files.values import Malformed, one_line

if TYPE_CHECKING:
    from PIL.Image import Image

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")  # of names of files
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF")
_GREY_MODES = ("1", "L", "LA", "I", "I;16", "I;16B", "I;16L")
_TURNED = (5, 6, 7, 8)  # values of EXIF's orientation that exchange height and width
_ORIENTATION = 0x0112
_AT_ONCE = 1024  # pictures that are decoded into memory together


def is_picture(name: str) -> bool:
    """Return whether a file's name is that of a picture."""
    return name.lower().endswith(ENDINGS)


@dataclass(frozen=True)
class Picture:
    """A picture to decode: its name for messages, how to open it, and its label."""

    name: str
    open: Callable[[], BinaryIO]
    label: int = 0


class Looked(NamedTuple):
    """The size of a picture, or its mistake. `size`: height and width as shown. `wrong`: why it can't be read, else ""."""

    size: tuple[int, int] = (0, 0)
    grey: bool = False
    wrong: str = ""


class Size(NamedTuple):
    """The form of the images: [height, width, channels]."""

    height: int
    width: int
    channels: int


class Images:
    """Images uint8 [N, H, W, C], decoded when they are asked for, by several threads."""

    def __init__(self, pictures: Sequence[Picture], size: Size):
        self._pictures, self._size = pictures, size
        self.dtype, self.shape = np.dtype(np.uint8), (len(pictures), *size)

    def __len__(self) -> int:
        return len(self._pictures)

    def __getitem__(self, part: slice | np.ndarray) -> np.ndarray:
        pictures = [self._pictures[place] for place in np.arange(len(self))[part]]
        images = np.empty((len(pictures), *self._size), np.uint8)
        for place, image in enumerate(_in_threads(self._decoded, pictures)):
            images[place] = image
        return images

    def _decoded(self, picture: Picture) -> np.ndarray:
        try:
            return decoded(picture, self._size)
        except Exception as error:  # a damaged picture can raise almost any
            raise Malformed(unreadable(picture.name, _why(error))) from error


def look(picture: Picture, *, wholly: bool = False) -> Looked:
    """Return size and colour of a picture from its beginning. `wholly`: decode it too, so that all damage is found."""
    try:
        with picture.open() as file, _opened(file) as image:
            turned = image.getexif().get(_ORIENTATION) in _TURNED
            if wholly:
                image.load()
            return Looked(image.size if turned else image.size[::-1], image.mode in _GREY_MODES)
    except Exception as error:  # a damaged picture can raise almost any
        return Looked(wrong=_why(error))


def look_at_all(pictures: Sequence[Picture], *, wholly: bool = False) -> list[Looked]:
    """Return what `look` finds of each."""
    return list(_in_threads(lambda picture: look(picture, wholly=wholly), pictures))


def unreadable(name: str, why: str) -> str:
    """Return the message about a picture that can't be read."""
    return f"the picture '{name}' can't be read ({why}): replace it, or go on without such pictures by --skip-bad"


def size_of(found: Sequence[Looked], wanted: tuple[int, int] | None) -> Size:
    """Return the form of the images: `wanted` (height, width), else the one size that all pictures have; RGB unless all
    are grey.

    Raises:
      Malformed: no size is given, and they have several.
    """
    sizes = Counter(one.size for one in found)
    if wanted is None and len(sizes) > 1:
        smallest, largest = (f"{height}x{width}" for height, width in (min(sizes), max(sizes)))
        raise Malformed(
            f"the pictures have {len(sizes):,} sizes, from {smallest} to {largest} (height x width): say which one to give "
            "them, e.g. --image-size 64 or --image-size 48x64"
        )
    height, width = wanted or next(iter(sizes))
    return Size(height, width, 1 if all(one.grey for one in found) else 3)


def decoded(picture: Picture, size: Size) -> np.ndarray:
    """Return uint8 [H, W, C]: turned as EXIF says, the shorter side resized, then the middle cut out."""
    from PIL import Image, ImageOps

    with picture.open() as file, _opened(file) as image:
        image.draft("RGB" if size.channels == 3 else "L", (2 * max(size[:2]),) * 2)  # JPEG: not larger than useful
        shown: Any = ImageOps.exif_transpose(image)
        if shown.mode.startswith("I"):  # 16 bits, which `convert` would cut off at 255
            shown = Image.fromarray((np.asarray(shown) >> 8).clip(0, 255).astype(np.uint8))
        plain = shown.convert("RGB" if size.channels == 3 else "L")
        wanted = (size.width, size.height)
        fitting = plain if plain.size == wanted else ImageOps.fit(plain, wanted, Image.Resampling.BICUBIC)
        return np.asarray(fitting).reshape(size)


def _opened(file: BinaryIO) -> Image:
    """Open a picture of a known format, without decoding it. Raises ValueError if it has too many pixels."""
    from PIL import Image

    warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)  # told as an error, below
    image = Image.open(file, formats=_FORMATS)
    most = Image.MAX_IMAGE_PIXELS or 0
    if image.width * image.height > most:
        raise Malformed(f"it has {image.width * image.height:,} pixels, more than {most:,}")
    if image.mode == "F":  # from 0 to 1, to 255, or to anything else
        raise Malformed("its pixels are fractions: save it with pixels from 0 to 255")
    return image


def _in_threads(work: Callable[[Picture], Any], pictures: Sequence[Picture]) -> Iterator[Any]:
    """Yield the result for each picture, in their order; only some of them are in memory."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for start in range(0, len(pictures), _AT_ONCE):
            yield from pool.map(work, pictures[start : start + _AT_ONCE])


def _why(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return "it is no picture that is known" if text.startswith("cannot identify") else one_line(text, 200)


# Data sets of pictures with a class each, wherever the pictures are.

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


def contents_of_pictures(
    splits: Mapping[str, Sequence[Picture]], classes: Sequence[str], settings: PictureSettings
) -> Contents:
    """Return the contents of a data set of pictures.

    Args:
      splits: "train" and perhaps "test" → pictures.
      classes: their names.

    Raises:
      Malformed: a picture can't be read, sizes differ, or the classes can't be learned.
    """
    if settings.objective not in ("auto", "classification"):
        raise Malformed(
            f"data.objective={settings.objective}: pictures have classes, which are learned by classification: leave it out; "
            "for other targets give arrays (x_train, y_train)"
        )
    # In an order without meaning: a folder has one class after the other, and examples to choose on are the last ones of the
    # training examples (`evaluation.validation_examples`).
    order = np.random.default_rng(0).permutation(len(splits["train"]))
    mixed = {**splits, "train": [splits["train"][i] for i in order]}
    sound, found, notes = _readable(mixed, settings.skip_bad)
    _check_classes(sound, classes)
    size = size_of(found, settings.sides)
    dtype = smallest(len(classes))
    labels = {split: np.array([picture.label for picture in pictures], dtype) for split, pictures in sound.items()}
    images = {split: {"image": Images(pictures, size)} for split, pictures in sound.items()}
    targets = Targets(labels["train"], labels.get("test"), "classification", tuple(classes))
    contents = contents_of(targets, split_of(targets, settings.held_out), images["train"], images.get("test"))
    return replace(contents, notes=(*notes, *contents.notes))


def _readable(
    splits: Mapping[str, Sequence[Picture]], skip_bad: bool
) -> tuple[dict[str, list[Picture]], list[Looked], list[str]]:
    """Return the pictures that can be read, what was found of each, and a note about the others."""
    sound: dict[str, list[Picture]] = {split: [] for split in splits}
    looked: list[Looked] = []
    bad: list[str] = []
    for split, pictures in splits.items():
        for picture, one in zip(pictures, look_at_all(pictures, wholly=skip_bad), strict=True):
            if not one.wrong:
                sound[split].append(picture)
                looked.append(one)
            elif skip_bad:
                bad.append(picture.name)
            else:
                raise Malformed(unreadable(picture.name, one.wrong))
    if not bad:
        return sound, looked, []
    more = f" and {len(bad) - _NAMED:,} more" if len(bad) > _NAMED else ""
    which = ", ".join(f"'{name}'" for name in bad[:_NAMED])
    return sound, looked, [f"skipped {len(bad):,} picture{'s' * (len(bad) > 1)} that can't be read: {which}{more}"]


def _check_classes(splits: Mapping[str, Sequence[Picture]], classes: Sequence[str]) -> None:
    if len(classes) > MOST_CLASSES:
        raise Malformed(f"there are {len(classes):,} classes, of at most {MOST_CLASSES:,}")
    if len(classes) < 2:
        one = f"only one class, '{classes[0]}'" if classes else "no class"
        raise Malformed(f"there is {one}: there is nothing to tell apart")
    present = {picture.label for picture in splits["train"]}
    if missing := [name for label, name in enumerate(classes) if label not in present]:
        raise Malformed(f"the class '{missing[0]}' has no picture to train on: add some, or remove the class")
    if not splits.get("test", (1,)):
        raise Malformed("there is no picture to test on: add some, or remove the folder")
