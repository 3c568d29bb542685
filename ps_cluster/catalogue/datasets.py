"""The data sets: how each is found and read, what its examples are, and how they are varied. No TensorFlow.

The package's own are in `ps_cluster/data/sets/`, one file each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import AfterValidator, Field

from ps_cluster.catalogue import forms
from ps_cluster.catalogue.augmentation import Augmentation
from ps_cluster.catalogue.examples import TARGET, WEIGHT, ExampleSpec, Rows, check_rows
from ps_cluster.catalogue.examples import Field as ArrayField
from ps_cluster.catalogue.kinds import Kinds
from ps_cluster.catalogue.objectives import OBJECTIVES
from ps_cluster.catalogue.settings import PathFromText, Section
from ps_cluster.errors import UserError
from ps_cluster.files.malformed import Malformed

if TYPE_CHECKING:
    from ps_cluster.config import RunConfig

SPLITS = ("train", "test")
MOST_CLASSES = 2**16


class DataSettings(Section):
    """The section `data` of a configuration. A data set adds settings of its own in a subclass, with defaults."""

    dataset: Annotated[str, AfterValidator(lambda name: DATASETS.check_name(name))] = Field(
        description="The data set, or a path to your own data; auto: CIFAR-10 if it can be had, else the generated one."
    )
    data_dir: PathFromText | None = Field(
        default=None, description="Its archive or folder; null: look in the caches, then download."
    )


class ImageSettings(DataSettings):
    """Settings of data sets of images."""

    augmentation: Augmentation = Field(default=Augmentation())


class OwnDataSettings(DataSettings):
    """Settings of data that users bring."""

    objective: Literal["auto", "classification", "multi-label", "regression"] = Field(
        default="auto", description="What is trained for; auto: by the targets."
    )
    held_out: float = Field(
        default=0.1, gt=0, lt=1, description="Share of the examples that is held out to test on, where no others are."
    )


class OwnImageSettings(OwnDataSettings, ImageSettings):
    """Settings of images that users bring."""


class NotThisDataSet(UserError):
    """A file or folder is not the data set that was looked for. The message starts with its path."""


class Download(NamedTuple):
    """The address of a file of a data set, its SHA-256 in hexadecimal, and its size."""

    url: str
    sha256: str
    bytes: int

    @property
    def file(self) -> str:
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class Contents:
    """A data set as it was read.

    Attributes:
      spec: the form of its examples. `mean` and `std` of its fields may be left empty.
      arrays: split ("train", "test") → name of a field → rows [N, ...]: an array, which may be memory-mapped, or what
        returns arrays for slices of itself. The target's name is "target", that of weights "weight".
      notes: lines for a person to read, e.g. what was held out.
      encoding: how columns of a table became numbers (run/rows/dataset.py); None if they did not.
    """

    spec: ExampleSpec
    arrays: Mapping[str, Mapping[str, Rows]]
    notes: tuple[str, ...] = ()
    encoding: Mapping[str, Any] | None = None

    @classmethod
    def of(
        cls,
        train: Mapping[str, Rows],
        test: Mapping[str, Rows],
        *,
        objective: str = "classification",
        classes: Sequence[str] = (),
    ) -> Contents:
        """Return contents whose spec is that of the arrays of `train`: field → [N, ...], with the target as "target",
        and weights, if there are any, as "weight".

        Args:
          classes: names of the classes or labels; () numbers them.

        Raises:
          UserError: there is no target, or something is no array.
        """
        _check_split(train)
        fields = {name: ArrayField(str(array.dtype), array.shape[1:]) for name, array in train.items()}
        target, weight = fields.pop(TARGET), fields.pop(WEIGHT, None)
        if not classes and objective == "classification":
            classes = [str(label) for label in range(_number_of_classes(train[TARGET]))]
        elif not classes and objective == "multi-label":
            classes = [str(label) for label in range(int(np.prod(target.shape)))]
        return cls(ExampleSpec(fields, target, objective, tuple(classes), weight), {"train": train, "test": test})


def _check_split(rows: Mapping[str, Rows]) -> None:
    try:
        for name, array in rows.items():
            check_rows(f"'{name}'", array)
    except Malformed as error:
        raise UserError(f"dataset: {error}") from error
    if TARGET not in rows:
        raise UserError(f"dataset: '{TARGET}' is missing, there is {', '.join(rows) or 'nothing'}: name the targets so")


def _number_of_classes(labels: Rows) -> int:
    if np.dtype(labels.dtype).kind not in "iu" or not len(labels):
        return 0  # packing says what is wrong
    highest = int(labels[:].max())
    if highest >= MOST_CLASSES:
        raise UserError(f"dataset: a label is {highest}, of at most {MOST_CLASSES:,} classes: number them from 0")
    return highest + 1


NO_IMAGES: Mapping[str, Any] = {"model": {"name": "mlp"}}
"""The recipe of data that is no images: networks for images, such as the default one, can't take it."""


