"""Read examples for predictions, one batch at a time, from images, folders of images, arrays and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ps_cluster.config.objectives import TEXT, ArrayField, ExampleSpec
from ps_cluster.data.array_files import open_npy, open_npz
from ps_cluster.data.folders import files_below, not_read
from ps_cluster.data.pictures import ENDINGS, Images, Picture, Size, inspect_pictures, is_picture
from ps_cluster.data.table_encoding import Encoding
from ps_cluster.data.table_files import TABLES, arrow_errors, ending_of, open_tables
from ps_cluster.data.text_rows import is_text
from ps_cluster.errors import UserError
from ps_cluster.evaluation.predictor import TrainedRun
from ps_cluster.files.reading import bounded_memory, open_regular
from ps_cluster.files.values import Malformed
from ps_cluster.notices import Notify

BATCH_SIZE = 64


class NamedExamples(NamedTuple):
    """A batch of examples.

    Attributes:
      names: a name for each example.
      inputs: the raw examples, [B, ...], of each input, by the name of the input.
    """

    names: list[str]
    inputs: dict[str, np.ndarray]


# Yields the examples in files of one format. If a file can't be read, raises UserError with the file and the reason.
Reader = Callable[[Sequence[Path], TrainedRun], Iterator[NamedExamples]]


def _read_pictures(skip_bad: bool, notify: Notify, files: Sequence[Path], run: TrainedRun) -> Iterator[NamedExamples]:
    """Read images of any size and colour, and convert them in the same way as the training images."""
    (name, field), *others = run.spec.inputs.items()
    if others or not field.is_image:
        raise UserError(
            f"'{files[0]}' is read as a picture, but the network takes {run.spec}: give examples of this form"
        )
    for start in range(0, len(files), BATCH_SIZE):
        pictures = [Picture(str(file), partial(open_regular, file)) for file in files[start : start + BATCH_SIZE]]
        if skip_bad:
            wrong = [looked.wrong for looked in inspect_pictures(pictures, wholly=True)]
            for picture, why in zip(pictures, wrong):
                if why:
                    notify(f"skipped '{picture.name}', which can't be read ({why})")
            pictures = [picture for picture, why in zip(pictures, wrong) if not why]
        try:
            images = Images(pictures, Size(*field.shape))[:]
        except Malformed as error:
            raise UserError(str(error)) from error
        yield NamedExamples([picture.name for picture in pictures], {name: images})


def _read_arrays(files: Sequence[Path], run: TrainedRun) -> Iterator[NamedExamples]:
    """Read arrays saved by NumPy: a single array in an .npy file, or arrays named like the inputs in an .npz file."""
    for file in files:
        with reading(file):
            found = open_npz(file) if file.suffix.lower() == ".npz" else {"": open_npy(file)}
            arrays = _by_input(found, run.spec)
        yield from _in_batches(file, arrays, run.spec)


def _read_tables(files: Sequence[Path], run: TrainedRun) -> Iterator[NamedExamples]:
    """Read tables, and encode their columns in the same way as the columns of the training table."""
    known = run.dataset.encoding()
    if known is None:
        raise UserError(f"'{files[0]}' is a table, and the run was not trained on one: the network takes {run.spec}")
    encoding = Encoding(known)
    text = [one.name for one in known.categories if not {"true", "false"} >= set(one.values)] + encoding.texts
    for file in files:
        first = 0
        with reading(file), arrow_errors("it"):
            for inputs in encoding.encoded(open_tables({"": [file]}, text)[""]):
                yield from _in_batches(file, inputs, run.spec, first)
                first += len(next(iter(inputs.values())))


def batches_of(paths: Sequence[Path], run: TrainedRun, *, skip_bad: bool, notify: Notify) -> Iterator[NamedExamples]:
    """Yield all examples of files and folders in batches, in the order of `paths`. A folder is sorted by name.

    Args:
      skip_bad: skip and report images that can't be read.
    """
    pictures = partial(_read_pictures, skip_bad, notify)

    def reader_of(file: Path) -> Reader:
        arrays = _read_arrays if file.suffix.lower() in (".npy", ".npz") else pictures
        return _read_tables if ending_of(file) else arrays

    files = [file for path in paths for file in _files_of(path, notify)]
    for reader, group in groupby(files, reader_of):
        some = list(group)
        # Files other than images are read one by one, so that an error names the right file.
        for part in [some] if reader is pictures else [[file] for file in some]:
            yield from (batch for batch in _in_bounded_memory(reader(part, run), part) if batch.names)


def _in_bounded_memory(batches: Iterator[NamedExamples], files: Sequence[Path]) -> Iterator[NamedExamples]:
    """Yield `batches`, and limit the memory that may be used while each of them is read."""
    size_bytes = sum(file.stat().st_size for file in files)
    while True:
        with reading(files[0]), bounded_memory(size_bytes):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


def _files_of(path: Path, notify: Notify) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise UserError(
            f"there is no '{path}': give pictures, folders of pictures, arrays (.npy, .npz) or tables "
            f"({', '.join(TABLES)})"
        )
    below = list(files_below(path))
    found = sorted(file for file in below if is_picture(file.name))
    if not found:
        raise UserError(f"the folder '{path}' has no picture ({', '.join(ENDINGS)}): give a folder with pictures")
    for note in not_read([file for file in below if not is_picture(file.name)], path, "no pictures"):
        notify(note)
    return found


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Convert errors of the block to UserError with the name of the file."""
    try:
        yield
    except Malformed as error:
        raise UserError(f"'{file}': {error}") from error
    except OSError as error:
        raise UserError(f"'{file}' can't be read: {error.strerror or error}") from error


