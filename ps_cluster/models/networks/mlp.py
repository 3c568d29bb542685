"""Dense layers for inputs of any form: columns of a table, rows of numbers, small images.

Muon updates the matrices of the hidden layers, and Adam updates all other weights, such as the embeddings of categories.
On held-out images this was better than Adam alone, with stale gradients and without, and on held-out rows of a table it
was not worse. The modes that divide the network among the workers can't use Muon, so they use Adam for all weights.
"""

from __future__ import annotations

from pydantic import Field

from ps_cluster.config.lazy import keras
from ps_cluster.config.networks import ActivationSettings, Network
from ps_cluster.config.objectives import ExampleSpec
from ps_cluster.models.networks import (
    ADAM,
    MUON_ADAM,
    Units,
    embeddings,
    flat_numbers,
    inputs_of,
    joined,
    network_of,
    scored,
    tuned_settings,
)


class MlpSettings(ActivationSettings):
    hidden: Units = Field(default=(128, 64), min_length=1, description="Units of each dense layer.")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="Share of the units that is set to 0 in each step.")


class Mlp(Network[MlpSettings]):
    name = "mlp"
    Settings = MlpSettings
    recipe = {
        "training": {"epochs": 20.0, "label_smoothing": 0.0},
        "optimizer": {**MUON_ADAM, "matrices": ["dense_*kernel"], "learning_rate": 0.02},
        "divided": {"optimizer": {**ADAM, "learning_rate": 0.001, "momentum": 0.5}},
        "modes": [  # docs/results.md, "Rates by mode"
            *tuned_settings("async", "bounded", learning_rate=0.02, momentum=0.9),
            *tuned_settings("sync", "sync-ps", learning_rate=0.04, momentum=0.9),
            *tuned_settings("single", workers=1, learning_rate=0.04, momentum=0.9),
            *tuned_settings("single", workers=1, batch=384, learning_rate=0.04, momentum=0.9),
        ],
    }  # fmt: skip

    def build(self, examples: ExampleSpec, settings: MlpSettings) -> keras.Model:
        """Return the network: flattened and standardised numbers, embedded categories, and dense layers after them."""
        inputs = inputs_of(examples)
        parts: list[keras.KerasTensor] = []
        for name, field in examples.inputs.items():
            given = inputs[name]
            parts += embeddings(given, name, field) if field.codes else [flat_numbers(given, name, field)]
        x = joined(parts)
        for place, units in enumerate(settings.hidden):
            x = keras.layers.Dense(units, settings.activation, name=f"dense_{place}")(x)
            if settings.dropout:
                x = keras.layers.Dropout(settings.dropout)(x)
        return network_of(inputs, scored(x, examples.outputs), self.name)