class DataSet:
    """A data set. Subclass it and write `read`, or bring a function that returns `Contents`.

    Attributes:
      name: the name by which users choose it.
      title: its name in sentences, if that is another.
      generated: whether a program made it up. That is said wherever a number of it is.
      Settings: the class of the section `data`, with this data set's own settings.
      recipe: a layer of settings in which it differs from configs/default.yaml, whatever the network.
      recipes: network → a layer of settings for this data set with this network.
      version: raise it whenever `read` returns something else for the same source: it is packed again then.
      archive: name of the file, or the files, that users have. downloads: where they are; none if it can't be downloaded.
      wanted: what to look for in a folder, in words.
      path: of data that a user has named by its path, that path. It is packed again when something there changes.
      candidates_of: for a name that stands for several data sets, their names, best first.
      offered: whether help and lists of choices name it.
      augment: "module:function" that varies a batch (`ps_cluster.data.augment:augment`); None: it is trained as it is.
      views: "module:function" that averages a network's scores over views of each example; None: there are none.
    """

    page = "docs/own-data.md"
    name = ""
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
    augment: Any = None
    views: Any = None

    @property
    def full_name(self) -> str:
        """Its name in sentences."""
        return self.title or self.name

    @property
    def kind(self) -> str:
        """The word for its origin: "synthetic" if it is generated, else "real"."""
        return "synthetic" if self.generated else "real"

    @property
    def is_on_disk(self) -> bool:
        """True if it is read from files that have to be found or downloaded."""
        return bool(self.wanted)

    def candidates(self, place: Path) -> Iterable[Path]:
        """Yield the paths that it could be read from: `place`, or what is in that folder, best first. Opens nothing."""
        return ()

    def read(self, source: Path | None, settings: DataSettings) -> Contents:
        """Return the whole data set, read from a candidate; from None if it is not on disk.

        Args:
          settings: the section `data`, an object of `Settings`.

        Raises:
          NotThisDataSet: `source` is damaged or something else.
        """
        raise NotImplementedError

    def own_settings(self, settings: DataSettings) -> dict[str, Any]:
        """Return the settings on which `read` may depend: those that only this data set has."""
        return settings.model_dump(mode="json", exclude=set(ImageSettings.model_fields))

    def check(self, config: RunConfig) -> None:
        """Raise ValueError, with the setting and its value, for settings that do not fit this data set."""
        if config.evaluation.augment_last and self.views is None:
            raise ValueError(f"evaluation.augment_last: got True: data set {self.name} has no views: leave it out")

    def check_examples(self, config: RunConfig, spec: ExampleSpec) -> None:
        """Raise ValueError, with the setting and its value, for settings that do not fit its examples."""
        OBJECTIVES[spec.objective].check(config, spec)


class ImageDataSet(DataSet):
    """A data set whose examples are one image each."""

    Settings = ImageSettings
    augment = "ps_cluster.data.augment:augment"
    views = "ps_cluster.evaluation.views:mean_over_views"

    def check_examples(self, config: RunConfig, spec: ExampleSpec) -> None:
        super().check_examples(config, spec)
        if config.evaluation.augment_last and not OBJECTIVES[spec.objective].has_accuracy:
            raise ValueError(f"evaluation.augment_last: got True: a {spec.objective} has no accuracy: leave it out")
        image = spec.image(config.model.name)
        config.data.augmentation.check(image.shape)  # type: ignore[attr-defined]  # its Settings have it


def _from_function(found: Any) -> Any:
    """Return a data set for a function that returns `Contents`; return anything else as it is."""
    if isinstance(found, type) or not callable(found):
        return found
    return _Function(found)


class _Function(DataSet):
    """A data set that a function without arguments returns: `Contents`, or arrays (data/own_arrays.py)."""

    Settings = OwnDataSettings

    def __init__(self, function: Callable[[], Any]):
        self._function = function

    def read(self, source: Path | None, settings: DataSettings) -> Any:
        return self._function()


class _DataSets(Kinds[DataSet]):
    """All data sets: by name, or by the path of data in one of the forms that are known."""

    @property
    def with_settings(self) -> Iterator[Any]:
        """Yield the package's own data sets, and the forms."""
        return chain((one for one in self if one.offered), forms.FORMS)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name in super().names if name not in self.own or self.own[name].offered)

    def named_by_user(self, name: str, folder: Path) -> str:
        """Return a name that the user has written: of code with its whole path, of data also with its form."""
        if super().__contains__(name):
            return super().named_by_user(name, folder)
        return forms.named_by_user(name, folder)

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or isinstance(name, str) and forms.parse(name) is not None

    def unknown(self, name: str) -> str:
        return f"{super().unknown(name)}, and a path to your own data"

    def _load(self, name: str) -> DataSet:
        place = None if super().__contains__(name) else forms.parse(name)
        if place is None:
            return super()._load(name)
        return self._made(place.form.dataset(place.path), name)


DATASETS: Kinds[DataSet] = _DataSets(
    "data set", DataSet, "ps_cluster.data.sets", "ps_cluster.datasets", wrap=_from_function
)
