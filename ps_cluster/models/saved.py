"""Load a model that Keras has saved, to go on from its weights."""

from __future__ import annotations

from pathlib import Path

import keras

from ps_cluster.catalogue import doors

UNITS = "units"  # the last layer of a saved regression: it turns standard deviations into the target's units


def load_saved(file: Path) -> keras.Model:
    """Return the model of a .keras file, without the layer of units that a run here has added.

    Keras's safe mode stays on. Layers of a user's own are looked up in the files of code that the user has named.

    Raises:
      ValueError, TypeError: it holds no model, or one with a layer or loss that is in none of those files.
    """
    model = keras.models.load_model(file, custom_objects=doors.defined_in_trusted(), safe_mode=True)
    last = model.layers[-1]
    return keras.Model(model.inputs, last.input, name=model.name) if last.name == UNITS else model
