"""Hand what a script or a notebook has to the processes of a run: settings, arrays, functions, Keras models. No TensorFlow."""

from __future__ import annotations

import hashlib
import inspect
import io
import os
import re
import sys
import zipfile
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import CodeType
from typing import Any

import cloudpickle
import numpy as np

from ps_cluster.cli.options import CONFIG_OPTIONS, overrides
from ps_cluster.config import build_config
from ps_cluster.config.datasets import Contents
from ps_cluster.config.networks import arguments_taken
from ps_cluster.config.sections import flat, nested
from ps_cluster.config.user_code import PICKLE, Reference
from ps_cluster.config.user_layers import trusted
from ps_cluster.data import packed
from ps_cluster.data.cache import default_cache_dir, packed_folder
from ps_cluster.data.own_arrays import as_contents
from ps_cluster.data.packing import check_contents, checked_pieces, write_packed
from ps_cluster.data.sets.packed_arrays import PackedArrays, PackedImages
from ps_cluster.errors import UserError, did_you_mean
from ps_cluster.files import untrusted
from ps_cluster.files.values import Malformed, one_line
from ps_cluster.files.writable import check_folder
from ps_cluster.files.writing import write_whole
from ps_cluster.files.yaml_files import dump_yaml

# Turn keyword arguments into settings, with the names, types and ranges that the commands' options have.

_BY_OTHER_NAMES = ("data.dataset", "model.name")  # the arguments `data` and `model`


KEYWORDS = {
    option.partition("/")[0].removeprefix("--").replace("-", "_"): key
    for option, key in CONFIG_OPTIONS.items()
    if key not in _BY_OTHER_NAMES
}
"""Keyword → dotted key of its setting, for all options of the command `run` that are settings: "batch_size" for
--batch-size, "evaluator" for --evaluator/--no-evaluator."""


def values_of(options: Mapping[str, Any], settings: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return dotted key → value of keyword arguments, and under them of `settings`, as on the command line.

    Args:
      options: keyword → value; None counts as not given.
      settings: dotted keys or sections → values, any setting of docs/configuration.md.
    Raises:
      UserError: a keyword is unknown, or `settings` is no mapping.
    """
    check_known(options, KEYWORDS)
    if settings is not None and not isinstance(settings, Mapping):
        raise UserError(
            f"settings: got {one_line(repr(settings), 100)}: give a mapping, e.g. {{'optimizer.rule': 'adam'}}"
        )
    named = {KEYWORDS[name].replace(".", "__"): plain(value) for name, value in options.items()}
    return flat(plain(settings or {})) | overrides((), named)


# What Keras's `compile` and `fit` call things, and what does the same here.
_OF_KERAS = {
    "callbacks": "on_progress=function and on_evaluation=function are called while it trains; early stopping: return "
    "ps_cluster.STOP; the best model is always kept",
    "validation_data": "give the examples to test on with the data: data=((x_train, y_train), (x_test, y_test))",
    "validation_split": "settings={'data.held_out': 0.1} says which share is held out where no examples to test on are given",
    "x": "give the data as data=(x_train, y_train)",
    "y": "give the data as data=(x_train, y_train)",
    "sample_weight": "give weights with the data: data={'x_train': …, 'y_train': …, 'weight_train': …}",
    "class_weight": "settings={'training.class_weights': {'name of a class': 2.0}}",
    "optimizer": "compile() the model in your function, or settings={'optimizer.rule': 'adam'}",
    "loss": "compile() the model in your function with it",
    "metrics": "compile() the model in your function with them",
    "lr": "it is called learning_rate",
    "steps_per_epoch": "steps=… is the number of all updates; an epoch is all training examples once",
    "initial_epoch": "resume=RUN_DIR goes on with an earlier run",
    "shuffle": "examples are always shuffled, by seed=…",
    "verbose": "lines are printed by the program that trains; contextlib.redirect_stdout takes them",
}


def check_known(options: Iterable[str], known: Iterable[str]) -> None:
    """Raise UserError for the first of the keywords `options` that is not `known`."""
    for name in options:
        if name not in known:
            if name in _OF_KERAS:
                raise UserError(f"{name}: there is no such argument, which Keras has: {_OF_KERAS[name]}")
            hint = did_you_mean(name, known)
            raise UserError(
                f"{name}: there is no such argument: {hint}any setting goes into settings={{'section.key': …}}"
            )


def plain(value: Any) -> Any:
    """Return a value as YAML has it: paths as text, tuples as lists, numbers of NumPy as Python's."""
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, np.generic):
        return value.item()
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def new_folder(path: Any, keyword: str) -> Path:
    """Return the path of a folder that is going to be written. Raises UserError where it can't be."""
    try:
        folder = Path(path)
        check_folder(folder)
    except (TypeError, Malformed) as error:
        why = "is no path" if isinstance(error, TypeError) else error
        raise UserError(f"{keyword}: {one_line(repr(path), 100)} {why}: give a folder that can be written") from None
    return folder


