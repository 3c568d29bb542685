"""Look up objects of one kind by name: the package's own, those of installed packages, and those in users' files."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import os
import pickle
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum
from functools import cache, cached_property
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Generic, NamedTuple, Protocol, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from ps_cluster.errors import UserError, did_you_mean
from ps_cluster.files.values import one_line, refuse_address
from ps_cluster.quiet_import import without_first_lines


class Named(Protocol):
    """The part that all objects of the catalogue have: the name by which users choose them."""

    name: str


T = TypeVar("T", bound=Named, covariant=True)


class Registry(Generic[T]):
    """All objects of one kind (data set, mode, network, …), by name.

    The package's own are the instances of `base` in the module `home`, or in the modules of the package `home`, and the
    subclasses there that have a `name` of their own: a new one is found without being named anywhere else.
    """

    def __init__(self, noun: str, base: type[Any], home: str, group: str, wrap: Callable[[Any], Any] | None = None):
        """Keep where to look; nothing is imported yet.

        Args:
          noun: the kind's name in messages, e.g. "optimizer rule".
          base: the class of the objects. (mypy takes no abstract class for a `type[T]`.) Its `page`, where it has one, is
            the page of the documentation that shows how to bring one.
          home: the module or package that defines the package's own.
          group: the entry point group by which installed packages add others, e.g. "ps_cluster.modes".
          wrap: converts what a file or package defines, e.g. a function, to an object of the kind; None: nothing is one.
        """
        self.noun = noun
        self._base = base
        self._home = home
        self._group = group
        self._wrap = wrap
        self._brought: dict[str, T] = {}

    @property
    def settings(self) -> type[Section]:
        """The class of the settings that all objects of this kind have."""
        shared: type[Section] = self._base.Settings
        return shared

    @cached_property
    def own(self) -> dict[str, T]:
        """The package's own objects, by name."""
        found: dict[str, T] = {}
        for module in self._modules():
            things = [thing for thing in vars(module).values() if isinstance(thing, self._base)]
            made = {type(thing) for thing in things}
            things += [
                kind()
                for kind in vars(module).values()
                if isinstance(kind, type)
                and issubclass(kind, self._base)
                and vars(kind).get("name")
                and kind not in made
                if kind.__module__ == module.__name__
            ]
            found |= {thing.name: thing for thing in things}
        return found

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the package's own objects, file by file, then those of installed packages."""
        others = [name for name in entry_point_names(self._group) if name not in self.own]
        return (*self.own, *others)

    def __iter__(self) -> Iterator[T]:
        return iter(self.own.values())

    @property
    def with_settings(self) -> Iterator[Any]:
        """Yield what may have settings of its own: the package's own objects."""
        return iter(self)

    def named_by_user(self, name: str, folder: Path) -> str:
        """Return a name that the user has written, a file of code with its whole path; it may be run from now on.

        Args:
          folder: from which relative paths are seen.
        """
        return named_by_user(name, folder)

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        # Installed packages last: to look for them takes milliseconds.
        return name in self.own or parse(name) is not None or name in entry_point_names(self._group)

    def __getitem__(self, name: str) -> T:
        """Return the object of this name.

        Raises:
          UserError: there is none, or it can't be loaded, or it is not of this kind.
        """
        if name in self.own:
            return self.own[name]
        if name not in self._brought:
            self._brought[name] = self._load(name)
        return self._brought[name]

    def code_of(self, name: str) -> Path | None:
        """Return the file that has to be trusted for a name, if there is one."""
        reference = parse(name)
        return reference.file if reference else None

    def check_name(self, name: str) -> str:
        """Return `name`. Raises ValueError, which lists what is supported and names the page, if it is unknown."""
        if name not in self:
            raise ValueError(f"{self.unknown(name)}: {self.page}")
        return name

    @property
    def page(self) -> str:
        """The page of the documentation that shows how to bring one."""
        return getattr(self._base, "page", "docs/extending.md")

    def unknown(self, name: str) -> str:
        """Return a message with all that is supported, and the known name that is nearest to `name`."""
        hint = did_you_mean(name, self.names)
        if name.endswith(".py"):
            hint = f"name what the file defines, as '{name:.80}:NAME'. "
        return f"{hint}There are {', '.join(self.names)}, and yours as path/to/file.py:name"

    def _load(self, name: str) -> T:
        if reference := parse(name):
            found = self._loaded(reference)
        elif name in entry_point_names(self._group):
            found = load_entry_point(self._group, name)
        else:
            raise UserError(f"{self.noun} '{name:.80}': {self.unknown(name)}: {self.page}")
        return self._made(found, name)

    def _loaded(self, reference: Reference) -> Any:
        """Return what a file defines. Raises UserError, with the page for the user who has named the file."""
        try:
            return load(reference)
        except UserError as error:
            if not is_trusted(reference.file):
                raise
            raise UserError(f"{self.noun} {error}: {self.page} shows how to bring one") from error

    def _made(self, found: Any, name: str) -> T:
        """Return `found` as an object of the kind, with `name` as its name."""
        is_class = isinstance(found, type)
        if is_class and issubclass(found, self._base):
            found = found()
        elif self._wrap and callable(found) and not is_class:
            found = self._wrap(found)
        made: T = found
        if not isinstance(made, self._base):
            function = "a function, or " if self._wrap else ""
            raise UserError(
                f"'{name}' is no {self.noun}: it has to be {function}a {self._base.__module__}.{self._base.__name__}: "
                f"{self.page}"
            )
        made.name = name
        return made

    def _modules(self) -> Iterator[ModuleType]:
        module = importlib.import_module(self._home)
        yield module
        for found in pkgutil.iter_modules(getattr(module, "__path__", ())):
            yield importlib.import_module(f"{self._home}.{found.name}")


