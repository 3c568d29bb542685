"""Open users' .npy and .npz files: mapped, not read, where that is possible; no code in them is run."""

from __future__ import annotations

import io
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, get_args

import numpy as np

from ps_cluster.config.datasets import SPLITS, Contents, DataSettings, OwnDataSettings
from ps_cluster.config.objectives import TARGET, WEIGHT, Field, Rows, refuse_sparse
from ps_cluster.data.targets import contents_of, split_of, targets_of
from ps_cluster.files.reading import most_memory, open_regular
from ps_cluster.files.values import Malformed, one_line
from ps_cluster.runs.rows import DType

MOST_MEMBERS = 1000
_PIECE_BYTES = 2**20
_HEADER_BYTES = 10_000
_LOCAL = struct.Struct("<26x2H")  # ends with the lengths of a member's name and of its extra field


class ArrayForm(NamedTuple):
    """The dtype and shape of an array in a file. `begin`: where its values begin, in bytes."""

    dtype: np.dtype
    shape: tuple[int, ...]
    order: Literal["C", "F"]
    begin: int


def form_of(path: Path, name: str) -> ArrayForm | None:
    """Return the form of the array `name` in an .npz, or in the folder of an .npy; None if it can't be read."""
    try:
        if path.is_dir():
            with open_regular(path / f"{name}.npy") as file:
                return _form(name, file)
        with open_regular(path) as file, zipfile.ZipFile(file) as archive, archive.open(f"{name}.npy") as member:
            return _form(name, member)  # type: ignore[arg-type]  # it is a file for reading
    except (OSError, KeyError, ValueError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError):
        return None


def open_folder(folder: Path) -> Mapping[str, np.ndarray]:
    """Return the arrays of all .npy files of a folder by name, mapped."""
    return {file.stem: open_npy(file) for file in sorted(folder.glob("*.npy"))}


def open_npz(path: Path) -> Mapping[str, np.ndarray]:
    """Return the arrays of an .npz by name: mapped; compressed ones are read into memory, within limits.

    Raises:
      Malformed: damaged, of another kind, or too large.
    """
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            infos = archive.infolist()
            compressed = sum(info.file_size for info in infos if info.compress_type != zipfile.ZIP_STORED)
            if len(infos) > MOST_MEMBERS:
                raise Malformed(f"it has more than {MOST_MEMBERS:,} members")
            if compressed > (most := most_memory(path.stat().st_size)):
                raise Malformed(
                    f"its compressed arrays have {compressed / 1e9:.1f} GB, more than the {most / 1e9:.1f} that a file of its "
                    "size may take in memory: save them by numpy.savez, or as .npy files"
                )
            return {info.filename.removesuffix(".npy"): _member(path, file, archive, info) for info in infos}
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, struct.error) as error:
        raise Malformed(f"is no .npz file, or damaged ({one_line(str(error), 200)})") from error


def open_npy(path: Path) -> np.ndarray:
    """Return the array of an .npy, mapped. Errors as in `open_npz`."""
    with open_regular(path) as file:
        return _mapped(path, path.name, _form(path.name, file), os.fstat(file.fileno()).st_size)


