"""Pack a data set into a folder of raw files, complete or absent, which every process maps without a copy; open one."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import math
import os
import shutil
import stat
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter, ValidationError

from ps_cluster.config.datasets import SPLITS, Contents
from ps_cluster.config.objectives import OBJECTIVES, TARGET, WEIGHT, ExampleSpec, Field, Rows, check_rows
from ps_cluster.errors import UserError
from ps_cluster.files import locks
from ps_cluster.files.json_files import read_json
from ps_cluster.files.values import Malformed, first_error
from ps_cluster.files.writing import write_json, write_whole
from ps_cluster.runs.rows import DatasetPointer, Manifest, TableEncoding

MANIFEST, ENCODING = "dataset.json", "encoding.json"
FORMAT = 2
MOST_MANIFEST_BYTES, MOST_ENCODING_BYTES = 2**24, 2**30

_PIECE_BYTES = 2**26  # written or looked at together
_SPEC = TypeAdapter(ExampleSpec)
_OF_SPEC = {one.name for one in fields(ExampleSpec)}  # has these names in the manifest too


class Unusable(UserError):
    """A folder is no sound packed data set. `why`: the reason alone."""

    def __init__(self, directory: Path, why: str):
        super().__init__(
            f"dataset: '{directory}' is no usable packed data set ({why}); delete that folder and run again"
        )
        self.why = why


@dataclass(frozen=True)
class PackedDataset:
    """A validated folder of packed examples. `directory` is absolute, so that other processes can use it.

    Attributes:
      name: of the data set. kind: "real" or "synthetic".
      source: archive or folder that it was packed from; "" if there is none.
      validation_examples: the last of the packed training examples; `train_examples` excludes them.
      notes: lines for a person to read, e.g. what was held out to test on.
      checksum: SHA-256 of the checksums of all files; "" in copies that have none.
    """

    name: str
    kind: str
    directory: Path
    spec: ExampleSpec
    train_examples: int
    test_examples: int
    source: str = ""
    validation_examples: int = 0
    notes: tuple[str, ...] = ()
    checksum: str = ""

    def holding_out(self, validation_examples: int) -> PackedDataset:
        """Return the same data set with this many training examples held out for choosing.

        Raises:
            UserError: nothing would be left to train on, or the part lacks classes.
        """
        everything = self.train_examples + self.validation_examples
        if validation_examples >= everything:
            raise UserError(
                f"evaluation.validation_examples: got {validation_examples}: the data set has {everything} training "
                "examples: hold out fewer"
            )
        left = everything - validation_examples
        parted = replace(self, train_examples=left, validation_examples=validation_examples)
        if validation_examples:
            whole, part = replace(self, train_examples=everything, validation_examples=0), parted.target("validation")
            try:
                OBJECTIVES[self.spec.objective].check_held_out(whole.target("train"), part, self.spec)
            except ValueError as error:
                raise UserError(
                    f"evaluation.validation_examples: got {validation_examples}: the end of the training examples, which "
                    f"is held out, {error}"
                ) from error
        return parted

    def inputs(self, split: str) -> dict[str, np.ndarray]:
        """Return the inputs of `split` ("train", "validation" or "test"): name → read-only array [N, ...], mapped."""
        return {name: self.rows(split, name, field) for name, field in self.spec.inputs.items()}

    def target(self, split: str) -> np.ndarray:
        """Return the targets of `split` ("train", "validation" or "test"): a read-only array [N, ...], mapped."""
        return self.rows(split, TARGET, self.spec.target)

    def weight(self, split: str) -> np.ndarray | None:
        """Return the weights of `split`: a read-only array [N], mapped; None if the data set has none."""
        return None if self.spec.weight is None else self.rows(split, WEIGHT, self.spec.weight)

    def encoding(self) -> TableEncoding | None:
        """Return how the columns of a table became numbers; None for other data. Raises UserError if it is damaged."""
        try:
            return read_json(self.directory / ENCODING, TableEncoding, MOST_ENCODING_BYTES)
        except FileNotFoundError:
            return None

    def rows(self, split: str, name: str, field: Field) -> np.ndarray:
        """Return the rows of a field: a read-only array [N, ...], mapped."""
        path = self.directory / file_name("test" if split == "test" else "train", name, field)
        rows = np.memmap(path, field.dtype, mode="r").reshape(-1, *field.shape)
        first = slice(self.train_examples)
        return rows[{"train": first, "validation": slice(self.train_examples, None), "test": slice(None)}[split]]


def file_name(split: str, name: str, field: Field) -> str:
    """Return the name of the file with a field of a split ("train" or "test"): raw rows in C order."""
    return f"{split}_{name}.{field.dtype}"


def fields_of(spec: ExampleSpec) -> dict[str, Field]:
    """Return name → field, of all inputs, the target, and the weight if there is one."""
    weight = {WEIGHT: spec.weight} if spec.weight else {}
    return {**spec.inputs, TARGET: spec.target, **weight}


def read_manifest(directory: Path) -> Manifest:
    """Return the manifest of a packed folder. Raises UserError or OSError where it can't be read."""
    return read_json(directory / MANIFEST, Manifest, MOST_MANIFEST_BYTES)


