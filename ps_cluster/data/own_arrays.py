"""Turn users' arrays, from a function, an .npz file or .npy files, into the contents of a data set."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import replace
from typing import TypeVar, get_args

import numpy as np

from ps_cluster.config.datasets import SPLITS, Contents, DataSettings, OwnDataSettings
from ps_cluster.config.objectives import TARGET, WEIGHT, ArrayField, numbered_output, refuse_sparse
from ps_cluster.data.holding_out import contents_of, hold_out
from ps_cluster.data.lazy_rows import ChangedRows, IndexableRows
from ps_cluster.data.targets import Targets, targets_of
from ps_cluster.data.text_rows import TextRows, is_text, text_field, text_pieces, text_size_of
from ps_cluster.files.values import Malformed, one_line
from ps_cluster.runs.dataset_rows import DType

T = TypeVar("T")
REQUIRED = ("x_train", "y_train")
NAMES = (*REQUIRED, "x_test", "y_test", "weight_train", "weight_test")
_DTYPES = get_args(DType)
OUTPUT_NAME = r"[a-z][a-z0-9_]{0,39}"  # it is part of the name of a file
_SAMPLED_EXAMPLES = 100  # how many examples are examined to recognise numbers as pixels


def as_contents(found: object, settings: DataSettings) -> Contents:
    """Convert arrays from a user's code or file to the contents of a data set. Raises Malformed if that is impossible.

    Args:
      found: one of these:
        - `Contents`;
        - a mapping with the arrays x_train, y_train, and perhaps x_test, y_test, weight_train, weight_test;
        - (x_train, y_train), or ((x_train, y_train), (x_test, y_test)) as Keras returns them.
        Arrays may be memory maps. For a network with several inputs, x_train and x_test are mappings from the names of
        the inputs to arrays. For a network with a target for each output, y_train and y_test are mappings from the
        names of the outputs to arrays, or tuples of arrays in the order of the outputs. A run reports the metric of the
        first output.
    """
    if isinstance(found, Contents):
        return found
    own = settings if isinstance(settings, OwnDataSettings) else OwnDataSettings(dataset=settings.dataset)
    by_name = _arrays_by_name(found)
    given = {name: value for name in NAMES if (value := by_name.get(name)) is not None}
    if missing := [name for name in REQUIRED if name not in given]:
        there = one_line(", ".join(map(str, by_name)), 300) or "nothing"
        raise Malformed(
            f"{missing[0]} is missing, got {there}: give x_train and y_train, and x_test and y_test if you have them"
        )
    outputs, weights = _by_split(given, "y", _by_output), _by_split(given, "weight", checked_rows)
    _check_same("y", "outputs", outputs, [split for split, rows in outputs.items() if "" in rows])
    inputs = _by_split(given, "x", _inputs)
    first, *further = outputs["train"]
    _check_lengths(inputs, "y", {split: rows[first] for split, rows in outputs.items()})
    _check_lengths(inputs, "weight", weights)
    if "test" in inputs and "test" not in outputs:
        raise Malformed("there is x_test, but y_test is missing")
    targets = _targets(outputs, first, own.objective)
    others = {name: _targets(outputs, name, "auto") for name in further}
    _check_same("x", "inputs", inputs, [split for split in inputs if not isinstance(given[f"x_{split}"], Mapping)])
    inputs = _with_texts(inputs)
    rows = [inputs[split] | _weights(weights, split, len(outputs[split][first])) for split in outputs]
    held_out = hold_out(targets, own.held_out)
    contents = contents_of(targets, held_out, *rows, output=first if others else "", others=others)
    fields = dict(contents.spec.inputs)
    fields |= {name: text_field(fields[name]) for name, rows in inputs["train"].items() if isinstance(rows, TextRows)}
    contents = replace(contents, spec=replace(contents.spec, inputs=fields))
    unused = [str(name) for name in by_name if name not in NAMES]
    notes = (f"not used: {one_line(', '.join(unused), 300)}",) if unused else ()
    of_labels = _notes_on_labels(targets.classes, np.asarray(outputs["train"][first][:1]))
    return replace(contents, notes=(*notes, *_notes_on_pixels(inputs["train"]), *of_labels, *contents.notes))


def is_image(dtype: np.dtype | str, shape: tuple[int, ...]) -> bool:
    """Return whether rows of this dtype and shape are images: uint8 of [height, width] or [height, width, 1 or 3]."""
    return ArrayField(str(dtype), shape if len(shape) == 3 else (*shape, 1)).is_image


def _arrays_by_name(found: object) -> Mapping[str, object]:
    if isinstance(found, Mapping):
        return found
    if isinstance(found, tuple | list) and len(found) == 2:
        if all(isinstance(part, tuple | list) and len(part) == 2 for part in found):
            return dict(zip(NAMES, (*found[0], *found[1])))
        return dict(zip(REQUIRED, found))
    what = f"{type(found).__name__} of {len(found)}" if isinstance(found, tuple | list) else type(found).__name__
    raise Malformed(
        f"got {what}: give (x_train, y_train), ((x_train, y_train), (x_test, y_test)), a mapping with "
        f"{', '.join(NAMES[:4])}, or Contents"
    )


def _by_split(given: Mapping[str, object], what: str, read: Callable[[str, object], T]) -> dict[str, T]:
    """Call `read` with the name and the value of each array `<what>_<split>` in `given`. Return the results by split.

    If `what` is "y", for example, the arrays are y_train and y_test.
    """
    names = {split: f"{what}_{split}" for split in SPLITS}
    return {split: read(name, given[name]) for split, name in names.items() if name in given}


def checked_rows(name: str, value: object) -> IndexableRows:
    """Return an array unchanged, and any other value converted to an array. Raises Malformed if that is impossible."""
    refuse_sparse(name, value)
    if isinstance(value, np.ma.MaskedArray):
        raise Malformed(f"{name} is a masked array, and masks are not used: give its values, e.g. {name}.filled(0)")
    rows: IndexableRows
    if isinstance(value, IndexableRows) and isinstance(value.dtype, np.dtype) and not hasattr(value, "iloc"):
        rows = value
    else:  # pandas has `iloc`, and looks rows up by label
        rows = _as_array(name, value)
    if not rows.shape:
        raise Malformed(f"{name} is {type(value).__name__}, which has no rows: give an array")
    if not len(rows):
        raise Malformed(f"{name} has no rows")
    return rows


def _as_array(name: str, value: object) -> np.ndarray:
    is_text = isinstance(value, list | tuple) and value and isinstance(value[0], str)
    try:  # strings become objects, because in an array of numpy strings each takes as much memory as the longest
        return np.asarray(value, object if is_text else None)
    except Exception as error:  # the class of the value may raise any exception
        why = one_line(f"{type(error).__name__}: {error}", 200)
        raise Malformed(
            f"{name} is {type(value).__name__}, which can't become an array: give rows of one shape ({why})"
        ) from error


def _by_output(name: str, value: object) -> dict[str, IndexableRows]:
    """Return the targets by the names of their outputs, from a mapping or a tuple. A single array has the name ""."""
    if isinstance(value, tuple) and len(value) > 1 and all(getattr(one, "shape", None) for one in value):
        value = {numbered_output(place): one for place, one in enumerate(value)}
    if not isinstance(value, Mapping):
        return {"": checked_rows(name, value)}
    if unnamed := [key for key in value if not isinstance(key, str) or not re.fullmatch(OUTPUT_NAME, key)]:
        raise Malformed(
            f"{name} has a target for output {one_line(repr(unnamed[0]), 100)}: give the output a name of lower case letters, "
            "digits and _, beginning with a letter"
        )
    return _arrays_of_one_length(name, "target", value)


def _arrays_of_one_length(name: str, what: str, value: Mapping[str, object]) -> dict[str, IndexableRows]:
    """Return the arrays of a mapping, which must have equally many rows. `what`: the noun for an array in messages."""
    if not value:
        raise Malformed(f"{name} has no {what}")
    found = {key: checked_rows(f"{name}['{key}']", one) for key, one in value.items()}
    if len({len(rows) for rows in found.values()}) > 1:
        counts = ", ".join(f"'{key}' has {len(rows):,}" for key, rows in found.items())
        raise Malformed(f"the {what}s of {name} have different numbers of rows: {one_line(counts, 300)}")
    return found


def _targets(outputs: Mapping[str, Mapping[str, IndexableRows]], name: str, objective: str) -> Targets:
    """Return the targets of an output. Raises Malformed, with the name of the output, if they can't be trained on."""
    test = _without_objects(outputs["test"][name][:]) if "test" in outputs else None
    try:
        return targets_of(_without_objects(outputs["train"][name][:]), test, objective)
    except Malformed as error:
        raise Malformed(f"output '{name}': {error}" if name else str(error)) from error


