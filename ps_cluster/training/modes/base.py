"""The base class of the package's modes: plain asynchronous training on parameter servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ps_cluster.config import RunConfig
from ps_cluster.config.lazy import tf
from ps_cluster.config.modes import Mode
from ps_cluster.config.staleness_methods import METHODS
from ps_cluster.server.initial_state import InitialState
from ps_cluster.server.shard import ParameterShard
from ps_cluster.server.store import ParameterStore
from ps_cluster.server.update_rules.rule import UpdateRule, make_rule
from ps_cluster.training.step import Compute, TrainStep
from ps_cluster.training.step_source import AsynchronousSteps, StepSource
from ps_cluster.training.worker import DispatchGraph, steps_graph

if TYPE_CHECKING:  # These import TensorFlow, and the launcher imports this module.
    from ps_cluster.training.job import TrainingJob
    from ps_cluster.training.recomputed_steps import RecomputedSteps


class DefaultMode(Mode):
    """A mode with the parts of plain asynchronous training. Subclass it, and override the parts that differ."""

    shard: type[ParameterShard] = ParameterShard
    step_source: type[StepSource] = AsynchronousSteps

    def expected_classes(self) -> Mapping[str, type]:
        """Return the attributes whose values have to be classes: name of the attribute → base class of the value."""
        return {"shard": ParameterShard, "step_source": StepSource}

    def check(self, config: RunConfig) -> None:
        super().check(config)
        if self.shard.capabilities.waits and type(self).dispatch is DefaultMode.dispatch:
            raise ValueError(
                f"mode.name: got '{self.name}': the mode's shard class, {self.shard.__name__}, lets pushes wait, but its "
                "method `dispatch` builds the graph of mode async, in which pushes cannot wait: override `dispatch`"
            )

    def train(self, job: TrainingJob) -> None:
        from ps_cluster.training.chief import train

        train(job)

    def dispatch(self, store: ParameterStore, compute: Compute, config: RunConfig, *, repeats: bool) -> DispatchGraph:
        return steps_graph(store, compute, config, repeats=repeats)

    def worker_step(self, step: TrainStep, config: RunConfig, start: InitialState, keep: np.ndarray) -> Compute:
        return step

    def server_rule(self, config: RunConfig, weights: tf.Variable, start: InitialState) -> UpdateRule[Any]:
        settings = METHODS[config.staleness.method].optimizer(config)
        return make_rule(settings, weights, start.factors, matrices=start.matrices)

    def recomputed_steps(self) -> type[RecomputedSteps]:
        from ps_cluster.training.recomputed_steps import RecomputedSteps

        return RecomputedSteps
