"""List the data sets that this machine has: packed copies in the cache, and archives that can be packed.

The name of a packed data set is read from its manifest, which anybody may have written. A name may have the form
FILE.py:NAME, which refers to a user's code. This module never runs that code.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ps_cluster.config import user_code
from ps_cluster.config.datasets import DATASETS, Download
from ps_cluster.data.cache import archive_folders, packed_folder, packed_time
from ps_cluster.data.download import OnBytes
from ps_cluster.data.packed import ENCODING, PackedDataset, Unusable, load_packed, read_manifest
from ps_cluster.data.packing import remove_packed
from ps_cluster.errors import UserError, did_you_mean
from ps_cluster.files import locks, untrusted

_BLOCK_BYTES = 2**24


@dataclass(frozen=True)
class PackedCopy:
    """A packed copy of a data set: a folder with raw files that runs can read.

    If the copy is damaged, `dataset` is None and `problem` says why.
    """

    directory: Path
    dataset: PackedDataset | None
    problem: str = ""

    @property
    def name(self) -> str:
        """The name of the data set. If the copy is damaged, the name is the beginning of the folder's name."""
        return self.dataset.name if self.dataset else self.directory.name.partition(".")[0]

    @property
    def bytes(self) -> int:
        """The size of all files of the copy, in bytes."""
        return sum(file.stat().st_size for file in self.directory.iterdir() if file.is_file())

    @property
    def packed_time(self) -> float | None:
        """The time at which the copy was written, in seconds since 1970; None if unknown."""
        return packed_time(self.directory) or None


@dataclass(frozen=True)
class Entry:
    """A data set, together with the packed copies and the archives of it that were found on this machine.

    It is a data set of the package, or a user's data set that was packed on this machine.
    """

    name: str
    title: str  # its name for use in sentences
    generated: bool
    copies: tuple[PackedCopy, ...]  # newest first
    archives: tuple[Path, ...] = ()  # files and folders that were found and can be packed
    downloads: tuple[Download, ...] = ()  # empty if it can't be downloaded


def entries(cache_dir: Path, data_dir: Path | None = None) -> list[Entry]:
    """Return the data sets of the package, followed by users' data sets that were packed on this machine.

    Archives are looked for in `data_dir` first, then in `cache_dir` and in Keras's folder of data sets.
    """
    found: dict[str, list[PackedCopy]] = {}
    for copy in copies(cache_dir):
        found.setdefault(copy.name, []).append(copy)
    places = (*([Path(os.path.expanduser(data_dir))] if data_dir else []), *archive_folders(cache_dir))
    listed = []
    for kind in DATASETS:
        if kind.offered and not kind.candidates_of:
            archives = dict.fromkeys(file for place in places for file in kind.candidates(place))
            mine = tuple(found.pop(kind.name, ()))
            listed.append(Entry(kind.name, kind.full_name, kind.generated, mine, tuple(archives), kind.downloads))
    for name, others in found.items():
        title = DATASETS.own[name].full_name if name in DATASETS.own else name
        generated = any(one.dataset and one.dataset.kind == "synthetic" for one in others)
        listed.append(Entry(name, title, generated, tuple(others)))
    return listed


def copies(cache_dir: Path) -> list[PackedCopy]:
    """Return all packed copies in the cache, newest first. Their arrays are not read."""
    folder = packed_folder(cache_dir)
    directories = [path for path in folder.glob("[!.]*") if path.is_dir()] if folder.is_dir() else []
    return sorted((open_copy(path) for path in directories), key=lambda copy: -(copy.packed_time or 0))


def open_copy(directory: Path, *, check_targets: bool = False) -> PackedCopy:
    """Return the packed copy in a folder, even if it is damaged.

    `check_targets`: whether to read and check the targets and weights too, not only the manifest and the sizes of the
    files.
    """
    try:
        return PackedCopy(directory, load_packed(directory, check_targets=check_targets))
    except Unusable as error:
        return PackedCopy(directory, None, error.why)


def copies_named(names: Sequence[str], found: Sequence[PackedCopy], cache_dir: Path) -> list[PackedCopy]:
    """Return the copies in `found` whose data set or folder has a name in `names`.

    Raises UserError if a name matches no copy.
    """
    chosen: list[PackedCopy] = []
    for name in names:
        mine = [copy for copy in found if name == copy.directory.name or _has_name(copy, name)]
        if not mine:
            names = sorted({copy.name for copy in found})
            raise UserError(
                f"NAME: got {name!r:.200}: no packed copy in '{cache_dir}' has this name; {did_you_mean(name, names)}"
                f"there are: {', '.join(names) or 'none'}"
            )
        chosen += [copy for copy in mine if copy not in chosen]
    return chosen


def _has_name(copy: PackedCopy, name: str) -> bool:
    """Return whether a copy's data set is called `name`, which may be a path. The path need not exist any more."""
    path = os.path.abspath(os.path.expanduser(name))
    return copy.name in (name, user_code.absolute(name, Path.cwd())) or copy.name.partition(":")[2] == path


def verify(copy: PackedCopy, progress: OnBytes = lambda done_bytes, total_bytes: None) -> PackedCopy:
    """Check all files of a packed copy, and return the copy. A damaged copy is returned with its `problem`.

    A copy is damaged if its manifest, the size of a file, a checksum or a value of the examples' targets is wrong.
    """
    copy = open_copy(copy.directory, check_targets=True)
    if copy.dataset is None:
        return copy
    manifest = read_manifest(copy.directory)
    total, done = sum(manifest.bytes.values()), 0
    for file in [*manifest.bytes, *({ENCODING} & manifest.sha256.keys())]:
        digest = hashlib.sha256()
        try:
            with (copy.directory / file).open("rb") as content:
                while block := content.read(_BLOCK_BYTES):
                    digest.update(block)
                    done += len(block)
                    progress(done, total)
        except OSError as error:
            return PackedCopy(copy.directory, None, f"'{error.filename}' can't be read: {error.strerror}")
        found, expected = digest.hexdigest(), manifest.sha256.get(file, "")
        if found != expected:
            wrong = f"the content of {file} has changed: its SHA-256 is {found[:12]}…, not {expected[:12]}…"
            return PackedCopy(copy.directory, None, wrong)
    return copy


def remove(copy: PackedCopy) -> None:
    """Remove a packed copy. Raises UserError if a run uses it, or if it belongs to another user."""
    untrusted.refuse_foreign(copy.directory)
    with locks.locked_for_removal(copy.directory, f"the packed copy '{copy.directory}'"):
        remove_packed(copy.directory)
