"""Define the base classes of modes, optimizer rules, staleness methods and schedules.

Also the types of tasks in a cluster, and the table of what happens when one dies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
from pydantic import AfterValidator, Field, field_validator, model_validator

from ps_cluster.config.equations import ArrivedParts, CorrectedParts, Slots, UpdateParts
from ps_cluster.config.registry import LARGEST_FACTOR, Factor, Fraction, Part, Registry, Section, tf

if TYPE_CHECKING:
    from ps_cluster.config import RunConfig

CHIEF, PS, WORKER, EVALUATOR = "chief", "ps", "worker", "evaluator"
TRAINING_TYPES = (CHIEF, PS, WORKER)


@dataclass(frozen=True, order=True)
class Task:
    """One process of a run, e.g. `worker-2`."""

    type: str
    index: int

    def __str__(self) -> str:
        return f"{self.type}-{self.index}"


@dataclass(frozen=True)
class OnDeath:
    """The reaction to a task's unexpected end: it is started again, at most `restarts` times in a row."""

    restarts: int
    whole_cluster: bool  # all training tasks start again with it, from the newest snapshot
    dispensable: bool  # when it is given up, the run goes on without it (a worker or ps: only while there are others)


OnDeaths = Mapping[str, OnDeath]  # by task type

ON_DEATH: OnDeaths = {
    CHIEF: OnDeath(restarts=5, whole_cluster=True, dispensable=False),
    PS: OnDeath(restarts=5, whole_cluster=True, dispensable=True),
    WORKER: OnDeath(restarts=5, whole_cluster=False, dispensable=True),
    EVALUATOR: OnDeath(restarts=3, whole_cluster=False, dispensable=True),
}


# The base class of modes: every part in which one may differ from plain asynchronous training.
#
# The package's own are in ps_cluster/training/modes/.


class Waits(Enum):
    """The reasons for which a worker may have to wait."""

    FOR_NOBODY = "nobody"
    FOR_A_BOUND = "a bound on how far it may be ahead, or an update behind"
    IN_ROUNDS = "all other workers' gradients of a round, on the parameter server"
    FOR_ALL_REDUCE = "all other workers, in each all-reduce"


class Flow(NamedTuple):
    """Data that tasks of one type send to those of another, or of the same, for the picture of a cluster."""

    sender: str
    receiver: str
    what: str


class ModeSettings(Section):
    """The section `mode` of a configuration. A mode adds settings of its own in a subclass, with defaults."""

    name: Annotated[str, AfterValidator(lambda name: MODES.check_name(name))] = Field(
        description="How gradients of the workers become updates."
    )


