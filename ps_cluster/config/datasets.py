"""Define the base classes of data sets and of data formats."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
from pydantic import AfterValidator, Field

from ps_cluster.config.augmentation import Augmentation
from ps_cluster.config.lazy import tf
from ps_cluster.config.objectives import (
    OBJECTIVES,
    TARGET,
    WEIGHT,
    ArrayField,
    ExampleSpec,
    FieldValues,
    OtherTarget,
    check_rows,
    target_array,
)
from ps_cluster.config.registry import Named, Registry
from ps_cluster.config.setting_types import PathFromText, Section
from ps_cluster.config.user_code import absolute_path
from ps_cluster.errors import UserError
from ps_cluster.files.patterns import is_pattern, matches
from ps_cluster.files.values import Malformed, refuse_address

if TYPE_CHECKING:
    from ps_cluster.config import RunConfig
    from ps_cluster.data.batches import Batch
    from ps_cluster.runs.dataset_rows import TableEncoding

PAGE = "docs/extending.md#your-own-data"

Inputs: TypeAlias = "Mapping[str, tf.Tensor]"
"""Maps the name of each input to its values in a batch, [B, ...]."""
NetworkOutputs: TypeAlias = "Callable[[Inputs], tf.Tensor]"
"""Returns the outputs of a network for inputs, float32 [B, outputs]."""
OwnSettings = TypeVar("OwnSettings", bound="DataSettings")
Augment: TypeAlias = "Callable[[Inputs, Batch, ExampleSpec, OwnSettings], dict[str, tf.Tensor]]"
"""Returns the augmented inputs of a batch.

