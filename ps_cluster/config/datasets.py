"""Define the base classes of data sets and forms of data, samples of the examples, and the settings of augmentation."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias

import numpy as np
from pydantic import AfterValidator, ConfigDict, Field

from ps_cluster.config.lazy import tf
from ps_cluster.config.objectives import (
    OBJECTIVES,
    TARGET,
    WEIGHT,
    ExampleSpec,
    OtherTarget,
    Rows,
    check_rows,
    target_array,
)
from ps_cluster.config.objectives import Field as ArrayField
from ps_cluster.config.registry import Registry
from ps_cluster.config.setting_types import PathFromText, Section
from ps_cluster.config.user_code import absolute_path
from ps_cluster.errors import UserError, did_you_mean
from ps_cluster.files.patterns import is_pattern, matches
from ps_cluster.files.values import Malformed, decimal, refuse_address, whole

if TYPE_CHECKING:
    from ps_cluster.config import RunConfig
    from ps_cluster.data.batches import Batch

Inputs: TypeAlias = "Mapping[str, tf.Tensor]"
"""Name of a field → its rows [B, ...]."""
NetworkOutputs: TypeAlias = "Callable[[Inputs], tf.Tensor]"
"""Inputs → the outputs of a network, float32 [B, outputs]."""
Augment: TypeAlias = "Callable[[Inputs, Batch, ExampleSpec, Any], dict[str, tf.Tensor]]"
"""(inputs, their batch, the form of an example, the section `data`) → the augmented inputs."""
MeanOverViews: TypeAlias = "Callable[[NetworkOutputs, Inputs], tf.Tensor]"
"""(network, inputs) → the mean of the network's outputs over views of each example, float32 [B, outputs]."""


# The settings of image augmentation, and their short form. This part does not need TensorFlow, because the launcher reads
# the settings too.


def _ascending(factors: tuple[float, float]) -> tuple[float, float]:
    lowest, highest = factors
    if lowest > highest:
        raise ValueError(f"lowest factor {lowest} is above the highest, {highest}")
    return factors


Factor = Annotated[float, Field(ge=0, le=100)]
# The tuple is not strict, because YAML has lists instead of tuples. Its factors are strict.
FactorRange = Annotated[tuple[Factor, Factor], Field(strict=False), AfterValidator(_ascending)]


class Augmentation(Section):
    """The settings of `ps_cluster.data.augment.augment`. The defaults change nothing.

    A value out of range raises pydantic's `ValidationError`, which names the field and the value.
    """

    model_config = ConfigDict(use_attribute_docstrings=True)

    crop_padding_pixels: int = Field(0, ge=0, le=10_000)
    """Pad every side with this many mirrored pixels, and crop to the old size at a random place."""

    flip: Literal["none", "random", "alternating"] = "none"
    """Mirror left-right. random: with probability 1/2 at each step. alternating: each image in every second epoch."""

    hue_delta: float = Field(0.0, ge=0, le=0.5)
    """Shift the hue by up to this fraction of the colour circle, in either direction."""

    contrast_range: FactorRange = (1.0, 1.0)
    """Multiply the distance from each channel's mean by a factor from this range."""

    saturation_range: FactorRange = (1.0, 1.0)
    """Multiply the saturation by a factor from this range."""

    cutout_pixels: int = Field(0, ge=0, le=10_000)
    """Side of a square in each image that is filled with the mean colour."""

    def check(self, shape: tuple[int, ...]) -> None:
        """Raise ValueError, with the setting and its value, for an augmentation that images of `shape` do not allow."""
        *sides, channels = shape
        if self.crop_padding_pixels >= min(sides):
            raise ValueError(
                f"data.augmentation.crop_padding_pixels: got {self.crop_padding_pixels}: images of {sides[0]}x{sides[1]} "
                f"have at most {min(sides) - 1} to mirror"
            )
        if channels != 3 and (self.hue_delta or self.saturation_range != (1, 1)):
            raise ValueError(
                f"data.augmentation: hue_delta and saturation_range need 3 channels, images have {channels}"
            )


