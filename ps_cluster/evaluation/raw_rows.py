"""Add the encoding of a table's columns to an exported model, so that it takes rows as they are in the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ps_cluster.config.lazy import keras
from ps_cluster.runs.dataset_rows import TableEncoding

Inputs = Mapping[str, np.ndarray]
"""The raw examples of each input, [B, ...], by the name of the input."""
Predictions = Callable[[Inputs], np.ndarray]
"""A function that takes raw examples, and returns predictions, [B, outputs]."""

NUMBERS, CATEGORIES, TEXTS = "numbers", "categories", "texts"
RAW_DTYPES = {NUMBERS: "float64", CATEGORIES: "string", TEXTS: "string"}
NO_CATEGORY = "\ufffe"  # a text that no column contains, because U+FFFE is not a character


def with_encoding(model: keras.Model, encoding: TableEncoding) -> keras.Model:
    """Return a Keras model that takes a table's columns as they are, encodes them, and returns the outputs of `model`.

    The inputs of the returned model are `numbers`, float64 [B, k], `categories`, text [B, m], and `texts`, text
    [B, n]. If the table has no columns for an input, the model does not have this input. Columns are in the order of
    the encoding. A missing number is NaN. All layers are Keras's own, so the saved file loads without this package.
    """
    from ps_cluster.models.flat import as_arguments

    raw, encoded = {}, {}
    if columns := encoding.numbers:
        raw[NUMBERS] = keras.Input((len(columns),), name=NUMBERS, dtype="float64")
        mean, std = np.array([one.mean for one in columns]), np.array([one.std for one in columns])
        standard = (raw[NUMBERS] - mean) / std  # keras.layers.Normalization would replace small deviations by 1e-7
        filled = keras.ops.nan_to_num(standard, nan=0.0)  # the mean replaces a missing value
        encoded[NUMBERS] = keras.ops.cast(filled, "float32")
    if encoding.categories:
        raw[CATEGORIES] = keras.Input((len(encoding.categories),), name=CATEGORIES, dtype="string")
        codes = []
        for place, column in enumerate(encoding.categories):
            vocabulary = column.values or [NO_CATEGORY * 2]  # Keras accepts no empty vocabulary
            code = keras.layers.StringLookup(vocabulary=vocabulary, oov_token=NO_CATEGORY, name=f"code_{place}")
            codes.append(code(raw[CATEGORIES][:, place : place + 1]))
        encoded[CATEGORIES] = keras.ops.cast(keras.ops.concatenate(codes, axis=1), "int32")
    if encoding.texts:
        raw[TEXTS] = encoded[TEXTS] = keras.Input((len(encoding.texts),), name=TEXTS, dtype="string")
    return keras.Model(as_arguments(raw), model(as_arguments(encoded)), name=model.name)


def as_raw(inputs: Inputs, encoding: TableEncoding) -> dict[str, np.ndarray]:
    """Convert encoded columns back to the columns of the table. Code 0 becomes `NO_CATEGORY`."""
    raw: dict[str, np.ndarray] = {}
    if columns := encoding.numbers:
        mean, std = np.array([one.mean for one in columns]), np.array([one.std for one in columns])
        raw[NUMBERS] = np.asarray(inputs[NUMBERS], np.float64) * std + mean
    if encoding.categories:
        texts = [np.array([NO_CATEGORY, *one.values], object) for one in encoding.categories]
        raw[CATEGORIES] = np.stack([of[codes] for of, codes in zip(texts, inputs[CATEGORIES].T, strict=True)], axis=1)
    return raw | ({TEXTS: inputs[TEXTS]} if encoding.texts else {})
