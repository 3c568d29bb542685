"""Pack a data set into raw files that every process maps without a copy: one folder, complete or absent."""

from __future__ import annotations

import contextlib
import errno
import shutil
import stat
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from ps_cluster.catalogue.datasets import SPLITS, Contents
from ps_cluster.catalogue.examples import ExampleSpec, Field
from ps_cluster.catalogue.objectives import OBJECTIVES
from ps_cluster.errors import UserError
from ps_cluster.files.json_files import read_json
from ps_cluster.files.malformed import Malformed
from ps_cluster.files.validation import first_error
from ps_cluster.files.writing import write_json, write_whole
from ps_cluster.run.rows.dataset import DatasetPointer, FieldRow, Manifest

MANIFEST = "dataset.json"
TARGET = "target"
FORMAT = 2
MOST_MANIFEST_BYTES = 2**24

_ABANDONED_AFTER_S = 3600.0  # an older temporary folder that nobody writes to was left by a killed process
_PIECE_BYTES = 2**26  # written or looked at together
_MOST_CHANNELS = 4096  # that statistics are kept of: a longer last axis is a signal, not channels


@dataclass(frozen=True)
class PackedDataset:
    """A validated folder of packed examples. `directory` is absolute, so that other processes can use it.

    Attributes:
      name: of the data set. kind: "real" or "synthetic".
      source: archive or folder that it was packed from; "" if there is none.
      validation_examples: the last of the packed training examples; `train_examples` excludes them.
    """

    name: str
    kind: str
    directory: Path
    spec: ExampleSpec
    train_examples: int
    test_examples: int
    source: str = ""
    validation_examples: int = 0

    def holding_out(self, validation_examples: int) -> PackedDataset:
        """Return the same data set with this many training examples held out for choosing.

        Raises:
            UserError: nothing would be left to train on.
        """
        everything = self.train_examples + self.validation_examples
        if validation_examples >= everything:
            raise UserError(
                f"evaluation.validation_examples: got {validation_examples}: the data set has {everything} training "
                "examples: hold out fewer"
            )
        left = everything - validation_examples
        return replace(self, train_examples=left, validation_examples=validation_examples)

    def inputs(self, split: str) -> dict[str, np.ndarray]:
        """Return the inputs of `split` ("train", "validation" or "test"): name → read-only array [N, ...], mapped."""
        return {name: self._mapped(split, name, field) for name, field in self.spec.inputs.items()}

    def target(self, split: str) -> np.ndarray:
        """Return the targets of `split` ("train", "validation" or "test"): a read-only array [N, ...], mapped."""
        return self._mapped(split, TARGET, self.spec.target)

    def _mapped(self, split: str, name: str, field: Field) -> np.ndarray:
        path = self.directory / file_name("test" if split == "test" else "train", name, field)
        rows = np.memmap(path, field.dtype, mode="r").reshape(-1, *field.shape)
        first = slice(self.train_examples)
        return rows[{"train": first, "validation": slice(self.train_examples, None), "test": slice(None)}[split]]


def file_name(split: str, name: str, field: Field) -> str:
    """Return the name of the file with a field of a split ("train" or "test"): raw rows in C order."""
    return f"{split}_{name}.{field.dtype}"


def fields_of(spec: ExampleSpec) -> dict[str, Field]:
    """Return name → field, of all inputs and the target."""
    return {**spec.inputs, TARGET: spec.target}


def load_packed(directory: Path, *, check_targets: bool = True) -> PackedDataset:
    """Open a packed folder without reading the inputs; without reading the targets either where they were checked.

    Raises:
        UserError: the manifest is missing or malformed, a file's size differs from it, or a target is impossible.
    """
    directory = Path(directory).resolve()
    try:
        manifest = read_json(directory / MANIFEST, Manifest, MOST_MANIFEST_BYTES)
        dataset = _of_manifest(directory, manifest)
        _check_sizes(dataset, manifest)
        if check_targets:
            _check_targets(dataset.spec, {split: dataset.target(split) for split in SPLITS})
    except OSError as error:
        raise _unusable(directory, f"{Path(error.filename or MANIFEST).name}: {error.strerror}") from error
    except (UserError, ValueError) as error:
        raise _unusable(directory, f"{error}") from error
    return dataset


