"""Mode elastic: each worker has its own weights, and at times they and the centre move towards each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ps_cluster.catalogue.modes.mode import Mode, ModeSettings

if TYPE_CHECKING:
    from ps_cluster.config import RunConfig


class ElasticSettings(ModeSettings):
    local_steps: int = Field(
        default=4, ge=1, le=1000, description="Steps that a worker takes by itself between two exchanges."
    )
    beta: float = Field(
        default=0.9,
        gt=0,
        le=1,
        description="An exchange moves worker and centre towards each other by beta / workers of their distance.",
    )


class Elastic(Mode):
    name = "elastic"
    says = "workers train weights of their own and exchange them with the centre"
    Settings = ElasticSettings
    pins_workers = True
    ignores = frozenset({"staleness", "lookahead"})
    own_rule = "sgd"
    unlabelled = frozenset({"beta"})
    slice = "ps_cluster.training.elastic:ElasticSlice"
    step = "ps_cluster.training.elastic:LocalSteps"

    def batches_per_step(self, config: RunConfig) -> int:
        return self.settings(config).local_steps

    def label(self, config: RunConfig) -> str:
        return f"{self.name} k={self.settings(config).local_steps}"


ELASTIC = Elastic()
