"""Find, download or generate the data set that was chosen, and pack it into a folder on this machine."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ps_cluster.config import user_code
from ps_cluster.config.datasets import DATASETS, Contents, DataSet, DataSettings, NotThisDataSet
from ps_cluster.data import own_arrays, packed, packing
from ps_cluster.data.cache import archive_folders, fingerprint, packed_folder, packed_time, size_of
from ps_cluster.data.download import DownloadError, OnBytes, Patience, download
from ps_cluster.data.packed import MANIFEST, PackedDataset, load_packed
from ps_cluster.data.packing import write_packed
from ps_cluster.errors import UserError
from ps_cluster.files import untrusted
from ps_cluster.files.patterns import is_pattern, matches
from ps_cluster.files.reading import bounded_memory
from ps_cluster.files.values import Malformed, first_error, one_line
from ps_cluster.notices import Notify

_OWN_DATA_HINT = "for data of your own, set dataset to a path or to code (docs/extending.md#your-own-data)"
_CACHE_NAME = "cache (PS_CLUSTER_CACHE)"
# `auto` must start without delay if there is no network. A user who asks for CIFAR-10 by name prefers to wait.
_PATIENCE_OF_AUTO = Patience(connect_timeout_s=5.0, attempts=1)


def resolve(
    settings: DataSettings,
    cache_dir: Path,
    *,
    notify: Notify,
    progress: OnBytes = lambda done_bytes, total_bytes: None,
) -> PackedDataset:
    """Return the packed copy of a data set, the folder of raw files that runs read. Create it if there is none yet.

    A data set that `settings.dataset` names is never replaced by another. `auto` stands for CIFAR-10 if that is on this
    machine (a packed copy is enough) or can be downloaded. Otherwise it stands for the generated data set, and a notice
    says so. `settings.data_dir` is the user's copy: the archive, the folder inside it, a folder with one of these, or a
    packed folder. `notify` gets one line for each step.

    Raises UserError if `data_dir` has nothing usable (also for `auto`), if the data set can't be found or read, or if
    the cache can't be written.
    """
    kind = DATASETS[settings.dataset]
    kinds = [DATASETS[name] for name in kind.candidates_of or (settings.dataset,)]
    search = _Search(settings, cache_dir, notify)
    if settings.data_dir is not None:
        return search.find_in_data_dir(kinds[0], Path(os.path.expanduser(settings.data_dir)))
    untrusted.check_folder(cache_dir, _CACHE_NAME, notify)
    for kind, following in zip(kinds, [*kinds[1:], None]):
        if not kind.is_on_disk:
            return search.generate_or_read(kind)
        if found := search.find_on_this_machine(kind):
            return found
        try:
            return search.download_and_pack(kind, progress, _PATIENCE_OF_AUTO if following else Patience())
        except DownloadError as error:
            if following is None:
                raise UserError(
                    f"dataset: '{kind.name}' is not on this machine ({error}); "
                    f"give {kind.archive or kind.wanted} with data_dir, or choose dataset 'synthetic'"
                ) from error
            notify(
                f"NOT using {kind.full_name}, because it is not on this machine ({error}). Using {following.full_name} "
                f"'{following.name}' instead: no number of this run says anything about {kind.full_name}. To use "
                f"{kind.full_name}, give {kind.archive} with data_dir."
            )
    raise AssertionError("the last data set is returned or refused")


def resolve_for_run(
    pointer: Path,
    settings: DataSettings,
    cache_dir: Path,
    *,
    notify: Notify,
    progress: OnBytes = lambda done_bytes, total_bytes: None,
) -> PackedDataset:
    """Return the packed copy that is named in the run's file `pointer`. If it can't be used, call `resolve` instead.

    It can't be used if it is missing or damaged, or if it is a copy of another data set than the chosen one.
    """
    if pointer.is_file():
        try:
            found = packed.load_pointed(pointer)
            if found.name in (DATASETS[settings.dataset].candidates_of or (settings.dataset,)):
                if changed := _changed_since(DATASETS[settings.dataset].path, found):
                    notify(changed)
                return found
            notify(f"looking for the data set again: '{pointer}' refers to {found.name!r}, not to {settings.dataset!r}")
        except UserError as error:
            notify(f"looking for the data set again: {error}")
    return resolve(settings, cache_dir, notify=notify, progress=progress)


def _changed_since(path: Path | None, dataset: PackedDataset) -> str:
    """Return a line if a user's files have changed since they were packed; "" if they have not, or no longer exist."""
    if path is None or not _is_there(path) or fingerprint(path) in dataset.directory.name.split("-"):
        return ""
    return (
        f"'{path}' has changed since it was packed: this run keeps the packed copy '{dataset.directory}', with which "
        "it began; a new run uses the new files"
    )


