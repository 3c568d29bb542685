"""The base class of modes layers and width: each worker has a part of one network, and each step needs all workers."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from ps_cluster.config import RunConfig
from ps_cluster.config.modes import ClusterShape, Flow, ModeSettings, Splits, Synchrony
from ps_cluster.config.tasks import CHIEF, ON_DEATH, WITH_ALL_WORKERS, WORKER
from ps_cluster.server.store import ParameterStore
from ps_cluster.training.modes.base import DefaultMode
from ps_cluster.training.step import Compute
from ps_cluster.training.worker import DispatchGraph

if TYPE_CHECKING:
    from ps_cluster.data.packed import PackedDataset
    from ps_cluster.models.flat import FlatNetwork
    from ps_cluster.training.job import TrainingJob
    from ps_cluster.training.split_step import SplitStep


class SplitSettings(ModeSettings):
    log_placement: bool = Field(
        default=False,
        description="Write the device of each operation of a step to metrics/placement.csv in the run directory.",
    )


def split_cluster(splits: Splits, flow: str, why_workers_are_fixed: str) -> ClusterShape:
    """Return the shape of the cluster of a mode in which each worker holds a part of one network.

    Args:
      splits: how the network is divided: by "layers" or by "width".
      flow: what the workers send to each other.
      why_workers_are_fixed: a text for messages that says why the number of workers can't change during a run.
    """
    return ClusterShape(
        types=(CHIEF, WORKER),
        flows=(Flow(CHIEF, WORKER, "step ids"), Flow(WORKER, WORKER, flow)),
        why_workers_are_fixed=why_workers_are_fixed,
        # A step needs every worker, and the weights of a dead worker are lost.
        on_death={**ON_DEATH, WORKER: WITH_ALL_WORKERS},
        splits=splits,
    )


class SplitNetwork(DefaultMode):
    """A mode in which each worker holds a part of one network. Each part has a version and a ledger."""

    Settings = SplitSettings
    synchrony = Synchrony(is_stale=False)
    # A gradient is computed in parts, so no worker knows the norm of the whole gradient.
    unused_settings = frozenset({"staleness", "cluster.straggler", "optimizer.global_clip_norm"})

    @abstractmethod
    def cut(
        self, config: RunConfig, dataset: PackedDataset, network: FlatNetwork, device: str, log: Path | None
    ) -> SplitStep:
        """Cut a network into a part for each worker, and return the step through all parts.

        Args:
          device: the chief's device.
          log: the file to which the device of each operation is written; None if it is not written.

        Raises:
          ValueError: the network can't be cut. The message names the setting and its value.
          UserError: a worker does not have the device that the user asks for.
        """

    def train(self, job: TrainingJob) -> None:
        from ps_cluster.training.split_trainer import train

        train(job, self)

    def dispatch(self, store: ParameterStore, compute: Compute, config: RunConfig, *, repeats: bool) -> DispatchGraph:
        from ps_cluster.training.split_step import SplitStep
        from ps_cluster.training.split_trainer import SplitDispatch

        assert isinstance(compute, SplitStep)  # the result of `cut`
        return SplitDispatch(store, compute)

    def shards(self, config: RunConfig) -> int:
        return config.cluster.workers
