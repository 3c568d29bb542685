"""Settings that follow from the network: rates for single modes, and safe defaults for a network of a user's own.

`modes` in a recipe (`Network.recipe`) is a table of what was found on held-out examples. A learning rate and a momentum
are good for one mode, number of workers and batch, so an entry is used for exactly those and never scaled to others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ps_cluster.config.modes import MODES as MODES_OF_TRAINING
from ps_cluster.config.update_settings import RULES
from ps_cluster.errors import UserError
from ps_cluster.files.values import first_error

MODES = "modes"
COMPILED = "compiled"  # the rule that stands for the optimizer of a network's compile()
# Rate and momentum belong together: if one of these is set by hand, the others are not taken from the table.
BELONG_TOGETHER = ("rule", "learning_rate", "momentum", "beta_2")

Layer = Mapping[str, Any]


class Found(BaseModel):
    """A learning rate and a momentum, with the mode, workers (1 in mode single) and batch they were found for."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    mode: str
    workers: int = Field(ge=1)
    batch_size_per_worker: int = Field(ge=1)
    learning_rate: float = Field(gt=0)
    momentum: float = Field(ge=0, lt=1)

    @property
    def place(self) -> tuple[str, int, int]:
        return self.mode, self.workers, self.batch_size_per_worker

    def layer(self) -> dict[str, Any]:
        """Return the settings as a layer of a configuration."""
        return {"optimizer": {"learning_rate": self.learning_rate, "momentum": self.momentum}}


def of_users_network(rule: object) -> dict[str, Any]:
    """Return safe settings for a network that is not the package's own, as a layer above configs/default.yaml.

    That file has what was chosen for airbench on CIFAR-10; little of it helps another network, and much of it harms.

    Args:
      rule: the optimizer rule that somebody has chosen; None: that of the network's compile().
    """
    chosen = RULES[rule] if isinstance(rule, str) and rule in RULES else RULES[COMPILED]
    own = {name: field.default for name, field in chosen.Settings.model_fields.items() if not field.is_required()}
    return {
        "data": {"augmentation": {"crop_padding_pixels": 0, "flip": "none"}},
        "model": {"precision": "float32"},
        "training": {"label_smoothing": 0.0},
        "optimizer": own
        | {"rule": chosen.name, "learning_rate": chosen.usual_rate, "weight_decay": 0.0, "learning_rate_factors": []},
        "schedule": {"kind": "constant", "warmup_fraction": 0.0},
    }


class _Table(BaseModel):
    modes: tuple[Found, ...]


def read_modes(recipe: Layer, origin: str) -> tuple[Found, ...]:
    """Return the table of a recipe, empty without one. Raises UserError for an invalid table."""
    try:
        table = _Table.model_validate({MODES: recipe.get(MODES) or ()}).modes
    except ValidationError as error:
        raise UserError(first_error(error, origin)) from error
    places = [found.place for found in table]
    if len(set(places)) < len(places):
        raise UserError(f"{origin}: modes: the same mode, workers and batch come twice")
    return table


def found_for(table: Sequence[Found], settings: Layer, user: Layer) -> Layer:
    """Return the table's entry for the mode, workers and batch of `settings` as a layer; empty without an entry.

    Args:
      settings: the merged layers, not yet validated.
      user: the user's layer. If it sets a rate, a momentum or a rule, nothing of the table is used.
    """
    own = user.get("optimizer")
    training, cluster, chosen = (settings.get(name) or {} for name in ("training", "cluster", "mode"))
    if not all(isinstance(section, Mapping) for section in (training, cluster, chosen, own or {})):
        return {}  # the validation later refuses it
    if any(name in (own or {}) for name in BELONG_TOGETHER):
        return {}
    mode = chosen.get("name")
    if not isinstance(mode, str) or mode not in MODES_OF_TRAINING:
        return {}
    place = (*MODES_OF_TRAINING[mode].place(cluster.get("workers")), training.get("batch_size_per_worker"))
    return next((found.layer() for found in table if found.place == place), {})