The arguments are the inputs, the `Batch` (it determines the random numbers), the description of an example, and the
section `data`.
"""
MeanOverViews: TypeAlias = "Callable[[NetworkOutputs, Inputs], tf.Tensor]"
"""Takes a network and inputs. Returns its mean outputs over augmented views of each example, float32 [B, outputs]."""


# The data formats that the package can read from a path without any code of the user.
#
# The format of `--dataset PATH` is recognised once, when the user's setting is read. From then on the name of the data
# set is `FORMAT:/the/path`, so no task has to look at the disk to know which settings it has. See
# `ps_cluster/data/formats/`.


class DataFormat(Named):
    """A data format, e.g. a table. To write one, subclass this class.

    Override `dataset`, and set `endings` or override `recognises`.

    Attributes:
      name: the name of the format; users may write `name:path` to choose it.
      looks_for: a description, for users, of the files or folders that have this format.
      endings: the endings of the names of files that have this format.
      Settings: the class of the section `data` for data sets of this format.
      takes_patterns: whether a path may also be a pattern of the names of files, e.g. `data/*.parquet`.
    """

    looks_for = ""
    takes_patterns = False
    endings: tuple[str, ...] = ()
    Settings: type[DataSettings]

    def recognises(self, path: Path) -> bool:
        """Return whether a file or folder has this format. This reads only names and the beginning of a file."""
        return path.name.lower().endswith(self.endings) and os.path.isfile(path)

    def one_change(self, path: Path) -> str:
        """Describe what is wrong with a path, and the single change that would make it readable in this format.

        Return "" if one change is not enough. This reads as little as `recognises`.
        """
        return ""

    def dataset(self, path: Path) -> DataSet[Any]:
        """Return the data set for a path. This must not fail if nothing is at the path, or if the data is damaged.

        Damaged data is refused when `DataSet.read` reads it.
        """
        raise NotImplementedError


def _home_of_formats() -> ModuleType:
    from ps_cluster.data import formats

    return formats


DATA_FORMATS: Registry[DataFormat] = Registry("data format", DataFormat, _home_of_formats, "ps_cluster.formats")


class FormatPath(NamedTuple):
    """A path, and the format of the data at this path."""

    data_format: DataFormat
    path: Path

    def __str__(self) -> str:
        return f"{self.data_format.name}:{self.path}"


def parse_format_path(text: str) -> FormatPath | None:
    """Parse `FORMAT:PATH`, where FORMAT is the name of a data format. Return None for any other text."""
    name, _, path = text.partition(":")
    return FormatPath(DATA_FORMATS[name], Path(path)) if path and name.isidentifier() and name in DATA_FORMATS else None


def name_with_format(text: str, folder: Path) -> str:
    """Return `FORMAT:/the/path` for the path of a user's data, where FORMAT is the name of the data format.

    `text` may name the format or not. A relative path starts at `folder`. Any text that is not a path is returned
    unchanged.

    Raises:
      UserError: nothing is at the path, or the data there has no known format.
    """
    if found := parse_format_path(text):
        return str(found._replace(path=absolute_path(found.path, folder)))
    try:
        refuse_address(text)
    except Malformed as error:
        raise UserError(f"dataset: '{text:.200}' {error}") from error
    return str(_recognised(absolute_path(Path(text), folder))) if _is_path(text, folder) else text


def _is_path(text: str, folder: Path) -> bool:
    if "/" in text or os.path.exists(folder / text):
        return True
    name = Path(text).name.lower()
    # A name without a dot has no ending, so the formats of installed packages need not be loaded.
    return "." in name and any(name.endswith(one.endings) for one in _all_formats())


def _all_formats() -> Iterator[DataFormat]:
    """Yield the data formats of this package, then those of installed packages."""
    return (DATA_FORMATS[name] for name in DATA_FORMATS.names)


def _recognised(path: Path) -> FormatPath:
    if is_pattern(path):
        return _recognised_pattern(path)
    if not os.path.exists(path):
        raise UserError(f"dataset: there is no '{path}': correct the path; {PAGE} shows which data a path may name")
    for data_format in _all_formats():
        if data_format.recognises(path):
            return FormatPath(data_format, path)
    if change := next(filter(None, (one.one_change(path) for one in _all_formats())), ""):
        raise UserError(f"dataset: '{path}' {change}; {PAGE} shows all data formats")
    code = f"to use code, name the function that the file defines, e.g. '{path}:load'; " if path.suffix == ".py" else ""
    known = "; ".join(f"{one.name}: {one.looks_for}" for one in _all_formats())
    raise UserError(
        f"dataset: '{path}' has no known format. {code}the known formats are {known}. {PAGE} shows each format"
    )


def _recognised_pattern(path: Path) -> FormatPath:
    found = matches(path)
    if not found:
        raise UserError(f"dataset: no file matches '{path}': correct the pattern")
    with_patterns = [one for one in _all_formats() if one.takes_patterns]
    if data_format := next((one for one in with_patterns if one.recognises(path)), None):
        return FormatPath(data_format, path)
    taken = "; ".join(f"{one.name}: {', '.join(one.endings)}" for one in with_patterns)
    raise UserError(
        f"dataset: '{path}' matches {len(found):,} files, such as '{found[0]}', but none of them can be read: "
        f"a pattern can be used only for files in these formats: {taken}"
    )


# The data sets: how each is found and read, what its examples are, and how they are augmented. No TensorFlow.
#
# The data sets of this package are in `ps_cluster/data/sets/`.

SPLITS: tuple[Literal["train", "test"], ...] = ("train", "test")
MOST_CLASSES = 2**16


class DataSettings(Section):
    """The section `data` of a configuration. A subclass adds the settings of one data set, with defaults."""

    dataset: Annotated[str, AfterValidator(lambda name: DATASETS.check_name(name))] = Field(
        description="The data set, or the path of your data; auto: CIFAR-10 if available, else a generated data set."
    )
    data_dir: PathFromText | None = Field(
        default=None,
        description="The archive or folder that holds the data set; null: look in the caches, then download.",
    )


class ImageSettings(DataSettings):
    """The section `data` for data sets of images."""

    augmentation: Augmentation = Field(default=Augmentation())


class OwnDataSettings(DataSettings):
    """The section `data` for data that the user provides."""

    objective: Literal["auto", "classification", "multi-label", "regression"] = Field(
        default="auto", description="The objective of the training; auto: the form of the targets decides."
    )
    held_out: float = Field(
        default=0.1,
        gt=0,
        lt=1,
        description="Share of the examples that is held out for testing, if the data has no test examples.",
    )


class OwnImageSettings(OwnDataSettings, ImageSettings):
    """The section `data` for images that the user provides."""


class NotThisDataSet(UserError):
    """Raised if a file or folder is not the wanted data set. The message starts with the path."""


class Download(NamedTuple):
    """A file of a data set that can be downloaded: its address, SHA-256 in hexadecimal, and size in bytes."""

    url: str
    sha256: str
    bytes: int

    @property
    def file(self) -> str:
        return self.url.rpartition("/")[2]


class TargetKind(NamedTuple):
    """The name of a target's objective, and the names of the target's classes or labels."""

    objective: str
    classes: tuple[str, ...]


@dataclass(frozen=True)
class Contents:
    """The contents of a data set.

    Attributes:
      spec: the description of an example. `mean` and `std` of the fields may be empty.
      arrays: split ("train" or "test") → name of a field → its values in all N examples, [N, ...]. The values are an
        array, which may be memory-mapped, or an object whose slices are arrays. The field "target" holds the targets,
        and the field "weight" holds the weights of the examples.
      notes: lines for the user, e.g. which examples were held out.
      encoding: how the columns of a table became numbers; None if the data is not a table.
      file_rows: the number of training examples in each file of the data, in order; () if it is not known.
    """

    spec: ExampleSpec
    arrays: Mapping[str, Mapping[str, FieldValues]]
    notes: tuple[str, ...] = ()
    encoding: TableEncoding | None = None
    file_rows: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        train: Mapping[str, FieldValues],
        test: Mapping[str, FieldValues],
        *,
        objective: str = "classification",
        classes: Sequence[str] = (),
        output: str = "",
        others: Mapping[str, TargetKind] | None = None,
    ) -> Contents:
        """Create the contents of a data set from arrays. `spec` is derived from the arrays in `train`.

        Args:
          train: the training examples, name of a field → [N, ...]. The field "target" holds the targets, and
            the field "weight" holds the weights of the examples.
          test: the test examples, in the same way.
          objective: the name of an objective in `OBJECTIVES`.
          classes: the names of the classes or labels. If it is (), their numbers are used as names.
          output: the name of the output that predicts the target, if the network has further outputs.
          others: name of a further output → objective and classes of its target. The field that holds this target
            has to be named `target_array(NAME)`, where NAME is the name of the output.

        Raises:
          UserError: there is no target, or a field is not an array.
        """
        _check_split(train)
        fields = {name: ArrayField(str(array.dtype), array.shape[1:]) for name, array in train.items()}
        target, weight = fields.pop(TARGET), fields.pop(WEIGHT, None)
        kinds = {name: OtherTarget(fields.pop(target_array(name)), *kind) for name, kind in (others or {}).items()}
        if not classes and objective == "classification":
            classes = [str(label) for label in range(_number_of_classes(train[TARGET]))]
        elif not classes and objective == "multi-label":
            classes = [str(label) for label in range(int(np.prod(target.shape)))]
        spec = ExampleSpec(fields, target, objective, tuple(classes), weight, output, kinds)
        return cls(spec, {"train": train, "test": test})


def _check_split(rows: Mapping[str, FieldValues]) -> None:
    try:
        for name, array in rows.items():
            check_rows(f"'{name}'", array)
    except Malformed as error:
        raise UserError(f"dataset: {error}") from error
    if TARGET not in rows:
        raise UserError(
            f"dataset: there is no array '{TARGET}' with the targets (the arrays are: {', '.join(rows) or 'none'}): rename "
            f"the array that holds the targets to '{TARGET}'"
        )


def _number_of_classes(labels: FieldValues) -> int:
    if np.dtype(labels.dtype).kind not in "iu" or not len(labels):
        return 0  # packing reports the mistake
    highest = int(labels[:].max())
    if highest >= MOST_CLASSES:
        raise UserError(
            f"dataset: a label is {highest}, but at most {MOST_CLASSES:,} classes are possible: number them from 0"
        )
    return highest + 1


NO_IMAGES: Mapping[str, Any] = {"model": {"name": "mlp"}}
"""The recipe for data without images. Networks for images, such as the default network, can't take such data."""


