"""Staleness method drop: a gradient that is too many versions old is dropped."""

from __future__ import annotations

from pydantic import Field

from ps_cluster.config.equations import ArrivedParts, CorrectedParts
from ps_cluster.config.lazy import tf
from ps_cluster.config.schema import RunConfig
from ps_cluster.config.staleness_methods import StalenessMethod, StalenessSettings
from ps_cluster.server.capabilities import Capabilities
from ps_cluster.server.staleness.correction import Arrival, Correction


class DropSettings(StalenessSettings):
    max_delay: int | None = Field(
        default=None,
        ge=1,
        le=100_000,
        description="A gradient that is this many versions old or older is dropped (R of Ringmaster ASGD, "
        "arXiv:2501.16168); null: twice the number of workers.",
    )
    stop: bool = Field(
        default=False,
        description="Between its local steps, a worker asks the parameter server whether the push after these steps "
        "would be dropped. If so, the worker takes no more of these steps. Each question is a round trip to the "
        "parameter server.",
    )


class DropCorrection(Correction[DropSettings]):
    """Drops a gradient whose staleness is R (the setting `max_delay`) or more. All other gradients count fully.

    This is Ringmaster ASGD in its simple form (Maranjyan, Tyurin and Richtárik 2025, arXiv:2501.16168, algorithm 4). In
    the paper the worker then computes the next gradient at the newest weights. Here it computes the same step again, so
    that no example is left out. The setting `stop` selects the full form (algorithm 5), except that a worker stops only
    between local steps. In the paper it stops at once.
    """

    capabilities = Capabilities(drops=True)

    def __init__(self, settings: DropSettings, weights: tf.Variable, workers: int, most_workers: int):
        super().__init__(settings, weights, workers, most_workers)
        self._max_delay = self._settings.max_delay or 2 * workers
        self.capabilities = Capabilities(drops=True, stops=self._settings.stop)

    def accepts(self, arrival: Arrival) -> tf.Tensor:
        return arrival.staleness < self._max_delay


class DropMethod(StalenessMethod[DropSettings]):
    name = "drop"
    description = "a gradient that is too many versions old is dropped, and its step computed again"
    suits_local_steps = True
    Settings = DropSettings
    correction = DropCorrection

    def equation(self, settings: DropSettings, arrived: ArrivedParts) -> CorrectedParts:
        """Return the gradient unchanged. Gradients that are too stale are dropped instead of applied."""
        return CorrectedParts(arrived.gradient)

    def check(self, config: RunConfig) -> None:
        super().check(config)
        settings = DropSettings.of(config)
        delay, limit = config.chosen_mode.delay(config), settings.max_delay
        if limit is not None and delay >= limit:
            raise ValueError(
                f"staleness.max_delay: got {limit}: with mode.simulate_workers each gradient is at least {delay} "
                "versions old, so all gradients would be dropped: choose a larger max_delay"
            )
        if settings.stop and not config.chosen_mode.synchrony.takes_local_steps:
            raise ValueError(f"staleness.stop: got true: mode {config.mode.name} has no local steps")
        if settings.stop and config.shards > 1:  # one shard may accept a push that another would drop
            raise ValueError(f"cluster.parameter_servers: got {config.shards}: staleness.stop works only with 1")
