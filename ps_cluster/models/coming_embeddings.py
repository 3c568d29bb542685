"""Report each embedding of a network while the network is built, before the embedding's weights take memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import keras


@contextmanager
def before_each_embedding(call: Callable[[keras.layers.Embedding], None]) -> Iterator[None]:
    """Call `call` with each Embedding layer that is built within the block, before Keras creates its weights."""
    build = keras.layers.Embedding.build

    def build_after_call(layer: keras.layers.Embedding, input_shape: tuple[int | None, ...] | None = None) -> None:
        call(layer)
        build(layer, input_shape)

    setattr(keras.layers.Embedding, "build", build_after_call)  # noqa: B010 (mypy refuses to assign to a method)
    try:
        yield
    finally:
        setattr(keras.layers.Embedding, "build", build)  # noqa: B010