# Load users' own code: a name in a Python file, a pickled function, or an entry point of an installed package.
#
# A file is run only if the user has named it on the command line, by an option or in the file given with --config. A run
# directory or a checkpoint may name a file too, but may come from somebody else: that alone never runs it.

TRUSTED = "PS_CLUSTER_CODE"  # environment variable: the trusted files, for child processes, a line each
PICKLE = ".pickle"
_REFERENCE = re.compile(rf"(?P<file>.+(\.py|\{PICKLE})):(?P<name>[A-Za-z_]\w*)", re.DOTALL)


class Reference(NamedTuple):
    """Something that a Python file defines at its top level, or a function in a file of pickled ones."""

    file: Path
    name: str

    def __str__(self) -> str:
        return f"{self.file}:{self.name}"


def parse(text: str) -> Reference | None:
    """Return the file and name of `path/to/file.py:name`, None for any other text."""
    match = _REFERENCE.fullmatch(text)
    return Reference(Path(match["file"]), match["name"]) if match else None


def absolute(text: str, folder: Path) -> str:
    """Return a reference with the absolute path of its file, as seen from `folder`; any other text as it is."""
    reference = parse(text)
    if reference is None:
        return text
    return str(Reference(absolute_path(reference.file, folder), reference.name))


def absolute_path(path: str | Path, folder: Path) -> Path:
    """Return the absolute path of a file, as seen from `folder`; ~ is the home directory."""
    return Path(os.path.normpath(folder.absolute() / os.path.expanduser(path)))


def trust(file: Path) -> None:
    """Allow `file` to be run, in this process and its children, because the user has named it."""
    files = dict.fromkeys([*_trusted(), str(file.absolute())])
    os.environ[TRUSTED] = "\n".join(files)


def named_by_user(text: str, folder: Path) -> str:
    """Return a reference that the user has written, with its whole path as seen from `folder`; its file may be run now.

    Any other text is returned as it is.
    """
    text = absolute(text, folder)
    if reference := parse(text):
        trust(reference.file)
    return text


def is_trusted(file: Path) -> bool:
    """Return whether the user has named `file`."""
    return str(file.absolute()) in _trusted()


def short_name(text: str) -> str:
    """Return the name of a reference without its file; any other text as it is."""
    reference = parse(text)
    return reference.name if reference else text


