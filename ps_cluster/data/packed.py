"""Open packed data sets. A packed data set is a folder of raw files, which every process of a run memory-maps.

Such a folder is either complete or missing.
"""

from __future__ import annotations

import hashlib
import math
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
from pydantic import TypeAdapter

from ps_cluster.config.datasets import SPLITS
from ps_cluster.config.objectives import OBJECTIVES, TARGET, WEIGHT, ArrayField, ExampleSpec, FieldValues
from ps_cluster.errors import UserError
from ps_cluster.files.json_files import read_json
from ps_cluster.files.values import Malformed
from ps_cluster.files.writing import write_json, write_whole
from ps_cluster.runs.dataset_rows import DatasetPointer, Kind, Manifest, TableEncoding

MANIFEST, ENCODING = "dataset.json", "encoding.json"
FORMAT = 2
MOST_MANIFEST_BYTES, MOST_ENCODING_BYTES = 2**24, 2**30

PackedSplit = Literal["train", "validation", "test"]
"""A split of a data set: the examples to train on, the training examples that are held out, or the test examples."""

T = TypeVar("T")
_PIECE_BYTES = 2**26  # at most this many bytes are written or checked at once
SPEC_TYPE = TypeAdapter(ExampleSpec)
_SPEC_FIELDS = {one.name for one in fields(ExampleSpec)}  # the manifest has them under the same names


class Unusable(UserError):
    """Raised if a folder is no packed data set, or a damaged one. `why`: the reason, without the name of the folder."""

    def __init__(self, directory: Path, why: str):
        super().__init__(
            f"dataset: '{directory}' is not a usable packed data set ({why}); delete that folder and run again"
        )
        self.why = why


@dataclass(frozen=True)
class PackedDataset:
    """A packed data set: a folder with the examples in raw files, and the description of the examples.

    Its methods return the examples as memory-mapped arrays.
    """

    name: str  # of the data set
    kind: Kind
    directory: Path  # absolute, so that other processes can use it
    spec: ExampleSpec
    train_examples: int  # without the validation examples, which are held out
    test_examples: int
    source: str = ""  # the archive or folder that the data set was packed from, if there is one
    validation_examples: int = 0  # how many training examples are held out: the last ones that were packed
    notes: tuple[str, ...] = ()  # lines for a person to read, e.g. what was held out to test on
    checksum: str = ""  # the SHA-256 of the checksums of all files; "" if it is not known
    # How many training examples, including those held out, come from each of several files; () if that is not known.
    file_rows: tuple[int, ...] = ()

    def holding_out(self, validation_examples: int) -> PackedDataset:
        """Return the same data set with its last training examples held out, so that a model can be chosen by them.

        `validation_examples`: how many examples to hold out. Raises UserError if nothing would be left to train on, or
        if the held-out examples are not representative, e.g. because the examples are sorted by class.
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
                    f"evaluation.validation_examples: got {validation_examples}: the held-out end of the training "
                    f"examples {error}"
                ) from error
        return parted

    @property
    def file_rows_to_train_on(self) -> tuple[int, ...]:
        """The number of training examples from each file that the data was read from, in the order of the files.

        Validation examples, which are the last ones of the last files, are not counted. If the files are not known, the
        result is ().
        """
        starts = [0, *accumulate(self.file_rows)]
        return tuple(max(0, min(rows, self.train_examples - start)) for rows, start in zip(self.file_rows, starts))

    def inputs(self, split: PackedSplit) -> dict[str, np.ndarray]:
        """Return the inputs of `split` by name, as read-only, memory-mapped arrays [N, ...]."""
        return {name: self.rows(split, name, field) for name, field in self.spec.inputs.items()}

    def target(self, split: PackedSplit) -> np.ndarray:
        """Return the targets of `split` as a read-only, memory-mapped array [N, ...]."""
        return self.rows(split, TARGET, self.spec.target)

    def weight(self, split: PackedSplit) -> np.ndarray | None:
        """Return the weights of `split` as a read-only, memory-mapped array [N]; None if the data set has none."""
        return None if self.spec.weight is None else self.rows(split, WEIGHT, self.spec.weight)

    def encoding(self) -> TableEncoding | None:
        """Return how the columns of a table were encoded; None for other data.

        Raises UserError if the file that stores this encoding is damaged.
        """
        try:
            return read_json(self.directory / ENCODING, TableEncoding, MOST_ENCODING_BYTES)
        except FileNotFoundError:
            return None

    def rows(self, split: PackedSplit, name: str, field: ArrayField) -> np.ndarray:
        """Return the rows of a field in a split as a read-only, memory-mapped array [N, ...]."""
        path = self.directory / file_name("test" if split == "test" else "train", name, field)
        rows = np.memmap(path, field.packed.dtype, mode="r").reshape(-1, *field.packed.shape)
        first = slice(self.train_examples)
        return rows[{"train": first, "validation": slice(self.train_examples, None), "test": slice(None)}[split]]


def file_name(split: str, name: str, field: ArrayField) -> str:
    """Return the name of the file that holds the rows of a field in a split ("train" or "test").

    The file holds raw values in C order.
    """
    return f"{split}_{name}.{field.packed.dtype}"


def fields_of(spec: ExampleSpec) -> dict[str, ArrayField]:
    """Return the fields of all inputs, all targets and the weight (if there is one), by the names of their arrays."""
    weight = {WEIGHT: spec.weight} if spec.weight else {}
    return {**spec.inputs, **{name: one.target for name, one in spec.targets.items()}, **weight}


def targets_in(arrays: Mapping[str, T], spec: ExampleSpec) -> T | dict[str, T]:
    """Return the array of the target. If there are several targets, return a mapping from their names to their arrays.

    `arrays`: an array (or any other object) for each field, by the names that `fields_of` returns.
    """
    return {name: arrays[name] for name in spec.targets} if spec.others else arrays[TARGET]


def read_manifest(directory: Path) -> Manifest:
    """Return the manifest, the description of a packed folder. Raises UserError or OSError if it can't be read."""
    return read_json(directory / MANIFEST, Manifest, MOST_MANIFEST_BYTES)