class Mode:
    """A way to turn the workers' gradients into updates. Subclass it, and override the parts in which yours differs.

    Attributes:
      name: the name by which users choose it.
      says: one sentence for --help on what it does.
      Settings: the class of the section `mode`, with this mode's own settings.
      splits: what its workers share: the "data", each with all layers; or the "layers" of one network; or their "width".
      tasks: the task types in its cluster; all of them are required.
      flows: what its tasks send to each other; those of types that it does not have are left out.
      most_parameter_servers: the largest number of parameter servers it supports; None: any number.
      waits: what a worker may have to wait for.
      is_stale: whether an update may come from older weights than those that it is applied to.
      pins_workers: whether `cluster.pin_workers: auto` pins each worker to its own cores.
      fixed_workers: why the number of workers can't change during a run; "": it can (`ps-cluster scale`).
      on_death: the reaction to the death of a task, by its type.
      ignores: settings and whole sections (dotted keys) that it does not use, beside those of tasks it does not have.
      rated_as: the mode, of a single process, whose learning rates in a network's recipe it takes too; "": its own.
      own_rule: the only optimizer rule that it works with; None: any.
      takes_local_steps: whether a step id is several batches, after which worker and server exchange weights.
      unlabelled: its own settings that `label` leaves out.
      is_simulated: whether `simulate` can predict it.
      trainer: "module:function" of `train(config, run_dir, dataset, cluster, index, resume=…, drain=…, leading=…)`, run by
        the leader; in `sync` by every worker.
      slice: the `server.shard.ParameterShard` that a parameter server holds, or "module:class" of it.
      work: the `training.worker.StepSource` that the chief hands out, or "module:class" of it.
      step: the class that wraps a `TrainStep` as a worker's step, or "module:class" of it; None: the `TrainStep` itself.
      recomputed_steps: the `training.recomputed_steps.RecomputedSteps` that computes a worker's steps again for the proof, or
        "module:class" of it.
    """

    name = ""
    says = ""
    splits = "data"
    Settings: type[ModeSettings] = ModeSettings
    tasks: tuple[str, ...] = (CHIEF, PS, WORKER)
    flows: tuple[Flow, ...] = (
        Flow(CHIEF, WORKER, "step ids"),
        Flow(PS, WORKER, "weights"),
        Flow(WORKER, PS, "gradients"),
    )
    most_parameter_servers: int | None = None
    waits = Waits.FOR_NOBODY
    is_stale = True
    pins_workers = False
    fixed_workers = ""
    on_death: OnDeaths = ON_DEATH
    ignores: frozenset[str] = frozenset({"staleness"})
    rated_as = ""
    own_rule: str | None = None
    takes_local_steps = False
    unlabelled: frozenset[str] = frozenset()
    is_simulated = False
    trainer: Any = Part.TRAIN_ON_PARAMETER_SERVERS
    slice: Any = Part.SLICE
    work: Any = Part.STEPS
    step: Any = None
    recomputed_steps: Any = Part.RECOMPUTED_STEPS

    @property
    def has_parameter_servers(self) -> bool:
        """True if chief, parameter servers and workers are separate processes."""
        return PS in self.tasks

    @property
    def cannot_scale(self) -> str:
        """Why the number of workers can't change, for messages."""
        return f"mode {self.name} keeps its number of workers: {self.fixed_workers}"

    @property
    def trainer_type(self) -> str:
        """The type of the tasks that compute gradients."""
        return WORKER if WORKER in self.tasks else CHIEF

    @property
    def shares_steps(self) -> bool:
        """True if all workers take part in each step, each with the slice of its own part of the network."""
        return self.splits != "data"

    @property
    def lowers_rate(self) -> bool:
        """True if the rate is lowered while more workers take part than at first (`server.staleness.RateOfMoreWorkers`).

        With local steps the rate is that of a worker's own updates, which are not stale.
        """
        return self.is_stale and not self.fixed_workers and not self.takes_local_steps

    def place(self, workers: Any) -> tuple[str, Any]:
        """Return mode and workers, as a recipe's rates name them. `workers`: `cluster.workers`."""
        if self.rated_as:
            return self.rated_as, 1
        return self.name, workers if WORKER in self.tasks else 1

    def slices(self, config: RunConfig) -> int:
        """Return into how many slices the parameters are cut."""
        return config.cluster.parameter_servers if self.has_parameter_servers else 1

    @property
    def averages(self) -> bool:
        """True if an update is the mean of the gradients of all workers. Each gradient has its own step id."""
        return self.waits in (Waits.IN_ROUNDS, Waits.FOR_ALL_REDUCE)

    def settings(self, config: RunConfig) -> Any:
        """Return the section `mode`: an object of `Settings`."""
        return config.mode

    def check(self, config: RunConfig) -> None:
        """Raise ValueError, with the setting and its value, for settings that do not fit together."""
        servers = config.cluster.parameter_servers
        if self.most_parameter_servers is not None and servers > self.most_parameter_servers:
            raise ValueError(
                f"cluster.parameter_servers: got {servers}: mode {self.name} works with {self.most_parameter_servers}"
            )
        if config.loses_of_pushes and not self.has_parameter_servers:
            raise ValueError(f"cluster.wire: got '{config.cluster.wire}': mode {self.name} sends no pushes")
        if self.own_rule is not None and config.optimizer.rule != self.own_rule:
            raise ValueError(f"optimizer.rule: got '{config.optimizer.rule}': mode {self.name} needs {self.own_rule}")

    def late_workers(self, config: RunConfig) -> int:
        """Return how many workers' gradients may come too late for an update and are dropped."""
        return 0

    def grace_seconds(self, config: RunConfig) -> float:
        """Return how long an update waits for late gradients, once it has those that it needs."""
        return 0.0

    def batches_per_step(self, config: RunConfig) -> int:
        """Return how many batches one step id has."""
        return 1

    def takes_fewer_batches(self, config: RunConfig) -> bool:
        """Return whether a slow worker may take fewer batches in a step."""
        return False

    def worker_vectors(self, config: RunConfig) -> int:
        """Return how many vectors of all weights a worker's process keeps, beside those that it writes to files."""
        return 0

    def delay(self, config: RunConfig) -> int:
        """Return by how many versions a pull returns older weights than the newest."""
        return 0

    def emulated_workers(self, config: RunConfig) -> int:
        """Return the number of workers whose staleness is emulated; it may be more than there are."""
        return config.training_workers

    def most_staleness(self, config: RunConfig) -> int | None:
        """Return the bound on the staleness of every update; None: there is none."""
        return None if self.is_stale else 0

    def equation(self, config: RunConfig, parts: UpdateParts) -> Slots | None:
        """Return "weights" and the slots after an update, where the mode and not the optimizer rule decides them.

        It is computed in numpy, for the proof. None: the optimizer rule decides.
        """
        return None

    def label(self, config: RunConfig) -> str:
        """Return the mode's name with the settings that make it another method, e.g. "bounded s=2"."""
        return self.name


