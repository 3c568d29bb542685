"""Encode the messages of workers and shards: the vector of a push in fewer bytes, and several tensors in one message.

worker    gradient + remainder of earlier pushes  ──rounded──►  vector to send; the worker keeps the new remainder
                                                                (training/worker_state.py)
codec     encode(vector to send)                  ──────────►  decode, on the parameter server
message   pack(all tensors of a push or pull)     ──────────►  unpack
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from ps_cluster.config import RunConfig
from ps_cluster.config.lazy import tf

BLOCK = 256  # the number of weights that share a scale
_STEPS = 127  # the number of steps of a scale on each side of 0


class Codec(ABC):
    """Encodes and decodes vectors of one length.

    Attributes:
      fields: the dtype and length of each of the vectors that are sent instead of the original one.
      loses: whether encoding changes values by more than the rounding of a floating-point dtype.
    """

    fields: tuple[tuple[tf.DType, int], ...]
    loses = True

    @abstractmethod
    def encode(self, vector: tf.Tensor) -> list[tf.Tensor]:
        """Return the vectors to send for a vector [n], as `fields` describes them.

        A vector that `rounded` has returned is encoded without loss.
        """

    @abstractmethod
    def decode(self, sent: Sequence[tf.Tensor]) -> tf.Tensor:
        """Return the vector that was encoded, float32 [n]."""

    @abstractmethod
    def rounded(self, vector: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Return a vector as the receiver will decode it, float32 [n].

        Args:
          vector: float32 [n]. seed: int32 [2], for random rounding.
        """


