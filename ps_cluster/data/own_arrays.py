"""Turn arrays that users bring into the contents of a data set: those of a function, of an .npz or of .npy files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

import numpy as np

from ps_cluster.catalogue.datasets import Contents, DataSettings, OwnDataSettings
from ps_cluster.catalogue.examples import TARGET, WEIGHT, Field, Rows, refuse_sparse
from ps_cluster.data.holding_out import hold_out
from ps_cluster.data.rows import Changed, Selected
from ps_cluster.data.targets import targets_of
from ps_cluster.files.malformed import Malformed
from ps_cluster.files.plain_text import one_line
from ps_cluster.run.rows.dataset import DType

NEEDED = ("x_train", "y_train")
NAMES = (*NEEDED, "x_test", "y_test", "weight_train", "weight_test")
_DTYPES = get_args(DType)


def as_contents(found: Any, *, objective: str = "auto", held_out: float = 0.1) -> Contents:
    """Return the contents of a data set for what a user's function returned.

    Args:
      found: `Contents`; or a mapping with the arrays x_train, y_train, and perhaps x_test, y_test, weight_train,
        weight_test; or Keras's ((x_train, y_train), (x_test, y_test)). Arrays may be memory maps.
      objective, held_out: as the settings `data.objective` and `data.held_out`.

    Raises:
      Malformed: it is something else, or the arrays do not fit each other.
    """
    return found if isinstance(found, Contents) else contents_of(_by_name(found), objective, held_out)


def settings_of(settings: DataSettings) -> dict[str, Any]:
    """Return the settings that `as_contents` takes, of data sets that have them."""
    if not isinstance(settings, OwnDataSettings):
        return {}
    return {"objective": settings.objective, "held_out": settings.held_out}


def contents_of(given: Mapping[str, Any], objective: str = "auto", held_out: float = 0.1) -> Contents:
    """Return the contents of a data set of arrays by name. Raises Malformed where they do not fit each other."""
    unused = [name for name in given if name not in NAMES]
    if missing := [name for name in NEEDED if given.get(name) is None]:
        there = one_line(", ".join(map(str, given)), 300) or "nothing"
        raise Malformed(
            f"{missing[0]} is missing, there is {there}: give x_train, y_train, and x_test, y_test if you have them"
        )
    arrays = {name: _rows(name, given[name]) for name in NAMES if given.get(name) is not None}
    _check_lengths(arrays)
    has_test = "x_test" in arrays
    targets = targets_of(arrays["y_train"][:], arrays["y_test"][:] if has_test else None, objective)
    train = _inputs(arrays, "train") | {TARGET: targets.train} | _weights(arrays, "train")
    notes = [f"not used: {one_line(', '.join(map(str, unused)), 300)}"] if unused else []
    if has_test:
        test = _inputs(arrays, "test") | {TARGET: targets.test} | _weights(arrays, "test")
    else:
        split = hold_out(held_out, len(targets.train), targets.train if targets.objective == "classification" else None)
        train, test = ({name: Selected(rows, ids) for name, rows in train.items()} for ids in (split.train, split.test))
        train, test = (_small_in_memory(rows) for rows in (train, test))
        notes.append(split.note)
    contents = Contents.of(train, test, objective=targets.objective, classes=targets.classes)
    return replace(contents, notes=tuple(notes))


def is_image(dtype: Any, shape: tuple[int, ...]) -> bool:
    """Return whether rows of this form are images: uint8 of [height, width], with 1 or 3 channels."""
    return Field(str(dtype), shape if len(shape) == 3 else (*shape, 1)).is_image


def _by_name(found: Any) -> Mapping[str, Any]:
    if isinstance(found, Mapping):
        return found
    try:
        (x_train, y_train), (x_test, y_test) = found
    except (TypeError, ValueError):
        raise Malformed(
            f"it returned {type(found).__name__}, not Contents, a mapping with {', '.join(NAMES[:4])}, or Keras's "
            "((x_train, y_train), (x_test, y_test))"
        ) from None
    return dict(zip(NAMES, (x_train, y_train, x_test, y_test)))


def _rows(name: str, value: Any) -> Any:
    """Return an array as it is, anything else as one. Raises Malformed for what is none, or has no rows."""
    refuse_sparse(name, value)
    by_place = not hasattr(value, "iloc")  # pandas finds rows by their label
    usable = by_place and isinstance(value, Rows) and isinstance(value.dtype, np.dtype)
    rows = value if usable else _as_array(name, value)
    if not rows.shape or not len(rows):
        raise Malformed(f"{name} has no rows")
    return rows


def _as_array(name: str, value: Any) -> np.ndarray:
    try:
        array = np.asarray(value)
    except Exception as error:  # whatever the value's own class raises
        told = one_line(f"{type(error).__name__}: {error}", 200)
        raise Malformed(
            f"{name} is {type(value).__name__}, of which no array can be made: give rows of one shape ({told})"
        ) from error
    if array.dtype.kind == "O" and array.size and all(isinstance(one, str) for one in array.flat):
        return array.astype(str)  # a column of pandas
    return array


def _check_lengths(arrays: Mapping[str, Any]) -> None:
    """Raise Malformed where an array lacks its partner, or has another length."""
    for name in NAMES[1:]:
        x = f"x_{name.rpartition('_')[2]}"
        if name in arrays and x not in arrays:
            raise Malformed(f"{x} is missing, and there is {name}")
        if name in arrays and len(arrays[name]) != len(arrays[x]):
            raise Malformed(f"{x} has {len(arrays[x]):,} rows, and {name} has {len(arrays[name]):,}")
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise Malformed("y_test is missing, and there is x_test")


def _inputs(arrays: Mapping[str, Any], split: str) -> dict[str, Any]:
    """Return the input, as "image" or "x", in a form that can be packed."""
    name = f"x_{split}"
    rows = arrays[name]
    shape, dtype = rows.shape[1:], rows.dtype.newbyteorder("=")
    if dtype.name not in _DTYPES:
        raise Malformed(f"{name} is {rows.dtype}: give one of {', '.join(_DTYPES)}, e.g. {name}.astype('float32')")
    if is_image(dtype, shape):
        return {"image": rows if len(shape) == 3 else Changed(rows, lambda piece: piece[..., None])}
    if not shape:
        return {"x": Changed(rows, lambda piece: piece[:, None].astype(dtype))}
    return {"x": rows if rows.dtype.isnative else Changed(rows, lambda piece: piece.astype(dtype))}


def _weights(arrays: Mapping[str, Any], split: str) -> dict[str, Any]:
    """Return the weights float32 [N], if there are any; 1 for each where only the other split has some."""
    if not {"weight_train", "weight_test"} & arrays.keys():
        return {}
    found = arrays.get(f"weight_{split}")
    if found is None:
        return {WEIGHT: np.ones(len(arrays[f"x_{split}"]), np.float32)}
    weights = np.asarray(found[:])
    if weights.dtype.kind not in "iuf" or weights.size != len(weights):
        raise Malformed(
            f"weight_{split} is {weights.dtype} {list(weights.shape[1:])}: give one number for each example"
        )
    return {WEIGHT: weights.reshape(-1).astype(np.float32)}


def _small_in_memory(rows: Mapping[str, Any]) -> dict[str, Any]:
    """Return targets and weights as arrays; inputs stay where they are."""
    return {name: one[:] if name in (TARGET, WEIGHT) else one for name, one in rows.items()}
