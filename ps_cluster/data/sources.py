"""Turn the choice of a data set into a packed folder on this machine: find, download, verify, generate, pack."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ps_cluster.config import user_code
from ps_cluster.config.datasets import DATASETS, Contents, DataSet, DataSettings, Download, NotThisDataSet
from ps_cluster.data import array_files, packed
from ps_cluster.data.download import DownloadError, Progress, download
from ps_cluster.data.packed import (
    ENCODING,
    MANIFEST,
    PackedDataset,
    Unusable,
    load_packed,
    read_manifest,
    remove_packed,
    write_packed,
)
from ps_cluster.errors import UserError, did_you_mean
from ps_cluster.files import locks, untrusted
from ps_cluster.files.reading import bounded_memory
from ps_cluster.files.untrusted import Notify
from ps_cluster.files.values import Malformed, one_line
from ps_cluster.system.environment import keras_home

_OWN = "your own data are given by dataset: a path, or code (docs/extending.md#your-own-data)"
_CACHE = "cache (PS_CLUSTER_CACHE)"
# `auto` promises to start at once without a network. A user who names CIFAR-10 would rather wait.
_AUTO_NETWORK = {"connect_timeout_s": 5.0, "attempts": 1}


def default_cache_dir() -> Path:
    """Return $PS_CLUSTER_CACHE, else $XDG_CACHE_HOME/ps_cluster, else ~/.cache/ps_cluster.

    Raises:
      UserError: neither is set, and the user has no home, as in a container with an id that no user has.
    """
    if own := os.environ.get("PS_CLUSTER_CACHE"):
        return Path(os.path.expanduser(own))
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared) / "ps_cluster"
    home = os.path.expanduser("~")
    if home == "~":
        raise UserError("PS_CLUSTER_CACHE: it is not set, and there is no home directory: set it to a folder for data")
    return Path(home) / ".cache" / "ps_cluster"


def places(cache_dir: Path) -> tuple[Path, ...]:
    """Return the folders in which archives are looked for, best first."""
    return cache_dir, keras_home(os.environ) / "datasets"


def resolve(
    settings: DataSettings,
    cache_dir: Path,
    *,
    notify: Notify,
    progress: Progress = lambda done_bytes, total_bytes: None,
    url: str | None = None,
) -> PackedDataset:
    """Return the packed copy of a data set; make it first if there is none.

    Args:
        settings: the section `data`. `dataset`: a named one is never replaced by another; `auto` stands for the first
            of several that is on this machine (a packed copy of an earlier run is enough) or can be downloaded, and a
            notice says so if that is the generated set. `data_dir`: the user's copy: the archive, its folder, a folder
            with either, or a packed folder.
        cache_dir: folder for packed copies and downloads.
        notify: gets one line for each step.
        progress: gets the progress of a download.
        url: where to download from in place of the official address (of several files: the folder of all); the
            official checksums must fit.

    Raises:
        UserError: nothing usable in `data_dir` (also for `auto`), no data set to be had, or a cache that cannot be
            written.
    """
    kind = DATASETS[settings.dataset]
    kinds = [DATASETS[name] for name in kind.candidates_of or (settings.dataset,)]
    search = _Search(settings, cache_dir, notify)
    if settings.data_dir is not None:
        return search.in_data_dir(kinds[0], Path(os.path.expanduser(settings.data_dir)))
    untrusted.check_folder(cache_dir, _CACHE, notify)
    for kind, following in zip(kinds, [*kinds[1:], None]):
        if not kind.is_on_disk:
            return search.made(kind)
        if found := search.on_this_machine(kind):
            return found
        try:
            return search.downloaded(kind, progress, url, _AUTO_NETWORK if following else {})
        except DownloadError as error:
            if following is None:
                raise UserError(
                    f"dataset: '{kind.name}' is not on this machine ({error}); "
                    f"give {kind.archive or kind.wanted} with data_dir, or choose dataset 'synthetic'"
                ) from error
            notify(
                f"NOT {kind.full_name}: it is not on this machine ({error}). Using {following.full_name} '{following.name}' "
                f"instead: no number of this run says anything about {kind.full_name}. To use {kind.full_name}, give "
                f"{kind.archive} with data_dir."
            )
    raise AssertionError("the last data set is returned or refused")


def of_run(
    pointer: Path,
    settings: DataSettings,
    cache_dir: Path,
    *,
    notify: Notify,
    progress: Progress = lambda done_bytes, total_bytes: None,
) -> PackedDataset:
    """Return the packed copy named by `pointer` (`packed.write_pointer`) if it is sound, else what `resolve` finds."""
    if pointer.is_file():
        try:
            found = packed.load_pointed(pointer)
            if found.name in (DATASETS[settings.dataset].candidates_of or (settings.dataset,)):
                if changed := _changed_since(DATASETS[settings.dataset].path, found):
                    notify(changed)
                return found
            notify(f"looking for the data set again: '{pointer}' names {found.name!r}, not {settings.dataset!r}")
        except UserError as error:
            notify(f"looking for the data set again: {error}")
    return resolve(settings, cache_dir, notify=notify, progress=progress)


def _changed_since(path: Path | None, dataset: PackedDataset) -> str:
    """Return a line about files of a user that have changed since they were packed; "" where they have not, or are gone."""
    if path is None or not os.path.exists(path) or fingerprint(path) in dataset.directory.name.split("-"):
        return ""
    return (
        f"'{path}' has changed since it was packed: this run keeps to the packed copy '{dataset.directory}', because its steps "
        "are of those examples; a new run takes the new ones"
    )


@dataclass(frozen=True)
class _Search:
    """The search for packed copies of what the section `data` chooses, in a cache; they are made if there are none."""

    settings: DataSettings
    cache_dir: Path
    notify: Notify

    def in_data_dir(self, kind: DataSet, data_dir: Path) -> PackedDataset:
        if not kind.is_on_disk:
            how = "generated" if kind.generated else "read from its own path" if kind.path else "read by its own code"
            raise UserError(f"data_dir: '{data_dir}' has no use with dataset '{kind.name}', which is {how}; drop one")
        if os.path.isfile(data_dir / MANIFEST):
            dataset = load_packed(data_dir)
            if dataset.name != kind.name:
                raise UserError(f"data_dir: '{data_dir}' holds the data set {dataset.name!r}, not {kind.full_name}")
            return dataset
        untrusted.check_folder(self.cache_dir, _CACHE, self.notify)
        for source in kind.candidates(data_dir):
            folder = self._target(kind, fingerprint(source))
            try:
                return self._cached(folder) or self._packed(kind, source, folder)
            except NotThisDataSet as error:
                raise UserError(f"data_dir: {error}; {_OWN}") from error
        state = f"holds no {kind.full_name}" if os.path.isdir(data_dir) else "does not exist"
        raise UserError(
            f"data_dir: '{data_dir}' {state} (looked for {kind.wanted} and a packed data "
            f"set); correct it, or leave it out to use the cache or a download; {_OWN}"
        )

    def on_this_machine(self, kind: DataSet) -> PackedDataset | None:
        if dataset := self._packed_before(kind):
            return dataset
        for place in places(self.cache_dir):
            for source in kind.candidates(place):
                try:
                    untrusted.refuse_foreign(source)
                    return self._packed(kind, source, self._target(kind))
                except (NotThisDataSet, untrusted.Foreign) as error:
                    self.notify(f"passed over: {error}")
        return None

    def _packed_before(self, kind: DataSet) -> PackedDataset | None:
        """Return a sound packed copy of a data set on disk: the one packed without --data-dir, else the newest."""
        folder = self._target(kind)
        copies = sorted(folder.parent.glob(f"{folder.name}-*"), key=_packed_at, reverse=True)
        for directory in (folder, *copies):
            dataset = self._cached(directory, otherwise="passed over")
            if dataset is None or dataset.name != kind.name:
                continue
            if directory in copies:
                of_several = f", the newest of {len(copies)} in the cache" if len(copies) > 1 else ""
                origin = f"packed from '{dataset.source}'" if dataset.source else "packed before"
                self.notify(
                    f"{kind.full_name}: using the copy '{directory}', {origin}{of_several}; for another one give --data-dir"
                )
            return dataset
        return None

    def downloaded(
        self, kind: DataSet, progress: Progress, url: str | None, patience: Mapping[str, Any]
    ) -> PackedDataset:
        """Download, pack, and remove what was downloaded. Raises DownloadError."""
        if not kind.downloads:
            raise DownloadError("it can't be downloaded")
        folder = self.cache_dir if len(kind.downloads) == 1 else self.cache_dir / f"{kind.name}-files"
        files = [folder / one.file for one in kind.downloads]
        for one, file in zip(kind.downloads, files):
            place = one.url if url is None else url if len(files) == 1 else f"{url.rstrip('/')}/{one.file}"
            self.notify(f"downloading {kind.full_name} from {place}")
            try:
                download(place, file, one.sha256, progress, **patience)
            except OSError as error:
                raise packed.cannot_write(file, error) from error
        source = files[0] if len(files) == 1 else folder
        dataset = self._packed(kind, source, self._target(kind))
        for file in files:  # only the packed copy is used from now on
            file.unlink(missing_ok=True)
        if source == folder:
            shutil.rmtree(folder, ignore_errors=True)
        return dataset

    def made(self, kind: DataSet) -> PackedDataset:
        """Return the packed copy of a data set that its own code generates or reads, or that is at a user's path."""
        if kind.path is not None and not os.path.exists(kind.path):
            raise UserError(f"dataset: there is no '{kind.path}': correct the path")
        folder = self._target(kind)
        dataset = self._cached(folder) or self._packed(kind, None, folder)
        for note in dataset.notes:
            self.notify(note)
        return dataset

    def _packed(self, kind: DataSet, source: Path | None, folder: Path) -> PackedDataset:
        """Read a data set and pack it: what is at a user's path may be anybody's, so it is read in bounded memory."""
        what = f"{kind.full_name} from '{source}'" if source else f"the data set '{kind.name}'"
        self.notify(f"{'generating' if kind.generated else 'packing'} {what}, once")
        place = os.path.realpath(source) if source else str(kind.path or "")
        try:
            with bounded_memory(size_of(kind.path)) if kind.path else contextlib.nullcontext():
                contents = _contents(kind, self.settings, source)
                return write_packed(folder, kind.name, kind.kind, contents, place, notify=self.notify)
        except Malformed as error:
            raise UserError(f"dataset: '{kind.path}': {error}") from error

    def _cached(self, folder: Path, otherwise: str = "packing again") -> PackedDataset | None:
        """Return the packed copy if it is sound; a damaged one is left for the next writer to replace."""
        if not os.path.exists(folder):
            return None
        untrusted.refuse_foreign(folder)
        try:
            return load_packed(folder)
        except UserError as error:
            self.notify(f"{otherwise}: {error}")
            return None

    def _target(self, kind: DataSet, *parts: str) -> Path:
        """Return the folder of a packed copy, with `parts` at the end: its name changes with all that it depends on."""
        slug = kind.name
        if kind.path is not None:
            slug, parts = kind.path.stem, (_short(kind.name), fingerprint(kind.path), *parts)
        elif reference := user_code.parse(kind.name):
            code = hashlib.sha256(reference.file.read_bytes()).hexdigest()[:8]
            slug, parts = f"{reference.file.stem}-{reference.name}", (_short(str(reference)), code, *parts)
        if own := kind.own_settings(self.settings):
            parts = (_short(json.dumps(own, sort_keys=True)), *parts)
        slug = re.sub(r"\W+", "-", slug)[:60]
        return packed_folder(self.cache_dir) / "-".join((f"{slug}.{kind.version}", *parts))