def load_packed(directory: Path, *, check_targets: bool = True) -> PackedDataset:
    """Open a packed folder without reading its inputs. `check_targets`: whether to read and check targets and weights.

    Raises Unusable if the manifest is missing or malformed, a file has the wrong size, or a target is invalid.
    """
    directory = Path(os.path.realpath(directory))
    try:
        manifest = read_manifest(directory)
        dataset = _of_manifest(directory, manifest)
        if manifest.bytes != sizes(dataset.spec, {"train": dataset.train_examples, "test": dataset.test_examples}):
            raise Malformed("in its manifest, the sizes of the files do not fit the numbers of examples")
        for name, size in manifest.bytes.items():
            status = (directory / name).stat()
            if not stat.S_ISREG(status.st_mode):
                raise Malformed(f"{name} is not a regular file")
            if status.st_size != size:
                raise Malformed(f"{name} has {status.st_size} bytes, not {size}")
        if check_targets:
            for split in SPLITS:
                rows = {name: dataset.rows(split, name, field) for name, field in fields_of(dataset.spec).items()}
                check_values(dataset.spec, split, rows)
    except OSError as error:
        raise Unusable(directory, f"{Path(error.filename or MANIFEST).name}: {error.strerror}") from error
    except (UserError, ValueError) as error:
        raise Unusable(directory, f"{error}") from error
    return dataset


def write_pointer(file: Path, dataset: PackedDataset) -> None:
    """Write the location of a packed folder to `file`, for other processes of this machine."""
    directory = str(dataset.directory)
    pointer = DatasetPointer(name=dataset.name, kind=dataset.kind, unit=dataset.spec.unit, directory=directory)
    write_json(file, pointer.model_dump())


def write_description(folder: Path, dataset: PackedDataset) -> None:
    """Copy only the description of a data set to `folder`: inputs, names of classes, and the encoding of a table."""
    for name in (MANIFEST, ENCODING):
        if (dataset.directory / name).is_file():
            write_whole(folder / name, (dataset.directory / name).read_bytes())