def _without_objects(targets: np.ndarray) -> np.ndarray:
    """Return Python strings, e.g. from a column of pandas, as numpy strings. Other targets are returned unchanged."""
    is_text = targets.dtype.kind == "O" and targets.size and all(isinstance(one, str) for one in targets.flat)
    return targets.astype(str) if is_text else targets


def _with_texts(inputs: Mapping[str, Mapping[str, IndexableRows]]) -> dict[str, dict[str, IndexableRows]]:
    """Return inputs by split, with texts as rows of code points that have the same length and dtype in all splits."""
    found = {split: dict(rows) for split, rows in inputs.items()}
    for name in found["train"]:
        parts = [rows[name] for rows in found.values()]
        if any(map(is_text, parts)):
            if not all(map(is_text, parts)):
                raise Malformed(
                    f"the input '{name}' is text in x_train or x_test, but not in both: give the same type in both"
                )
            size = text_size_of(f"'{name}'", (piece for rows in parts for piece in text_pieces(rows)))
            for rows in found.values():
                rows[name] = TextRows(rows[name], size)
    return found


def _check_lengths(inputs: Mapping[str, Mapping[str, Sized]], what: str, found: Mapping[str, Sized]) -> None:
    """Raise Malformed if the inputs and the targets (or weights) of a split have different numbers of rows.

    `found`: the targets or weights of each split. A split without inputs is an error too. `what`: "y" or "weight", for
    messages.
    """
    for split, rows in found.items():
        if split not in inputs:
            raise Malformed(f"there is {what}_{split}, but x_{split} is missing")
        examples = len(next(iter(inputs[split].values())))
        if len(rows) != examples:
            raise Malformed(f"x_{split} has {examples:,} rows, and {what}_{split} has {len(rows):,}")


