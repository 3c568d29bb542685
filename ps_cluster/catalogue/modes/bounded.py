"""Mode bounded: asynchronous, with a bound on staleness, on how far a worker may be ahead, or on both."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ps_cluster.catalogue.modes.mode import Mode, ModeSettings, Waits

if TYPE_CHECKING:
    from ps_cluster.config import RunConfig

DEFAULT_MAX_STALENESS = 3  # where no bound is given


class BoundedSettings(ModeSettings):
    max_staleness: int | None = Field(
        default=None,
        ge=0,
        le=1000,
        description=f"No update is staler than this; {DEFAULT_MAX_STALENESS} where no bound is given.",
    )
    max_clock_lag: int | None = Field(
        default=None,
        ge=0,
        le=1000,
        description="No worker begins a step when it has ended so many more than another; 0: all in step.",
    )

    @property
    def bounds(self) -> tuple[int | None, int | None]:
        """The versions that an update may lag behind, and the steps that a worker may be ahead; None: any number."""
        staleness, lag = self.max_staleness, self.max_clock_lag
        return (DEFAULT_MAX_STALENESS if staleness is None and lag is None else staleness), lag


class Bounded(Mode):
    name = "bounded"
    says = "asynchronous, with a bound on staleness or on how far a worker is ahead"
    Settings = BoundedSettings
    most_parameter_servers = 1  # a single place must decide which worker may go on
    waits = Waits.FOR_A_BOUND
    slice = "ps_cluster.training.bounded:BoundedSlice"

    def most_staleness(self, config: RunConfig) -> int | None:
        return self.settings(config).bounds[0]

    def label(self, config: RunConfig) -> str:
        bounds = zip(("s", "lag"), self.settings(config).bounds, strict=True)
        return " ".join([self.name, *(f"{name}={bound}" for name, bound in bounds if bound is not None)])


BOUNDED = Bounded()
