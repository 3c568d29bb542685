"""Dense layers for inputs of any form: columns of a table, rows of numbers, small images."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pydantic import Field

from ps_cluster.config.lazy import keras
from ps_cluster.config.networks import ActivationSettings, Network
from ps_cluster.config.objectives import ExampleSpec
from ps_cluster.config.objectives import Field as ArrayField
from ps_cluster.models.networks import scale_and_offset, scores


class MlpSettings(ActivationSettings):
    hidden: tuple[int, ...] = Field(
        default=(128, 64), strict=False, min_length=1, max_length=20, description="Units of each dense layer."
    )
    dropout: float = Field(default=0.0, ge=0, lt=1, description="Share of the units that are left out of a step.")


class Mlp(Network):
    name = "mlp"
    Settings = MlpSettings
    recipe = {
        "training": {"epochs": 20.0, "label_smoothing": 0.0},
        "optimizer": {
            "rule": "adam", "learning_rate": 0.001, "momentum": 0.5, "weight_decay": 0.0, "learning_rate_factors": [],
        },
    }  # fmt: skip

    def build(self, examples: ExampleSpec, settings: MlpSettings) -> keras.Model:
        """Return the network: inputs made flat and standardised, categories embedded, then dense layers."""
        inputs = {
            name: keras.Input(field.shape, name=name, dtype="int32" if field.codes else "float32")
            for name, field in examples.inputs.items()
        }
        parts = [part for name, field in examples.inputs.items() for part in _flat(inputs[name], name, field)]
        x = parts[0] if len(parts) == 1 else keras.layers.Concatenate()(parts)
        for place, units in enumerate(settings.hidden):
            x = keras.layers.Dense(units, settings.activation, name=f"dense_{place}")(x)
            if settings.dropout:
                x = keras.layers.Dropout(settings.dropout)(x)
        for layer in scores(examples.outputs):
            x = layer(x)
        single = len(inputs) == 1
        return keras.Model(next(iter(inputs.values())) if single else inputs, x, name=self.name)


def _flat(given: keras.KerasTensor, name: str, field: ArrayField) -> Sequence[keras.KerasTensor]:
    """Return an input as float32 [B, n] each: standardised numbers, or an embedding for each place of codes."""
    layers = keras.layers
    width = math.prod(field.shape)
    if field.codes:
        return [
            # As long as the square root, as is usual, within bounds.
            layers.Embedding(count, min(32, max(2, round(math.sqrt(count)))), name=f"{name}_{place}")(given[:, place])
            for place, count in enumerate(field.codes)
        ]
    flat = layers.Reshape((width,), name=f"{name}_flat")(given)
    if not field.mean and field.dtype != "uint8":  # of an unknown scale
        return [layers.BatchNormalization(momentum=0.9, name=f"{name}_norm")(flat)]
    scale, offset = scale_and_offset(field)
    times = width // len(scale)
    return [layers.Rescaling(scale * times, offset * times, dtype="float32", name=f"{name}_norm")(flat)]
