"""Pack several tensors into one byte vector, so that a pull or push is one transfer, or two with a large tensor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ps_cluster.catalogue.lazily import tf

# A vector of at least this many bytes is sent by itself: packing and unpacking copy it, which costs more than a second
# transfer.
LARGE_BYTES = 2**20


@dataclass(frozen=True)
class Message:
    """The dtype and length of each vector of a message, in order. Put the longest first, so that it stays aligned."""

    fields: tuple[tuple[tf.DType, int], ...]

    def pack(self, vectors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the tensors to send: large vectors as they are, then the others joined as uint8 [bytes]. No casts."""
        for vector, (dtype, length) in zip(vectors, self.fields, strict=True):
            if vector.dtype != dtype:
                raise TypeError(f"a message field of {dtype.name} [{length}] was given {vector.dtype.name}")
        large = [vector for vector, is_large in zip(vectors, self._large) if is_large]
        small = [vector for vector, is_large in zip(vectors, self._large) if not is_large]
        return [*large, tf.concat([tf.reshape(tf.bitcast(v, tf.uint8), [-1]) for v in small], axis=0)]

    def unpack(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the vectors again, each `dtype [length]`, made by operations on the caller's device."""
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
