"""Pack the arrays that a script holds, so that the processes of a run can memory-map them.

The name of the packed folder depends on the content. So the same arrays are packed only once, and different arrays
never share a folder.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from ps_cluster.config import build_config
from ps_cluster.config.datasets import Contents
from ps_cluster.data import packed
from ps_cluster.data.cache import default_cache_dir, packed_folder
from ps_cluster.data.own_arrays import as_contents
from ps_cluster.data.packing import check_contents, checked_pieces, write_packed
from ps_cluster.data.sets.packed_arrays import PackedArrays, PackedImages
from ps_cluster.errors import UserError
from ps_cluster.files import untrusted
from ps_cluster.files.values import Malformed
from ps_cluster.notices import Notify


def with_data(values: Mapping[str, Any], data: Any, notify: Notify) -> dict[str, Any]:
    """Return a copy of `values` (settings by dotted key), with added settings that choose `data`.

    Arrays are first packed into a folder of the cache.

    Args:
      data: the data, in one of the formats of docs/python-api.md; None: the data set that `values` choose.
    """
    if data is None:
        return dict(values)
    is_named = isinstance(data, str | os.PathLike)
    for key in ("data.dataset",) if is_named else ("data.dataset", "data.data_dir"):
        if values.get(key) is not None:
            raise UserError(
                f"{key}: got '{values[key]}', but the argument 'data' also chooses the data: leave one of them out"
            )
    if is_named:
        return {**values, "data.dataset": os.fspath(data)}
    settings = build_config(None, {**values, "data.dataset": PackedImages.name}).data
    try:
        contents = as_contents(data() if callable(data) else data, settings)
    except Malformed as error:
        raise UserError(f"data: {error}") from error
    kind = PackedImages if contents.spec.unit == "images" else PackedArrays
    dataset = _packed(contents, kind.name, notify)
    for note in dataset.notes:
        notify(note)
    return {**values, "data.dataset": kind.name, "data.data_dir": str(dataset.directory)}


def _packed(contents: Contents, name: str, notify: Notify) -> packed.PackedDataset:
    cache = default_cache_dir()
    untrusted.check_folder(cache, "cache (PS_CLUSTER_CACHE)", notify)
    try:
        check_contents(contents)
        folder = packed_folder(cache) / f"arrays-{_digest_of(contents)}"
    except ValueError as error:
        raise UserError(f"data: {error}") from error
    try:
        return packed.load_packed(folder)
    except UserError:  # missing or damaged
        return write_packed(folder, name, "real", contents, notify=notify)


def _digest_of(contents: Contents) -> str:
    """Return a digest of the description of the examples (`spec`), and of the values, name and split of each array."""
    digest = hashlib.blake2b(repr(contents.spec).encode(), digest_size=12)
    for split, fields in contents.arrays.items():
        for name, rows in fields.items():
            digest.update(f"{split} {name} {rows.dtype} {rows.shape}".encode())
            for piece in checked_pieces(f"{split} '{name}'", rows):
                digest.update(np.ascontiguousarray(piece).data)
    return digest.hexdigest()
