"""Import TensorFlow and Keras when they are first used: a module can then hold an object of the catalogue and its graph code.

The launcher reads all objects of the catalogue, and never imports TensorFlow.
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
    """Make a method a graph, as `tf.function` does, but for each object by itself, when the object first uses it."""
    return cached_property(lambda owner: tf.function(method.__get__(owner), autograph=False))
