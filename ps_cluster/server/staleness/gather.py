"""Staleness method gather: the weights change only with every K-th gradient."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from ps_cluster.config.equations import ArrivedParts, CorrectedParts
from ps_cluster.config.lazy import tf
from ps_cluster.config.schema import RunConfig
from ps_cluster.config.staleness_methods import StalenessMethod, StalenessSettings
from ps_cluster.server.staleness.correction import Arrival, Corrected, Correction


class GatherSettings(StalenessSettings):
    gather: int | None = Field(
        default=None,
        ge=1,
        le=100_000,
        description="The weights change once for every K gradients, where K is this number; null: the number of workers.",
    )

    def every(self, workers: int) -> int:
        """Return K, the number of gradients for each change of the weights."""
        return self.gather or workers


class GatherCorrection(Correction[GatherSettings]):
    """Changes the weights with every K-th gradient, by the mean of K gradients, each scaled by 1 / sqrt(1 + τ).

    τ is the number of times that the weights changed between the pull and the push. This is FedBuff (Nguyen et al.
    2022, arXiv:2106.06639, algorithm 1). In the paper each push is the result of several local steps, as here in mode
    diloco. Checkpoints contain the gradients gathered so far. At the end of a training, up to K - 1 gathered gradients
    remain unused.
    """

    def __init__(self, settings: GatherSettings, weights: tf.Variable, workers: int, most_workers: int):
        super().__init__(settings, weights, workers, most_workers)
        self._every = settings.every(workers)

    def changes_since(self, arrival: Arrival) -> tf.Tensor:
        """Return how often the weights changed between the pull and now, int64 []."""
        return arrival.now // self._every - arrival.pulled // self._every

    def correct(self, gradient: tf.Tensor, arrival: Arrival) -> Corrected:
        return gradient, tf.math.rsqrt(1 + tf.cast(self.changes_since(arrival), gradient.dtype))


class GatherMethod(StalenessMethod[GatherSettings]):
    name = "gather"
    description = "the weights change with every K-th gradient; a gradient counts for less, the staler it is"
    suits_local_steps = True
    Settings = GatherSettings
    correction = GatherCorrection

    def gathered_gradients(self, config: RunConfig) -> int:
        return GatherSettings.of(config).every(config.chosen_mode.emulated_workers(config))

    def equation(self, settings: GatherSettings, arrived: ArrivedParts) -> CorrectedParts:
        """Return the gradient and its scale, 1 / sqrt(1 + number of changes of the weights since the pull)."""
        every = settings.every(arrived.workers)
        changes = arrived.updates_before // every - (arrived.updates_before - arrived.staleness) // every
        return CorrectedParts(arrived.gradient, 1 / np.sqrt(1 + changes))