def _inputs(name: str, value: object) -> dict[str, IndexableRows]:
    """Return the inputs in a form that can be packed. An unnamed input is called "image" or "x"."""
    if not isinstance(value, Mapping):
        rows = checked_rows(name, value)
        shape = rows.shape[1:]
        if not is_image(rows.dtype, shape):
            return {"x": _packable(name, rows)}
        return {"image": rows if len(shape) == 3 else ChangedRows(rows, lambda piece: piece[..., None])}
    if reserved := [
        key for key in value if not isinstance(key, str) or key in (TARGET, WEIGHT) or not key.isidentifier()
    ]:
        raise Malformed(
            f"{name} has an input called {one_line(repr(reserved[0]), 100)}: give it another name, such as 'x1'"
        )
    found = _arrays_of_one_length(name, "input", value)
    return {key: _packable(f"{name}['{key}']", rows) for key, rows in found.items()}


def _packable(name: str, rows: IndexableRows) -> IndexableRows:
    """Return rows in the byte order of this machine. Raises Malformed if rows of their dtype can't be packed.

    Rows of single numbers, [N], become [N, 1]. Texts stay as they are, because `_with_texts` turns them into numbers.
    """
    if is_text(rows):
        return rows
    dtype = rows.dtype.newbyteorder("=")
    if dtype.name not in _DTYPES:
        raise Malformed(f"{name} is {rows.dtype}: give one of {', '.join(_DTYPES)}, e.g. {name}.astype('float32')")
    if not rows.shape[1:]:
        return ChangedRows(rows, lambda piece: piece[:, None].astype(dtype))
    return rows if rows.dtype.isnative else ChangedRows(rows, lambda piece: piece.astype(dtype))


