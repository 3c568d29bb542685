"""Decode pictures of any size into images of one size."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, TypeVar

import numpy as np

from ps_cluster.data.lazy_rows import LazyRows
from ps_cluster.files.values import Malformed, reason

if TYPE_CHECKING:
    from PIL.Image import Image

T = TypeVar("T")
ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")  # the endings of names of picture files
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF")
_GREY_MODES = ("1", "L", "LA", "I", "I;16", "I;16B", "I;16L")
_SIDEWAYS = (5, 6, 7, 8)  # values of EXIF's orientation that swap height and width
_ORIENTATION = 0x0112
_AT_ONCE = 1024  # pictures that are decoded into memory together


def is_picture(name: str) -> bool:
    """Return whether a file's name is that of a picture."""
    return name.lower().endswith(ENDINGS)


@dataclass(frozen=True)
class Picture:
    """A picture to decode."""

    name: str  # for messages
    open: Callable[[], BinaryIO]  # opens its file
    label: int = 0


class PictureInfo(NamedTuple):
    """Facts about a picture, which were read from its file."""

    size: tuple[int, int] = (0, 0)  # height and width as shown
    grey: bool = False
    largest: int | None = None  # the largest value in a picture of 16 bits; None for other pictures
    wrong: str = ""  # why it can't be read


class Size(NamedTuple):
    """The shape of the images: [height, width, channels]."""

    height: int
    width: int
    channels: int


class Images(LazyRows):
    """An array of images, uint8 [N, H, W, C]. Images are decoded when they are read, by several threads."""

    def __init__(self, pictures: Sequence[Picture], size: Size):
        super().__init__(np.dtype(np.uint8), (len(pictures), *size))
        self._pictures, self._size = pictures, size

    def __getitem__(self, part: slice | np.ndarray, /) -> np.ndarray:
        pictures = [self._pictures[place] for place in np.arange(len(self))[part]]
        images = np.empty((len(pictures), *self._size), np.uint8)
        for place, image in enumerate(_in_threads(self._decoded, pictures)):
            images[place] = image
        return images

    def _decoded(self, picture: Picture) -> np.ndarray:
        try:
            return decode_picture(picture, self._size)
        except Exception as error:  # a damaged picture can raise almost any exception
            raise Malformed(unreadable_message(picture.name, _why_unreadable(error))) from error


def inspect_pictures(pictures: Sequence[Picture], *, wholly: bool) -> list[PictureInfo]:
    """Return information about pictures from their headers. `wholly`: decode them too, so that all damage is found."""

    def inspect(picture: Picture) -> PictureInfo:
        try:
            with picture.open() as file, _open_image(file) as image:
                turned = image.getexif().get(_ORIENTATION) in _SIDEWAYS
                if wholly:
                    image.load()
                largest = int(np.asarray(image).max()) if _has_16_bits(image) else None
                return PictureInfo(image.size if turned else image.size[::-1], image.mode in _GREY_MODES, largest)
        except Exception as error:  # a damaged picture can raise almost any exception
            return PictureInfo(wrong=_why_unreadable(error))

    return list(_in_threads(inspect, pictures))


def unreadable_message(name: str, why: str) -> str:
    """Return the message about a picture that can't be read."""
    return f"the picture '{name}' can't be read ({why}): replace it, or skip such pictures with --skip-bad"


def common_size(found: Sequence[PictureInfo], wanted: tuple[int, int] | None) -> Size:
    """Return the shape that all images get. They have 3 channels, or 1 channel if all pictures are grey.

    `wanted`: the height and width of the images; None to keep the size of the pictures. Raises Malformed if `wanted` is
    None and the pictures have different sizes.
    """
    sizes = Counter(one.size for one in found)
    if wanted is None and len(sizes) > 1:
        smallest, largest = (f"{height}x{width}" for height, width in (min(sizes), max(sizes)))
        raise Malformed(
            f"the pictures have {len(sizes):,} sizes, from {smallest} to {largest} (height x width): choose one for "
            "all of them, e.g. --image-size 64 or --image-size 48x64"
        )
    height, width = wanted or next(iter(sizes))
    return Size(height, width, 1 if all(one.grey for one in found) else 3)


def decode_picture(picture: Picture, size: Size) -> np.ndarray:
    """Return a picture as an image, uint8 [H, W, C]: rotated as EXIF says, resized to cover `size`, and cropped."""
    from PIL import Image, ImageOps

    mode = "RGB" if size.channels == 3 else "L"
    with picture.open() as file, _open_image(file) as image:
        image.draft(mode, (2 * max(size[:2]),) * 2)  # lets a JPEG be decoded at a smaller scale
        shown: Image.Image = ImageOps.exif_transpose(image)
        if _has_16_bits(shown):  # `convert` would clip values at 255
            shown = Image.fromarray((np.asarray(shown) >> 8).clip(0, 255).astype(np.uint8))
        plain = shown.convert(mode)
        wanted = (size.width, size.height)
        fitting = plain if plain.size == wanted else ImageOps.fit(plain, wanted, Image.Resampling.BICUBIC)
        return np.asarray(fitting).reshape(size)


def _has_16_bits(image: Image) -> bool:
    return image.mode.startswith("I")


def _open_image(file: BinaryIO) -> Image:
    """Open a picture of a known format, without decoding it.

    Raises Malformed if it has too many pixels, or if the largest possible value of a pixel is not known.
    """
    from PIL import Image

    warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)  # reported as an error below
    image = Image.open(file, formats=_FORMATS)
    most = Image.MAX_IMAGE_PIXELS or 0
    if image.width * image.height > most:
        raise Malformed(f"it has {image.width * image.height:,} pixels, more than {most:,}")
    if image.mode == "F":  # the range is not known: it may be 0 to 1, 0 to 255, or anything else
        raise Malformed("its pixels are fractions: save it with pixels from 0 to 255")
    if image.mode == "I" and image.format != "PNG":  # older versions of Pillow open a PNG of 16 bits in this mode
        raise Malformed("its pixels are numbers of 32 bits: save it with pixels from 0 to 255")
    return image


def _in_threads(work: Callable[[Picture], T], pictures: Sequence[Picture]) -> Iterator[T]:
    """Yield the result of `work` for each picture, in order. Only some of the results are in memory at once."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for start in range(0, len(pictures), _AT_ONCE):
            yield from pool.map(work, pictures[start : start + _AT_ONCE])


def _why_unreadable(error: Exception) -> str:
    text = reason(error, 200)
    return "it is no picture of a known format" if text.startswith("cannot identify") else text
