"""The base class of optimizer rules: how a parameter server changes its weights with one gradient.

The package's own are in ps_cluster/server/rules.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, Field, field_validator, model_validator

from ps_cluster.config.registry import LARGEST_FACTOR, Factor, Fraction, Part, Registry, Section, tf

if TYPE_CHECKING:
    from ps_cluster.config import RunConfig

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
    learning_rate: float = Field(
        gt=0, le=LARGEST_FACTOR, description="The highest learning rate of an update; the section `schedule` scales it."
    )
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
      usual_rate: the learning rate for a network that nothing is known about: Keras's default, where Keras has the rule.
      update: the `server.rules.UpdateRule` that changes a slice's weights, or "module:class" of it.
    """

    name = ""
    Settings: type[RuleSettings] = RuleSettings
    usual_rate: float | None = 0.01
    update: Any = None


RULES: Registry[OptimizerRule] = Registry(
    "optimizer rule", OptimizerRule, "ps_cluster.server.rules", "ps_cluster.optimizer_rules"
)


# The base class of staleness methods: how a parameter server treats a gradient that comes from older weights.
#
# The package's own are in ps_cluster/server/staleness.py.


class StalenessSettings(Section):
    """The section `staleness` of a configuration. A method adds settings of its own in a subclass."""

    method: Annotated[str, AfterValidator(lambda name: METHODS.check_name(name))] = Field(
        description="How stale gradients are corrected, in mode async."
    )


class StalenessMethod:
    """A way to treat stale gradients. Subclass it, and override the parts in which yours differs.

    Attributes:
      name: the name by which users choose it.
      says: one sentence for --help on what it does.
      Settings: the class of the section `staleness`, with this method's own settings.
      correction: the `server.staleness.Correction` that corrects gradients in a slice, or "module:class" of it.
    """

    name = ""
    says = ""
    Settings: type[StalenessSettings] = StalenessSettings
    correction: Any = Part.CORRECTION

    def check(self, config: RunConfig) -> None:
        """Raise ValueError, with the setting and its value, for settings that do not fit together."""

    def optimizer(self, config: RunConfig) -> RuleSettings:
        """Return the optimizer settings that the parameter servers use."""
        return config.optimizer


METHODS: Registry[StalenessMethod] = Registry(
    "staleness method", StalenessMethod, "ps_cluster.server.staleness", "ps_cluster.staleness_methods"
)


# The base class of learning-rate schedules: the factor of the peak rate at each update.
#
# The package's own are in ps_cluster/training/schedules/, one file each.


class ScheduleSettings(Section):
    """The section `schedule` of a configuration. A schedule adds settings of its own in a subclass."""

    kind: Annotated[str, AfterValidator(lambda name: SCHEDULES.check_name(name))] = Field(
        description="How the learning rate goes on after it has risen."
    )
    warmup_fraction: Fraction = Field(description="Share of the steps in which the learning rate rises.")
    start_factor: Fraction = Field(description="Learning rate of the first step, as a share of the highest.")
    end_factor: Fraction = Field(description="Learning rate of the last step, as a share of the highest.")


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


SCHEDULES: Registry[Schedule] = Registry("schedule", Schedule, "ps_cluster.training.schedules", "ps_cluster.schedules")