class Variation(NamedTuple):
    """A part of the short form `flip,crop=4,hue=0.1`.

    Attributes:
      setting: the setting of `Augmentation` that the part sets.
      read: parses the text after "=".
      form: shows users how to write the part.
      bare: the value if the part is the name alone; None if the name needs a value.
    """

    setting: str
    read: Callable[[str], Any]
    form: str
    bare: Any = None


def _range(text: str) -> list[float]:
    lowest, _, highest = text.partition("-")
    return [decimal(lowest), decimal(highest)]


# A name without a value means the value in configs/default.yaml.
VARIATIONS = {
    "flip": Variation("flip", str, "flip or flip=random", "alternating"),
    "crop": Variation("crop_padding_pixels", whole, "crop or crop=4", 2),
    "hue": Variation("hue_delta", decimal, "hue=0.1"),
    "contrast": Variation("contrast_range", _range, "contrast=0.8-1.2"),
    "saturation": Variation("saturation_range", _range, "saturation=0.8-1.2"),
    "cutout": Variation("cutout_pixels", whole, "cutout=8"),
}
NO_VARIATION = "none"


def read_variations(text: str) -> dict[str, Any]:
    """Parse the short form, e.g. "flip,crop=4,hue=0.1" or "none". Return all settings; what it omits is switched off.

    Raises:
      ValueError: a name is unknown or appears twice, or a value can't be read.
    """
    settings = Augmentation().model_dump(mode="json")
    seen: set[str] = set()
    for part in () if text.strip() == NO_VARIATION else text.split(","):
        name, has_value, value = (piece.strip() for piece in part.partition("="))
        if name not in VARIATIONS:
            forms = ", ".join(variation.form for variation in VARIATIONS.values())
            raise ValueError(f"{did_you_mean(name, VARIATIONS)}there are {forms}, and {NO_VARIATION} alone")
        if name in seen:
            raise ValueError(f"{name} is there twice")
        seen.add(name)
        variation = VARIATIONS[name]
        settings[variation.setting] = _value(variation, value) if has_value else variation.bare
        if settings[variation.setting] is None:
            raise ValueError(f"{name} needs a value: write {variation.form}")
    return settings


def _value(variation: Variation, text: str) -> Any:
    try:
        return variation.read(text)
    except Malformed as error:
        raise ValueError(f"{text!r:.80} {error}: write {variation.form}") from error


# The training examples that a run, or each of its workers, uses: all, a data shard, or a bootstrap sample.

ALL = "all"
OF_WORKER = "shard:worker"  # as many data shards as workers; each worker uses the shard with its index
OF_FILES = "files:worker"  # each worker uses whole files of the data set; becomes rows:… once the data is there
MOST_SHARDS = 1000
# A bootstrap sample draws without replacement from this many copies of each example. That is practically the same as to
# draw with replacement.
COPIES = 1024
_SHARD = re.compile(r"shard:(0|[1-9][0-9]{0,3})/([1-9][0-9]{0,3})")
_BOOTSTRAP = re.compile(r"bootstrap:(0|[1-9][0-9]{0,8})")
_ROWS = re.compile(r"rows:([1-9][0-9]{0,11}(?:,[1-9][0-9]{0,11}){0,999})")


@dataclass(frozen=True)
class Sample:
    """A part of N examples. `copies` of each are put in random order (by `seed`); every `of`-th from `index` on is taken.

    A data shard has one copy of each. The `of` data shards are disjoint, and together they hold all examples. A bootstrap
    sample (Breiman 1996, "Bagging Predictors") takes N of many copies: on average 63 % of the examples, some repeatedly.
    """

    seed: int = 0
    index: Any = 0  # int; in the graph of a worker also int64 []
    of: int = 1
    copies: int = 1

    def size(self, examples: int) -> Any:
        """Return how many of `examples` the sample has: an int, or int64 [] if `index` is a tensor."""
        return (examples - self.index + self.of - 1) // self.of


@dataclass(frozen=True)
class Stretch:
    """Consecutive examples: `count` of them, from number `first` on."""

    first: Any  # int; in the graph of a worker also int64 []
    count: Any

    def size(self, examples: int) -> Any:
        """Return how many examples it has, of however many."""
        return self.count


