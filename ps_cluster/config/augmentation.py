"""Define the settings of image augmentation, and their short form. The launcher imports this without TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, ConfigDict, Field

from ps_cluster.config.setting_types import Section
from ps_cluster.errors import did_you_mean
from ps_cluster.files.values import Malformed, parse_decimal, parse_integer


def _ascending(factors: tuple[float, float]) -> tuple[float, float]:
    lowest, highest = factors
    if lowest > highest:
        raise ValueError(f"the lowest factor, {lowest}, is above the highest factor, {highest}")
    return factors


Factor = Annotated[float, Field(ge=0, le=100)]
# The tuple is not strict, because YAML has lists instead of tuples. Its factors are strict.
FactorRange = Annotated[tuple[Factor, Factor], Field(strict=False), AfterValidator(_ascending)]


class Augmentation(Section):
    """The settings of `ps_cluster.data.augment.augment`. The defaults change nothing.

    A value out of range raises pydantic's `ValidationError`, which names the field and the value.
    """

    model_config = ConfigDict(use_attribute_docstrings=True)

    crop_padding_pixels: int = Field(0, ge=0, le=10_000)
    """Pad every side with this many mirrored pixels, and crop to the old size at a random place."""

    flip: Literal["none", "random", "alternating"] = "none"
    """Mirror images horizontally. random: with probability 1/2. alternating: each image in every second epoch."""

    hue_delta: float = Field(0.0, ge=0, le=0.5)
    """Shift the hue by up to this fraction of the colour circle, in either direction."""

    brightness_delta: float = Field(0.0, ge=0, le=1)
    """Make all pixels of an image brighter or darker by the same value, up to this fraction of the range of pixels."""

    contrast_range: FactorRange = (1.0, 1.0)
    """Multiply the difference between each pixel and the mean of its channel by a factor from this range."""

    saturation_range: FactorRange = (1.0, 1.0)
    """Multiply the saturation by a factor from this range."""

    cutout_pixels: int = Field(0, ge=0, le=10_000)
    """Fill a square with sides of this many pixels, at a random place in each image, with the mean colour."""

    def check(self, shape: tuple[int, ...]) -> None:
        """Raise ValueError, with the setting and its value, if a setting can't be used for images of this shape.

        `shape`: [height, width, channels].
        """
        *sides, channels = shape
        if self.crop_padding_pixels >= min(sides):
            raise ValueError(
                f"data.augmentation.crop_padding_pixels: got {self.crop_padding_pixels}: it has to be at most {min(sides) - 1} "
                f"for images of {sides[0]}x{sides[1]} pixels, because the padding mirrors their pixels"
            )
        if channels != 3 and (self.hue_delta or self.saturation_range != (1, 1)):
            raise ValueError(
                f"data.augmentation: hue_delta and saturation_range need 3 channels, but these images have {channels}"
            )


class Variation(NamedTuple):
    """A part that the short form of the settings may have, such as `hue=0.1` in `flip,crop=4,hue=0.1`."""

    setting: str  # the setting of `Augmentation` that the part sets
    read: Callable[[str], Any]  # parses the text after "="
    form: str  # shows users how to write the part
    bare: Any = None  # the setting's value for a part without "="; None: the part needs a value


def _range(text: str) -> list[float]:
    lowest, _, highest = text.partition("-")
    return [parse_decimal(lowest), parse_decimal(highest)]


# A name without a value stands for the value in configs/default.yaml.
VARIATIONS = {
    "flip": Variation("flip", str, "flip or flip=random", "alternating"),
    "crop": Variation("crop_padding_pixels", parse_integer, "crop or crop=4", 2),
    "hue": Variation("hue_delta", parse_decimal, "hue=0.1"),
    "brightness": Variation("brightness_delta", parse_decimal, "brightness=0.1"),
    "contrast": Variation("contrast_range", _range, "contrast=0.8-1.2"),
    "saturation": Variation("saturation_range", _range, "saturation=0.8-1.2"),
    "cutout": Variation("cutout_pixels", parse_integer, "cutout=8"),
}
NO_VARIATION = "none"


def read_variations(text: str) -> dict[str, Any]:
    """Parse the short form of the augmentation settings, e.g. "flip,crop=4,hue=0.1" or "none".

    Return all settings of `Augmentation`, by name. Variations that `text` does not name are off.

    Raises:
      ValueError: a name is unknown or appears twice, or a value can't be read.
    """
    settings = Augmentation().model_dump(mode="json")
    seen: set[str] = set()
    for part in () if text.strip() == NO_VARIATION else text.split(","):
        name, has_value, value = (piece.strip() for piece in part.partition("="))
        if name not in VARIATIONS:
            forms = ", ".join(variation.form for variation in VARIATIONS.values())
            raise ValueError(f"{did_you_mean(name, VARIATIONS)}write {forms}, or {NO_VARIATION} alone")
        if name in seen:
            raise ValueError(f"{name} is given twice")
        seen.add(name)
        variation = VARIATIONS[name]
        try:
            settings[variation.setting] = variation.read(value) if has_value else variation.bare
        except Malformed as error:
            raise ValueError(f"{value!r:.80} {error}: write {variation.form}") from error
        if settings[variation.setting] is None:
            raise ValueError(f"{name} needs a value: write {variation.form}")
    return settings
