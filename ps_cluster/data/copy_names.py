"""Name the folder of a packed copy: the name changes with all that the copy depends on."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from ps_cluster.catalogue import doors
from ps_cluster.catalogue.datasets import DataSet, DataSettings
from ps_cluster.data import packed


def packed_folder(cache_dir: Path) -> Path:
    """Return the folder of packed copies. Copies of another format are left alone: an older version may train on them."""
    return cache_dir / f"packed-{packed.FORMAT}"


def target(kind: DataSet, settings: DataSettings, cache_dir: Path, *parts: str) -> Path:
    """Return the folder of a packed copy, with `parts` at the end of its name."""
    slug = kind.name
    if kind.path is not None:
        slug, parts = kind.path.stem, (_short(kind.name), fingerprint(kind.path), *parts)
    elif reference := doors.parse(kind.name):
        code = hashlib.sha256(reference.file.read_bytes()).hexdigest()[:8]
        slug, parts = f"{reference.file.stem}-{reference.name}", (_short(str(reference)), code, *parts)
    if own := kind.own_settings(settings):
        parts = (_short(json.dumps(own, sort_keys=True)), *parts)
    slug = re.sub(r"\W+", "-", slug)[:60]
    return packed_folder(cache_dir) / "-".join((f"{slug}.{kind.version}", *parts))


def fingerprint(source: Path) -> str:
    """Return eight hexadecimal digits that change with a file, or with any file below a folder."""
    digest = hashlib.sha256()
    for path, status in _files(source):
        digest.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()[:8]


def size_of(source: Path) -> int:
    """Return the bytes of a file, or of all files below a folder."""
    return sum(status.st_size for _, status in _files(source))


def _files(source: Path) -> Iterator[tuple[str, os.stat_result]]:
    source = Path(os.path.realpath(source))
    if not source.is_dir():
        yield str(source), source.stat()
        return
    seen: set[str] = set()
    for folder, folders, names in os.walk(source, followlinks=True):
        if (real := os.path.realpath(folder)) in seen:  # a link to a folder above
            folders.clear()
            continue
        seen.add(real)
        folders.sort()
        for name in sorted(names):
            path = os.path.join(folder, name)
            yield path, os.stat(path) if os.path.exists(path) else os.lstat(path)


def _short(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:8]
