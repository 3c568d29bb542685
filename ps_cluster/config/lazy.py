"""Import TensorFlow and Keras when they are first used.

So one module can define an object of a registry together with its graph code. The launcher reads all registries, and
never imports TensorFlow.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any


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


def graph(method: Callable[..., Any]) -> Any:
    """Convert a method to a graph, as `tf.function` does. Each object gets its own graph when it first uses the method."""
    return cached_property(lambda owner: tf.function(method.__get__(owner), autograph=False))