def ends_of_workers(text: str) -> tuple[int, ...] | None:
    """Return where the consecutive examples of each worker end, as "rows:3000,7000" says; None for any other text.

    Worker 0 has the examples 0 to 2999 then, and worker 1 those up to 6999. Raises ValueError for ends that do not ascend.
    """
    found = _ROWS.fullmatch(text)
    if found is None:
        return None
    ends = tuple(map(int, found[1].split(",")))
    if any(later <= end for end, later in pairwise(ends)):
        raise ValueError(f"{text!r:.80}: the numbers have to ascend: each says where the examples of a worker end")
    return ends


def is_by_worker(text: str) -> bool:
    """Return whether a sample gives each worker examples of its own."""
    return text in (OF_WORKER, OF_FILES) or ends_of_workers(text) is not None


def sample_of_worker(
    text: str, worker: Any, workers: int, take: Callable[[Sequence[int], Any], Any]
) -> Sample | Stretch:
    """Return the sample of a worker, of a text of which `is_by_worker` is true.

    Args:
      worker: int, or int64 [] in a graph. A worker that `scale` has added shares the examples of another one.
      take: returns the number of a sequence at an index, which is `worker` modulo `workers`.
    """
    ends = ends_of_workers(text)
    if ends is None:
        return Sample(index=worker % workers, of=workers)
    firsts = (0, *ends[:-1])
    counts = [end - first for first, end in zip(firsts, ends)]
    return Stretch(take(firsts, worker % workers), take(counts, worker % workers))


def ends_of_files(rows_of_files: Sequence[int], workers: int) -> tuple[int, ...]:
    """Return where the examples of each worker end if each gets whole files: consecutive ones, as equal as they allow.

    Raises:
      ValueError: there are fewer files than workers.
    """
    ends = [end for end, rows in zip(accumulate(rows_of_files), rows_of_files) if rows]
    if len(ends) < workers:
        raise ValueError(f"{len(ends)} files have examples to train on, for {workers} workers")
    chosen, at = [], 0
    for worker in range(1, workers):
        places = range(at, len(ends) - (workers - worker))  # each of the later workers gets a file too
        wanted = ends[-1] * worker / workers
        place = min(places, key=lambda place: abs(ends[place] - wanted))
        chosen.append(ends[place])
        at = place + 1
    return (*chosen, ends[-1])


def parse_sample(text: str) -> Sample | None:
    """Parse "shard:0/4" or "bootstrap:7" (7 is the seed). Raises ValueError for any other text.

    Return None if the run uses all examples: for "all", and where each worker makes its own sample (`is_by_worker`).
    """
    if text == ALL or is_by_worker(text):
        return None
    if found := _BOOTSTRAP.fullmatch(text):
        return Sample(seed=int(found[1]), copies=COPIES)
    found = _SHARD.fullmatch(text)
    if found is None or int(found[1]) >= int(found[2]) or int(found[2]) > MOST_SHARDS:
        raise ValueError(
            f"{text!r:.80} is no sample: write all, shard:0/4 (the first of four), shard:worker (each worker's own), "
            "files:worker (whole files for each), rows:3000,7000 (where the rows of each worker end) or bootstrap:7 (its seed)"
        )
    return Sample(index=int(found[1]), of=int(found[2]))


# The forms of data that the package can read from a path without any code of the user.
#
# The form of `--dataset PATH` is recognised once, when the user's setting is read. From then on the name of the data set is
# `FORM:/the/path`, so no task has to look at the disk to know which settings it has. See `ps_cluster/data/forms/`.


class Form:
    """A form of data. Subclass it, and write both methods.

    Attributes:
      name: the name of the form; users may write `name:path` to choose it.
      looks_for: a description of what the path must be.
      endings: the endings of the names of files that have this form.
      Settings: the class of the section `data` for data sets of this form.
      takes_patterns: whether the path may also be a pattern of the names of files, e.g. `data/*.parquet`.
    """

    name = ""
    looks_for = ""
    takes_patterns = False
    endings: tuple[str, ...] = ()
    Settings: type[DataSettings]

    def recognises(self, path: Path) -> bool:
        """Return whether a file or folder has this form. Read at most names and the beginning of a file."""
        return path.name.lower().endswith(self.endings) and os.path.isfile(path)

    def one_change(self, path: Path) -> str:
        """Describe the single change that would give a path this form; "" if there is none. Read no more than `recognises`."""
        return ""

    def dataset(self, path: Path) -> DataSet:
        """Return the data set at a path, which need not exist. Damaged data is refused later, by `read`."""
        raise NotImplementedError