def _contents(kind: DataSet, settings: DataSettings, source: Path | None) -> Contents:
    """Return what a data set reads. Raises UserError, in one line, for whatever a user's own code raises."""
    try:
        contents = array_files.as_contents(kind.read(source, settings), settings)
    except (UserError, MemoryError):
        raise
    except Malformed as error:
        raise UserError(f"dataset: '{kind.path or kind.name}': {error}: {kind.page} shows what it has to be") from error
    except Exception as error:
        if kind.name in DATASETS.own:
            raise
        told = one_line(f"{type(error).__name__}: {error}", 500)
        raise UserError(f"dataset: '{kind.name}' can't be read: {told}") from error
    if reference := user_code.parse(kind.name):  # its objective may be in a file beside it
        objective = user_code.absolute(contents.spec.objective, reference.file.parent)
        contents = replace(contents, spec=replace(contents.spec, objective=objective))
    return contents


def _packed_at(directory: Path) -> float:
    """Return when the packed folder was written, in seconds since 1970; 0 if unknown."""
    try:
        return (directory / MANIFEST).stat().st_mtime
    except OSError:
        return 0.0


# Tell which data sets this machine has: packed copies in the cache, and archives that can be packed. No TensorFlow.
#
# Names of data sets come from manifests here, and a manifest may come from anybody: no code that one names is run.

