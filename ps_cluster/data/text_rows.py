"""Pack texts as rows of code points, and convert packed rows, of texts or of other data, to the inputs of networks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from ps_cluster.config.lazy import tf
from ps_cluster.config.objectives import TEXT, ArrayField, ExampleSpec, FieldValues
from ps_cluster.data.lazy_rows import IndexableRows, LazyRows
from ps_cluster.files.values import Malformed, one_line

MOST_CHARACTERS = 2**16  # of one text
_AT_ONCE = 2**12  # texts that are read together


class TextSize(NamedTuple):
    """The number of characters and the dtype of code points that are enough for every packed text of a field."""

    characters: int  # the length of the longest text
    code: str  # a dtype that holds the highest code point of all texts


class TextRows(LazyRows):
    """Texts as code points [N, ..., characters], padded with 0."""

    def __init__(self, texts: IndexableRows, size: TextSize):
        super().__init__(np.dtype(size.code), (len(texts), *(texts.shape[1:] or (1,)), size.characters))
        self._texts = texts

    def __getitem__(self, part: slice | np.ndarray, /) -> np.ndarray:
        return codes_of(np.asarray(self._texts[part]), self.shape[-1]).reshape(-1, *self.shape[1:]).astype(self.dtype)


def is_text(rows: FieldValues) -> bool:
    """Return whether rows are numpy strings or Python strings. Only the first row is examined."""
    if rows.dtype.kind == "O":  # a tensor of texts has this dtype too, and its texts are bytes
        return isinstance(next(iter(np.asarray(rows[:1]).flat), None), str | bytes)
    return rows.dtype.kind in "UST"


def text_field(codes: ArrayField) -> ArrayField:
    """Return the description of a field of texts. `codes`: the description of the code points of these texts."""
    *shape, characters = codes.shape
    return ArrayField(TEXT, tuple(shape), characters=characters, code=codes.dtype)


def text_size_of(name: str, pieces: Iterable[np.ndarray]) -> TextSize:
    """Return the number of characters and the dtype of code points that are enough for every text.

    `name`: the name of the texts, for messages. `pieces`: the texts, in pieces [n, ...]. Raises Malformed if a value is
    no text, or a text is too long.
    """
    longest, highest, first = 1, 0, 0
    for piece in pieces:
        _check_texts(name, first, piece)
        texts = _as_strings(piece).ravel().tolist()
        lengths = list(map(len, texts))
        most = max(lengths, default=0)
        if most > MOST_CHARACTERS:
            at = first + lengths.index(most) * len(piece) // len(texts)
            raise Malformed(
                f"{name} has a text of {most:,} characters in example {at:,}, more than "
                f"{MOST_CHARACTERS:,}: cut it, or make several examples of it"
            )
        # Python knows whether a text is ASCII. Only other texts have to be searched for their highest character.
        highest = max((highest, *(ord(max(text)) for text in texts if not text.isascii())))
        longest = max(longest, most)
        first += len(piece)
    code = "uint8" if highest < 2**8 else "uint16" if highest < 2**16 else "int32"
    return TextSize(longest, code)


def codes_of(texts: np.ndarray, characters: int) -> np.ndarray:
    """Return the code points of texts [...], uint32 [..., characters], padded with 0."""
    whole = np.ascontiguousarray(_as_strings(texts), f"U{characters}")
    return whole.view(np.uint32).reshape(*whole.shape, characters)


def _as_strings(texts: np.ndarray) -> np.ndarray:
    """Return texts as strings. Bytes are decoded as UTF-8."""
    if texts.dtype.kind == "S":
        return np.char.decode(texts, "utf-8", "replace")
    if texts.dtype.kind == "O" and any(isinstance(text, bytes) for text in texts.flat):
        decoded = [text.decode("utf-8", "replace") if isinstance(text, bytes) else text for text in texts.flat]
        return np.array(decoded, object).reshape(texts.shape)
    return texts


def texts_of(codes: np.ndarray) -> np.ndarray:
    """Return the texts that have these code points [..., characters], as an array [...] of Python strings."""
    whole = np.ascontiguousarray(codes, np.uint32)
    return whole.view(f"U{codes.shape[-1]}")[..., 0].astype(object)


def network_inputs(rows: Mapping[str, tf.Tensor], spec: ExampleSpec) -> dict[str, tf.Tensor]:
    """Convert packed inputs [B, ...] of any type, by name, to the form that networks take. See `network_input`."""
    return {name: network_input(one, spec.inputs[name]) for name, one in rows.items()}


def network_input(rows: tf.Tensor, field: ArrayField) -> tf.Tensor:
    """Convert the packed rows [B, ...] of one input, of any type, to the form that networks take.

    Texts become strings, unless they are strings already. Other rows are cast: pixels to float32, all others to
    `field.dtype`.
    """
    if field.dtype != TEXT or rows.dtype == tf.string:
        return tf.cast(rows, field.network_dtype)
    codes = tf.cast(tf.reshape(rows, [-1, field.characters]), tf.int32)
    used = codes != 0
    ends = tf.cumsum(tf.reduce_sum(tf.cast(used, tf.int64), axis=1))
    texts = tf.raw_ops.UnicodeEncode(
        input_values=tf.boolean_mask(codes, used), input_splits=tf.concat([[0], ends], 0), output_encoding="UTF-8"
    )
    return tf.reshape(texts, [-1, *field.shape])


def text_pieces(rows: FieldValues) -> Iterator[np.ndarray]:
    """Yield the rows of an array of texts, in pieces of at most 4,096 rows."""
    for first in range(0, len(rows), _AT_ONCE):
        yield np.asarray(rows[first : first + _AT_ONCE])


def _check_texts(name: str, first: int, texts: np.ndarray) -> None:
    """Raise Malformed if a value is no text. `first`: the index of the example with the first of the `texts`."""
    for at, row in enumerate(texts.reshape(len(texts), -1) if texts.dtype.kind == "O" else ()):
        if strange := [text for text in row if not isinstance(text, str | bytes)]:
            raise Malformed(
                f"{name} has {one_line(repr(strange[0]), 100)} in example {first + at:,}, which is no text: give '' "
                "for a missing text"
            )
