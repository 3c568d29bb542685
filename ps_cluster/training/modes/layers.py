"""Mode layers: the layers of one network are on different workers, and each step goes through all workers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pydantic import Field, field_validator

from ps_cluster.config import RunConfig
from ps_cluster.training.modes.split_network import SplitNetwork, SplitSettings, split_cluster

if TYPE_CHECKING:
    from ps_cluster.data.packed import PackedDataset
    from ps_cluster.models.flat import FlatNetwork
    from ps_cluster.training.split_step import SplitStep

AUTO = "auto"
_ENTRY = re.compile(r"([^=,]{1,200})= *([0-9]{1,4})(?::([A-Za-z_]{1,40}:[0-9]{1,4}))?")


class PlacementEntry(NamedTuple):
    """An entry of the setting `placement`: `layer` and the layers after it, up to the next entry, are on `worker`.

    `device` is the device that this worker has to use; "" if the user names none.
    """

    layer: str
    worker: int
    device: str


class LayersSettings(SplitSettings):
    placement: str = Field(
        default=AUTO,
        max_length=2000,
        description=(
            "Which layers are on which worker. LAYER=WORKER or LAYER=WORKER:GPU:0 places this layer and all later layers "
            "on the worker; separate several places by ','. With auto, the layers are balanced by their numbers of weights."
        ),
    )
    micro_batches: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Number of parts into which each batch is cut. The parts go through the workers one after the other.",
    )

    @field_validator("placement")
    @classmethod
    def _placement_is_readable(cls, text: str) -> str:
        parse_placement(text)
        return text.strip()

    @property
    def places(self) -> tuple[PlacementEntry, ...]:
        """The entries of the setting `placement`; empty for "auto"."""
        return parse_placement(self.placement)

    @property
    def devices(self) -> Mapping[int, str]:
        """The devices that the setting `placement` names: worker → device. Workers without a device are left out."""
        return {place.worker: place.device for place in self.places if place.device}


def parse_placement(text: str) -> tuple[PlacementEntry, ...]:
    """Parse the setting `placement`; return its entries, or () for "auto". Raise ValueError if it can't be parsed."""
    if text.strip() == AUTO:
        return ()
    places = []
    for part in text.split(","):
        match = _ENTRY.fullmatch(part.strip())
        if not match:
            raise ValueError(f"'{part.strip()}' is not LAYER=WORKER, as in conv2d_1=1 or conv2d_1=1:GPU:0")
        places.append(PlacementEntry(match[1].strip(), int(match[2]), (match[3] or "").upper()))
    for one in places:
        for other in places:
            if one.layer == other.layer and one.worker != other.worker:
                raise ValueError(f"'{one.layer}' is placed on worker {one.worker} and on worker {other.worker}")
            if one.worker == other.worker and one.device and other.device and one.device != other.device:
                raise ValueError(f"worker {one.worker} has two devices, {one.device} and {other.device}: choose one")
    return tuple(places)


class Layers(SplitNetwork):
    """A mode in which the layers of one network are on different workers, and each step goes through all workers."""

    name = "layers"
    description = "the layers of one network are on different workers"
    Settings = LayersSettings
    cluster = split_cluster("layers", "activations; gradients back", "each worker has different layers")

    def cut(
        self, config: RunConfig, dataset: PackedDataset, network: FlatNetwork, device: str, log: Path | None
    ) -> SplitStep:
        from ps_cluster.training.split_step import cut_by_layers

        return cut_by_layers(config, LayersSettings.of(config), dataset, network, device, log)

    def check(self, config: RunConfig) -> None:
        super().check(config)
        settings, workers = LayersSettings.of(config), config.cluster.workers
        for place in settings.places:
            if place.worker >= workers:
                raise ValueError(
                    f"mode.placement: got '{place.layer}={place.worker}': the workers are 0 to {workers - 1}"
                )
        if config.training.batch_size_per_worker % settings.micro_batches:
            raise ValueError(
                f"mode.micro_batches: got {settings.micro_batches}: a batch of training.batch_size_per_worker, "
                f"{config.training.batch_size_per_worker}, can't be cut into that many equal parts"
            )

    def micro_batches(self, config: RunConfig) -> int:
        return LayersSettings.of(config).micro_batches

    def label(self, config: RunConfig) -> str:
        parts = self.micro_batches(config)
        return self.name if parts == 1 else f"{self.name} m={parts}"
