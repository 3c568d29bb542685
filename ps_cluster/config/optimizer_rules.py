"""Define the base class of optimizer rules: how a parameter server changes its weights with one gradient.

The package's own rules are in ps_cluster/server/update_rules/, a file for each.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

from pydantic import AfterValidator, Field, field_validator, model_validator

from ps_cluster.config.equations import Slots, UpdateParts
from ps_cluster.config.lazy import keras
from ps_cluster.config.registry import Named, Registry
from ps_cluster.config.setting_types import LARGEST_FACTOR, Factor, Section

if TYPE_CHECKING:
    from ps_cluster.config import RunConfig
    from ps_cluster.server.update_rules.row_rule import RowRule
    from ps_cluster.server.update_rules.rule import UpdateRule

MOST_FACTORS = 100
WAYS_TO_CLIP = frozenset({"clip_norm", "global_clip_norm", "clip_value"})  # at most one of these settings may be set
Limit = Annotated[float, Field(gt=0, le=1e30)]
# `match` is not a regular expression, because matching some regular expressions practically never ends.
GLOB = r"^[A-Za-z0-9_/*?-]+$"


class LearningRateFactor(Section):
    match: str = Field(max_length=100, pattern=GLOB)
    factor: Factor

    @field_validator("match", mode="before")
    @classmethod
    def _is_a_pattern(cls, pattern: Any) -> Any:
        if isinstance(pattern, str) and not re.fullmatch(GLOB, pattern):
            raise ValueError(
                "write a part of a variable's path with letters, digits, _ - and /; ? stands for any character, * for any text"
            )
        return pattern


class RuleSettings(Section):
    """The section `optimizer` of a configuration. A subclass adds the settings of one rule, with defaults."""

    rule: Annotated[str, AfterValidator(lambda name: RULES.check_name(name))] = Field(
        description="The rule by which a parameter server applies a gradient to its weights."
    )
    learning_rate: float = Field(
        gt=0, le=LARGEST_FACTOR, description="The highest learning rate; the section `schedule` scales it."
    )
    weight_decay: Factor = Field(
        description="Decoupled decay: an update also subtracts learning rate x weight_decay x weight from each weight."
    )
    learning_rate_factors: tuple[LearningRateFactor, ...] = Field(
        strict=False,
        max_length=MOST_FACTORS,
        description="Multiply the learning rate by `factor` for variables whose path contains `match` (*: any characters, "
        "?: one). The first match wins. Factor 0: the variable is not trained.",
    )
    clip_norm: Limit | None = Field(
        description="Scale the gradient of a variable down to this norm if its norm is larger. The worker does this before "
        "the push."
    )
    global_clip_norm: Limit | None = Field(
        description="Scale the whole gradient down to this norm if its norm is larger."
    )
    clip_value: Limit | None = Field(
        description="Clip each number of a gradient to the range from -clip_value to clip_value."
    )

    @model_validator(mode="after")
    def _clips_in_one_way(self) -> RuleSettings:
        limits = self.model_dump(include=set(WAYS_TO_CLIP), exclude_none=True)
        given = [f"optimizer.{name} {value:g}" for name, value in limits.items()]
        if len(given) > 1:
            raise ValueError(f"got {' and '.join(given)}: choose one way to clip")
        return self

    @property
    def momentum_if_any(self) -> float | None:
        """The setting `momentum`, or None if the rule has no such setting."""
        momentum: float | None = getattr(self, "momentum", None)
        return momentum

    @property
    def matrix_patterns(self) -> tuple[str, ...]:
        """Patterns for the paths of the variables that the optimizer rule needs as whole matrices.

        Override this property in the settings of a rule that needs whole matrices. The class `OptimizerRule.update`
        gets the positions of these matrices as `matrices`. If the parameter servers apply the rule, no matrix is
        divided between them. In modes that divide the network among the workers, `matrices` is empty.
        """
        return ()

    @property
    def slowest_decay(self) -> float:
        """The decay of the slowest running mean among the rule's slots; 0 if the slots have no running mean.

        Override this property in the settings of a rule that has running means. The closer the decay is to 1, the
        larger is the rounding error that the proof (the check of a run's updates) allows, because 1 - decay has few
        digits in float32.
        """
        return 0.0


OwnSettings = TypeVar("OwnSettings", bound=RuleSettings)
Values = dict[str, Any]
"""The settings of a rule, or the arguments of an optimizer of Keras, by name, as values that JSON can hold."""


class OptimizerRule(Named, Generic[OwnSettings]):
    """An optimizer. To write an optimizer, subclass this class, and override the parts that differ.

    Attributes:
      name: the name by which users choose it.
      Settings: the class of the section `optimizer`, with this rule's own settings. It may override `matrix_patterns`
        and `slowest_decay`.
      usual_rate: the learning rate for an unknown network. It is Keras's default if Keras has the same rule.
      update: the class that changes the weights of a shard.
      row_update: the class that changes single rows of an embedding table. `RowsByFormula` changes them by the formula
        of `update`. If `row_update` is None, the rule can't be used with embedding tables on the parameter servers.
      staleness_method: the default staleness method of mode async with this rule.
      staleness_method_of_compile: the default staleness method if the rule comes from a network's compile(), where the
        learning rate is usually chosen for `fit`, without stale gradients. None means `staleness_method`.
    """

    Settings: type[RuleSettings] = RuleSettings
    usual_rate: float | None = 0.01
    staleness_method = "none"
    staleness_method_of_compile: str | None = None
    update: type[UpdateRule[OwnSettings]]
    row_update: type[RowRule[OwnSettings]] | None = None

    def expected_classes(self) -> Mapping[str, type]:
        from ps_cluster.server.update_rules.row_rule import RowRule
        from ps_cluster.server.update_rules.rule import UpdateRule

        return {"update": UpdateRule} if self.row_update is None else {"update": UpdateRule, "row_update": RowRule}

    def check(self, config: RunConfig) -> None:
        """Raise ValueError, with the setting and its value, for settings that do not fit together."""

    def equation(self, settings: OwnSettings, parts: UpdateParts) -> Slots | None:
        """Return the weights and slots after an update, by name ("weights" and the slots' names), computed in numpy.

        The proof of a run, the check of its updates, compares them with the weights and slots of the shard. If the rule
        has no such equation, return None. The proof then can't compute the update again.

        Args:
          settings: the section `optimizer`, an object of `Settings`.
        """
        return None

    def of_keras(self, kind: type[keras.Optimizer], values: Values) -> Values | None:
        """Return the settings with which this rule computes the same updates as an optimizer of Keras.

        A network whose compile() has that optimizer is then trained with this rule. The result has only the rule's own
        settings, not those that all rules have, such as the learning rate. It is None if this rule is not equivalent to
        the optimizer. Another rule may be.

        Args:
          kind: the class of the optimizer.
          values: the optimizer's arguments.

        Raises:
          ValueError: because of an argument, no rule is equivalent to the optimizer. In the message to the user, the
            text of this error follows "the optimizer of its compile() (NAME) ".
        """
        return None


def check_without_effect(values: Values, **without_effect: bool | float | None) -> None:
    """Raise ValueError if an optimizer has an argument that this package does not support.

    The text of the error is as in `OptimizerRule.of_keras`.

    Args:
      values: the optimizer's arguments.
      without_effect: name of an argument → the value with which the argument has no effect.
    """
    for name, value in without_effect.items():
        if values.get(name, value) != value:
            raise ValueError(f"has {name}={values[name]}")


def _home() -> ModuleType:
    from ps_cluster.server import update_rules

    return update_rules


RULES: Registry[OptimizerRule[Any]] = Registry("optimizer rule", OptimizerRule, _home, "ps_cluster.optimizer_rules")
