"""Run a command of this package in a process of its own, print its lines, and look after it until it has ended."""

from __future__ import annotations

import hashlib
import inspect
import io
import os
import re
import select
import signal
import subprocess
import sys
import time
import zipfile
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any

import cloudpickle
import numpy as np

from ps_cluster.cli.options import CONFIG_OPTIONS, overrides
from ps_cluster.config.layers import trusted, without_variables
from ps_cluster.config.networks import arguments_taken
from ps_cluster.config.registry import PICKLE, Reference
from ps_cluster.config.sections import flat, nested
from ps_cluster.errors import BAD_INPUT, TrainingFailed, UserError, did_you_mean
from ps_cluster.files.values import one_line
from ps_cluster.files.writing import write_whole
from ps_cluster.files.yaml_files import dump_yaml
from ps_cluster.installation import IMPORT_FOLDER
from ps_cluster.report.terminal import print_line
from ps_cluster.system.environment import CALLER_PID

COMMAND = (sys.executable, "-P", "-m", "ps_cluster")
LOOK_EVERY_S = 0.2
_CHUNK_BYTES = 2**16
_ERROR = "Error: "  # begins the line that says why a command failed
_LOG = re.compile(r"\(log: (?P<path>[^)]+)\)")


class Program:
    """A command that runs beside this process, and ends with it however this process ends.

    It leads a session of its own. So Ctrl-C in a terminal comes to this process alone, which hands it on.
    """

    def __init__(self, argv: Sequence[str], say: Callable[[str], None] = print_line):
        """Start the command. `say` gets each of its lines, but not its error."""
        self._say = say
        self._error = ""
        self._begun_line = b""
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=_environment(),
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self._output = self._process.stdout.fileno()
        os.set_blocking(self._output, False)

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._process.poll() is None:
            self._process.kill()  # its tasks end with it
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def attend(self, look: Callable[[], bool] = lambda: False) -> None:
        """Print its lines until it has ended.

        Args:
          look: called several times a second, and once at the end. If it returns True, the command is asked to stop
            early, and `look` is not called again.
        Raises:
          Whatever `look` raises, or KeyboardInterrupt, when the command has stopped early. A further Ctrl-C makes it
          stop at once.
        """
        wanted = True
        try:
            while self._goes_on():
                if wanted and look():
                    wanted = False
                    self.stop()
            if wanted:
                look()
        except BaseException:
            self._leave()
            raise

    def stop(self) -> None:
        """Ask it to stop: it finishes the steps under way, and writes and scores a last checkpoint."""
        self._process.send_signal(signal.SIGTERM)

    def check(self, log: Path) -> None:
        """Raise what its exit code says.

        Args:
          log: where to look if its error names no other.
        Raises:
          UserError: bad input.
          TrainingFailed: it failed, or was stopped from outside before it could end.
        """
        code = self._process.returncode
        if code == 0:
            return
        if code == BAD_INPUT:
            raise UserError(self._error)
        reason = self._error or f"the command ended with {_words(code)}"
        named = _LOG.search(reason)
        task = Path(named["path"]).stem if named else None
        raise TrainingFailed(task, reason, Path(named["path"]) if named else log)

    def _leave(self) -> None:
        self.stop()
        while True:
            try:
                while self._goes_on():
                    pass
                return
            except KeyboardInterrupt:
                self.stop()

    def _goes_on(self) -> bool:
        """Print what it has written, waiting a moment for it. Return False when it has ended and all is printed."""
        ended = self._process.poll() is not None  # before reading, so that no line before the end is missed
        ready, _, _ = select.select([self._output], [], [], 0 if ended else LOOK_EVERY_S)
        while ready and (chunk := self._read()):
            *lines, self._begun_line = (self._begun_line + chunk).split(b"\n")
            self._tell(*lines)
            if not ended:
                break
        if ended and self._begun_line:
            self._tell(self._begun_line)
        return not ended

    def _read(self) -> bytes:
        try:
            chunk = os.read(self._output, _CHUNK_BYTES)
        except BlockingIOError:
            return b""
        if not chunk and self._process.poll() is None:  # it has closed its output: nothing to wait for there
            time.sleep(LOOK_EVERY_S)
        return chunk

    def _tell(self, *lines: bytes) -> None:
        for line in (one.decode(errors="replace") for one in lines):
            if line.startswith(_ERROR) and not self._error:
                self._error = line.removeprefix(_ERROR)
            else:
                self._say(line)


def _environment() -> dict[str, str]:
    """Return the environment of a command: it finds this package, and the modules that this process finds.

    The caller's arguments alone decide its settings.
    """
    places = dict.fromkeys([str(IMPORT_FOLDER), *map(os.path.abspath, sys.path)])
    return {**without_variables(os.environ), "PYTHONPATH": os.pathsep.join(places), CALLER_PID: str(os.getpid())}


def _words(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


# Turn keyword arguments into settings, with the names, types and ranges that the commands' options have.

_BY_OTHER_NAMES = ("data.dataset", "model.name")  # the arguments `data` and `model`


def _keyword(option: str) -> str:
    """Return "batch_size" for "--batch-size", "evaluator" for "--evaluator/--no-evaluator"."""
    return option.partition("/")[0].removeprefix("--").replace("-", "_")


KEYWORDS = {_keyword(option): key for option, (key, _) in CONFIG_OPTIONS.items() if key not in _BY_OTHER_NAMES}
"""Keyword → dotted key of its setting, for all options of the command `run` that are settings."""


def values_of(
    options: Mapping[str, Any], settings: Mapping[str, Any] | None, known: Iterable[str] = KEYWORDS
) -> dict[str, Any]:
    """Return dotted key → value of keyword arguments, and under them of `settings`, as on the command line.

    Args:
      options: keyword → value; None counts as not given.
      settings: dotted keys or sections → values, any setting of docs/configuration.md.
      known: the keywords that are taken.
    Raises:
      UserError: a keyword is unknown.
    """
    check_known(options, known)
    named = {KEYWORDS[name].replace(".", "__"): plain(value) for name, value in options.items()}
    return flat(plain(settings or {})) | overrides((), named)


def check_known(options: Iterable[str], known: Iterable[str]) -> None:
    """Raise UserError for the first of the keywords `options` that is not `known`."""
    for name in options:
        if name not in known:
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
    if _is_keras_model(model):
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


def _is_keras_model(model: Any) -> bool:
    keras = sys.modules.get("keras")  # whoever has a model has imported it; here it would take seconds
    return keras is not None and isinstance(model, keras.Model)


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