@dataclass(frozen=True)
class _Search:
    """The search for a packed copy of the chosen data set. Its methods pack the data set if there is no copy."""

    settings: DataSettings
    cache_dir: Path
    notify: Notify

    def find_in_data_dir(self, kind: DataSet[Any], data_dir: Path) -> PackedDataset:
        if not kind.is_on_disk:
            how = "generated" if kind.generated else "read from its own path" if kind.path else "read by its own code"
            raise UserError(
                f"data_dir: '{data_dir}' can't be used with dataset '{kind.name}', which is {how}: leave one of them "
                "out"
            )
        if os.path.isfile(data_dir / MANIFEST):
            dataset = load_packed(data_dir)
            if dataset.name != kind.name:
                raise UserError(f"data_dir: '{data_dir}' holds the data set {dataset.name!r}, not {kind.full_name}")
            return dataset
        untrusted.check_folder(self.cache_dir, _CACHE_NAME, self.notify)
        for source in kind.candidates(data_dir):
            folder = self._packed_path(kind, fingerprint(source))
            try:
                return self._load_cached(folder) or self._pack(kind, source, folder)
            except NotThisDataSet as error:
                raise UserError(f"data_dir: {error}; {_OWN_DATA_HINT}") from error
        state = f"holds no {kind.full_name}" if os.path.isdir(data_dir) else "does not exist"
        raise UserError(
            f"data_dir: '{data_dir}' {state} (looked for {kind.wanted} and a packed data "
            f"set); correct it, or leave it out to use the cache or a download; {_OWN_DATA_HINT}"
        )

    def find_on_this_machine(self, kind: DataSet[Any]) -> PackedDataset | None:
        if dataset := self._find_packed(kind):
            return dataset
        for place in archive_folders(self.cache_dir):
            for source in kind.candidates(place):
                try:
                    untrusted.refuse_foreign(source)
                    return self._pack(kind, source, self._packed_path(kind))
                except (NotThisDataSet, untrusted.Foreign) as error:
                    self.notify(f"passed over: {error}")
        return None

    def _find_packed(self, kind: DataSet[Any]) -> PackedDataset | None:
        """Return a sound packed copy of a data set: the one that was packed without --data-dir, else the newest one."""
        folder = self._packed_path(kind)
        copies = sorted(folder.parent.glob(f"{folder.name}-*"), key=packed_time, reverse=True)
        for directory in (folder, *copies):
            dataset = self._load_cached(directory, otherwise="passed over")
            if dataset is None or dataset.name != kind.name:
                continue
            if directory in copies:
                of_several = f", the newest of {len(copies)} in the cache" if len(copies) > 1 else ""
                origin = f"packed from '{dataset.source}'" if dataset.source else "packed earlier"
                self.notify(
                    f"{kind.full_name}: using the copy '{directory}', {origin}{of_several}; for another one give --data-dir"
                )
            return dataset
        return None

    def download_and_pack(self, kind: DataSet[Any], progress: OnBytes, patience: Patience) -> PackedDataset:
        """Download a data set, pack it, and remove the downloaded files.

        Raises DownloadError if the data set can't be downloaded, or if the download fails. Raises UserError if the
        cache can't be written.
        """
        if not kind.downloads:
            raise DownloadError("it can't be downloaded")
        folder = self.cache_dir if len(kind.downloads) == 1 else self.cache_dir / f"{kind.name}-files"
        files = [folder / one.file for one in kind.downloads]
        for one, file in zip(kind.downloads, files):
            self.notify(f"downloading {kind.full_name} from {one.url}")
            try:
                download(one.url, file, one.sha256, progress, patience)
            except OSError as error:
                raise packing.cannot_write(file, error) from error
        source = files[0] if len(files) == 1 else folder
        dataset = self._pack(kind, source, self._packed_path(kind))
        for file in files:  # only the packed copy is used from now on
            file.unlink(missing_ok=True)
        if source == folder:
            shutil.rmtree(folder, ignore_errors=True)
        return dataset

    def generate_or_read(self, kind: DataSet[Any]) -> PackedDataset:
        """Return the packed copy of a data set that is generated, read by its own code, or read from a user's path."""
        if kind.path is not None and not _is_there(kind.path):
            raise UserError(f"dataset: there is no '{kind.path}': correct the path")
        folder = self._packed_path(kind)
        dataset = self._load_cached(folder) or self._pack(kind, None, folder)
        for note in dataset.notes:
            self.notify(note)
        return dataset

    def _pack(self, kind: DataSet[Any], source: Path | None, folder: Path) -> PackedDataset:
        """Read a data set and pack it. For a user's files the memory is limited, because they may come from anybody."""
        what = f"{kind.full_name} from '{source}'" if source else f"the data set '{kind.name}'"
        self.notify(f"{'generating' if kind.generated else 'packing'} {what}; later runs use the packed copy")
        place = os.path.realpath(source) if source else str(kind.path or "")
        try:
            with bounded_memory(size_of(kind.path)) if kind.path else contextlib.nullcontext():
                contents = _read_contents(kind, self.settings, source)
                return write_packed(folder, kind.name, kind.kind, contents, place, notify=self.notify)
        except Malformed as error:
            raise UserError(f"dataset: '{kind.path}': {error}") from error

    def _load_cached(self, folder: Path, otherwise: str = "packing again") -> PackedDataset | None:
        """Return the packed copy in a folder if it is sound, else None.

        A damaged copy stays until the next writer replaces it. `otherwise`: what is done instead of using a
        damaged copy. The notice about the damaged copy begins with these words.
        """
        if not os.path.exists(folder):
            return None
        untrusted.refuse_foreign(folder)
        try:
            return load_packed(folder)
        except UserError as error:
            self.notify(f"{otherwise}: {error}")
            return None

    def _packed_path(self, kind: DataSet[Any], *parts: str) -> Path:
        """Return the folder of a packed copy. Its name ends with `parts`.

        If the version or the settings of the data set, the user's files or the user's code change, so does the name of
        the folder.
        """
        slug = kind.name
        if kind.path is not None:
            slug, parts = kind.path.stem, (_short_hash(kind.name), fingerprint(kind.path), *parts)
        elif reference := user_code.parse(kind.name):
            code = hashlib.sha256(reference.file.read_bytes()).hexdigest()[:8]
            slug, parts = f"{reference.file.stem}-{reference.name}", (_short_hash(str(reference)), code, *parts)
        if own := kind.own_settings(self.settings):
            parts = (_short_hash(json.dumps(own, sort_keys=True)), *parts)
        slug = re.sub(r"\W+", "-", slug)[:60]
        return packed_folder(self.cache_dir) / "-".join((f"{slug}.{kind.version}", *parts))


