"""A decoder for text: the blocks of GPT-2, on bytes.

Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3: layer normalisation before each
attention, before each pair of dense layers, and at the end.

Muon updates the matrices of its blocks, and Adam updates all other weights. On held-out files this was better than Adam
alone, with stale gradients and without. The modes that divide the network among the workers can't use Muon, so they use
Adam for all weights.
"""

from __future__ import annotations

from pydantic import Field

from ps_cluster.config.lazy import keras
from ps_cluster.config.networks import Network, NetworkSettings
from ps_cluster.config.objectives import BYTES, ExampleSpec
from ps_cluster.models.networks import ADAM, MUON_ADAM, tuned_settings


class ByteLmSettings(NetworkSettings):
    blocks: int = Field(default=4, ge=1, le=100, description="Number of blocks, each of attention and dense layers.")
    units: int = Field(default=160, ge=1, le=8192, description="How many numbers represent each byte of the window.")
    heads: int = Field(
        default=5, ge=1, le=128, description="Number of attention heads. It has to be a divisor of model.units."
    )
    dropout: float = Field(
        default=0.0, ge=0, lt=1, description="Share of a block's outputs that is set to 0 in each step."
    )


class ByteLm(Network[ByteLmSettings]):
    name = "byte_lm"
    Settings = ByteLmSettings
    recipe = {
        "training": {"epochs": 1.0, "label_smoothing": 0.0, "batch_size_per_worker": 16},
        "optimizer": {**MUON_ADAM, "matrices": ["block*kernel"], "learning_rate": 0.01},
        "divided": {"optimizer": {**ADAM, "learning_rate": 0.001}},
        "modes": [  # docs/results.md, "Rates by mode"
            *tuned_settings("async", "bounded", batch=16, learning_rate=0.01, momentum=0.9),
            *tuned_settings("sync", "sync-ps", batch=16, learning_rate=0.08, momentum=0.5),
            *tuned_settings("single", workers=1, batch=16, learning_rate=0.04, momentum=0.9),
            *tuned_settings("single", workers=1, batch=48, learning_rate=0.08, momentum=0.5),
        ],
    }  # fmt: skip

    def check(self, examples: ExampleSpec, settings: ByteLmSettings) -> None:
        examples.window(self.name)
        if settings.units % settings.heads:
            raise ValueError(
                f"model.heads: got {settings.heads}: it has to be a divisor of model.units, {settings.units}"
            )

    def build(self, examples: ExampleSpec, settings: ByteLmSettings) -> keras.Model:
        """Return the network: 1.4 M parameters by default. The scores at a position depend on no later byte."""
        layers, window, units = keras.layers, examples.window(self.name), settings.units
        (name,) = examples.inputs
        given = keras.Input((window,), name=name, dtype="uint8")
        x = layers.Embedding(BYTES, units, name="bytes")(given)
        # A dense layer with a bias for each position: Keras has no layer that only adds an embedding of the positions.
        x = layers.EinsumDense(
            "bld,de->ble", (window, units), bias_axes="le", bias_initializer="random_normal", name="places"
        )(x)
        for block in range(settings.blocks):
            x = _block(x, settings, f"block{block}")
        x = layers.LayerNormalization(name="norm")(x)
        x = layers.Dense(BYTES, name="logits")(x)
        scores = layers.Reshape((examples.outputs,), dtype="float32", name="scores")(x)
        return keras.Model(given, scores, name=self.name)


def _block(x: keras.KerasTensor, settings: ByteLmSettings, name: str) -> keras.KerasTensor:
    """Apply a residual attention layer, and then two dense layers with a residual connection around both."""
    layers, units = keras.layers, settings.units
    y = layers.LayerNormalization(name=f"{name}_norm1")(x)
    attention = layers.MultiHeadAttention(settings.heads, units // settings.heads, name=f"{name}_attention")
    y = attention(y, y, use_causal_mask=True)
    x = layers.Add(name=f"{name}_add1")([x, _dropped(y, settings, f"{name}_dropout1")])
    y = layers.LayerNormalization(name=f"{name}_norm2")(x)
    y = layers.Dense(4 * units, "gelu", name=f"{name}_wide")(y)
    y = layers.Dense(units, name=f"{name}_narrow")(y)
    return layers.Add(name=f"{name}_add2")([x, _dropped(y, settings, f"{name}_dropout2")])


def _dropped(x: keras.KerasTensor, settings: ByteLmSettings, name: str) -> keras.KerasTensor:
    return keras.layers.Dropout(settings.dropout, name=name)(x) if settings.dropout else x