def load_packed(directory: Path, *, check_targets: bool = True) -> PackedDataset:
    """Open a packed folder without reading the inputs; without reading targets and weights either where they were checked.

    Raises:
        UserError: the manifest is missing or malformed, a file's size differs from it, or a target or a weight is
            impossible.
    """
    directory = Path(os.path.realpath(directory))
    try:
        manifest = read_manifest(directory)
        dataset = _of_manifest(directory, manifest)
        if manifest.bytes != sizes(dataset.spec, {"train": dataset.train_examples, "test": dataset.test_examples}):
            raise Malformed("bytes do not fit the numbers of examples")
        for name, size in manifest.bytes.items():
            status = (directory / name).stat()
            if not stat.S_ISREG(status.st_mode):
                raise Malformed(f"{name} is no regular file")
            if status.st_size != size:
                raise Malformed(f"promises {size} bytes in {name}, which has {status.st_size}")
        if check_targets:
            for split in SPLITS:
                check_values(dataset.spec, split, dataset.target(split), dataset.weight(split))
    except OSError as error:
        raise Unusable(directory, f"{Path(error.filename or MANIFEST).name}: {error.strerror}") from error
    except (UserError, ValueError) as error:
        raise Unusable(directory, f"{error}") from error
    return dataset


def write_pointer(file: Path, dataset: PackedDataset) -> None:
    """Write to `file` which packed folder is used, for other processes of this machine."""
    directory = str(dataset.directory)
    pointer = DatasetPointer(name=dataset.name, kind=dataset.kind, unit=dataset.spec.unit, directory=directory)
    write_json(file, pointer.model_dump())


def write_form(folder: Path, dataset: PackedDataset) -> None:
    """Copy into `folder` what says how examples look: inputs, names of classes, the encoding of a table. No example."""
    for name in (MANIFEST, ENCODING):
        if (dataset.directory / name).is_file():
            write_whole(folder / name, (dataset.directory / name).read_bytes())


def load_form(folder: Path) -> PackedDataset:
    """Open what `write_form` has written: a data set whose examples can't be read.

    Raises:
      FileNotFoundError: there is none.
      UserError: it is damaged.
    """
    manifest = read_manifest(folder)
    try:
        return _of_manifest(folder, manifest)
    except ValueError as error:
        raise UserError(f"'{folder / MANIFEST}' is damaged ({error}): delete '{folder}' and try again") from error


def load_pointed(file: Path) -> PackedDataset:
    """Open the data set that `write_pointer` wrote to `file`. Raises UserError if either is missing or damaged.

    Every task of a run does so: the launcher has checked the targets.
    """
    try:
        return load_packed(Path(read_json(file, DatasetPointer).directory), check_targets=False)
    except FileNotFoundError as error:
        raise UserError(f"'{file}' is not there to say where the data set is") from error


def _of_manifest(directory: Path, manifest: Manifest) -> PackedDataset:
    if manifest.format != FORMAT:
        raise Malformed(f"format {manifest.format} instead of {FORMAT}")
    if not manifest.sha256:
        raise Malformed("it has no checksums")
    for name in (TARGET, WEIGHT):
        if name in manifest.inputs:
            raise Malformed(f"an input is called '{name}'")
    spec = _SPEC.validate_python(manifest.model_dump(include=_OF_SPEC))
    train, test = manifest.train_examples, manifest.test_examples
    listed = "".join(f"{checksum}  {file}\n" for file, checksum in sorted(manifest.sha256.items()))
    return PackedDataset(
        manifest.name, manifest.kind, directory, spec, train, test, manifest.source, notes=tuple(manifest.notes),
        checksum=hashlib.sha256(listed.encode()).hexdigest(),
    )  # fmt: skip