_BLOCK_BYTES = 2**24

CopyProgress = Callable[[int, int], None]
"""Called with the bytes that were read so far, and all that there are."""


@dataclass(frozen=True)
class Copy:
    """A packed folder. `dataset` is None where the folder is damaged, and `problem` then says why."""

    directory: Path
    dataset: PackedDataset | None
    problem: str = ""

    @property
    def name(self) -> str:
        """The data set's name; of a damaged copy the part of the folder's name that comes from it."""
        return self.dataset.name if self.dataset else self.directory.name.partition(".")[0]

    @property
    def bytes(self) -> int:
        """The size of all its files."""
        return sum(file.stat().st_size for file in self.directory.iterdir() if file.is_file())

    @property
    def packed_at(self) -> float | None:
        """When it was written, in seconds since 1970; None if unknown."""
        return _packed_at(self.directory) or None


@dataclass(frozen=True)
class Entry:
    """A data set that is known or that was packed here.

    Attributes:
      title: its name in sentences. generated: whether a program made it up.
      copies: newest first. archives: what was found and can be packed.
      downloads: its files elsewhere; none if it can't be downloaded.
    """

    name: str
    title: str
    generated: bool
    copies: tuple[Copy, ...]
    archives: tuple[Path, ...] = ()
    downloads: tuple[Download, ...] = ()