def load_description(folder: Path) -> PackedDataset:
    """Open the description that `write_description` has written, as a data set without examples.

    Raises FileNotFoundError if `folder` has no description, and UserError if the description is damaged.
    """
    manifest = read_manifest(folder)
    try:
        return _of_manifest(folder, manifest)
    except ValueError as error:
        raise UserError(f"'{folder / MANIFEST}' is damaged ({error}): delete '{folder}' and try again") from error


def load_pointed(file: Path) -> PackedDataset:
    """Open the data set whose location is in `file` (see `write_pointer`), without checking its targets.

    Every task of a run calls this function, and the launcher has already checked the targets. Raises UserError if the
    file or the data set is missing or damaged.
    """
    try:
        return load_packed(Path(read_json(file, DatasetPointer).directory), check_targets=False)
    except FileNotFoundError as error:
        raise UserError(f"'{file}' is missing, so it is unknown where the data set is") from error


def _of_manifest(directory: Path, manifest: Manifest) -> PackedDataset:
    if manifest.format != FORMAT:
        raise Malformed(f"it has format {manifest.format} instead of {FORMAT}")
    if not manifest.sha256:
        raise Malformed("it has no checksums")
    for name in (TARGET, WEIGHT):
        if name in manifest.inputs:
            raise Malformed(f"an input is called '{name}', which is a reserved name")
    spec = SPEC_TYPE.validate_python(manifest.model_dump(include=_SPEC_FIELDS))
    train, test = manifest.train_examples, manifest.test_examples
    listed = "".join(f"{checksum}  {file}\n" for file, checksum in sorted(manifest.sha256.items()))
    return PackedDataset(
        manifest.name, manifest.kind, directory, spec, train, test, manifest.source, notes=tuple(manifest.notes),
        checksum=hashlib.sha256(listed.encode()).hexdigest(), file_rows=tuple(manifest.file_rows),
    )  # fmt: skip


def sizes(spec: ExampleSpec, examples: Mapping[str, int]) -> dict[str, int]:
    """Return the size in bytes of each file of a packed data set, by the file's name.

    `examples`: the number of examples in each split.
    """
    fields = fields_of(spec).items()
    return {
        file_name(split, name, field): count * field.row_bytes
        for split, count in examples.items()
        for name, field in fields
    }


def check_values(spec: ExampleSpec, split: str, rows: Mapping[str, FieldValues]) -> None:
    """Raise ValueError if targets [N, ...] or weights [N] of a split can't be used for training or scoring.

    `rows`: the arrays of the split, by the names that `fields_of` returns.
    """
    for name, of_one in spec.targets.items():
        for piece in pieces(rows[name]):
            OBJECTIVES[of_one.objective].check_target(piece, of_one)
    if (weight := rows.get(WEIGHT)) is None:
        return
    if np.dtype(weight.dtype).kind != "f" or len(weight.shape) != 1:
        raise ValueError(f"{split} weights are {weight.dtype} {list(weight.shape[1:])}, not one float for each example")
    largest = 0.0
    for piece in pieces(weight):
        if not np.isfinite(piece).all() or piece.min() < 0:
            wrong = piece[~(np.isfinite(piece) & (piece >= 0))][0]
            raise ValueError(f"a {split} weight is {wrong}: weights are finite and at least 0")
        largest = max(largest, float(piece.max()))
    if not largest:
        raise ValueError(f"all {split} weights are 0, so no example would count")


def pieces(rows: FieldValues, most_bytes: int = _PIECE_BYTES) -> Iterator[np.ndarray]:
    """Yield consecutive pieces of the rows, of at most `most_bytes` each. All rows together may exceed the memory."""
    row_bytes = np.dtype(rows.dtype).itemsize * math.prod(rows.shape[1:])
    at_once = max(1, most_bytes // max(1, row_bytes))
    for start in range(0, len(rows), at_once):
        yield rows[start : start + at_once]
