"""Mode width: each wide layer of one network is spread over all workers by its units; each step needs all of them."""

from __future__ import annotations

from pydantic import Field

from ps_cluster.config.modes import CHIEF, WORKER, Flow
from ps_cluster.config.registry import Part
from ps_cluster.training.modes.layers import SplitNetwork, SplitSettings


class WidthSettings(SplitSettings):
    least_units: int = Field(
        default=16,
        ge=2,
        le=1_000_000,
        description="Layers with fewer units or filters stay whole, on worker 0.",
    )


class Width(SplitNetwork):
    name = "width"
    says = "a part of each wide layer's units or filters on each worker"
    splits = "width"
    Settings = WidthSettings
    flows = (Flow(CHIEF, WORKER, "step ids"), Flow(WORKER, WORKER, "inputs and outputs of layers; gradients back"))
    fixed_workers = "each has units of its own"
    # The norm of a variable's gradient is known on no worker either.
    ignores = SplitNetwork.ignores | {"optimizer.clip_norm"}
    unlabelled = SplitNetwork.unlabelled | {"least_units"}
    cut = Part.CUT_BY_WIDTH


WIDTH = Width()
