"""Mode width: each wide layer of one network is spread over all workers by its units or filters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from ps_cluster.config import RunConfig
from ps_cluster.training.modes.split_network import SplitNetwork, SplitSettings, split_cluster

if TYPE_CHECKING:
    from ps_cluster.data.packed import PackedDataset
    from ps_cluster.models.flat import FlatNetwork
    from ps_cluster.training.split_step import SplitStep


class WidthSettings(SplitSettings):
    least_units: int = Field(
        default=16, ge=2, le=1_000_000, description="Layers with fewer units or filters stay whole, on worker 0."
    )


class Width(SplitNetwork):
    """A mode in which the units or filters of each wide layer are spread over all workers. A step needs all workers."""

    name = "width"
    description = "the units or filters of each wide layer are spread over all workers"
    Settings = WidthSettings
    cluster = split_cluster(
        "width", "inputs and outputs of layers forward, gradients backward", "each worker has different units"
    )
    # The variables of a wide layer are cut too, so no worker knows the norm of the gradient of such a variable.
    unused_settings = SplitNetwork.unused_settings | {"optimizer.clip_norm"}

    def cut(
        self, config: RunConfig, dataset: PackedDataset, network: FlatNetwork, device: str, log: Path | None
    ) -> SplitStep:
        from ps_cluster.training.split_step import cut_by_width

        return cut_by_width(config, WidthSettings.of(config), dataset, network, device, log)
