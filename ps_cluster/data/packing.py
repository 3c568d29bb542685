"""Pack a data set: write all files into a temporary folder, and rename it once it is complete."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from ps_cluster.config.datasets import SPLITS, Contents
from ps_cluster.config.objectives import TARGET, WEIGHT, FieldValues, check_rows, target_array
from ps_cluster.data import packed
from ps_cluster.data.moments import RunningStatistics
from ps_cluster.data.packed import PackedDataset, fields_of, load_packed
from ps_cluster.errors import UserError
from ps_cluster.files import locks
from ps_cluster.files.values import Malformed, first_error
from ps_cluster.files.writing import write_whole
from ps_cluster.notices import Notify, ignore
from ps_cluster.runs.dataset_rows import Kind, Manifest


def write_packed(
    directory: Path,
    name: str,
    kind: Kind,
    contents: Contents,
    source: str = "",
    *,
    notify: Notify = ignore,
    free_bytes: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free,
) -> PackedDataset:
    """Pack the contents of a data set into `directory`, which appears complete or not at all.

    If another process packs the same folder at the same time, both processes use the copy that is complete first. A
    damaged folder of this name is replaced. `source`: what the contents were read from, for the manifest. `notify` gets
    lines about the progress if packing takes long.

    Raises UserError if the arrays do not fit the examples' description or each other, if the folder can't be written,
    or if the disk has no room.
    """
    directory = Path(os.path.realpath(directory))
    try:
        check_contents(contents)
        manifest = _manifest_of(name, kind, contents, source)
        directory.parent.mkdir(parents=True, exist_ok=True)
        for left_over in directory.parent.glob(".*.*.tmp"):  # from killed processes
            locks.remove_abandoned(left_over)
        wanted, free = sum(manifest.bytes.values()), free_bytes(directory.parent)
        if wanted > free:
            raise UserError(
                f"cache_dir: the packed copy of '{name}' takes {wanted / 1e9:.2f} GB, and the disk of '{directory.parent}' "
                f"has {free / 1e9:.2f} GB free: set PS_CLUSTER_CACHE to a folder with more space"
            )
        return _write_beside(directory, contents, manifest, PackingProgress(name, wanted, notify))
    except ValidationError as error:
        raise UserError(first_error(error, f"dataset '{name}'")) from error
    except ValueError as error:
        raise UserError(f"dataset: '{name}' can't be packed: {error}") from error
    except OSError as error:
        raise cannot_write(directory, error) from error


def _write_beside(directory: Path, contents: Contents, manifest: Manifest, progress: PackingProgress) -> PackedDataset:
    """Write all files to a temporary folder, and rename it to `directory`. An interruption leaves nothing behind."""
    temporary = _temporary_beside(directory)
    try:
        with locks.sharing_new(temporary):  # so that no other process removes the folder as abandoned
            _write_files(temporary, contents, manifest, progress)
            return _move_into_place(temporary, directory)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _temporary_beside(directory: Path) -> Path:
    return directory.with_name(f".{directory.name}.{uuid.uuid4().hex}.tmp")


def remove_packed(directory: Path) -> None:
    """Remove a packed folder. Other processes see either the complete folder or no folder."""
    gone = _temporary_beside(directory)
    with contextlib.suppress(FileNotFoundError):
        directory.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def cannot_write(path: Path, error: OSError) -> UserError:
    """Return the error to raise if `path`, a file or folder of the cache, can't be written."""
    return UserError(
        f"cache_dir: cannot write '{path}' ({error.strerror or error}); "
        "set PS_CLUSTER_CACHE to a folder that you may write to and that has enough free space (CIFAR-10 takes 400 MB)"
    )


def check_contents(contents: Contents) -> None:
    """Raise ValueError if the arrays do not fit the examples' description or each other, or can't be trained on."""
    fields = fields_of(contents.spec)
    for split in SPLITS:
        arrays = contents.arrays.get(split, {})
        if missing := [name for name in fields if name not in arrays]:
            raise ValueError(f"the split '{split}' has no array '{missing[0]}'")
        for name, field in ((name, one.packed) for name, one in fields.items()):
            rows, what = arrays[name], f"{split} '{name}'"
            check_rows(what, rows)
            if str(rows.dtype) != field.dtype or rows.shape[1:] != field.shape:
                raise ValueError(
                    f"{what} is {rows.dtype} {list(rows.shape[1:])}, not {field.dtype} {list(field.shape)}"
                )
        lengths = {name: len(arrays[name]) for name in fields}
        if len(set(lengths.values())) > 1 or not min(lengths.values()):
            raise ValueError(
                f"all {split} arrays need the same number of rows, and at least one row: there are "
                f"{', '.join(f'{count} in {name}' for name, count in lengths.items())}"
            )
        packed.check_values(contents.spec, split, arrays)