def write_pointer(file: Path, dataset: PackedDataset) -> None:
    """Write to `file` which packed folder is used, for other processes of this machine."""
    directory = str(dataset.directory)
    pointer = DatasetPointer(name=dataset.name, kind=dataset.kind, unit=dataset.spec.unit, directory=directory)
    write_json(file, pointer.model_dump())


def load_pointed(file: Path) -> PackedDataset:
    """Open the data set that `write_pointer` wrote to `file`. Raises UserError if either is missing or damaged.

    Every task of a run does so: the launcher has checked the targets.
    """
    try:
        return load_packed(Path(read_json(file, DatasetPointer).directory), check_targets=False)
    except FileNotFoundError as error:
        raise UserError(f"'{file}' is not there to say where the data set is") from error


def write_packed(directory: Path, name: str, kind: str, contents: Contents, source: str = "") -> PackedDataset:
    """Pack what was read from `source` into `directory`, which appears complete or not at all.

    If another process packs the same folder at the same time, the first to finish wins and both use its copy. A damaged
    folder in the way is replaced.

    Raises:
        UserError: the arrays do not fit the spec or each other, or the folder cannot be written.
    """
    try:
        _check_contents(contents)
        manifest = _manifest(name, kind, contents, source)
    except ValidationError as error:
        raise UserError(first_error(error, f"dataset '{name}'")) from error
    except ValueError as error:
        raise UserError(f"dataset: '{name}' can't be packed: {error}") from error
    directory = Path(directory).resolve()
    temporary = directory.with_name(f".{directory.name}.{uuid.uuid4().hex}.tmp")
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(directory)
        temporary.mkdir()
        try:
            _write_files(temporary, contents, manifest)
            return _move_into_place(temporary, directory)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise cannot_write(directory, error) from error


def cannot_write(path: Path, error: OSError) -> UserError:
    """Return the error for a cache that can't write `path`."""
    return UserError(
        f"cache_dir: cannot write '{path}' ({error.strerror or error}); "
        "set PS_CLUSTER_CACHE to a folder with enough free space (CIFAR-10 takes 400 MB) that you may write to"
    )


def _of_manifest(directory: Path, manifest: Manifest) -> PackedDataset:
    if manifest.format != FORMAT:
        raise Malformed(f"format {manifest.format} instead of {FORMAT}")
    inputs = {name: _field(row) for name, row in manifest.inputs.items()}
    if TARGET in inputs:
        raise Malformed(f"an input is called '{TARGET}'")
    spec = ExampleSpec(inputs, _field(manifest.target), manifest.objective, tuple(manifest.classes))
    train, test = manifest.train_examples, manifest.test_examples
    return PackedDataset(manifest.name, manifest.kind, directory, spec, train, test, manifest.source)


def _field(row: FieldRow) -> Field:
    return Field(row.dtype, tuple(row.shape), tuple(row.mean), tuple(row.std))


def _row(field: Field) -> FieldRow:
    return FieldRow(dtype=field.dtype, shape=list(field.shape), mean=list(field.mean), std=list(field.std))  # type: ignore[arg-type]  # checked there


def _sizes(spec: ExampleSpec, examples: Mapping[str, int]) -> dict[str, int]:
    """Return file name → bytes. `examples`: split → number."""
    fields = fields_of(spec).items()
    return {
        file_name(split, name, field): count * field.row_bytes
        for split, count in examples.items()
        for name, field in fields
    }


def _check_sizes(dataset: PackedDataset, manifest: Manifest) -> None:
    if manifest.bytes != _sizes(dataset.spec, {"train": dataset.train_examples, "test": dataset.test_examples}):
        raise Malformed("bytes do not fit the numbers of examples")
    for name, size in manifest.bytes.items():
        status = (dataset.directory / name).stat()
        if not stat.S_ISREG(status.st_mode):
            raise Malformed(f"{name} is no regular file")
        if status.st_size != size:
            raise Malformed(f"promises {size} bytes in {name}, which has {status.st_size}")


def _check_targets(spec: ExampleSpec, targets: Mapping[str, np.ndarray]) -> None:
    """Raise ValueError for targets (split → [N, ...]) that can't be trained on or scored."""
    objective = OBJECTIVES[spec.objective]
    for target in targets.values():
        for piece in _pieces(target):
            objective.check_target(piece, spec)


