"""Find out which output of a network each target is for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from ps_cluster.config.objectives import ExampleSpec, is_by_place
from ps_cluster.models.marks import MARKS
from ps_cluster.private_names import made_by


def target_names(model: keras.Model, outputs: Any, spec: ExampleSpec) -> list[str]:
    """Return, for each output, the name of the array with its targets, in the order of `keras.tree.flatten`.

    Targets without names belong to the outputs in the order in which the model returns them. `outputs`: in the structure
    that the model returns. Raises ValueError if an output has no target, or a target no output.
    """
    arrays = {one.output: array for array, one in spec.targets.items()}
    names = _output_names(model, outputs)
    if is_by_place(list(arrays)) and not isinstance(outputs, Mapping) and len(arrays) == len(names):
        return list(arrays.values())
    if sorted(arrays) != sorted(names):
        found = ", ".join(name or "one without a name" for name in names)
        raise ValueError(
            f"its outputs are {found}, and the data has targets for {', '.join(arrays)}: give y as a dictionary with a "
            "target for each output, by its name"
        )
    return [arrays[name] for name in names]


def _output_names(model: keras.Model, outputs: Any) -> list[str]:
    """Return the name of each output: its key, or the name of the layer that made it; "" if it has neither."""
    if isinstance(outputs, Mapping) and not any(keras.tree.is_nested(output) for output in outputs.values()):
        found: list[str] = keras.tree.flatten({name: name for name in outputs})
        return found
    count = len(keras.tree.flatten(outputs))
    made = getattr(model, "outputs", None) or []
    return [_layer_name(output) for output in made] if len(made) == count else [""] * count


def _layer_name(output: keras.KerasTensor) -> str:
    """Return the name of the layer that made an output. Marks of this package are skipped."""
    layer, given = made_by(output)
    return _layer_name(given[0]) if layer.name in MARKS else str(layer.name)