FORMS: Registry[Form] = Registry("form of data", Form, "ps_cluster.data.forms", "ps_cluster.forms")


class FormPath(NamedTuple):
    """A path, and the form of the data at it."""

    form: Form
    path: Path

    def __str__(self) -> str:
        return f"{self.form.name}:{self.path}"


def parse(text: str) -> FormPath | None:
    """Parse `FORM:PATH`; return None for any other text."""
    form, _, path = text.partition(":")
    return FormPath(FORMS[form], Path(path)) if path and form.isidentifier() and form in FORMS else None


def named_by_user(text: str, folder: Path) -> str:
    """Return `FORM:/the/path` for a path that the user has written, relative to `folder`; any other text unchanged.

    Raises:
      UserError: nothing is at the path, or the data there has no known form.
    """
    if place := parse(text):
        return str(place._replace(path=absolute_path(place.path, folder)))
    try:
        refuse_address(text)
    except Malformed as error:
        raise UserError(f"dataset: '{text:.200}' {error}") from error
    return str(_recognised(absolute_path(Path(text), folder))) if _is_path(text, folder) else text


def _is_path(text: str, folder: Path) -> bool:
    if "/" in text or os.path.exists(folder / text):
        return True
    name = Path(
        text
    ).name.lower()  # a name without a dot has no ending, so the forms of installed packages need not be loaded
    return "." in name and any(name.endswith(form.endings) for form in _all_forms())


def _all_forms() -> Iterator[Form]:
    """Yield the forms of this package, then those of installed packages."""
    return (FORMS[name] for name in FORMS.names)


def _recognised(path: Path) -> FormPath:
    if is_pattern(path):
        return _recognised_pattern(path)
    if not os.path.exists(path):
        leads = "docs/extending.md#your-own-data shows what it may lead to"
        raise UserError(f"dataset: there is no '{path}': correct the path; {leads}")
    for form in _all_forms():
        if form.recognises(path):
            return FormPath(form, path)
    shown = "docs/extending.md#your-own-data shows each"
    if changes := [change for form in _all_forms() if (change := form.one_change(path))]:
        raise UserError(f"dataset: '{path}' {changes[0]}; {shown.removesuffix('each')}all forms of data")
    code = f"to run code, name what it defines, e.g. '{path}:load'; " if path.suffix == ".py" else ""
    known = "; ".join(f"{form.name}: {form.looks_for}" for form in _all_forms())
    raise UserError(f"dataset: '{path}' has no form that is known. {code}{known}. {shown}")


def _recognised_pattern(path: Path) -> FormPath:
    found = matches(path)
    if not found:
        raise UserError(f"dataset: no file matches '{path}': correct the pattern")
    if form := next((form for form in _all_forms() if form.takes_patterns and form.recognises(path)), None):
        return FormPath(form, path)
    taken = "; ".join(f"{form.name}: {', '.join(form.endings)}" for form in _all_forms() if form.takes_patterns)
    raise UserError(
        f"dataset: '{path}' matches {len(found):,} files, such as '{found[0]}', and none of a form that a pattern may name: "
        f"{taken}"
    )


# The data sets: how each is found and read, what its examples are, and how they are augmented. No TensorFlow.
#
# The data sets of this package are in `ps_cluster/data/sets/`.

SPLITS = ("train", "test")
MOST_CLASSES = 2**16


class DataSettings(Section):
    """The section `data` of a configuration. A subclass adds the settings of one data set, with defaults."""

    dataset: Annotated[str, AfterValidator(lambda name: DATASETS.check_name(name))] = Field(
        description="The data set, or the path of your data; auto: CIFAR-10 if available, else a generated one."
    )
    data_dir: PathFromText | None = Field(
        default=None,
        description="The archive or folder that holds the data set; null: look in the caches, then download.",
    )