def sizes(spec: ExampleSpec, examples: Mapping[str, int]) -> dict[str, int]:
    """Return file name → bytes. `examples`: split → number."""
    fields = fields_of(spec).items()
    return {
        file_name(split, name, field): count * field.row_bytes
        for split, count in examples.items()
        for name, field in fields
    }


def check_values(spec: ExampleSpec, split: str, target: Rows, weight: Rows | None) -> None:
    """Raise ValueError for targets [N, ...] and weights [N] of a split that can't be trained on or scored."""
    objective = OBJECTIVES[spec.objective]
    for piece in pieces(target):
        objective.check_target(piece, spec)
    if weight is None:
        return
    if np.dtype(weight.dtype).kind != "f" or len(weight.shape) != 1:
        raise ValueError(f"{split} weights are {weight.dtype} {list(weight.shape[1:])}, not one float each")
    largest = 0.0
    for piece in pieces(weight):
        if not np.isfinite(piece).all() or piece.min() < 0:
            wrong = piece[~(np.isfinite(piece) & (piece >= 0))][0]
            raise ValueError(f"a {split} weight is {wrong}: weights are finite and at least 0")
        largest = max(largest, float(piece.max()))
    if not largest:
        raise ValueError(f"all {split} weights are 0: nothing would count")


def pieces(rows: Rows, most_bytes: int = _PIECE_BYTES) -> Iterator[np.ndarray]:
    """Yield consecutive rows, as many as are worked on together: all of them may be larger than the memory."""
    row_bytes = np.dtype(rows.dtype).itemsize * math.prod(rows.shape[1:])
    at_once = max(1, most_bytes // max(1, row_bytes))
    for start in range(0, len(rows), at_once):
        yield rows[start : start + at_once]


# Pack a data set: all files are written beside the folder, which is moved into place when they are whole.


def write_packed(
    directory: Path,
    name: str,
    kind: str,
    contents: Contents,
    source: str = "",
    *,
    notify: Callable[[str], None] = lambda line: None,
    free_bytes: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free,
) -> PackedDataset:
    """Pack what was read from `source` into `directory`, which appears complete or not at all.

    If another process packs the same folder at the same time, the first to finish wins and both use its copy. A damaged
    folder in the way is replaced.

    Args:
        notify: gets lines about the progress of what takes long.
        free_bytes: returns how much fits on the disk of a folder.

    Raises:
        UserError: the arrays do not fit the spec or each other, or the folder cannot be written or has no room.
    """
    directory = Path(os.path.realpath(directory))
    try:
        check_contents(contents)
        manifest = _manifest(name, kind, contents, source)
        directory.parent.mkdir(parents=True, exist_ok=True)
        for left_over in directory.parent.glob(".*.*.tmp"):  # by killed processes
            locks.remove_abandoned(left_over)
        wanted, free = sum(manifest.bytes.values()), free_bytes(directory.parent)
        if wanted > free:
            raise UserError(
                f"cache_dir: the packed copy of '{name}' takes {wanted / 1e9:.2f} GB, and the disk of '{directory.parent}' "
                f"has {free / 1e9:.2f} GB free: set PS_CLUSTER_CACHE to a folder with more"
            )
        return _written(directory, contents, manifest, PackingProgress(name, wanted, notify))
    except ValidationError as error:
        raise UserError(first_error(error, f"dataset '{name}'")) from error
    except ValueError as error:
        raise UserError(f"dataset: '{name}' can't be packed: {error}") from error
    except OSError as error:
        raise cannot_write(directory, error) from error


def _written(directory: Path, contents: Contents, manifest: Manifest, progress: PackingProgress) -> PackedDataset:
    """Write all files into a folder beside `directory`, and move it there. Nothing is left if that is interrupted."""
    temporary = _beside(directory)
    try:
        with locks.sharing_new(temporary):  # nobody takes it for abandoned
            _write_files(temporary, contents, manifest, progress)
            return _move_into_place(temporary, directory)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _beside(directory: Path) -> Path:
    return directory.with_name(f".{directory.name}.{uuid.uuid4().hex}.tmp")


def remove_packed(directory: Path) -> None:
    """Remove a packed folder. Others see it whole or not at all."""
    gone = _beside(directory)
    with contextlib.suppress(FileNotFoundError):
        directory.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def cannot_write(path: Path, error: OSError) -> UserError:
    """Return the error for a cache that can't write `path`."""
    return UserError(
        f"cache_dir: cannot write '{path}' ({error.strerror or error}); "
        "set PS_CLUSTER_CACHE to a folder with enough free space (CIFAR-10 takes 400 MB) that you may write to"
    )


def check_contents(contents: Contents) -> None:
    """Raise ValueError where arrays, spec and manifest's rules do not agree."""
    fields = fields_of(contents.spec)
    for split in SPLITS:
        arrays = contents.arrays.get(split, {})
        if missing := [name for name in fields if name not in arrays]:
            raise ValueError(f"{split} has no '{missing[0]}'")
        for name, field in fields.items():
            rows, what = arrays[name], f"{split} '{name}'"
            check_rows(what, rows)
            if str(rows.dtype) != field.dtype or rows.shape[1:] != field.shape:
                raise ValueError(
                    f"{what} is {rows.dtype} {list(rows.shape[1:])}, not {field.dtype} {list(field.shape)}"
                )
        lengths = {name: len(arrays[name]) for name in fields}
        if len(set(lengths.values())) > 1 or not min(lengths.values()):
            raise ValueError(f"{split} has {', '.join(f'{count} of {name}' for name, count in lengths.items())}")
    for split in SPLITS:
        check_values(contents.spec, split, contents.arrays[split][TARGET], contents.arrays[split].get(WEIGHT))


def _manifest(name: str, kind: str, contents: Contents, source: str) -> Manifest:
    examples = {split: len(contents.arrays[split][TARGET]) for split in SPLITS}
    about = {
        "format": FORMAT,
        "name": name,
        "kind": kind,
        "train_examples": examples["train"],
        "test_examples": examples["test"],
        "source": source,
        "notes": list(contents.notes),
        "bytes": sizes(contents.spec, examples),
    }
    return Manifest.model_validate(_SPEC.dump_python(contents.spec, mode="json") | about)


def _write_files(directory: Path, contents: Contents, manifest: Manifest, progress: PackingProgress) -> None:
    """Write the files, and the manifest with the statistics of the training examples."""
    statistics = {name: RunningStatistics(field) for name, field in fields_of(contents.spec).items()}
    checksums = {}
    for split in SPLITS:
        for name, field in fields_of(contents.spec).items():
            seen = statistics[name].add if split == "train" else None
            file, rows = file_name(split, name, field), sound_pieces(f"{split} '{name}'", contents.arrays[split][name])
            checksums[file] = _write_rows(directory / file, rows, seen, progress)
    fields = {name: one.field for name, one in statistics.items()}
    inputs = {name: fields[name] for name in contents.spec.inputs}
    spec = replace(contents.spec, inputs=inputs, target=fields[TARGET], weight=fields.get(WEIGHT))
    whole = _manifest(manifest.name, manifest.kind, replace(contents, spec=spec), manifest.source)
    if contents.encoding is not None:
        encoding = TableEncoding.model_validate(contents.encoding).model_dump_json().encode() + b"\n"
        checksums[ENCODING] = hashlib.sha256(encoding).hexdigest()
        write_whole(directory / ENCODING, encoding)
    whole = whole.model_copy(update={"sha256": checksums})
    write_whole(directory / MANIFEST, whole.model_dump_json(indent=2) + "\n")


def sound_pieces(what: str, rows: Rows) -> Iterator[np.ndarray]:
    """Yield rows in pieces, each read once. Raises Malformed if they can't be read, or are not finite."""
    at = 0
    try:
        for piece in pieces(rows):
            if piece.dtype.kind == "f" and not (finite := np.isfinite(piece)).all():
                wrong = int(np.flatnonzero(~finite.reshape(len(piece), -1).all(1))[0])
                value = piece[wrong][~finite[wrong]].flat[0]
                raise Malformed(
                    f"{what} has values that are not finite: {value} in example {at + wrong:,}: replace them, or leave such "
                    "examples out"
                )
            yield piece
            at += len(piece)
    except OSError as error:
        raise Malformed(f"{what} can't be read: {error.strerror or error}") from error


def _write_rows(
    path: Path, rows: Iterator[np.ndarray], seen: Callable[[np.ndarray], None] | None, progress: PackingProgress
) -> str:
    """Write pieces of rows, and pass each to `seen`. Returns the SHA-256 of the file."""
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
        # Ours, the one of a faster process, or a damaged one that was there before.
        try:
            return load_packed(directory)
        except UserError:
            if attempt == 2:
                raise
            remove_packed(directory)
    raise AssertionError("the last attempt returns or raises")


# Tell how far the packing of a data set is, where it takes long.

_EVERY_S = 5.0


class PackingProgress:
    """Notifies of the share that is written, at most once in five seconds."""

    def __init__(
        self, name: str, total_bytes: int, notify: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ):
        self._name, self._total, self._notify, self._clock = name, total_bytes, notify, clock
        self._done, self._told_at = 0, clock()

    def add(self, written_bytes: int) -> None:
        """Count bytes that were written."""
        self._done += written_bytes
        if self._clock() - self._told_at >= _EVERY_S:
            self._told_at = self._clock()
            share = 100 * self._done // max(1, self._total)
            self._notify(f"packed {share} % of {self._total / 1e9:.2f} GB of '{self._name}'")


# Mean and standard deviation of rows, gathered while they pass by in pieces.

_MOST_CHANNELS = 4096  # that statistics are kept of: a longer last axis is a signal, not channels
_VALUES_AT_ONCE = 2**19  # as float64 they are up to eight times as large


def _too_large_is_told_later() -> np.errstate:
    """Numbers whose squares are no finite floats are refused by their mean or deviation."""
    return np.errstate(invalid="ignore", over="ignore")


class Moments:
    """Sums over rows of numbers, for each place of a row, as floats.

    They are of the distance from one row: the mean of squares less the square of the mean would cancel far from 0.

    Attributes:
      count: how many values were counted, for each place.
    """

    def __init__(self) -> None:
        self._origin: np.ndarray | None = None
        self.count, self._total, self._squares = (np.zeros(()) for _ in range(3))

    def add(self, rows: np.ndarray, counted: np.ndarray | None = None) -> None:
        """Take in the next rows float64 [B, ...]. `counted`: bool of the same shape, which values; None for all."""
        if self._origin is None and len(rows):
            self._origin = np.where(np.isfinite(rows[0]), rows[0], 0.0)
        with _too_large_is_told_later():
            apart = rows - (0.0 if self._origin is None else self._origin)
            if counted is not None:
                apart = np.where(counted, apart, 0.0)
            self.count = self.count + (len(rows) if counted is None else counted.sum(0))
            self._total, self._squares = self._total + apart.sum(0), self._squares + (apart**2).sum(0)

    @property
    def mean(self) -> np.ndarray:
        """The mean of the values; 0 where there are none."""
        return self._total / np.maximum(self.count, 1) + (0.0 if self._origin is None else self._origin)

    @property
    def std(self) -> np.ndarray:
        """The standard deviation of the values; 0 where there are none."""
        count = np.maximum(self.count, 1)
        with _too_large_is_told_later():
            return np.sqrt(np.maximum(self._squares / count - (self._total / count) ** 2, 0))


class RunningStatistics:
    """Collects what `field` needs, along the last axis (of numbers: of all of them), where it has a meaning."""

    def __init__(self, field: Field):
        self._field = field
        has_statistics = field.is_image or field.dtype.startswith("float")
        long = bool(field.shape) and field.shape[-1] > _MOST_CHANNELS
        self._wanted = has_statistics and not field.mean and not long
        self._moments = Moments()

    def add(self, rows: np.ndarray) -> None:
        """Take the next rows [B, ...] into account."""
        if not self._wanted or not rows.size:
            return
        flat = rows.reshape(-1, *self._field.shape[-1:])
        at_once = max(1, _VALUES_AT_ONCE // max(1, flat[:1].size))
        for start in range(0, len(flat), at_once):
            self._moments.add(np.asarray(flat[start : start + at_once], np.float64))

    @property
    def field(self) -> Field:
        """The field with mean and standard deviation of all rows so far. Raises Malformed if they are not finite."""
        if not np.any(self._moments.count):
            return self._field
        mean, std = self._moments.mean, self._moments.std
        if not (np.isfinite(mean).all() and np.isfinite(std).all()):
            raise Malformed("an input has values that are not finite, or too large")
        return replace(self._field, mean=tuple(np.atleast_1d(mean).tolist()), std=tuple(np.atleast_1d(std).tolist()))
