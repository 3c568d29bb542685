"""Turn the name of a data set into a packed folder on this machine: find, download, verify, generate, pack."""

import os
from collections.abc import Callable
from pathlib import Path

from ps_cluster.data import cifar10, packed, synthetic
from ps_cluster.data.download import OFFICIAL_SHA256, OFFICIAL_URL, DownloadError, Progress, download
from ps_cluster.data.packed import PackedDataset, load_packed, write_packed
from ps_cluster.errors import UserError
from ps_cluster.files import ownership

DATASETS = ("auto", "cifar10", "synthetic")

Notify = Callable[[str], None]
"""Called with one line for a person to read."""

_CACHE = "cache (PS_CLUSTER_CACHE)"

# `auto` promises to start at once without a network. A user who names CIFAR-10 would rather wait.
_AUTO_NETWORK = {"connect_timeout_s": 5.0, "attempts": 1}


def default_cache_dir() -> Path:
    """Return $PS_CLUSTER_CACHE, else $XDG_CACHE_HOME/ps_cluster, else ~/.cache/ps_cluster."""
    if own := os.environ.get("PS_CLUSTER_CACHE"):
        return Path(own).expanduser()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared) / "ps_cluster"
    return Path("~/.cache/ps_cluster").expanduser()


def resolve(
    dataset: str,
    data_dir: Path | None,
    cache_dir: Path,
    *,
    notify: Notify,
    progress: Progress = lambda done_bytes, total_bytes: None,
    url: str = OFFICIAL_URL,
) -> PackedDataset:
    """Return the packed copy of a data set; make it first if there is none.

    Args:
        dataset: "cifar10" (never replaced by another set), "synthetic" (the generated set), or "auto": CIFAR-10 if it
            is on this machine (a packed copy of an earlier run is enough) or can be downloaded, else the generated set,
            with a notice.
        data_dir: the user's CIFAR-10: the archive, its folder, a folder with either, or a packed folder.
        cache_dir: folder for packed copies and downloads.
        notify: gets one line for each step.
        progress: gets the progress of a download.
        url: where to download from; the official checksum must fit.

    Raises:
        UserError: unknown name, nothing usable in `data_dir` (also for "auto"), no CIFAR-10 to be had, or a cache that
            cannot be written.
    """
    if dataset not in DATASETS:
        raise UserError(f"dataset: {dataset!r} is unknown; choose one of {', '.join(DATASETS)}")
    if dataset == "synthetic" and data_dir is not None:
        raise UserError(f"data_dir: '{data_dir}' has no use with dataset 'synthetic', which is generated; drop one")
    if data_dir is not None:
        return _from_data_dir(Path(data_dir).expanduser(), cache_dir, notify)
    ownership.check_folder(cache_dir, _CACHE, notify)
    if dataset == "synthetic":
        return _synthetic(cache_dir, notify)
    if found := _on_this_machine(cache_dir, notify):
        return found
    try:
        return _downloaded(cache_dir, notify, progress, url, _AUTO_NETWORK if dataset == "auto" else {})
    except DownloadError as error:
        if dataset == "cifar10":
            raise UserError(
                f"dataset: 'cifar10' is not on this machine ({error}); "
                f"give {cifar10.ARCHIVE} with data_dir, or choose dataset 'synthetic'"
            ) from error
        notify(
            f"NOT CIFAR-10: it is not on this machine ({error}). Using the generated set 'synthetic' instead: no "
            f"number of this run says anything about CIFAR-10. To use CIFAR-10, give {cifar10.ARCHIVE} with data_dir."
        )
        return _synthetic(cache_dir, notify)


def of_run(
    pointer: Path,
    dataset: str,
    data_dir: Path | None,
    cache_dir: Path,
    *,
    notify: Notify,
    progress: Progress = lambda done_bytes, total_bytes: None,
) -> PackedDataset:
    """Return the packed copy named by `pointer` (`packed.write_pointer`) if it is sound, else what `resolve` finds."""
    if pointer.is_file():
        try:
            return packed.load_pointed(pointer)
        except UserError as error:
            notify(f"looking for the data set again: {error}")
    return resolve(dataset, data_dir, cache_dir, notify=notify, progress=progress)