def _read_contents(kind: DataSet[Any], settings: DataSettings, source: Path | None) -> Contents:
    """Return the contents that a data set reads. Raises UserError, in one line, for any error in a user's code."""
    try:
        contents = kind.read(source, settings)
        if not isinstance(contents, Contents):  # a user's class may return arrays, as a function may
            contents = own_arrays.as_contents(contents, settings)
    except (UserError, MemoryError):
        raise
    except Malformed as error:
        raise UserError(
            f"dataset: '{kind.path or kind.name}': {error}: {kind.page} shows the form that data must have"
        ) from error
    except ValidationError as error:  # e.g. the name of a column is too long to be stored
        raise UserError(first_error(error, f"dataset '{kind.name}'")) from error
    except Exception as error:
        if kind.name in DATASETS.own:
            raise
        why = one_line(f"{type(error).__name__}: {error}", 500)
        raise UserError(f"dataset: '{kind.name}' can't be read: {why}") from error
    if reference := user_code.parse(kind.name):  # the objective may be in a file in the folder of the user's code
        objective = user_code.absolute(contents.spec.objective, reference.file.parent)
        contents = replace(contents, spec=replace(contents.spec, objective=objective))
    return contents


def _is_there(path: Path) -> bool:
    """Return whether a user's path exists or, if it is a pattern, whether anything matches it."""
    return bool(matches(path)) if is_pattern(path) else os.path.exists(path)


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:8]