def _by_input(found: Mapping[str, np.ndarray], spec: ExampleSpec) -> dict[str, np.ndarray]:
    """Return the array of each input, [N, ...]. If there is one input and one array, the array may have any name."""
    if len(spec.inputs) == 1 and len(found) == 1:
        found = dict(zip(spec.inputs, found.values()))
    if missing := [name for name in spec.inputs if name not in found]:
        there = ", ".join(name for name in found if name) or "one array without a name"
        raise Malformed(f"there is no array '{missing[0]}', only {there}: save all inputs by name with numpy.savez")
    arrays = {name: _fitting_rows(name, found[name], field) for name, field in spec.inputs.items()}
    if len({len(rows) for rows in arrays.values()}) > 1:
        raise Malformed(
            "the arrays have different numbers of rows: "
            f"{', '.join(f'{len(rows)} rows of {name}' for name, rows in arrays.items())}"
        )
    return arrays


def _fitting_rows(name: str, given: np.ndarray, field: ArrayField) -> np.ndarray:
    """Return an array with a row for each example. Add missing axes to a single example and to grey images."""
    rows = given
    if field.is_image and field.shape[-1] == 1 and rows.shape[-2:] == field.shape[:2]:
        rows = rows[..., None]
    if rows.shape == field.shape:
        rows = rows[None]
    if field.dtype == TEXT and is_text(rows):
        rows = rows if rows.shape[1:] else rows[:, None]
    if rows.shape[1:] != field.shape or not _can_hold(rows, field.dtype):
        raise Malformed(
            f"an array is {given.dtype} {list(given.shape)}, and the network takes '{name}' as {field.dtype} "
            f"[N, {', '.join(map(str, field.shape))}]: convert it"
        )
    return rows


def _can_hold(rows: np.ndarray, dtype: str) -> bool:
    """Return whether an array may be cast to `dtype`.

    Only text may be cast to text, and floats may not be cast to integers. If `dtype` is an integer type, integers have
    to be in its range.
    """
    if dtype == TEXT:
        return is_text(rows)
    if rows.dtype.kind in "iu" and np.dtype(dtype).kind in "iu" and rows.size:
        limits = np.iinfo(dtype)
        return bool(limits.min <= rows.min() and rows.max() <= limits.max)
    return np.can_cast(rows.dtype, dtype, "same_kind")


def _in_batches(
    file: Path, arrays: Mapping[str, np.ndarray], spec: ExampleSpec, first: int = 0
) -> Iterator[NamedExamples]:
    """Yield the rows of arrays in batches. `first`: the position, within the file, of the arrays' first row."""
    count = len(next(iter(arrays.values())))
    for start in range(0, count, BATCH_SIZE):
        inputs = {
            name: np.ascontiguousarray(
                arrays[name][start : start + BATCH_SIZE], object if field.dtype == TEXT else field.dtype
            )
            for name, field in spec.inputs.items()
        }
        for name, field in spec.inputs.items():
            if field.codes and not ((inputs[name] >= 0) & (inputs[name] < field.codes)).all():
                raise UserError(
                    f"'{file}': '{name}' takes codes from 0 to {max(field.codes) - 1}, but has another value near row {start}"
                )
        names = [f"{file}[{first + row}]" for row in range(start, min(start + BATCH_SIZE, count))]
        yield NamedExamples(names, inputs)
