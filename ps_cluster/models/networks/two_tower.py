"""Two towers, e.g. one for users and one for items. The dot product of their vectors is the score or the rating.

Yi et al. 2019, "Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations", RecSys, section 3. Here
the towers are trained on clicks or ratings as they are, without sampled negatives.
"""

from __future__ import annotations

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
)


class TwoTowerSettings(NetworkSettings):
    row_width: int = Field(
        default=16, ge=1, le=4096, description="Number of values in each row of the embedding tables."
    )
    tower: Units = Field(default=(64, 32), min_length=1, description="Units of the dense layers of each tower.")
    first_columns: int | None = Field(
        default=None, ge=1, description="How many categorical columns the first tower takes; null: half of them."
    )


class TwoTower(NetworkOfKeys[TwoTowerSettings]):
    name = "two_tower"
    Settings = TwoTowerSettings

    def check(self, examples: ExampleSpec, settings: TwoTowerSettings) -> None:
        super().check(examples, settings)
        columns = sum(len(field.codes) for field in examples.inputs.values())
        if columns < 2:
            raise ValueError("each tower needs a categorical column, and there is only one")
        if settings.first_columns is not None and settings.first_columns >= columns:
            raise ValueError(
                f"model.first_columns: got {settings.first_columns}, but of the {columns} categorical columns at least one has "
                f"to be left for the second tower: give at most {columns - 1}"
            )
        if fewest_outputs(examples) > 1:
            raise ValueError("a dot product is one number, so the target has to be one number or one of two classes")

    def build(self, examples: ExampleSpec, settings: TwoTowerSettings) -> keras.Model:
        """Return the network. The first tower (of the users) also takes the columns of numbers."""
        inputs, rows, numbers = columns_of(examples, settings.row_width)
        first = settings.first_columns or len(rows) // 2
        *hidden, width = settings.tower
        vectors = [
            keras.layers.Dense(width, name=f"{name}_vector")(dense_layers(joined(parts), hidden, name))
            for name, parts in (("first", [*numbers, *rows[:first]]), ("second", rows[first:]))
        ]
        product = keras.layers.Dot(axes=1, name="product")(vectors)
        scores = keras.layers.Activation("linear", dtype="float32", name="scores")(product)
        return network_of(inputs, scores, self.name)
