"""Define the types of settings, and the base class of the sections of a configuration, without TensorFlow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from ps_cluster.files.values import refuse_address

if TYPE_CHECKING:
    from ps_cluster.config import RunConfig

COMPILED: Final = "compiled"  # the value of a setting that the network's compile() decides
AUTO: Final = "auto"  # the value of a setting that is chosen when a run begins

# Far above any useful value, and far below the largest float32.
LARGEST_FACTOR = 1e6
SMALLEST_EPSILON = 1e-30  # far below any useful value, and still a normal number in float32

Fraction = Annotated[float, Field(ge=0, le=1)]
Factor = Annotated[float, Field(ge=0, le=LARGEST_FACTOR)]
Momentum = Annotated[float, Field(ge=0, lt=1)]


def _no_zero(path: Path) -> Path:
    if "\0" in str(path):
        raise ValueError("a file name can't contain a null character")
    refuse_address(str(path))
    return path


# Not strict, because a path in YAML is text. The content of the text is checked.
PathFromText = Annotated[Path, Field(strict=False), AfterValidator(_no_zero)]


class Section(BaseModel):
    """A section of a configuration: strictly typed and immutable. It refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)

    @classmethod
    def of(cls, config: RunConfig) -> Self:
        """Return, of all sections in `config`, the one that is an instance of this class."""
        section = next((section for _, section in config if isinstance(section, cls)), None)
        assert section is not None, f"no section of the configuration has {cls.__name__}"
        return section
