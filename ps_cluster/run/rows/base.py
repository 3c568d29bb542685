"""Define the base of all rows, and shared types of their fields."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, Strict

MOST = 2**53  # above it a float64, as in the ledger, can't tell neighbouring whole numbers apart
MOST_INDEX = 10_000

Count = Annotated[int, Field(ge=0, le=MOST)]
Index = Annotated[int, Field(ge=0, lt=MOST_INDEX)]  # of a task within its type
Pid = Annotated[int, Field(ge=0, lt=2**31)]
Number = Annotated[float, Field(ge=-1e15, le=1e15)]
Seconds = Annotated[float, Field(ge=0, le=1e15)]
Loss = Annotated[float, Field(ge=-1e300, le=1e300)]  # a diverging loss reaches float32's 3e38 before it is no number
Share = Annotated[float, Field(ge=0, le=1)]
Word = Annotated[str, Field(max_length=200, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]  # no control characters
Text = Annotated[str, Field(max_length=100_000)]
Histogram = dict[Annotated[str, Field(pattern=r"^[0-9]{1,15}$")], Count]
"""Staleness, as text → how many steps had it."""
Pair = Annotated[tuple[Number, Number], Strict(False)]  # JSON has no tuples


class Row(BaseModel):
    """Strict types and finite numbers. Unknown names are ignored: a later version may write more."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)