class ImageSettings(DataSettings):
    """Settings of data sets of images."""

    augmentation: Augmentation = Field(default=Augmentation())


class OwnDataSettings(DataSettings):
    """Settings of the user's data."""

    objective: Literal["auto", "classification", "multi-label", "regression"] = Field(
        default="auto", description="The objective of the training; auto: it is chosen by the form of the targets."
    )
    held_out: float = Field(
        default=0.1,
        gt=0,
        lt=1,
        description="Share of the examples that is held out for testing, if the data has no test examples.",
    )


class OwnImageSettings(OwnDataSettings, ImageSettings):
    """Settings of the user's images."""


class NotThisDataSet(UserError):
    """A file or folder is not the wanted data set. The message starts with its path."""


class Download(NamedTuple):
    """The address of a file of a data set, its SHA-256 in hexadecimal, and its size in bytes."""

    url: str
    sha256: str
    bytes: int

    @property
    def file(self) -> str:
        return self.url.rpartition("/")[2]


class TargetKind(NamedTuple):
    """The name of a target's objective, and the names of its classes or labels."""

    objective: str
    classes: tuple[str, ...]


@dataclass(frozen=True)
class Contents:
    """The contents of a data set.

    Attributes:
      spec: the form of the examples. `mean` and `std` of the fields may be empty.
      arrays: split ("train", "test") → name of a field → rows [N, ...]: an array, which may be memory-mapped, or an
        object that returns parts of itself as arrays. The target is called "target", the examples' weights "weight".
      notes: lines for the user, e.g. which examples were held out.
      encoding: how the columns of a table became numbers (runs/rows.py); None if the data is no table.
      file_rows: how many training examples come from each of several files, in their order; () if that is not known.
    """

    spec: ExampleSpec
    arrays: Mapping[str, Mapping[str, Rows]]
    notes: tuple[str, ...] = ()
    encoding: Mapping[str, Any] | None = None
    file_rows: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        train: Mapping[str, Rows],
        test: Mapping[str, Rows],
        *,
        objective: str = "classification",
        classes: Sequence[str] = (),
        output: str = "",
        others: Mapping[str, TargetKind] | None = None,
    ) -> Contents:
        """Return contents whose spec follows from the arrays in `train`.

        Args:
          train, test: field → [N, ...]. The target is called "target", weights of the examples "weight".
          classes: the names of the classes or labels; (): their numbers are their names.
          output: the name of the output that the target is for, if there are others.
          others: name of a further output → what its target is. The arrays are called as `target_array` says.

        Raises:
          UserError: there is no target, or a field is no array.
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
        return 0  # packing reports the mistake
    highest = int(labels[:].max())
    if highest >= MOST_CLASSES:
        raise UserError(f"dataset: a label is {highest}, of at most {MOST_CLASSES:,} classes: number them from 0")
    return highest + 1


NO_IMAGES: Mapping[str, Any] = {"model": {"name": "mlp"}}
"""The recipe of data without images, which networks for images, such as the default network, can't take."""


