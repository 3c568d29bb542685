"""The settings of image augmentation, without TensorFlow, because the launcher reads them too."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


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