def entries(cache_dir: Path, data_dir: Path | None = None) -> list[Entry]:
    """Return the package's own data sets, then those of users that were packed here.

    Args:
      data_dir: a folder in which archives are looked for, before the caches.
    """
    found = copies(cache_dir)
    where = [Path(os.path.expanduser(data_dir))] if data_dir else []
    listed = [
        Entry(
            kind.name,
            kind.full_name,
            kind.generated,
            tuple(copy for copy in found if copy.name == kind.name),
            tuple(dict.fromkeys(file for place in (*where, *places(cache_dir)) for file in kind.candidates(place))),
            kind.downloads,
        )
        for kind in DATASETS
        if kind.offered and not kind.candidates_of
    ]
    named = {one.name for one in listed}
    others = dict.fromkeys(copy.name for copy in found if copy.name not in named)
    for name in others:
        mine = tuple(copy for copy in found if copy.name == name)
        title = DATASETS.own[name].full_name if name in DATASETS.own else name
        listed.append(Entry(name, title, any(one.dataset and one.dataset.kind == "synthetic" for one in mine), mine))
    return listed


def copies(cache_dir: Path) -> list[Copy]:
    """Return all packed copies in the cache, newest first; their arrays are not read."""
    folder = packed_folder(cache_dir)
    directories = [path for path in folder.glob("[!.]*") if path.is_dir()] if folder.is_dir() else []
    return sorted((opened(path) for path in directories), key=lambda copy: -(copy.packed_at or 0))


def opened(directory: Path, *, whole: bool = False) -> Copy:
    """Return the copy in a folder, sound or damaged. `whole`: look at its targets too."""
    try:
        return Copy(directory, load_packed(directory, check_targets=whole))
    except Unusable as error:
        return Copy(directory, None, error.why)


def named(names: Sequence[str], found: Sequence[Copy], cache_dir: Path) -> list[Copy]:
    """Return the copies that a user names: by the data set, or by the name of the copy's folder.

    Raises:
      UserError: there is none of one of the names.
    """
    chosen: list[Copy] = []
    for name in names:
        mine = [copy for copy in found if name == copy.directory.name or _is_called(copy, name)]
        if not mine:
            names = sorted({copy.name for copy in found})
            raise UserError(
                f"NAME: got {name!r:.200}: no packed copy in '{cache_dir}' is called so; {did_you_mean(name, names)}"
                f"there are: {', '.join(names) or 'none'}"
            )
        chosen += [copy for copy in mine if copy not in chosen]
    return chosen


def _is_called(copy: Copy, name: str) -> bool:
    """Return whether this is the copy's name: as it is, or written as a path, which need not be there any more."""
    path = os.path.abspath(os.path.expanduser(name))
    return copy.name in (name, user_code.absolute(name, Path.cwd())) or copy.name.partition(":")[2] == path


def verify(copy: Copy, progress: CopyProgress = lambda done_bytes, total_bytes: None) -> Copy:
    """Return the copy as it is after all of it was read: manifest, sizes, targets, and each file's checksum."""
    copy = opened(copy.directory, whole=True)
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
            return Copy(copy.directory, None, f"'{error.filename}' can't be read: {error.strerror}")
        found, expected = digest.hexdigest(), manifest.sha256.get(file, "")
        if found != expected:
            wrong = f"the content of {file} has changed: its SHA-256 is {found[:12]}…, not {expected[:12]}…"
            return Copy(copy.directory, None, wrong)
    return copy


def remove(copy: Copy) -> None:
    """Remove a packed copy. Raises UserError if a run uses it, or if it is another user's."""
    untrusted.refuse_foreign(copy.directory)
    with locks.to_remove(copy.directory, f"the packed copy '{copy.directory}'"):
        remove_packed(copy.directory)


def packed_folder(cache_dir: Path) -> Path:
    """Return the folder of packed copies. Copies of another format are left alone: an older version may train on them."""
    return cache_dir / f"packed-{packed.FORMAT}"


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
