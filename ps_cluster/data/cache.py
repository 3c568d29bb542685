"""Locate the cache of packed data sets, name its folders, and list the folders to search for archives."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from ps_cluster.data import packed
from ps_cluster.data.packed import MANIFEST
from ps_cluster.errors import UserError
from ps_cluster.files.patterns import is_pattern, matches
from ps_cluster.system.environment import keras_home


def default_cache_dir() -> Path:
    """Return $PS_CLUSTER_CACHE, else $XDG_CACHE_HOME/ps_cluster, else ~/.cache/ps_cluster.

    Raises UserError if the user has no home directory either, e.g. in a container with an unknown user id.
    """
    if own := os.environ.get("PS_CLUSTER_CACHE"):
        return Path(os.path.expanduser(own))
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared) / "ps_cluster"
    home = os.path.expanduser("~")
    if home == "~":
        raise UserError(
            "PS_CLUSTER_CACHE: it is not set, and there is no home directory: set it to a folder for data sets"
        )
    return Path(home) / ".cache" / "ps_cluster"


def archive_folders(cache_dir: Path) -> tuple[Path, ...]:
    """Return the folders to search for downloaded archives of data sets: first the cache, then Keras's folder."""
    return cache_dir, keras_home(os.environ) / "datasets"


def packed_folder(cache_dir: Path) -> Path:
    """Return the folder of the cache that contains the packed copies of data sets.

    Each version of the packed format has its own folder.
    """
    return cache_dir / f"packed-{packed.FORMAT}"


def fingerprint(source: Path) -> str:
    """Return eight hexadecimal digits: a hash of the names, sizes and modification times of files.

    `source`: a file, or a folder or pattern that stands for several files.
    """
    digest = hashlib.sha256()
    for path, status in _files(source):
        digest.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()[:8]


def size_of(source: Path) -> int:
    """Return the size of a file in bytes. For a folder or a pattern, return the sum over all its files."""
    return sum(status.st_size for _, status in _files(source))


def _files(source: Path) -> Iterator[tuple[str, os.stat_result]]:
    if is_pattern(source):
        for file in matches(source):
            yield str(file), file.stat()
        return
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


def packed_time(directory: Path) -> float:
    """Return the time at which a packed folder was written, in seconds since 1970; 0 if it is unknown."""
    try:
        return (directory / MANIFEST).stat().st_mtime
    except OSError:
        return 0.0