def defined_in_trusted() -> dict[str, Any]:
    """Run the Python files that the user has named; return what they define at their top level, by name.

    Raises:
      UserError: a file can't be read or run.
    """
    files = [Path(name) for name in _trusted() if name.endswith(".py")]
    return {name: thing for file in files for name, thing in vars(_module(Reference(file, "*"))).items()}


_file_that_runs: ContextVar[str | None] = ContextVar("_file_that_runs", default=None)


@contextmanager
def _running(file: str) -> Iterator[None]:
    token = _file_that_runs.set(file)
    try:
        yield
    finally:
        _file_that_runs.reset(token)


def file_that_runs() -> str | None:
    """Return the user's file that this process is importing just now, because a run names it; None if it imports none."""
    return _file_that_runs.get()


def load(reference: Reference) -> Any:
    """Run the file, once per process, and return the object that it defines under the name.

    A pickled function is read when it is first called. The launcher never calls a network's: so it stays free of
    TensorFlow, which users' functions name.

    Raises:
      UserError: the user did not name the file, it can't be read or run, or it defines no such name.
    """
    if not is_trusted(reference.file):
        raise UserError(
            f"'{reference}' is code that a run directory names, and nobody else: look at it, and add --code "
            f"'{reference.file}' to let it run"
        )
    if not reference.file.is_file():
        raise UserError(f"'{reference}': there is no file '{reference.file}'")
    if reference.file.suffix == PICKLE:
        return PickledFunction(reference)
    module = _module(reference)
    if not hasattr(module, reference.name):
        raise UserError(f"'{reference}': the file defines no '{reference.name}'")
    return getattr(module, reference.name)


class PickledFunction:
    """A function of a script or a notebook, in a trusted file that the Python API has written (`api/program.py`)."""

    def __init__(self, reference: Reference):
        self._reference = reference

    def __call__(self, *arguments: Any) -> Any:
        """Call the function. Raises UserError where it can't be read."""
        return self._function(*arguments)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._function)

    @cached_property
    def _function(self) -> Callable[..., Any]:
        try:
            with _running(str(self._reference.file)):
                functions = pickle.loads(self._reference.file.read_bytes())
        except Exception as error:  # e.g. a module that it names is not here
            raise UserError(f"'{self._reference}': the function can't be read: {_told(error)}") from error
        if not isinstance(functions, dict) or self._reference.name not in functions:
            raise UserError(f"'{self._reference}': the file holds no '{self._reference.name}'")
        function: Callable[..., Any] = functions[self._reference.name]
        return function


@cache
def entry_points(group: str) -> tuple[metadata.EntryPoint, ...]:
    """Return what installed packages have registered in `group`. Reads the lists of all packages, so once a process."""
    return tuple(metadata.entry_points(group=group))


def entry_point_names(group: str) -> list[str]:
    """Return the names that installed packages have registered in `group`."""
    return sorted({point.name for point in entry_points(group)})


def load_entry_point(group: str, name: str) -> Any:
    """Return the object that an installed package has registered. Raises UserError where it can't be loaded."""
    point = next(point for point in entry_points(group) if point.name == name)
    try:
        with without_first_lines(), _running(point.value):
            return point.load()
    except Exception as error:
        raise UserError(
            f"'{name}' of the entry points '{group}' ({point.value}) can't be loaded: {_told(error)}"
        ) from error


def _trusted() -> list[str]:
    return [name for name in os.environ.get(TRUSTED, "").split("\n") if name]


def _module(reference: Reference) -> ModuleType:
    """Import the file under a unique module name. It can import files beside it."""
    path = str(reference.file)
    name = f"ps_cluster_door_{hashlib.sha256(path.encode()).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # true for every name that ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    folder = str(reference.file.parent)
    if folder not in sys.path:
        sys.path.append(folder)
    try:
        with without_first_lines(), _running(path):  # many begin with `import keras`
            spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise UserError(f"'{reference}': the file can't be run: {_told(error)}") from error
    return module


def _told(error: Exception) -> str:
    kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
    return one_line(f"{kind}{error}", 500)