class DataSet:
    """A data set. Subclass it and write `read`, or write a function that returns `Contents`.

    Attributes:
      name: the name by which users choose it.
      title: the name in sentences, if it differs.
      generated: whether a program generates the data. Every output with a result of such data says so.
      Settings: the class of the section `data`, with this data set's own settings.
      recipe: the settings in which it differs from configs/default.yaml with any network, as a layer.
      recipes: network → a layer of settings for this data set with this network.
      version: increase it whenever `read` returns something else for the same source, so that the data is packed again.
      archive: the name of the file, or files, that users may already have.
      downloads: the addresses of these files; none if the data set can't be downloaded.
      wanted: a description of the files to look for in a folder; "" if the data set needs no files.
      path: the path of data that a user has named by its path. It is packed again when something there changes.
      candidates_of: the names of several data sets that this name may stand for, the best first.
      offered: whether help and lists of choices contain the data set.
    """

    page = "docs/extending.md#your-own-data"
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

    def augmentation(self) -> Augment | None:
        """Return the function that augments the examples of a batch; None: there is no augmentation."""
        return None

    def views(self) -> MeanOverViews | None:
        """Return the function that averages a network's outputs over views of each example; None: there are no views."""
        return None

    @property
    def full_name(self) -> str:
        """The name in sentences."""
        return self.title or self.name

    @property
    def kind(self) -> str:
        """The origin of the data: "synthetic" if it is generated, else "real"."""
        return "synthetic" if self.generated else "real"

    @property
    def is_on_disk(self) -> bool:
        """True if the data set is read from files that have to be found or downloaded."""
        return bool(self.wanted)

    def candidates(self, place: Path) -> Iterable[Path]:
        """Yield the paths from which `read` may read: `place`, or paths in that folder, the best first. Opens no file."""
        return ()

    def read(self, source: Path | None, settings: DataSettings) -> Contents:
        """Read the whole data set from a candidate. `source` is None if the data set needs no files.

        Args:
          settings: the section `data`, an object of `Settings`.

        Raises:
          NotThisDataSet: `source` is damaged, or is no such data set.
        """
        raise NotImplementedError

    def own_settings(self, settings: DataSettings) -> dict[str, Any]:
        """Return the settings on which `read` may depend: all that only this data set has."""
        return settings.model_dump(mode="json", exclude=set(ImageSettings.model_fields))

    def check(self, config: RunConfig) -> None:
        """Raise ValueError, with the setting and its value, for settings that do not fit this data set."""
        if config.evaluation.augment_last and self.views() is None:
            raise ValueError(f"evaluation.augment_last: got True: data set {self.name} has no views: leave it out")

    def check_examples(self, config: RunConfig, spec: ExampleSpec) -> None:
        """Raise ValueError, with the setting and its value, for settings that do not fit its examples."""
        OBJECTIVES[spec.objective].check(config, spec)


class ImageDataSet(DataSet):
    """A data set in which each example is one image."""

    Settings = ImageSettings

    def augmentation(self) -> Augment:
        from ps_cluster.data.augment import augment

        return augment

    def views(self) -> MeanOverViews:
        from ps_cluster.data.augment import mean_over_views

        return mean_over_views

    def check_examples(self, config: RunConfig, spec: ExampleSpec) -> None:
        super().check_examples(config, spec)
        if config.evaluation.augment_last and not OBJECTIVES[spec.objective].has_accuracy:
            raise ValueError(f"evaluation.augment_last: got True: a {spec.objective} has no accuracy: leave it out")
        image = spec.image(config.model.name)
        config.data.augmentation.check(image.shape)  # type: ignore[attr-defined]  # its Settings have it


class _Function(DataSet):
    """A data set from a function without arguments that returns `Contents` or arrays (data/own_arrays.py)."""

    Settings = OwnDataSettings
    version = 2

    def __init__(self, function: Callable[[], Any]):
        self._function = function

    def read(self, source: Path | None, settings: DataSettings) -> Any:
        return self._function()


class _DataSets(Registry[DataSet]):
    """All data sets, by name or by the path of data in one of the known forms."""

    @property
    def with_settings(self) -> Iterator[Any]:
        """Yield the data sets of this package, and the forms of data."""
        return chain((one for one in self if one.offered), FORMS)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name in super().names if name not in self.own or self.own[name].offered)

    def named_by_user(self, name: str, folder: Path) -> str:
        """Return a name that the user has written, with an absolute path for code, and with form and path for data."""
        if super().__contains__(name):
            return super().named_by_user(name, folder)
        return named_by_user(name, folder)

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or (isinstance(name, str) and parse(name) is not None)

    def unknown(self, name: str) -> str:
        return f"{super().unknown(name)}, and a path to your own data"

    def _load(self, name: str) -> DataSet:
        place = None if super().__contains__(name) else parse(name)
        if place is None:
            return super()._load(name)
        return self._made(place.form.dataset(place.path), name)


DATASETS: Registry[DataSet] = _DataSets(
    "data set", DataSet, "ps_cluster.data.sets", "ps_cluster.datasets", wrap=_Function
)
