"""Define the base class of modes.

Its attributes and methods cover everything in which a mode may differ from plain asynchronous training.
The package's own modes are in ps_cluster/training/modes/, a file for each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import Enum
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import AfterValidator, Field

from ps_cluster.config.equations import Slots, UpdateParts
from ps_cluster.config.lazy import tf
from ps_cluster.config.registry import Named, Registry
from ps_cluster.config.setting_types import Section
from ps_cluster.config.tasks import CHIEF, ON_DEATH, PS, WORKER, OnDeaths

if TYPE_CHECKING:
    from ps_cluster.config import RunConfig
    from ps_cluster.server.initial_state import InitialState
    from ps_cluster.server.shard import ParameterShard
    from ps_cluster.server.store import ParameterStore
    from ps_cluster.server.update_rules.rule import UpdateRule
    from ps_cluster.training.job import TrainingJob
    from ps_cluster.training.recomputed_steps import RecomputedSteps
    from ps_cluster.training.step import Compute, TrainStep
    from ps_cluster.training.step_source import StepSource
    from ps_cluster.training.worker import DispatchGraph


class Waits(Enum):
    """The reasons for which a worker may have to wait."""

    NEVER = "it never waits for other workers"
    FOR_A_BOUND = "a bound on how far it may be ahead, or on how stale an update may be"
    IN_ROUNDS = "the other workers' gradients of a round, on the parameter server"
    FOR_ALL_REDUCE = "all other workers, in each all-reduce"


Splits = Literal["data", "layers", "width"]
"""The thing that a mode divides among the workers.

`data`: each worker has the whole network, and computes some of the batches. `layers`: each worker has some layers of the
network. `width`: each worker has some units of each layer.
"""


class Flow(NamedTuple):
    """An arrow in the drawing of a cluster: tasks of type `sender` send the data `what` to tasks of type `receiver`."""

    sender: str
    receiver: str
    what: str


class ModeSettings(Section):
    """The section `mode` of a configuration. A subclass adds the settings of one mode, with defaults."""

    name: Annotated[str, AfterValidator(lambda name: MODES.check_name(name))] = Field(
        description="The way in which the workers' gradients become updates."
    )


@dataclass(frozen=True)
class ClusterShape:
    """The properties of a mode's cluster, such as its task types and whether the number of workers can change."""

    types: tuple[str, ...] = (CHIEF, PS, WORKER)  # a run needs all of them
    # Flows from or to task types that the cluster does not have are not drawn.
    flows: tuple[Flow, ...] = (
        Flow(CHIEF, WORKER, "step ids"),
        Flow(PS, WORKER, "weights"),
        Flow(WORKER, PS, "gradients"),
    )
    most_parameter_servers: int | None = None  # None if there is no limit
    pins_workers: bool = False  # whether `cluster.pin_workers: auto` pins each worker to its own cores
    why_workers_are_fixed: str = ""  # why the number of workers can't change during a run; "" if it can (`scale`)
    on_death: OnDeaths = field(default_factory=lambda: ON_DEATH)
    splits: Splits = "data"


@dataclass(frozen=True)
class Synchrony:
    """Describes when the workers of a mode wait for each other, and whether their gradients can be stale."""

    waits: Waits = Waits.NEVER
    is_stale: bool = True  # whether a gradient may be computed from older weights than the ones to which it is applied
    # Whether a step id stands for several batches, after which worker and server exchange weights.
    takes_local_steps: bool = False