def _check_contents(contents: Contents) -> None:
    """Raise ValueError where arrays, spec and manifest's rules do not agree."""
    fields = fields_of(contents.spec)
    for split in SPLITS:
        arrays = contents.arrays.get(split, {})
        if missing := [name for name in fields if name not in arrays]:
            raise ValueError(f"{split} has no '{missing[0]}'")
        for name, field in fields.items():
            array = arrays[name]
            if not isinstance(array, np.ndarray) or not array.ndim:
                raise ValueError(
                    f"{split} '{name}' is {type(array).__name__}, not an array with a row for each example"
                )
            if str(array.dtype) != field.dtype or array.shape[1:] != field.shape:
                raise ValueError(
                    f"{split} '{name}' is {array.dtype} {list(array.shape[1:])}, not {field.dtype} {list(field.shape)}"
                )
        lengths = {name: len(arrays[name]) for name in fields}
        if len(set(lengths.values())) > 1 or not min(lengths.values()):
            raise ValueError(f"{split} has {', '.join(f'{count} of {name}' for name, count in lengths.items())}")
    _check_targets(contents.spec, {split: contents.arrays[split][TARGET] for split in SPLITS})


def _pieces(array: np.ndarray, most_bytes: int = _PIECE_BYTES) -> Iterator[np.ndarray]:
    """Yield consecutive rows of an array, as many as are worked on together: it may be larger than the memory."""
    rows = max(1, most_bytes // max(1, array[:1].nbytes))
    for start in range(0, len(array), rows):
        yield array[start : start + rows]


def _with_statistics(field: Field, rows: np.ndarray) -> Field:
    """Return a field with mean and standard deviation of its training examples, where they have a meaning."""
    has_statistics = field.is_image or field.dtype.startswith("float")
    if field.mean or not has_statistics or field.shape and field.shape[-1] > _MOST_CHANNELS:
        return field
    # Of the distance from one row: the mean of squares less the square of the mean would cancel far from 0.
    origin = np.asarray(rows[:1], np.float64).reshape(-1, *field.shape[-1:])[0]
    count, total, squares = 0, np.zeros(()), np.zeros(())
    for piece in _pieces(rows, _PIECE_BYTES // 16):  # as float64 it is up to eight times as large
        flat = np.asarray(piece, np.float64).reshape(-1, *field.shape[-1:]) - origin
        count, total, squares = count + len(flat), total + flat.sum(0), squares + (flat**2).sum(0)
    mean = total / count
    deviation = np.sqrt(np.maximum(squares / count - mean**2, 0))
    mean += origin
    return replace(field, mean=tuple(np.atleast_1d(mean).tolist()), std=tuple(np.atleast_1d(deviation).tolist()))


def _manifest(name: str, kind: str, contents: Contents, source: str) -> Manifest:
    spec, train = contents.spec, contents.arrays["train"]
    fields = {key: _with_statistics(field, train[key]) for key, field in fields_of(spec).items()}
    examples = {split: len(contents.arrays[split][TARGET]) for split in SPLITS}
    return Manifest(
        format=FORMAT,
        name=name,
        kind=kind,  # type: ignore[arg-type]  # checked there
        objective=spec.objective,
        target=_row(fields.pop(TARGET)),
        inputs={key: _row(field) for key, field in fields.items()},
        classes=list(spec.classes),
        train_examples=examples["train"],
        test_examples=examples["test"],
        source=source,
        bytes=_sizes(spec, examples),
    )


def _write_files(directory: Path, contents: Contents, manifest: Manifest) -> None:
    for split in SPLITS:
        for name, field in fields_of(contents.spec).items():
            with (directory / file_name(split, name, field)).open("xb") as file:
                for piece in _pieces(contents.arrays[split][name]):
                    np.ascontiguousarray(piece).tofile(file)
    write_whole(directory / MANIFEST, manifest.model_dump_json(indent=2) + "\n")


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
            damaged = directory.with_name(f".{directory.name}.{uuid.uuid4().hex}.tmp")
            with contextlib.suppress(FileNotFoundError):
                directory.rename(damaged)
            shutil.rmtree(damaged, ignore_errors=True)


def _remove_abandoned(directory: Path) -> None:
    for left_over in directory.parent.glob(f".{directory.name}.*.tmp"):
        try:
            age_s = time.time() - left_over.stat().st_mtime
        except FileNotFoundError:
            continue
        if age_s > _ABANDONED_AFTER_S:
            shutil.rmtree(left_over, ignore_errors=True)


def _unusable(directory: Path, why: str) -> UserError:
    return UserError(f"dataset: '{directory}' is no usable packed data set ({why}); delete that folder and run again")