def _from_data_dir(data_dir: Path, cache_dir: Path, notify: Notify) -> PackedDataset:
    if os.path.isfile(data_dir / packed.MANIFEST):
        dataset = load_packed(data_dir)
        if dataset.name != "cifar10":
            raise UserError(f"data_dir: '{data_dir}' holds the data set {dataset.name!r}, not CIFAR-10")
        return dataset
    ownership.check_folder(cache_dir, _CACHE, notify)
    for source in cifar10.candidates(data_dir):
        target = cache_dir / f"cifar10-{cifar10.fingerprint(source)}"
        try:
            return _cached(target, notify) or _pack_cifar10(source, target, notify)
        except cifar10.NotCifar10 as error:
            raise UserError(f"data_dir: {error}") from error
    state = "holds no CIFAR-10" if os.path.isdir(data_dir) else "does not exist"
    raise UserError(
        f"data_dir: '{data_dir}' {state} (looked for {cifar10.ARCHIVE}, the folder {cifar10.FOLDER} and a packed data "
        "set); correct it, or leave it out to use the cache or a download"
    )


def _on_this_machine(cache_dir: Path, notify: Notify) -> PackedDataset | None:
    if dataset := _packed_before(cache_dir, notify):
        return dataset
    for place in (cache_dir, _keras_datasets()):
        for source in cifar10.candidates(place):
            try:
                ownership.refuse_foreign(source)
                return _pack_cifar10(source, cache_dir / "cifar10", notify)
            except (cifar10.NotCifar10, ownership.Foreign) as error:
                notify(f"passed over: {error}")
    return None


def _packed_before(cache_dir: Path, notify: Notify) -> PackedDataset | None:
    """Return a sound packed copy of CIFAR-10: the one packed without --data-dir, else the newest."""
    copies = sorted(cache_dir.glob("cifar10-*"), key=_packed_at, reverse=True)
    for directory in (cache_dir / "cifar10", *copies):
        dataset = _cached(directory, notify, otherwise="passed over")
        if dataset is None or dataset.name != "cifar10":
            continue
        if directory in copies:
            of_several = f", the newest of {len(copies)} in the cache" if len(copies) > 1 else ""
            origin = f"packed from '{dataset.source}'" if dataset.source else "packed before"
            notify(f"CIFAR-10: using the copy '{directory}', {origin}{of_several}; for another one give --data-dir")
        return dataset
    return None


def _packed_at(directory: Path) -> float:
    """Return when the packed folder was written, in seconds since 1970; 0 if unknown."""
    try:
        return (directory / packed.MANIFEST).stat().st_mtime
    except OSError:
        return 0.0


def _downloaded(cache_dir: Path, notify: Notify, progress: Progress, url: str, patience: dict) -> PackedDataset:
    archive = cache_dir / cifar10.ARCHIVE
    notify(f"downloading CIFAR-10 from {url}")
    try:
        download(url, archive, OFFICIAL_SHA256, progress, **patience)
    except OSError as error:
        raise packed.cannot_write(archive, error) from error
    dataset = _pack_cifar10(archive, cache_dir / "cifar10", notify)
    archive.unlink(missing_ok=True)  # only the packed copy is used from now on
    return dataset


def _pack_cifar10(source: Path, target: Path, notify: Notify) -> PackedDataset:
    notify(f"packing CIFAR-10 from '{source}', once")
    arrays, classes = cifar10.read(source)
    return write_packed(target, "cifar10", classes, arrays, str(source.resolve()))


def _synthetic(cache_dir: Path, notify: Notify) -> PackedDataset:
    target = cache_dir / f"synthetic-v{synthetic.GENERATOR_VERSION}"
    if dataset := _cached(target, notify):
        return dataset
    notify("generating the data set 'synthetic', once")
    return write_packed(target, "synthetic", synthetic.CLASSES, synthetic.generate())


def _cached(target: Path, notify: Notify, otherwise: str = "packing again") -> PackedDataset | None:
    """Return the packed copy if it is sound; a damaged one is left for the next writer to replace."""
    if not os.path.exists(target):
        return None
    ownership.refuse_foreign(target)
    try:
        return load_packed(target)
    except UserError as error:
        notify(f"{otherwise}: {error}")
        return None


def _keras_datasets() -> Path:
    home = os.environ.get("KERAS_HOME") or "~/.keras"
    return Path(home).expanduser() / "datasets"