def _member(path: Path, file: BinaryIO, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    name = info.filename
    if info.compress_type == zipfile.ZIP_STORED and not info.flag_bits & 1:
        file.seek(info.header_offset)
        name_bytes, extra_bytes = _LOCAL.unpack(file.read(_LOCAL.size))
        begin = info.header_offset + _LOCAL.size + name_bytes + extra_bytes
        file.seek(begin)
        return _mapped(path, name, _form(name, file), begin + info.file_size)
    with archive.open(info) as member:
        found = _form(name, member)  # type: ignore[arg-type]  # it is a file for reading
        content = bytearray()
        while piece := member.read(_PIECE_BYTES):  # all at once would be there twice
            content += piece
    _check_size(name, found, len(content))
    return np.ndarray(found.shape, found.dtype, content, order=found.order)


def _mapped(path: Path, name: str, form: ArrayForm, end: int) -> np.ndarray:
    """Map an array of a file. `end`: of its values, in bytes."""
    _check_size(name, form, end - form.begin)
    if 0 in form.shape:
        return np.empty(form.shape, form.dtype)
    return np.memmap(path, form.dtype, "r", form.begin, form.shape, form.order)


def _check_size(name: str, form: ArrayForm, size: int) -> None:
    needed = form.dtype.itemsize * int(np.prod(form.shape, dtype=object))
    if needed > size:
        raise Malformed(f"{name} ends after {max(0, size):,} of {needed:,} bytes")


def _form(name: str, file: BinaryIO) -> ArrayForm:
    """Read the header of an array, and leave the file behind it. Raises Malformed if it is none, or holds objects."""
    start, beginning = file.tell(), io.BytesIO(file.read(_HEADER_BYTES))
    try:
        version = np.lib.format.read_magic(beginning)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, column_order, dtype = read(beginning)
    except (ValueError, KeyError, TypeError, EOFError, RecursionError, MemoryError, SyntaxError) as error:
        raise Malformed(f"{name} is no array that numpy.save has written") from error
    if dtype.hasobject:
        raise Malformed(f"{name} holds Python objects, which could run code: save plain arrays of numbers")
    if min(shape, default=0) < 0:
        raise Malformed(f"{name} has the shape {list(shape)}")
    file.seek(begin := start + beginning.tell())
    return ArrayForm(dtype, shape, "F" if column_order else "C", begin)


# Turn arrays that users bring into the contents of a data set: those of a function, of an .npz or of .npy files.

NEEDED = ("x_train", "y_train")
NAMES = (*NEEDED, "x_test", "y_test", "weight_train", "weight_test")
_DTYPES = get_args(DType)
_LOOKED_AT = 100  # examples that tell whether numbers are pixels


def as_contents(found: Any, settings: DataSettings) -> Contents:
    """Return the contents of a data set for what a user's function returned.

    Args:
      found: `Contents`; or a mapping with the arrays x_train, y_train, and perhaps x_test, y_test, weight_train,
        weight_test; or (x_train, y_train); or Keras's ((x_train, y_train), (x_test, y_test)). Arrays may be memory maps.
        For a network with several inputs, x_train and x_test are mappings: name of an input → array.

    Raises:
      Malformed: it is something else, or the arrays do not fit each other.
    """
    if isinstance(found, Contents):
        return found
    own = settings if isinstance(settings, OwnDataSettings) else OwnDataSettings(dataset=settings.dataset)
    given = _by_name(found)
    unused = [name for name in given if name not in NAMES]
    if missing := [name for name in NEEDED if given.get(name) is None]:
        there = one_line(", ".join(map(str, given)), 300) or "nothing"
        raise Malformed(
            f"{missing[0]} is missing, there is {there}: give x_train, y_train, and x_test, y_test if you have them"
        )
    arrays = {name: _rows(name, given[name]) for name in NAMES if given.get(name) is not None and name[0] != "x"}
    inputs = {
        split: _inputs(f"x_{split}", given[f"x_{split}"]) for split in SPLITS if given.get(f"x_{split}") is not None
    }
    arrays |= {f"x_{split}": next(iter(fields.values())) for split, fields in inputs.items()}
    _check_lengths(arrays)
    y_test = arrays["y_test"][:] if "y_test" in arrays else None
    targets = targets_of(arrays["y_train"][:], y_test, own.objective)
    splits = ("train",) if y_test is None else ("train", "test")
    _check_same_inputs(inputs)
    rows = [inputs[split] | _weights(arrays, split) for split in splits]
    contents = contents_of(targets, split_of(targets, own.held_out), *rows)
    notes = (f"not used: {one_line(', '.join(map(str, unused)), 300)}",) if unused else ()
    told = (*_notes_on_pixels(inputs["train"]), *_notes_on_labels(targets.classes, np.asarray(arrays["y_train"][:1])))
    return replace(contents, notes=(*notes, *told, *contents.notes))


def is_image(dtype: Any, shape: tuple[int, ...]) -> bool:
    """Return whether rows of this form are images: uint8 of [height, width], with 1 or 3 channels."""
    return Field(str(dtype), shape if len(shape) == 3 else (*shape, 1)).is_image


def _by_name(found: Any) -> Mapping[str, Any]:
    if isinstance(found, Mapping):
        return found
    if isinstance(found, tuple | list) and len(found) == 2:
        if all(isinstance(part, tuple | list) and len(part) == 2 for part in found):
            return dict(zip(NAMES, (*found[0], *found[1])))
        return dict(zip(NEEDED, found))
    what = f"{type(found).__name__} of {len(found)}" if isinstance(found, tuple | list) else type(found).__name__
    raise Malformed(
        f"got {what}: give (x_train, y_train), ((x_train, y_train), (x_test, y_test)), a mapping with "
        f"{', '.join(NAMES[:4])}, or Contents"
    )


def _rows(name: str, value: Any) -> Any:
    """Return an array as it is, anything else as one. Raises Malformed for what is none, or has no rows."""
    refuse_sparse(name, value)
    if isinstance(value, np.ma.MaskedArray):
        raise Malformed(f"{name} is a masked array, and masks are not used: give its values, e.g. {name}.filled(0)")
    by_place = not hasattr(value, "iloc")  # pandas finds rows by their label
    usable = by_place and isinstance(value, Rows) and isinstance(value.dtype, np.dtype)
    rows = value if usable else _as_array(name, value)
    if not rows.shape:
        raise Malformed(f"{name} is {type(value).__name__}, which has no rows: give an array")
    if not len(rows):
        raise Malformed(f"{name} has no rows")
    return rows


def _as_array(name: str, value: Any) -> np.ndarray:
    try:
        array = np.asarray(value)
    except Exception as error:  # whatever the value's own class raises
        told = one_line(f"{type(error).__name__}: {error}", 200)
        raise Malformed(
            f"{name} is {type(value).__name__}, of which no array can be made: give rows of one shape ({told})"
        ) from error
    if array.dtype.kind == "O" and array.size and all(isinstance(one, str) for one in array.flat):
        return array.astype(str)  # a column of pandas
    return array


def _check_lengths(arrays: Mapping[str, Any]) -> None:
    """Raise Malformed where an array lacks its partner, or has another length."""
    for name in NAMES[1:]:
        x = f"x_{name.rpartition('_')[2]}"
        if name in arrays and x not in arrays:
            raise Malformed(f"{x} is missing, and there is {name}")
        if name in arrays and len(arrays[name]) != len(arrays[x]):
            raise Malformed(f"{x} has {len(arrays[x]):,} rows, and {name} has {len(arrays[name]):,}")
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise Malformed("y_test is missing, and there is x_test")


def _inputs(name: str, value: Any) -> dict[str, Any]:
    """Return the inputs in a form that can be packed: a single one as "image" or "x", several by the names they have."""
    if not isinstance(value, Mapping):
        rows = _rows(name, value)
        shape = rows.shape[1:]
        if not is_image(rows.dtype, shape):
            return {"x": _packable(name, rows)}
        return {"image": rows if len(shape) == 3 else ChangedRows(rows, lambda piece: piece[..., None])}
    if not value:
        raise Malformed(f"{name} has no input")
    if reserved := [
        key for key in value if not isinstance(key, str) or key in (TARGET, WEIGHT) or not key.isidentifier()
    ]:
        raise Malformed(
            f"{name} has an input called {one_line(repr(reserved[0]), 100)}: give it another name, such as 'x1'"
        )
    found = {key: _packable(f"{name}['{key}']", _rows(f"{name}['{key}']", one)) for key, one in value.items()}
    if len(lengths := {len(rows) for rows in found.values()}) > 1:
        told = ", ".join(f"'{key}' has {len(rows):,}" for key, rows in found.items())
        raise Malformed(f"the inputs of {name} have {len(lengths)} different numbers of rows: {one_line(told, 300)}")
    return found


def _packable(name: str, rows: Any) -> Any:
    """Return rows of a dtype that can be packed, in the machine's own byte order, and of at least one number each."""
    dtype = rows.dtype.newbyteorder("=")
    if dtype.name not in _DTYPES:
        raise Malformed(f"{name} is {rows.dtype}: give one of {', '.join(_DTYPES)}, e.g. {name}.astype('float32')")
    if not rows.shape[1:]:
        return ChangedRows(rows, lambda piece: piece[:, None].astype(dtype))
    return rows if rows.dtype.isnative else ChangedRows(rows, lambda piece: piece.astype(dtype))


def _check_same_inputs(inputs: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise Malformed where the examples to test on have other inputs."""
    for split, fields in inputs.items():
        if different := sorted(set(fields) ^ set(inputs["train"])):
            raise Malformed(
                f"x_train has the inputs {', '.join(inputs['train'])}, and x_{split} differs in '{different[0]}'"
            )


def _notes_on_pixels(inputs: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a line about an input that looks like images of another dtype than uint8: networks for images take that."""
    ((name, rows), *others) = inputs.items()
    if (
        others
        or name != "x"
        or rows.dtype == np.uint8
        or not is_image(np.dtype(np.uint8), rows.shape[1:])
        or min(rows.shape[1:3]) < 8
    ):
        return ()
    first = np.asarray(rows[:_LOOKED_AT])
    if not ((first >= 0) & (first <= 255) & (first == np.round(first))).all() or first.max() < 2:
        return ()
    return (
        f"x_train is {rows.dtype}, and looks like pixels from 0 to 255: x_train.astype('uint8') makes images of it",
    )


def _weights(arrays: Mapping[str, Any], split: str) -> dict[str, Any]:
    """Return the weights float32 [N], if there are any; 1 for each where only the other split has some."""
    if not {"weight_train", "weight_test"} & arrays.keys():
        return {}
    found = arrays.get(f"weight_{split}")
    if found is None:
        return {WEIGHT: np.ones(len(arrays[f"x_{split}"]), np.float32)}
    weights = np.asarray(found[:])
    if weights.dtype.kind not in "iuf" or weights.size != len(weights):
        raise Malformed(
            f"weight_{split} is {weights.dtype} {list(weights.shape[1:])}: give one number for each example"
        )
    return {WEIGHT: weights.reshape(-1).astype(np.float32)}


def _notes_on_labels(classes: Sequence[str], first: np.ndarray) -> tuple[str, ...]:
    """Return a line about labels that are numbered anew, because they do not go from 0 without gaps."""
    if first.dtype.kind not in "iuf" or not classes or classes == tuple(map(str, range(len(classes)))):
        return ()
    named = ", ".join(classes[:3]) + ", …" * (len(classes) > 3)
    return (
        f"the labels do not go from 0 without gaps: the {len(classes):,} classes {named} are numbered 0, 1, … in this order",
    )


class ChangedRows:
    """Rows of another dtype or shape: `change` makes them, piece by piece."""

    def __init__(self, rows: Rows, change: Callable[[np.ndarray], np.ndarray]):
        self._rows, self._change = rows, change
        like = change(np.asarray(rows[:1]))
        self.dtype, self.shape = like.dtype, (len(rows), *like.shape[1:])

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, part: slice | np.ndarray) -> np.ndarray:
        return self._change(np.asarray(self._rows[part]))  # type: ignore[index]  # an array of ids, if the rows take one
