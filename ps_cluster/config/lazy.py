"""Import TensorFlow and Keras when they are first used.

So one module can define, for example, both the settings of an optimizer rule and its TensorFlow code. The launcher
needs the settings, so it imports such modules, but it must not import TensorFlow.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar


class Lazy:
    """A module that is imported when the first of its attributes is read."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


if TYPE_CHECKING:  # names in annotations, such as tf.Tensor
    import keras
    import tensorflow as tf
else:
    keras, tf = Lazy("keras"), Lazy("tensorflow")

__all__ = ["graph", "keras", "tf"]


Owner = TypeVar("Owner")
Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")


def graph(
    method: Callable[Concatenate[Owner, Parameters], Returned],
) -> cached_property[Callable[Parameters, Returned]]:
    """Convert a method to a graph, as `tf.function` does. Each object gets its own graph at its first call."""

    def made(owner: Owner) -> Callable[Parameters, Returned]:
        called: Callable[Parameters, Returned] = tf.function(partial(method, owner), autograph=False)
        return called

    return cached_property(made)
