"""The modes of training, found here by themselves. These five need no slice of their own; the others are in the files beside.

Their trainers: async and single in training/chief.py, sync in all_reduce.py, layers and width in split_trainer.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from pydantic import Field, field_validator

from ps_cluster.config import RunConfig
from ps_cluster.config.modes import CHIEF, ON_DEATH, WORKER, Flow, Mode, ModeSettings, OnDeath, Waits
from ps_cluster.config.registry import Part


class AsyncSettings(ModeSettings):
    simulate_workers: int | None = Field(
        default=None,
        ge=1,
        le=1000,
        description="Emulate the staleness of k workers: each pull returns the weights from k - W versions ago.",
    )


class Async(Mode):
    """Each gradient is applied as it arrives; no worker waits for another."""

    name = "async"
    says = "each gradient is applied as it arrives"
    Settings = AsyncSettings
    pins_workers = True
    ignores = frozenset()
    is_simulated = True

    def check(self, config: RunConfig) -> None:
        super().check(config)
        wanted = self.settings(config).simulate_workers
        if wanted is not None and wanted < config.cluster.workers:
            raise ValueError(
                f"mode.simulate_workers: got {wanted}: it needs at least cluster.workers, {config.cluster.workers}"
            )
        if wanted is not None and config.least_workers < config.most_workers:
            raise ValueError(
                f"mode.simulate_workers: got {wanted}: the delay is that of a fixed number of workers: leave out "
                "cluster.min_workers and cluster.max_workers"
            )

    def delay(self, config: RunConfig) -> int:
        return self.emulated_workers(config) - config.training_workers

    def emulated_workers(self, config: RunConfig) -> int:
        return self.settings(config).simulate_workers or config.training_workers

    def label(self, config: RunConfig) -> str:
        simulated = self.settings(config).simulate_workers
        return self.name if simulated is None else f"{self.name} k={simulated}"


class Sync(Mode):
    """Synchronous training by all-reduce between the workers, without parameter servers."""

    name = "sync"
    says = "all workers average each gradient by all-reduce, without parameter servers"
    tasks = (WORKER,)
    flows = (Flow(WORKER, WORKER, "parts of gradients, in a ring"),)
    waits = Waits.FOR_ALL_REDUCE
    is_stale = False
    fixed_workers = "each all-reduce needs all of them"
    # Each all-reduce waits for every worker, and the strategy can't replace a worker that died.
    on_death = {**ON_DEATH, WORKER: OnDeath(restarts=5, whole_cluster=True, dispensable=False)}
    is_simulated = True
    trainer = Part.TRAIN_BY_ALL_REDUCE


class Single(Mode):
    """One process that trains by itself, as a baseline for the other modes."""

    name = "single"
    says = "one process trains by itself"
    tasks = (CHIEF,)
    is_stale = False
    fixed_workers = "it has none"


# Modes layers and width: all workers take part in each step, each with a part of one network.

AUTO, DEVICE = "auto", "CPU:0"
_ENTRY = re.compile(r"([^=,]{1,200})= *([0-9]{1,4})(?::([A-Za-z_]{1,40}:[0-9]{1,4}))?")


class LayerPlace(NamedTuple):
    """The layers from this one on are on a worker; `device`: of it, "" for its first processor."""

    layer: str
    worker: int
    device: str


class SplitSettings(ModeSettings):
    log_placement: bool = Field(default=False, description="Print the device of each operation of a step.")


class SplitNetwork(Mode):
    """A mode in which each worker has a part of one network, with version and ledger.

    Attributes:
      cut: "module:function" of `cut(config, dataset, network, device, workers)`, which returns a `split_trainer.SplitStep`.
        `device` is the chief's own. It raises ValueError, with the setting and its value, if the network can't be cut.
    """

    Settings = SplitSettings
    tasks = (CHIEF, WORKER)
    is_stale = False
    # A step needs every worker, and the weights of a dead one are gone.
    on_death = {**ON_DEATH, WORKER: OnDeath(restarts=5, whole_cluster=True, dispensable=False)}
    # One gradient in parts: the length of the whole is known nowhere.
    ignores = frozenset({"staleness", "cluster.straggler", "optimizer.global_clip_norm"})
    unlabelled = frozenset({"log_placement"})
    rated_as = "single"
    trainer = Part.TRAIN_A_SPLIT_NETWORK
    work = Part.SPLIT_STEPS
    cut = ""

    def slices(self, config: RunConfig) -> int:
        return config.cluster.workers


class LayersSettings(SplitSettings):
    placement: str = Field(
        default=AUTO,
        max_length=2000,
        description=(
            "Which layers are on which worker: LAYER=WORKER, several joined by ',': from this layer on; also "
            "LAYER=WORKER:GPU:0. auto: by their numbers of weights."
        ),
    )
    micro_batches: int = Field(
        default=1, ge=1, le=64, description="Parts of a batch that go through the workers one after the other."
    )
    soft_placement: bool = Field(
        default=True, description="Take the processor of a worker where it lacks the device that was asked for."
    )

    @field_validator("placement")
    @classmethod
    def _placement_is_readable(cls, text: str) -> str:
        places_of(text)
        return text.strip()

    @property
    def places(self) -> tuple[LayerPlace, ...]:
        """The places that `placement` names; empty for "auto"."""
        return places_of(self.placement)

    @property
    def devices(self) -> Mapping[int, str]:
        """Worker → the device that it is asked to compute on, where that is not its processor."""
        return {place.worker: place.device for place in self.places if place.device}


def places_of(text: str) -> tuple[LayerPlace, ...]:
    """Return what a placement asks for. Raises ValueError for one that can't be read."""
    if text.strip() == AUTO:
        return ()
    places = []
    for part in text.split(","):
        match = _ENTRY.fullmatch(part.strip())
        if not match:
            raise ValueError(f"'{part.strip()}' is not LAYER=WORKER, as in conv2d_1=1 or conv2d_1=1:GPU:0")
        places.append(LayerPlace(match[1].strip(), int(match[2]), match[3] or ""))
    for one in places:
        for other in places:
            if one.layer == other.layer and one.worker != other.worker:
                raise ValueError(f"'{one.layer}' is placed on worker {one.worker} and on worker {other.worker}")
            if one.worker == other.worker and one.device and other.device and one.device != other.device:
                raise ValueError(f"worker {one.worker} is asked for {one.device} and for {other.device}: choose one")
    return tuple(places)


