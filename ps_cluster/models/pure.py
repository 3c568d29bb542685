"""Run a Keras model as a pure function of the values of its variables and of the random state of a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import keras
import numpy as np
import tensorflow as tf

from ps_cluster.private_names import layers_of, seed_generators_of

Outputs: TypeAlias = tf.Tensor | Sequence["Outputs"] | Mapping[str, "Outputs"]
"""The outputs of a network: a tensor [B, ...], or several in the structure that the network returns."""

# An odd number with evenly spread bits, so that neighbouring layers and steps draw different numbers (Knuth, TAOCP 3,
# 6.4).
_GOLDEN = 0x9E3779B1


def seeds_of(model: keras.Model) -> list[keras.Variable]:
    """Return the state, [2], of each SeedGenerator in a model, without duplicates, in the order of the variables."""
    generators = [generator for layer in layers_of(model) for generator in seed_generators_of(layer)]
    states = {id(generator.state) for generator in generators}
    return [variable for variable in model.non_trainable_variables if id(variable) in states]


def seed_states(random_state: tf.Tensor, count: int) -> list[tf.Tensor]:
    """Return a state, int64 [2], for each of `count` SeedGenerators.

    No two generators get the same state, and no generator gets the same state in two steps. A generator adds 1 to the
    second number of its state at each draw, so the second numbers of different steps are far apart. `random_state`:
    int32 [2], the seed of the run and the step id.
    """
    if not count:
        return []
    seed, step = tf.unstack(tf.cast(random_state, tf.int64))
    far = step * _GOLDEN % 2**32
    return [tf.stack([seed + index * _GOLDEN, far]) for index in range(count)]


class PureScope(keras.StatelessScope):
    """A scope in which variables have the values that are passed to it, as in `keras.StatelessScope`.

    It records reads of other variables, and all assignments.
    """

    def __init__(
        self, state_mapping: Sequence[tuple[keras.Variable, tf.Tensor | np.ndarray]], collect_losses: bool = False
    ):
        super().__init__(state_mapping, collect_losses=collect_losses)
        self._given = dict(self.state_mapping)
        self._unknown: dict[int, keras.Variable] = {}
        self._times: Counter[int] = Counter()

    def add_update(self, update: tuple[keras.Variable, tf.Tensor]) -> None:
        """Record the new value of a variable."""
        self._times[id(update[0])] += 1
        super().add_update(update)

    def times(self, variable: keras.Variable) -> int:
        """Return how often a variable has been assigned."""
        return self._times[id(variable)]

    def get_current_value(self, variable: keras.Variable) -> tf.Tensor | None:
        """Return the value of a variable in this scope.

        If the scope has no value for the variable, return None, and record the variable. No gradient flows through a
        value that a layer has assigned, just as in Keras no gradient flows through an assignment to a variable.
        """
        value = super().get_current_value(variable)
        if value is None:
            self._unknown[id(variable)] = variable
        elif self._changed(variable):
            value = tf.stop_gradient(value)
        return value

    @property
    def unknown(self) -> list[keras.Variable]:
        """The variables that were read although they have no value in this scope."""
        return list(self._unknown.values())

    def after(self, variable: keras.Variable) -> tf.Tensor:
        """Return the value of a variable after the last assignment."""
        return self.state_mapping[id(variable)]

    def _changed(self, variable: keras.Variable) -> bool:
        return self.state_mapping.get(id(variable)) is not self._given.get(id(variable))

    def check(self, model: keras.Model, may_change: Sequence[keras.Variable]) -> None:
        """Raise ValueError if the forward pass read or changed a variable that it must not read or change.

        It may only read variables that have a value in this scope. It may only change the variables in `may_change`:
        the model's statistics and the states of its random generators. The error names the variable. It is raised here
        and not during the pass, because Keras adds a long text to an error within a layer.
        """
        for variable in self._unknown.values():
            if "seed_generator" in variable.path:
                raise ValueError(
                    "it draws random numbers without a seed generator of the model: give the layer that draws them a "
                    "keras.random.SeedGenerator as an attribute, and pass this generator as `seed`"
                )
            raise ValueError(f"it uses the variable '{variable.path}', which is not among the model's own variables")
        free = set(map(id, may_change))
        for variable in model.variables:
            if id(variable) in free or not self._changed(variable):
                continue
            what = "weight" if variable.trainable else f"{variable.dtype} variable"
            raise ValueError(
                f"its forward pass changes the {what} '{variable.path}', and other workers would not see this change: "
                "a forward pass may change only float32 variables that are not trainable"
            )


def infer(model: keras.Model, inputs: tf.Tensor | Mapping[str, tf.Tensor]) -> Outputs:
    """Return the outputs of a model for inference. The variables of the model are not changed.

    Layers that draw random numbers even outside of training draw the same numbers for every batch, so that scores are
    reproducible.
    """
    seeds = seeds_of(model)
    own = {id(seed) for seed in seeds}
    values = [(variable, variable.value) for variable in model.variables if id(variable) not in own]
    with PureScope([*values, *zip(seeds, seed_states(tf.constant([0, 0]), len(seeds)))]):
        return model(inputs, training=False)
