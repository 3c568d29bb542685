"""Pack arrays that a script holds, so that the processes of a run can map them. No TensorFlow.

The folder's name comes from the content. So the same arrays are packed once, and others never take their place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ps_cluster.catalogue.datasets import Contents
from ps_cluster.catalogue.objectives import OBJECTIVES
from ps_cluster.data import packed, sources
from ps_cluster.data.sets.arrays import ARRAYS, IMAGE_ARRAYS
from ps_cluster.errors import UserError
from ps_cluster.files import ownership

NAMES = ("x_train", "y_train", "x_test", "y_test")
_PIECE_BYTES = 2**26
_FORMS = (
    "give the name or path of a data set, {x_train, y_train, x_test, y_test}, ((x_train, y_train), (x_test, y_test)), "
    "Contents, or a function that returns one of the last three"
)


def settings_for(data: Any, notify: Callable[[str], None]) -> dict[str, Any]:
    """Return dotted key → value, the settings that choose `data`. What a function returns is packed first.

    Args:
      data: in one of the forms of docs/python-api.md.
    Raises:
      UserError: it has another form, or the arrays can't be packed.
    """
    if isinstance(data, str | Path):
        return {"data.dataset": str(data)}
    contents = _contents(data() if callable(data) else data)
    kind = IMAGE_ARRAYS if contents.spec.unit == "images" else ARRAYS
    folder = _packed(contents, kind.name, notify)
    chosen: dict[str, Any] = {"data.dataset": kind.name, "data.data_dir": str(folder)}
    if not OBJECTIVES[contents.spec.objective].smooths_labels:
        chosen["training.label_smoothing"] = 0.0
    return chosen


def _packed(contents: Contents, name: str, notify: Callable[[str], None]) -> Path:
    cache = sources.default_cache_dir()
    ownership.check_folder(cache, "cache (PS_CLUSTER_CACHE)", notify)
    folder = cache / f"arrays-{packed.FORMAT}" / _digest(contents)
    try:
        return packed.load_packed(folder).directory
    except UserError:  # missing or damaged
        return packed.write_packed(folder, name, "real", contents).directory


def _contents(data: Any) -> Contents:
    if isinstance(data, Contents):
        return data
    if isinstance(data, Mapping) and set(data) == set(NAMES):
        x_train, y_train, x_test, y_test = (np.asanyarray(data[name]) for name in NAMES)
    else:
        try:
            (x_train, y_train), (x_test, y_test) = ((np.asanyarray(x), np.asanyarray(y)) for x, y in data)
        except (TypeError, ValueError) as error:
            raise UserError(f"data: got {type(data).__name__}: {_FORMS}") from error
    objective = "regression" if y_train.dtype.kind == "f" else "classification"
    train, test = _fields(x_train, y_train), _fields(x_test, y_test)
    return Contents.of(train, test, objective=objective)


def _fields(x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    if x.dtype == np.uint8 and x.ndim == 3:
        x = x[..., None]  # grey images
    is_image = x.dtype == np.uint8 and x.ndim == 4 and x.shape[-1] in (1, 3)
    return {"image" if is_image else "x": x, "target": y.reshape(-1) if y.shape[1:] == (1,) else y}


def _digest(contents: Contents) -> str:
    """Return a name that changes with every value, and with all that `Contents` says of them."""
    digest = hashlib.blake2b(repr(contents.spec).encode(), digest_size=12)
    for split, fields in contents.arrays.items():
        for name, array in fields.items():
            digest.update(f"{split} {name} {array.dtype} {array.shape}".encode())
            rows = max(1, _PIECE_BYTES // max(1, array[:1].nbytes))
            for start in range(0, len(array), rows):
                digest.update(np.ascontiguousarray(array[start : start + rows]).data)
    return digest.hexdigest()