def _check_same(
    axis: str, what: str, found: Mapping[str, Mapping[str, IndexableRows]], without_names: Sequence[str]
) -> None:
    """Raise Malformed if the test examples have other inputs or outputs than the training examples.

    `axis`, `what`: "x" and "inputs", or "y" and "outputs", for messages. `found`: the arrays of each split, by name.
    `without_names`: the splits in which the user has given one array instead of a mapping.
    """
    train, test = found["train"], found.get("test", found["train"])
    if set(train) == set(test):
        return
    if len(without_names) == 2:  # two arrays without names differ only if one of them is read as images
        image, other = ("train", "test") if "image" in train else ("test", "train")
        rows, name = found[other]["x"], f"{axis}_{other}"
        if rows.dtype == np.uint8:
            why, advice = f"has rows of shape {list(rows.shape[1:])}", "give both in the same shape"
        else:
            why, advice = f"is {rows.dtype}", f"give both with the same dtype, e.g. {name}.astype('uint8')"
        raise Malformed(f"{axis}_{image} is read as images because it is uint8, and {name} {why}: {advice}")
    if without_names:
        (plain,) = without_names
        named = "test" if plain == "train" else "train"
        names = one_line(", ".join(found[named]), 300)
        raise Malformed(
            f"{axis}_{named} has the {what} {names}, but {axis}_{plain} is one array without names: give both as dictionaries "
            "with the same names"
        )
    missing, more = ([name for name in one if name not in other] for one, other in ((train, test), (test, train)))
    differs = f"has no '{missing[0]}'" if missing else f"also has '{more[0]}'"
    raise Malformed(f"{axis}_train has the {what} {one_line(', '.join(train), 300)}, but {axis}_test {differs}")


def _notes_on_pixels(inputs: Mapping[str, IndexableRows]) -> tuple[str, ...]:
    """Return a line if the input looks like images but is not uint8, the dtype of images; else ()."""
    ((name, rows), *others) = inputs.items()
    is_shaped = name == "x" and not others and is_image("uint8", rows.shape[1:]) and min(rows.shape[1:3]) >= 8
    if not is_shaped or rows.dtype == np.uint8:
        return ()
    first = np.asarray(rows[:_SAMPLED_EXAMPLES])
    if not ((first >= 0) & (first <= 255) & (first == np.round(first))).all() or first.max() < 2:
        return ()
    return (
        f"x_train is {rows.dtype}, and looks like pixels from 0 to 255: to use it as images, give x_train.astype('uint8')",
    )


def _weights(given: Mapping[str, IndexableRows], split: str, examples: int) -> dict[str, np.ndarray]:
    """Return the weights of a split, float32 [N], by the name of their field. The result is {} if no split has weights.

    If only the other split has weights, all weights of this split are 1. `examples`: N.
    """
    if not given:
        return {}
    weights = np.asarray(given[split][:]) if split in given else np.ones(examples)
    if weights.dtype.kind not in "iuf" or weights.size != len(weights):
        raise Malformed(
            f"weight_{split} is {weights.dtype} {list(weights.shape[1:])}: give one number for each example"
        )
    return {WEIGHT: weights.reshape(-1).astype(np.float32)}


def _notes_on_labels(classes: Sequence[str], first: np.ndarray) -> tuple[str, ...]:
    """Return a line if the labels are renumbered, because they do not run from 0 without gaps; else ().

    `classes`: the names of the classes. `first`: the first target, as the user gave it.
    """
    if first.dtype.kind not in "iuf" or not classes or classes == tuple(map(str, range(len(classes)))):
        return ()
    named = ", ".join(classes[:3]) + ", …" * (len(classes) > 3)
    return (
        f"the labels do not go from 0 without gaps: the {len(classes):,} classes {named} are numbered 0, 1, … in this order",
    )
