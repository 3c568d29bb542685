"""Several tensors as one run of bytes, so that a pull or a push is one transfer, or two where one of them is large."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import tensorflow as tf

# A vector of so many bytes travels by itself: to pack and to unpack it is a copy each, which then costs more than a
# second transfer does.
LARGE_BYTES = 2**20


@dataclass(frozen=True)
class Message:
    """The vectors of one message, in order: a dtype and a length each. Put the longest first: it then stays aligned."""

    fields: tuple[tuple[tf.DType, int], ...]

    def pack(self, vectors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """What travels: the large vectors as they are, then uint8 [bytes] of all others, end to end (casts nothing)."""
        for vector, (dtype, length) in zip(vectors, self.fields, strict=True):
            if vector.dtype != dtype:
                raise TypeError(f"a message field of {dtype.name} [{length}] was given {vector.dtype.name}")
        large = [vector for vector, is_large in zip(vectors, self._large) if is_large]
        small = [vector for vector, is_large in zip(vectors, self._large) if not is_large]
        return [*large, tf.concat([tf.reshape(tf.bitcast(v, tf.uint8), [-1]) for v in small], axis=0)]

    def unpack(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The vectors again, each `dtype [length]`, and each out of an operation on the device of the caller."""
        *large, packed = tensors
        whole, parts = iter(large), self._parts(packed)
        return [tf.identity(next(whole)) if is_large else next(parts) for is_large in self._large]

    def _parts(self, packed: tf.Tensor) -> Iterator[tf.Tensor]:
        small = [field for field, is_large in zip(self.fields, self._large) if not is_large]
        parts = tf.split(packed, [dtype.size * length for dtype, length in small])
        for part, (dtype, length) in zip(parts, small):
            yield tf.bitcast(tf.reshape(part, [length, dtype.size]), dtype)

    @property
    def _large(self) -> list[bool]:
        return [dtype.size * length >= LARGE_BYTES for dtype, length in self.fields]