class DataSet(Named, Generic[OwnSettings]):
    """A data set. Subclass it and write `read`, or write a function that returns `Contents`.

    Attributes:
      name: the name by which users choose it.
      title: the name to use in sentences, if it differs from `name`.
      generated: whether a program generates the data. Wherever a result for such data is shown, a note says so.
      Settings: the class of the section `data`, with this data set's own settings.
      recipe: the settings for this data set, with any network, that differ from configs/default.yaml.
      recipes: network → the settings for this data set with this network.
      version: a number to increase whenever `read` returns something else for the same source. The copy of the data
        set in the cache, its packed form, is then made again.
      archive: the name of the file, or a description of the files, that users may have downloaded already.
      downloads: the addresses of these files; empty if the data set can't be downloaded.
      wanted: a description of the files to look for in a folder; "" if the data set needs no files.
      path: the path, if the user has named data by its path. The data is packed again when a file there changes.
      candidates_of: for the data set `auto`, the names of other data sets. `auto` is the first of them that is
        available. () for all other data sets.
      offered: whether help and lists of choices contain the data set.
    """

    page = PAGE
    title = ""
    generated = False
    Settings: type[DataSettings] = DataSettings
    recipe: Mapping[str, Any] = {}
    recipes: Mapping[str, Mapping[str, Any]] = {}
    version = 1
    archive = ""
    downloads: tuple[Download, ...] = ()
    wanted = ""
    path: Path | None = None
    candidates_of: tuple[str, ...] = ()
    offered = True

    def augmentation(self) -> Augment[OwnSettings] | None:
        """Return the function that augments the examples of a batch, or None if the data set has no augmentation."""
        return None

    def views(self) -> MeanOverViews | None:
        """Return the function that averages a network's outputs over augmented views of each example.

        Return None if the data set has no such views.
        """
        return None

    @property
    def has_views(self) -> bool:
        """Whether `views` returns a function. Unlike a call of `views`, this does not import TensorFlow."""
        return type(self).views is not DataSet.views

    @property
    def full_name(self) -> str:
        """The name of the data set for use in sentences."""
        return self.title or self.name

    @property
    def kind(self) -> Literal["real", "synthetic"]:
        """The origin of the data: "synthetic" if it is generated, else "real"."""
        return "synthetic" if self.generated else "real"

    @property
    def is_on_disk(self) -> bool:
        """True if the data set is read from files that have to be found or downloaded."""
        return bool(self.wanted)

    def candidates(self, place: Path) -> Iterable[Path]:
        """Yield the paths from which `read` may read the data set, in the order in which to try them.

        Each path is `place` itself, or is in the folder `place`. This method opens no file.
        """
        return ()

    def read(self, source: Path | None, settings: OwnSettings) -> Contents:
        """Read the whole data set.

        Args:
          source: one of the `candidates`, or None if the data set needs no files.
          settings: the section `data`, an object of `Settings`.

        Raises:
          NotThisDataSet: `source` is damaged, or is not this data set.
        """
        raise NotImplementedError

    def own_settings(self, settings: OwnSettings) -> dict[str, Any]:
        """Return the settings on which `read` may depend: all settings that only this data set has."""
        return settings.model_dump(mode="json", exclude=set(ImageSettings.model_fields))

    def check(self, config: RunConfig) -> None:
        """Raise ValueError, with the setting and its value, for settings that do not fit this data set."""
        if config.evaluation.augment_last and not self.has_views:
            raise ValueError(
                f"evaluation.augment_last: got True: data set {self.name} has no augmented views: leave this setting out"
            )

    def check_examples(self, config: RunConfig, spec: ExampleSpec) -> None:
        """Raise ValueError, with the setting and its value, for settings that do not fit the data set's examples."""
        OBJECTIVES[spec.objective].check(config, spec)