class Mode(Named, ABC):
    """A way to turn the workers' gradients into updates.

    Each mode of this package subclasses `ps_cluster.training.modes.base.DefaultMode`, and overrides what differs from
    plain asynchronous training.

    Attributes:
      name: the name by which users choose the mode.
      Settings: the class of the section `mode`, with this mode's own settings.
      cluster: the properties of the mode's cluster.
      synchrony: how the workers wait for each other, and whether gradients can be stale.
      unused_settings: the settings (dotted keys) and whole sections that the mode does not use. If the
        mode's cluster lacks a task type, the settings of such tasks need not be listed.
      own_rule: the only optimizer rule that the mode works with, or None if it works with any rule.
      has_tables: whether the rows of embedding tables are pulled and pushed individually (training/table_limits.py).
      shard: the class of the shard that each parameter server (or each worker of a split network) holds.
      step_source: the class that decides which step ids the chief hands out, and when.
    """

    Settings: type[ModeSettings] = ModeSettings
    cluster = ClusterShape()
    synchrony = Synchrony()
    unused_settings: frozenset[str] = frozenset({"staleness"})
    own_rule: str | None = None
    has_tables = False
    shard: type[ParameterShard]
    step_source: type[StepSource]

    # How the mode trains.

    @abstractmethod
    def train(self, job: TrainingJob) -> None:
        """Train until every update is applied.

        The chief calls this method. If the cluster has no chief, every worker calls it.
        """

    @abstractmethod
    def dispatch(self, store: ParameterStore, compute: Compute, config: RunConfig, *, repeats: bool) -> DispatchGraph:
        """Return the graph that a worker runs for each dispatch, a group of steps from the chief.

        Args:
          repeats: whether the dispatches repeat steps of earlier dispatches. If so, a worker that pulls weights for a
            step may also ask the shards whether they have already accepted a push of the same step.
        """

    @abstractmethod
    def worker_step(self, step: TrainStep, config: RunConfig, start: InitialState, keep: np.ndarray) -> Compute:
        """Return the computation that workers run for each step id.

        Args:
          step: computes the gradient of one batch.
          start: the initial values of all weights.
          keep: float32 [m], the share of each moving statistic (e.g. of BatchNormalization) that one batch keeps.
        """

    @abstractmethod
    def server_rule(self, config: RunConfig, weights: tf.Variable, start: InitialState) -> UpdateRule[Any]:
        """Return the rule by which a shard changes its weights. This method is called on the shard's device.

        Args:
          weights: float32 [n].
          start: the initial values of the shard.
        """

    @abstractmethod
    def recomputed_steps(self) -> type[RecomputedSteps]:
        """Return the class that computes a worker's steps again, for the proof (the check of a run's updates)."""

    def equation(self, config: RunConfig, parts: UpdateParts) -> Slots | None:
        """Return the weights and slots after an update, by name ("weights" and the slots' names), computed in numpy.

        The proof of a run compares them with the weights and slots of the shard (`ParameterShard.slots`). It does not
        compare a slot that is missing from the result. Return None if the mode does not change the optimizer rule's
        equation.
        """
        return None

    # What follows from the shape of the cluster.

    @property
    def has_parameter_servers(self) -> bool:
        """True if the cluster has parameter servers."""
        return PS in self.cluster.types

    @property
    def has_workers(self) -> bool:
        """True if worker processes compute the gradients."""
        return WORKER in self.cluster.types

    @property
    def trainer_type(self) -> str:
        """The type of the tasks that compute gradients."""
        return WORKER if self.has_workers else CHIEF

    @property
    def why_fixed(self) -> str | None:
        """A clause for messages that says why the number of workers can't change during a run; None if it can."""
        reason = self.cluster.why_workers_are_fixed
        return f"mode {self.name} keeps its number of workers: {reason}" if reason else None

    @property
    def shares_steps(self) -> bool:
        """True if all workers take part in each step, because each holds only a part of the network."""
        return self.cluster.splits != "data"

    def shards(self, config: RunConfig) -> int:
        """Return the number of shards into which the parameters are divided."""
        return config.cluster.parameter_servers if self.has_parameter_servers else 1

    # What follows from the synchrony.

    @property
    def averages(self) -> bool:
        """True if an update is the mean of the gradients of all workers. Each gradient then has its own step id."""
        return self.synchrony.waits in (Waits.IN_ROUNDS, Waits.FOR_ALL_REDUCE)

    @property
    def lowers_rate(self) -> bool:
        """True if the learning rate is lowered while more workers take part than at the start of training.

        See `server.rate_of_more_workers.RateOfMoreWorkers`. Modes with local steps do not lower the rate, because their
        workers use it for local updates, which are not stale.
        """
        return (
            self.synchrony.is_stale and not self.cluster.why_workers_are_fixed and not self.synchrony.takes_local_steps
        )

    def most_staleness(self, config: RunConfig) -> int | None:
        """Return the bound on the staleness of every update, or None if there is no bound."""
        return None if self.synchrony.is_stale else 0

    # What follows from the settings.

    def check(self, config: RunConfig) -> None:
        """Raise ValueError, with the setting and its value, for settings that do not fit together."""
        servers, most = config.cluster.parameter_servers, self.cluster.most_parameter_servers
        if most is not None and servers > most:
            raise ValueError(f"cluster.parameter_servers: got {servers}: mode {self.name} works with at most {most}")
        if config.compresses_pushes and not self.has_parameter_servers:
            raise ValueError(f"cluster.wire: got '{config.cluster.wire}': mode {self.name} sends no pushes to compress")
        rule = self.own_rule
        if rule is not None and config.optimizer.rule != rule:
            raise ValueError(f"optimizer.rule: got '{config.optimizer.rule}': mode {self.name} needs {rule}")

    def label(self, config: RunConfig) -> str:
        """Return the mode's name and the settings that change its method, e.g. "bounded s=2"."""
        return self.name

    def batches_per_step(self, config: RunConfig) -> int:
        """Return the number of batches that one step id stands for."""
        return 1

    def batches_in_ledger_row(self, config: RunConfig, shard: int) -> int:
        """Return how many batches of a step are counted by the ledger of one shard (its table of accepted pushes).

        The ledger counts the batches that are computed before the push to this shard. In most modes, these are all
        batches of the step.
        """
        return self.batches_per_step(config)

    def takes_fewer_batches(self, config: RunConfig) -> bool:
        """Return whether a slow worker may take fewer batches in a step."""
        return False

    def late_workers(self, config: RunConfig) -> int:
        """Return for how many workers an update need not wait. Their gradients are dropped if they come too late."""
        return 0

    def grace_seconds(self, config: RunConfig) -> float:
        """Return the seconds that an update waits for late gradients once it has enough gradients."""
        return 0.0

    def delay(self, config: RunConfig) -> int:
        """Return the number of versions by which pulled weights are older than the newest weights."""
        return 0

    def micro_batches(self, config: RunConfig) -> int:
        """Return the number of parts into which a batch is cut. Each part has its own forward and backward pass."""
        return 1

    def simulated_workers(self, config: RunConfig) -> int | None:
        """Return the number of workers whose staleness the user wants to emulate; None if the user has set none."""
        return None

    def emulated_workers(self, config: RunConfig) -> int:
        """Return the number of workers whose staleness is emulated. The run may have fewer workers than that."""
        return self.simulated_workers(config) or config.training_workers

    def worker_vectors(self, config: RunConfig) -> int:
        """Return the number of vectors, each as long as all weights together, that a worker keeps for this mode."""
        return 0


def _home() -> ModuleType:
    from ps_cluster.training import modes

    return modes


MODES: Registry[Mode] = Registry("mode", Mode, _home, "ps_cluster.modes")