def _manifest_of(name: str, kind: Kind, contents: Contents, source: str) -> Manifest:
    examples: dict[str, int] = {split: len(contents.arrays[split][TARGET]) for split in SPLITS}
    about = {
        "format": packed.FORMAT,
        "name": name,
        "kind": kind,
        "train_examples": examples["train"],
        "test_examples": examples["test"],
        "source": source,
        "notes": list(contents.notes),
        "file_rows": list(contents.file_rows),
        "bytes": packed.sizes(contents.spec, examples),
    }
    return Manifest.model_validate(packed.SPEC_TYPE.dump_python(contents.spec, mode="json") | about)


def _write_files(directory: Path, contents: Contents, manifest: Manifest, progress: PackingProgress) -> None:
    """Write the files, and the manifest with the statistics of the training examples."""
    statistics = {name: RunningStatistics(field) for name, field in fields_of(contents.spec).items()}
    checksums = {}
    for split in SPLITS:
        for name, field in fields_of(contents.spec).items():
            seen = statistics[name].add if split == "train" else None
            rows = checked_pieces(f"{split} '{name}'", contents.arrays[split][name])
            file = packed.file_name(split, name, field)
            checksums[file] = _write_rows(directory / file, rows, seen, progress)
    fields = {name: one.field for name, one in statistics.items()}
    inputs = {name: fields[name] for name in contents.spec.inputs}
    others = {name: replace(one, field=fields[target_array(name)]) for name, one in contents.spec.others.items()}
    spec = replace(contents.spec, inputs=inputs, target=fields[TARGET], weight=fields.get(WEIGHT), others=others)
    whole = _manifest_of(manifest.name, manifest.kind, replace(contents, spec=spec), manifest.source)
    if contents.encoding is not None:
        encoding = contents.encoding.model_dump_json().encode() + b"\n"
        checksums[packed.ENCODING] = hashlib.sha256(encoding).hexdigest()
        write_whole(directory / packed.ENCODING, encoding)
    whole = whole.model_copy(update={"sha256": checksums})
    write_whole(directory / packed.MANIFEST, whole.model_dump_json(indent=2) + "\n")


def checked_pieces(what: str, rows: FieldValues) -> Iterator[np.ndarray]:
    """Yield rows in pieces, and read each row once. Raises Malformed if a row can't be read, or is not finite."""
    at = 0
    try:
        for piece in packed.pieces(rows):
            if piece.dtype.kind == "f" and not (finite := np.isfinite(piece)).all():
                wrong = int(np.flatnonzero(~finite.reshape(len(piece), -1).all(1))[0])
                value = piece[wrong][~finite[wrong]].flat[0]
                raise Malformed(
                    f"{what} has values that are not finite, e.g. {value} in example {at + wrong:,}: replace them, or "
                    "leave such examples out"
                )
            yield piece
            at += len(piece)
    except OSError as error:
        raise Malformed(f"{what} can't be read: {error.strerror or error}") from error


def _write_rows(
    path: Path, rows: Iterator[np.ndarray], seen: Callable[[np.ndarray], None] | None, progress: PackingProgress
) -> str:
    """Write pieces of rows to a file, pass each of them to `seen`, and return the SHA-256 of the file."""
    digest = hashlib.sha256()
    with path.open("xb") as file:
        for piece in rows:
            whole = np.ascontiguousarray(piece)
            whole.tofile(file)
            digest.update(whole.reshape(-1).view(np.uint8).data)
            progress.add(whole.nbytes)
            if seen is not None:
                seen(whole)
    return digest.hexdigest()


def _move_into_place(temporary: Path, directory: Path) -> PackedDataset:
    for attempt in range(3):
        try:
            temporary.rename(directory)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        # `directory` is now the new folder, the folder of a faster process, or an older, damaged folder.
        try:
            return load_packed(directory)
        except UserError:
            if attempt == 2:
                raise
            remove_packed(directory)
    raise AssertionError("the last attempt returns or raises")


_PROGRESS_INTERVAL_S = 5.0


class PackingProgress:
    """Reports the progress of packing: at most every five seconds, a notice gives the percentage of bytes written."""

    def __init__(self, name: str, total_bytes: int, notify: Notify, clock: Callable[[], float] = time.monotonic):
        self._name, self._total, self._notify, self._clock = name, total_bytes, notify, clock
        self._done, self._notified_at = 0, clock()

    def add(self, written_bytes: int) -> None:
        """Count more bytes as written."""
        self._done += written_bytes
        if self._clock() - self._notified_at >= _PROGRESS_INTERVAL_S:
            self._notified_at = self._clock()
            share = 100 * self._done // max(1, self._total)
            self._notify(f"packed {share} % of {self._total / 1e9:.2f} GB of '{self._name}'")