MODES: Registry[Mode] = Registry("mode", Mode, "ps_cluster.training.modes", "ps_cluster.modes")


# The base class of optimizer rules: how a parameter server changes its weights with one gradient.
#
# The package's own are in ps_cluster/server/update_rules.py.

MOST_FACTORS = 100
CLIPPING = ("clip_norm", "global_clip_norm", "clip_value")
Limit = Annotated[float, Field(gt=0, le=1e30)]


class LearningRateFactor(Section):
    # Not a regular expression, because matching some of those takes practically for ever.
    match: str = Field(max_length=100, pattern=r"^[A-Za-z0-9_/*?-]+$")
    factor: Factor

    @field_validator("match", mode="before")
    @classmethod
    def _is_a_pattern(cls, pattern: Any) -> Any:
        allowed = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_/*?-")
        if isinstance(pattern, str) and (not pattern or set(pattern) - allowed):
            raise ValueError("write a part of a variable's path: letters, digits, _ - / and, for any others, ? and *")
        return pattern


class RuleSettings(Section):
    """The section `optimizer` of a configuration. A rule adds settings of its own in a subclass, with defaults."""

    rule: Annotated[str, AfterValidator(lambda name: RULES.check_name(name))] = Field(
        description="How a parameter server changes its weights with a gradient."
    )
    learning_rate: float = Field(gt=0, le=LARGEST_FACTOR, description="The highest; the section `schedule` scales it.")
    weight_decay: Factor = Field(
        description="Decoupled: an update also subtracts learning rate x weight_decay x weight from each weight."
    )
    learning_rate_factors: tuple[LearningRateFactor, ...] = Field(
        strict=False,
        max_length=MOST_FACTORS,
        description="Multiply the learning rate of variables whose path contains `match` (*: any characters, ?: one). The "
        "first match wins. Factor 0: the variable is not trained.",
    )
    clip_norm: Limit | None = Field(
        description="Scale the gradient of a variable down to this norm where it is larger. A worker does it to its own "
        "gradient, before the push."
    )
    global_clip_norm: Limit | None = Field(description="The same for the norm of the whole gradient.")
    clip_value: Limit | None = Field(description="Cut each number of a gradient to between - this and this.")

    @model_validator(mode="after")
    def _clips_in_one_way(self) -> RuleSettings:
        given = {name: getattr(self, name) for name in CLIPPING if getattr(self, name) is not None}
        if len(given) > 1:
            told = " and ".join(f"optimizer.{name} {value:g}" for name, value in given.items())
            raise ValueError(f"got {told}: choose one way to clip")
        return self


class OptimizerRule:
    """An optimizer. Subclass it, and override the parts in which yours differs.

    Attributes:
      name: the name by which users choose it.
      Settings: the class of the section `optimizer`, with this rule's own settings.
      usual_rate: the learning rate for a network that nothing is known about: Keras's default, where Keras has the same rule.
      update: the `server.update_rules.UpdateRule` that changes a slice's weights, or "module:class" of it.
      staleness_method: the one that mode async uses with this rule, unless somebody chooses another.
      staleness_method_of_compile: the same where compile() gives the rate, which suits `fit`; None: the same one.
    """

    name = ""
    Settings: type[RuleSettings] = RuleSettings
    usual_rate: float | None = 0.01
    staleness_method = "none"
    staleness_method_of_compile: str | None = None
    update: Any = None

    def check(self, config: RunConfig) -> None:
        """Raise ValueError, with the setting and its value, for settings that do not fit together."""

    def equation(self, settings: Any, parts: UpdateParts) -> Slots | None:
        """Return "weights" and the slots after an update, computed in numpy; None: the proof can't compute it again.

        Args:
          settings: the section `optimizer`, an object of `Settings`.
        """
        return None


RULES: Registry[OptimizerRule] = Registry(
    "optimizer rule", OptimizerRule, "ps_cluster.server.update_rules", "ps_cluster.optimizer_rules"
)


# The base class of staleness methods: how a parameter server treats a gradient that comes from older weights.
#
# The package's own are in ps_cluster/server/staleness.py.


class StalenessSettings(Section):
    """The section `staleness` of a configuration. A method adds settings of its own in a subclass."""

    method: Annotated[str, AfterValidator(lambda name: METHODS.check_name(name))] = Field(
        description="What is done about gradients that come late."
    )


class StalenessMethod:
    """A way to treat stale gradients. Subclass it, and override the parts in which yours differs.

    Attributes:
      name: the name by which users choose it.
      says: one sentence for --help on what it does.
      Settings: the class of the section `staleness`, with this method's own settings.
      correction: the `server.staleness.Correction` that corrects gradients in a slice, or "module:class" of it.
      drops: whether it may drop gradients, so that a worker that lives may have no update for long.
      gathers: whether it changes the weights with several gradients at a time.
      takes_periods: whether it also suits what a period of local steps brings, in place of a gradient.
    """

    name = ""
    says = ""
    drops = gathers = takes_periods = False
    Settings: type[StalenessSettings] = StalenessSettings
    correction: Any = Part.CORRECTION

    def check(self, config: RunConfig) -> None:
        """Raise ValueError, with the setting and its value, for settings that do not fit together."""

    def optimizer(self, config: RunConfig) -> RuleSettings:
        """Return the optimizer settings that the parameter servers use."""
        return config.optimizer

    def equation(self, settings: Any, arrived: ArrivedParts) -> CorrectedParts | None:
        """Return what the method makes of a gradient, computed in numpy; None: the proof can't compute it again.

        Args:
          settings: the section `staleness`, an object of `Settings`.
        """
        return None

    def gathered_gradients(self, config: RunConfig) -> int:
        """Return with how many gradients at a time the weights change."""
        return 1

    def given_weights(self, at_pull: Slots) -> np.ndarray:
        """Return the weights that a worker is given, float64 [k], from "weights" and `Correction.pull_state` at its pull."""
        return at_pull["weights"]


METHODS: Registry[StalenessMethod] = Registry(
    "staleness method", StalenessMethod, "ps_cluster.server.staleness", "ps_cluster.staleness_methods"
)


# The base class of learning-rate schedules: the factor of the peak rate at each update.
#
# The package's own are in ps_cluster/training/step.py.


SMALLEST_SIDE = 16  # pixels: images are not made smaller


class ImageScale(Section):
    """Images of `scale` x their sides, until the share `until` of the steps is done."""

    scale: float = Field(gt=0, le=1)
    until: Fraction

    def side(self, side: int) -> int:
        """Return the pixels that a side of so many becomes."""
        return min(side, max(SMALLEST_SIDE, round(side * self.scale)))


class ScheduleSettings(Section):
    """The section `schedule` of a configuration. A schedule adds settings of its own in a subclass."""

    kind: Annotated[str, AfterValidator(lambda name: SCHEDULES.check_name(name))] = Field(
        description="How the learning rate goes on after it has risen."
    )
    warmup_fraction: Fraction = Field(description="Share of the steps in which the learning rate rises.")
    start_factor: Fraction = Field(description="Learning rate of the first step, as a share of the highest.")
    end_factor: Fraction = Field(description="Learning rate of the last step, as a share of the highest.")
    image_scales: tuple[ImageScale, ...] = Field(
        strict=False,
        max_length=20,
        description="Train on smaller images at first: those of `scale` x their side, 16 pixels or more, until this share "
        "of the steps. Only for networks that take images of any size.",
    )

    def left(self, done: float) -> float:
        """Return the share of the steps that is left after the share `done`, as steps with images of the size then.

        The time of a step goes by the pixels of its images.
        """
        left, now, begin = 0.0, None, done
        for until, size in (*((scale.until, scale.scale**2) for scale in self.image_scales), (1.0, 1.0)):
            if until > begin:
                now = now or size
                left += (until - begin) * size
                begin = until
        return left / (now or 1.0)

    @field_validator("image_scales")
    @classmethod
    def _in_order(cls, scales: tuple[ImageScale, ...]) -> tuple[ImageScale, ...]:
        shares = [scale.until for scale in scales]
        if any(later <= earlier for earlier, later in pairwise(shares)):
            raise ValueError(
                f"`until` has to grow from one to the next, got {', '.join(f'{share:g}' for share in shares)}"
            )
        return scales


class Schedule:
    """A schedule. Subclass it, and override the parts in which yours differs.

    Attributes:
      name: the name by which users choose it.
      Settings: the class of the section `schedule`, with this schedule's own settings.
    """

    name = ""
    Settings: type[ScheduleSettings] = ScheduleSettings

    def after_warmup(self, settings: Any, past: tf.Tensor) -> tf.Tensor:
        """Return the factor, float32 [], after the warm-up; `past`, float32 [], goes from 0 to 1."""
        raise NotImplementedError


SCHEDULES: Registry[Schedule] = Registry("schedule", Schedule, "ps_cluster.training.step", "ps_cluster.schedules")