class Layers(SplitNetwork):
    """The layers of one network are on different workers; each step goes through all of them."""

    name = "layers"
    says = "the layers of one network are on different workers"
    splits = "layers"
    Settings = LayersSettings
    flows = (Flow(CHIEF, WORKER, "step ids"), Flow(WORKER, WORKER, "activations; gradients back"))
    fixed_workers = "each has layers of its own"
    unlabelled = SplitNetwork.unlabelled | {"placement", "soft_placement"}
    cut = Part.CUT_BY_LAYERS

    def check(self, config: RunConfig) -> None:
        super().check(config)
        settings, workers = self.settings(config), config.cluster.workers
        for place in settings.places:
            if place.worker >= workers:
                raise ValueError(
                    f"mode.placement: got '{place.layer}={place.worker}': the workers are 0 to {workers - 1}"
                )
        if config.training.batch_size_per_worker % settings.micro_batches:
            raise ValueError(
                f"mode.micro_batches: got {settings.micro_batches}: a batch of training.batch_size_per_worker, "
                f"{config.training.batch_size_per_worker}, can't be cut into so many equal parts"
            )

    def label(self, config: RunConfig) -> str:
        parts = self.settings(config).micro_batches
        return self.name if parts == 1 else f"{self.name} m={parts}"


# Mode width.


class WidthSettings(SplitSettings):
    least_units: int = Field(
        default=16,
        ge=2,
        le=1_000_000,
        description="Layers with fewer units or filters stay whole, on worker 0.",
    )


class Width(SplitNetwork):
    """Each wide layer of one network is spread over all workers by its units; each step needs all of them."""

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