class InDtype(Codec):
    """Sends a vector unchanged. The vector already has the floating-point dtype `dtype`."""

    loses = False

    def __init__(self, length: int, dtype: tf.DType):
        self.fields = ((dtype, length),)

    def encode(self, vector: tf.Tensor) -> list[tf.Tensor]:
        return [vector]

    def decode(self, sent: Sequence[tf.Tensor]) -> tf.Tensor:
        return tf.cast(sent[0], tf.float32)

    def rounded(self, vector: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        return vector


class Int8(Codec):
    """Sends each value as an integer from -127 to 127, in units of a step size.

    In each block of BLOCK values, the step size is the largest absolute value / 127.

    A value between two integers is rounded up with a probability equal to its fractional part, so the rounding has no
    bias. This is QSGD with the largest value instead of the norm (Alistarh et al. 2017, arXiv:1610.02132, sections 3.1
    and 4).
    """

    def __init__(self, length: int):
        self._length, self._blocks = length, math.ceil(length / BLOCK)
        self.fields = ((tf.int8, self._blocks * BLOCK), (tf.float32, self._blocks))

    def encode(self, vector: tf.Tensor) -> list[tf.Tensor]:
        steps, scales = self._in_steps(vector)
        return [tf.reshape(tf.cast(tf.round(steps), tf.int8), [-1]), scales]

    def decode(self, sent: Sequence[tf.Tensor]) -> tf.Tensor:
        steps, scales = sent
        values = tf.cast(tf.reshape(steps, [self._blocks, BLOCK]), tf.float32) * scales[:, None]
        return tf.reshape(values, [-1])[: self._length]

    def rounded(self, vector: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        steps, scales = self._in_steps(vector)
        whole = tf.floor(steps + tf.random.stateless_uniform(steps.shape, seed))
        # The largest value of a block must stay at 127 steps, but division may leave it a little below.
        whole = tf.where(tf.abs(steps) > _STEPS - 1e-3, tf.round(steps), whole)
        return tf.reshape(whole * scales[:, None], [-1])[: self._length]

    def _in_steps(self, vector: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the values in units of their block's step size, float32 [blocks, BLOCK], and the step sizes.

        The step sizes are float32 [blocks].
        """
        padded = tf.pad(vector, [[0, self._blocks * BLOCK - self._length]])
        blocks = tf.reshape(padded, [self._blocks, BLOCK])
        scales = tf.reduce_max(tf.abs(blocks), axis=1) / _STEPS
        return tf.math.divide_no_nan(blocks, scales[:, None]), scales


class TopK(Codec):
    """Sends the values that are farthest from 0, with their positions (Aji and Heafield 2017, arXiv:1704.05021)."""

    def __init__(self, length: int, share: float):
        self._length = length
        self._count = max(1, math.ceil(share * length))
        self.fields = ((tf.float32, self._count), (tf.int32, self._count))

    def encode(self, vector: tf.Tensor) -> list[tf.Tensor]:
        indices = tf.math.top_k(tf.abs(vector), self._count, sorted=False).indices
        return [tf.gather(vector, indices), indices]

    def decode(self, sent: Sequence[tf.Tensor]) -> tf.Tensor:
        values, indices = sent
        return tf.scatter_nd(indices[:, None], values, [self._length])

    def rounded(self, vector: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        return self.decode(self.encode(vector))


def codec_of(config: RunConfig, length: int) -> Codec:
    """Return the codec that `cluster.wire` selects, for pushes of `length` values."""
    if config.cluster.wire == "int8":
        return Int8(length)
    if config.cluster.wire == "top_k":
        return TopK(length, config.cluster.top_k_share)
    return InDtype(length, tf.dtypes.as_dtype(config.wire))


# A message packs several tensors into one byte vector, so that a pull or push is one transfer. A vector of at least
# LARGE_BYTES is sent separately: packing and unpacking would copy it, which costs more than a second transfer.
LARGE_BYTES = 2**20


@dataclass(frozen=True)
class MessageLayout:
    """The layout of a message: the dtype and length of each of its vectors, in order.

    Put the longest vector first, so that it stays aligned in memory. If the message stays within a process (`is_sent`
    is False), every vector is passed on separately.
    """

    fields: tuple[tuple[tf.DType, int], ...]
    is_sent: bool = True

    def pack(self, vectors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the tensors to send: first the large vectors, then all others joined as uint8 [bytes].

        A vector is large if it has at least LARGE_BYTES. If `is_sent` is False, this returns all vectors unchanged.

        Raises:
          TypeError: the dtype of a vector differs from `fields`. This method does not cast vectors.
        """
        for vector, (dtype, length) in zip(vectors, self.fields, strict=True):
            if vector.dtype != dtype:
                raise TypeError(f"a message field of {dtype.name} [{length}] was given {vector.dtype.name}")
        alone = [vector for vector, is_alone in zip(vectors, self._alone) if is_alone]
        joined = [as_bytes(vector) for vector, is_alone in zip(vectors, self._alone) if not is_alone]
        return [*alone, tf.concat(joined, axis=0)] if joined else alone

    def unpack(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the vectors of a packed message, each `dtype [length]`. The operations run on the caller's device."""
        fields = list(zip(self.fields, self._alone))
        assert len(tensors) == sum(self._alone) + (not all(self._alone))
        sizes = [dtype.size * length for (dtype, length), is_alone in fields if not is_alone]
        whole, parts = iter(tensors), iter(tf.split(tensors[-1], sizes) if sizes else [])
        return [
            tf.ensure_shape(next(whole), [length]) if is_alone else from_bytes(next(parts), dtype, length)
            for (dtype, length), is_alone in fields
        ]

    def short(self, last: tf.Tensor) -> list[tf.Tensor]:
        """Return a message with only the last vector. An empty tensor replaces each vector that is sent separately."""
        alone = [dtype for (dtype, _), is_alone in zip(self.fields[:-1], self._alone) if is_alone]
        return [*(tf.zeros([0], dtype) for dtype in alone), as_bytes(last) if self.is_sent else last]

    def last(self, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
        """Return the last vector of a message that `pack` or `short` has returned."""
        dtype, length = self.fields[-1]
        if not self.is_sent:
            return tf.ensure_shape(tensors[-1], [length])
        return from_bytes(tensors[-1][-dtype.size * length :], dtype, length)

    @property
    def bytes(self) -> int:
        """The number of bytes of all vectors."""
        return sum(dtype.size * length for dtype, length in self.fields)

    @property
    def _alone(self) -> list[bool]:
        """For each vector, whether it is sent separately, because it is large or `is_sent` is False."""
        return [not self.is_sent or dtype.size * length >= LARGE_BYTES for dtype, length in self.fields]


def as_bytes(vector: tf.Tensor) -> tf.Tensor:
    """Return the bytes of a vector, uint8 [bytes]."""
    return tf.reshape(tf.bitcast(vector, tf.uint8), [-1])


def from_bytes(part: tf.Tensor, dtype: tf.DType, length: int) -> tf.Tensor:
    """Return the vector, dtype [length], that has these bytes."""
    return tf.bitcast(tf.reshape(part, [length, dtype.size]), dtype)