OwnSettingsOfImages = TypeVar("OwnSettingsOfImages", bound=ImageSettings)


class ImageDataSet(DataSet[OwnSettingsOfImages]):
    """A data set in which each example is one image."""

    Settings = ImageSettings

    def augmentation(self) -> Augment[OwnSettingsOfImages]:
        from ps_cluster.data.augment import augment

        return augment

    def views(self) -> MeanOverViews:
        from ps_cluster.data.augment import mean_over_views

        return mean_over_views

    def check_examples(self, config: RunConfig, spec: ExampleSpec) -> None:
        super().check_examples(config, spec)
        if config.evaluation.augment_last and not OBJECTIVES[spec.objective].has_accuracy:
            raise ValueError(
                f"evaluation.augment_last: got True: objective {spec.objective} has no accuracy: leave this setting out"
            )
        image = spec.image(config.model.name)
        ImageSettings.of(config).augmentation.check(image.shape)


class _Function(DataSet[OwnDataSettings]):
    """A data set from a function without arguments that returns `Contents` or arrays (data/own_arrays.py)."""

    Settings = OwnDataSettings
    version = 2

    def __init__(self, function: Callable[[], object]):
        self._function = function

    def read(self, source: Path | None, settings: OwnDataSettings) -> Contents:
        from ps_cluster.data.own_arrays import as_contents

        return as_contents(self._function(), settings)


class _DataSets(Registry[DataSet[Any]]):
    """All data sets, by name or by the path of data in one of the known formats."""

    @property
    def with_settings(self) -> Iterator[Named]:
        """Yield the `offered` data sets of this package, and the data formats. Each may have settings of its own."""
        return chain((one for one in self if one.offered), DATA_FORMATS)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name in super().names if name not in self.own or self.own[name].offered)

    def allow_code_of(self, name: str, folder: Path) -> str:
        """Allow this process to run the code to which `name` refers, if any, because the user has given this name.

        Return `name` with an absolute path and, if it is a path to data, with the data format.
        """
        if super().__contains__(name):
            return super().allow_code_of(name, folder)
        return name_with_format(name, folder)

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or (isinstance(name, str) and parse_format_path(name) is not None)

    def unknown(self, name: str) -> str:
        return f"{super().unknown(name)}, or a path to your own data"

    def _load(self, name: str) -> DataSet[Any]:
        place = None if super().__contains__(name) else parse_format_path(name)
        if place is None:
            return super()._load(name)
        return self._made(place.data_format.dataset(place.path), name)


def _home() -> ModuleType:
    from ps_cluster.data import sets

    return sets


DATASETS: Registry[DataSet[Any]] = _DataSets("data set", DataSet, _home, "ps_cluster.datasets", wrap=_Function)