# Import the part that a catalogue object names, when a process that has TensorFlow needs it.


class Part(StrEnum):
    """The code that is named where it can't be imported: it stands above the configuration, most of it with TensorFlow.

    No other strings name code. Homes of `Registry` and the commands of `cli/main.py` are names of modules.
    """

    TRAIN_ON_PARAMETER_SERVERS = "ps_cluster.training.chief:train"
    TRAIN_BY_ALL_REDUCE = "ps_cluster.training.all_reduce:train"
    TRAIN_A_SPLIT_NETWORK = "ps_cluster.training.split_trainer:train"
    STEPS = "ps_cluster.training.worker:AsynchronousSteps"
    SPLIT_STEPS = "ps_cluster.training.split_trainer:SplitSteps"
    CUT_BY_LAYERS = "ps_cluster.training.split_trainer:cut_by_layers"
    CUT_BY_WIDTH = "ps_cluster.training.split_trainer:cut_by_width"
    SLICE = "ps_cluster.server.shard:ParameterShard"
    CORRECTION = "ps_cluster.server.staleness:Correction"
    RECOMPUTED_STEPS = "ps_cluster.training.recomputed_steps:RecomputedSteps"
    RECOMPUTED_ELASTIC_PERIODS = "ps_cluster.training.recomputed_periods:RecomputedElasticPeriods"
    RECOMPUTED_LOCAL_PERIODS = "ps_cluster.training.recomputed_periods:RecomputedLocalPeriods"
    CLASSIFICATION_JUDGE = "ps_cluster.models.judges:ClassificationJudge"
    MULTI_LABEL_JUDGE = "ps_cluster.models.judges:MultiLabelJudge"
    REGRESSION_JUDGE = "ps_cluster.models.judges:RegressionJudge"
    NEXT_BYTE_JUDGE = "ps_cluster.models.judges:NextByteJudge"
    CLASS_RESULTS = "ps_cluster.report.analysis:ClassResults"
    LABEL_RESULTS = "ps_cluster.report.analysis:LabelResults"
    VALUE_RESULTS = "ps_cluster.report.analysis:ValueResults"
    AUGMENT = "ps_cluster.data.augment:augment"
    MEAN_OVER_VIEWS = "ps_cluster.data.augment:mean_over_views"
    LOAD_SAVED = "ps_cluster.models.build:load_saved"


def import_object(place: str | Any) -> Any:
    """Return the object of a `Part`, at "package.module:name" or "path/to/file.py:name"; anything but text as it is."""
    if not isinstance(place, str):
        return place
    if reference := parse(place):
        return load(reference)
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


# Import a large library when it is first used: a module can then hold an object of the catalogue and its graph code.
#
# The launcher reads all objects of the catalogue, and never imports TensorFlow.


class Lazy:
    """A module that is imported when the first of its attributes is read."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


if TYPE_CHECKING:  # names in annotations, such as tf.Tensor
    import keras
    import tensorflow as tf
else:
    keras, tf = Lazy("keras"), Lazy("tensorflow")

__all__ = ["graph", "keras", "tf"]


def graph(method: Callable[..., Any]) -> Any:
    """Make a method a graph, as `tf.function` does, but for each object by itself, when the object first uses it."""
    return cached_property(lambda owner: tf.function(method.__get__(owner), autograph=False))


# The types that settings are made of: strict, frozen sections of a configuration. No TensorFlow.

# Far above any useful value, and far below the largest float32.
LARGEST_FACTOR = 1e6

Fraction = Annotated[float, Field(ge=0, le=1)]
Factor = Annotated[float, Field(ge=0, le=LARGEST_FACTOR)]
Momentum = Annotated[float, Field(ge=0, lt=1)]


def _no_zero(path: Path) -> Path:
    if "\0" in str(path):
        raise ValueError("no file name holds a zero character")
    refuse_address(str(path))
    return path


# Not strict, because YAML has paths as text; their content is checked.
PathFromText = Annotated[Path, Field(strict=False), AfterValidator(_no_zero)]


class Section(BaseModel):
    """A group of settings: strictly typed, immutable, and without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)
