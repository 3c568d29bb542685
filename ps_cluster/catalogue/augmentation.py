"""The settings of image augmentation, and their short form. Without TensorFlow, because the launcher reads them too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from ps_cluster.errors import did_you_mean
from ps_cluster.files.malformed import Malformed
from ps_cluster.files.plain_numbers import decimal, whole


def _ascending(factors: tuple[float, float]) -> tuple[float, float]:
    lowest, highest = factors
    if lowest > highest:
        raise ValueError(f"lowest factor {lowest} is above the highest, {highest}")
    return factors


Factor = Annotated[float, Field(ge=0, le=100)]
# The tuple is not strict, because YAML has a list; its factors are.
FactorRange = Annotated[tuple[Factor, Factor], Field(strict=False), AfterValidator(_ascending)]


class Augmentation(BaseModel):
    """The variations that `ps_cluster.data.augment.augment` draws; the defaults draw none.

    A value out of range raises pydantic's `ValidationError`, which names the field and the value.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, strict=True, use_attribute_docstrings=True
    )

    crop_padding_pixels: int = Field(0, ge=0, le=10_000)
    """Pad by this much on every side, mirrored, and crop back at random."""

    flip: Literal["none", "random", "alternating"] = "none"
    """Mirror left-right: a coin for every image and step, or each image in every second epoch."""

    hue_delta: float = Field(0.0, ge=0, le=0.5)
    """Turn the hue by up to this fraction of the circle, either way."""

    contrast_range: FactorRange = (1.0, 1.0)
    """Multiply the distance from each channel's mean by a factor from this range."""

    saturation_range: FactorRange = (1.0, 1.0)
    """Multiply the saturation by a factor from this range."""

    cutout_pixels: int = Field(0, ge=0, le=10_000)
    """Side of the square that is blanked with the mean colour."""

    def check(self, shape: tuple[int, ...]) -> None:
        """Raise ValueError, with the setting and its value, for variations that images of `shape` do not allow."""
        *sides, channels = shape
        if self.crop_padding_pixels >= min(sides):
            raise ValueError(
                f"data.augmentation.crop_padding_pixels: got {self.crop_padding_pixels}: images of {sides[0]}x{sides[1]} "
                f"have at most {min(sides) - 1} to mirror"
            )
        if channels != 3 and (self.hue_delta or self.saturation_range != (1, 1)):
            raise ValueError(
                f"data.augmentation: hue_delta and saturation_range need 3 channels, images have {channels}"
            )


class Variation(NamedTuple):
    """A part of the short form `flip,crop=4,hue=0.1`: the setting that it gives, how it is read, and how it is written.

    `bare`: the value of the name alone; None where it needs one.
    """

    setting: str
    read: Callable[[str], Any]
    form: str
    bare: Any = None


def _range(text: str) -> list[float]:
    lowest, _, highest = text.partition("-")
    return [decimal(lowest), decimal(highest)]


# What a name alone means is what configs/default.yaml has.
VARIATIONS = {
    "flip": Variation("flip", str, "flip or flip=random", "alternating"),
    "crop": Variation("crop_padding_pixels", whole, "crop or crop=4", 2),
    "hue": Variation("hue_delta", decimal, "hue=0.1"),
    "contrast": Variation("contrast_range", _range, "contrast=0.8-1.2"),
    "saturation": Variation("saturation_range", _range, "saturation=0.8-1.2"),
    "cutout": Variation("cutout_pixels", whole, "cutout=8"),
}
NO_VARIATION = "none"


def read_variations(text: str) -> dict[str, Any]:
    """Return all settings for the short form, e.g. "flip,crop=4,hue=0.1" or "none". What it leaves out is switched off.

    Raises:
      ValueError: a name that is unknown or there twice, or a value that can't be read.
    """
    settings = Augmentation().model_dump(mode="json")
    seen: set[str] = set()
    for part in () if text.strip() == NO_VARIATION else text.split(","):
        name, has_value, value = (piece.strip() for piece in part.partition("="))
        if name not in VARIATIONS:
            forms = ", ".join(variation.form for variation in VARIATIONS.values())
            raise ValueError(f"{did_you_mean(name, VARIATIONS)}there are {forms}, and {NO_VARIATION} alone")
        if name in seen:
            raise ValueError(f"{name} is there twice")
        seen.add(name)
        variation = VARIATIONS[name]
        settings[variation.setting] = _value(variation, value) if has_value else variation.bare
        if settings[variation.setting] is None:
            raise ValueError(f"{name} needs a value: write {variation.form}")
    return settings


def _value(variation: Variation, text: str) -> Any:
    try:
        return variation.read(text)
    except Malformed as error:
        raise ValueError(f"{text!r:.80} {error}: write {variation.form}") from error
