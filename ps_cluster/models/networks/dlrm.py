"""A network for categorical columns and numbers, e.g. of clicks: embeddings that are combined by dot products.

Naumov et al. 2019, "Deep Learning Recommendation Model for Personalization and Recommendation Systems",
arXiv:1906.00091, section 2.5: dense layers turn the numbers into a vector as wide as the embeddings, all pairs of
vectors are multiplied, and dense layers turn the products into the scores.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from ps_cluster.config.lazy import keras
from ps_cluster.config.networks import NetworkSettings
from ps_cluster.config.objectives import ExampleSpec
from ps_cluster.models.networks import (
    NetworkOfKeys,
    Units,
    columns_of,
    dense_layers,
    fewest_outputs,
    joined,
    network_of,
    scored,
)


class DlrmSettings(NetworkSettings):
    row_width: int = Field(
        default=8, ge=1, le=4096, description="Number of values in each row of the embedding tables."
    )
    bottom: Units = Field(
        default=(64,),
        description="Units of the dense layers for the columns of numbers (the bottom MLP). After them comes one "
        "more dense layer, with model.row_width units.",
    )
    top: Units = Field(
        default=(128, 64),
        description="Units of the dense layers after the dot products of all pairs of vectors (the top MLP).",
    )


class Dlrm(NetworkOfKeys[DlrmSettings]):
    name = "dlrm"
    Settings = DlrmSettings

    def build(self, examples: ExampleSpec, settings: DlrmSettings) -> keras.Model:
        """Return the network. If the examples have no numbers, it has no dense layers before the dot products."""
        inputs, rows, numbers = columns_of(examples, settings.row_width)
        units = (*settings.bottom, settings.row_width)
        dense = [dense_layers(joined(numbers), units, "bottom")] if numbers else []
        x = joined([*dense, products_of_pairs([*dense, *rows])], "interaction")
        x = dense_layers(x, settings.top, "top")
        return network_of(inputs, scored(x, fewest_outputs(examples)), self.name)


def products_of_pairs(vectors: Sequence[keras.KerasTensor]) -> keras.KerasTensor:
    """Return the dot products of all pairs of `vectors` [B, width] as [B, pairs]. Return a single vector unchanged.

    The pairs are in the order (1, 0), (2, 0), (2, 1), (3, 0), ...: the lower triangle of the products, without its
    diagonal.
    """
    count = len(vectors)
    if count == 1:
        return vectors[0]
    stacked = keras.layers.Reshape((count, -1), name="stacked")(joined(vectors, "vectors"))
    products = keras.layers.Dot(axes=2, name="products")([stacked, stacked])
    return joined([products[:, row, :row] for row in range(1, count)], "pairs")