def write_settings(file: Path, values: Mapping[str, Any]) -> None:
    """Write a file for --config. Relative paths of code are as seen from the current folder, and may be run now."""
    write_whole(file, dump_yaml(trusted(nested(values), Path.cwd())))


def show_keywords(function: Callable[..., Any], known: Iterable[str] = KEYWORDS) -> None:
    """Show `help()` and editors the keywords that `function` takes as `**options`."""
    signature = inspect.signature(function)
    named = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    taken = {one.name for one in named}
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in known if name not in taken
    ]
    function.__signature__ = signature.replace(parameters=[*named, *more])  # type: ignore[attr-defined]


# Describe a function so that two processes that define the same one describe it alike.

_CLASS_ID = re.compile("[0-9a-f]{32}")  # a random name that cloudpickle gives to a class
_PLACES = ("__firstlineno__", "__static_attributes__")  # of a class: where it is written, and a set without order


def described(function: Any) -> bytes:
    """Return bytes that change with what a function does and names, and not with the file or the lines it stands in.

    They may differ for equal functions that name a set of texts: its order differs from process to process.
    """
    stream = io.BytesIO()
    _Describer(stream).dump(function)
    return stream.getvalue()


def _code(code: CodeType) -> tuple[Any, ...]:
    constants = tuple(sorted(map(repr, one)) if isinstance(one, frozenset) else one for one in code.co_consts)
    names = (code.co_name, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    counts = (code.co_argcount, code.co_kwonlyargcount, code.co_flags)
    return tuple, ((code.co_code, code.co_exceptiontable, counts, names, constants),)


class _Describer(cloudpickle.Pickler):
    """Writes what `cloudpickle.dumps` writes, without what differs between processes. Nobody reads it back."""

    dispatch_table = ChainMap({CodeType: _code}, cloudpickle.Pickler.dispatch_table)

    def reducer_override(self, value: Any) -> Any:
        reduced = super().reducer_override(value)
        if not isinstance(value, type) or not isinstance(reduced, tuple) or len(reduced) < 4:  # named, not described
            return reduced
        make, arguments, (attributes, slots), *rest = reduced
        known = tuple(one for one in arguments if not (isinstance(one, str) and _CLASS_ID.fullmatch(one)))
        kept = {name: one for name, one in attributes.items() if name not in _PLACES}
        return (make, known, (kept, slots), *rest)


# Write what builds a network in a script or a notebook to files, for the processes that train.


def write_network(model: Any, folder: Path) -> str:
    """Write a function that builds a network, or a Keras model to go on from, to `folder`. Return its name in settings.

    The file's name changes with what the network is, and not with the process that sends it: the same function of a
    script that is started again has the same name. A name or a path is returned as it is.

    Raises:
      UserError: it is something else, takes other arguments, or names what can't leave this process.
    """
    if isinstance(model, str | os.PathLike):
        return os.fspath(model)
    folder = folder.absolute()
    keras = sys.modules.get("keras")  # whoever has a model has imported it; here it would take seconds
    if keras is not None and isinstance(model, keras.Model):
        return str(_saved(model, folder))
    if not callable(model):
        raise UserError(f"model: got {type(model).__name__}: give a name, a path, a function or a Keras model")
    name = name_of(model)
    arguments_taken(model)
    try:
        content, description = cloudpickle.dumps({name: model}), described(model)
    except Exception as error:
        told = one_line(f"{type(error).__name__}: {error}", 300)
        raise UserError(f"model: the function '{name}' can't be sent to the processes that train: {told}") from error
    file = folder / f"{name}-{_digest(description)}{PICKLE}"
    write_whole(file, content)
    return str(Reference(file, name))


def name_of(model: Any) -> str:
    """Return the name of a function or a Keras model; "build" for one without a name, such as a lambda."""
    name = getattr(model, "__name__", "") or getattr(model, "name", "")
    return name if name.isidentifier() else "build"


def _saved(model: Any, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "model.keras"
    model.save(file)
    with zipfile.ZipFile(file) as archive:  # beside its layers, the file has the time, and addresses of objects
        layers = re.sub(rb'"shared_object_id": \d+', b"", archive.read("config.json"))
    weights = (f"{one.dtype} {one.shape}".encode() + one.tobytes() for one in map(np.asarray, model.get_weights()))
    return file.replace(folder / f"model-{_digest(layers, *weights)}.keras")


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()[:8]


# Pack arrays that a script holds, so that the processes of a run can map them.
#
# The folder's name comes from the content. So the same arrays are packed once, and others never take their place.


def with_data(values: Mapping[str, Any], data: Any, notify: Callable[[str], None]) -> dict[str, Any]:
    """Return dotted key → value, `values` with the settings that choose `data`. Arrays are packed first.

    Args:
      data: in one of the forms of docs/python-api.md; None: as `values` say.
    Raises:
      UserError: it has another form, or the arrays can't be packed.
    """
    if data is None:
        return dict(values)
    if isinstance(data, str | os.PathLike):
        return {**values, "data.dataset": os.fspath(data)}
    contents = _contents(data() if callable(data) else data, values)
    kind = PackedImages if contents.spec.unit == "images" else PackedArrays
    dataset = _packed(contents, kind.name, notify)
    for note in dataset.notes:
        notify(note)
    return {**values, "data.dataset": kind.name, "data.data_dir": str(dataset.directory)}


def _contents(found: Any, values: Mapping[str, Any]) -> Contents:
    """Return what was given as contents, by the settings `data.objective` and `data.held_out` in `values`."""
    settings = build_config(None, {**values, "data.dataset": PackedImages.name}).data
    try:
        return as_contents(found, settings)
    except Malformed as error:
        raise UserError(f"data: {error}") from error


def _packed(contents: Contents, name: str, notify: Callable[[str], None]) -> packed.PackedDataset:
    cache = default_cache_dir()
    untrusted.check_folder(cache, "cache (PS_CLUSTER_CACHE)", notify)
    try:
        check_contents(contents)
        folder = packed_folder(cache) / f"arrays-{_digest_of(contents)}"
    except ValueError as error:
        raise UserError(f"data: {error}") from error
    try:
        return packed.load_packed(folder)
    except UserError:  # missing or damaged
        return write_packed(folder, name, "real", contents, notify=notify)


def _digest_of(contents: Contents) -> str:
    """Return a name that changes with every value, and with all that `Contents` says of them."""
    digest = hashlib.blake2b(repr(contents.spec).encode(), digest_size=12)
    for split, fields in contents.arrays.items():
        for name, rows in fields.items():
            digest.update(f"{split} {name} {rows.dtype} {rows.shape}".encode())
            for piece in checked_pieces(f"{split} '{name}'", rows):
                digest.update(np.ascontiguousarray(piece).data)
    return digest.hexdigest()
