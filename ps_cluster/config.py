"""The configuration of a run: typed, validated in one place, read from YAML files and overrides.

The defaults stand in `configs/default.yaml` and nowhere else. Later layers win: default.yaml, configs/models/<model>.yaml,
what that has under `modes` for the mode, workers and batch (recipes.py), the user's file, `--set key=value` and the
command's own options.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from ps_cluster import recipes
from ps_cluster.data.augmentation_config import Augmentation
from ps_cluster.errors import UserError
from ps_cluster.files.malformed import Malformed
from ps_cluster.files.validation import first_error
from ps_cluster.files.yaml_files import dump_yaml, parse_yaml, read_yaml
from ps_cluster.installation import CONFIG_FOLDER, PROGRAM
from ps_cluster.mode_settings import PARAMETER_SERVER_MODES, Mode, check_switches, check_used, flat
from ps_cluster.training.dispatch import dispatch_size
from ps_cluster.training.straggler_config import parse_stragglers

StalenessMethod = Literal["none", "inverse", "dc_constant", "dc_adaptive", "gap_aware", "momentum"]
STALENESS_METHODS: tuple[StalenessMethod, ...] = get_args(StalenessMethod)
ModelName = Literal["tutorial_cnn", "cifar_tf_cnn", "resnet_small", "airbench"]
MODEL_NAMES: tuple[ModelName, ...] = get_args(ModelName)

# On one machine. More would only wait for its processors, and for its memory.
MOST_WORKERS, MOST_PARAMETER_SERVERS = 8, 4
MOST_WORKERS_OF_A_CLUSTER = 1000
DEFAULT_MAX_STALENESS = 3  # of mode bounded where no bound is given
# Of one worker on a slow, crowded machine. The largest network here does 215 in float32 with a core to itself.
SLOWEST_EXAMPLES_PER_SECOND = 20.0

# Of a slice's ledger on the parameter server: 8.9 MB of rows and 0.5 MB of step ids.
LEDGER_WINDOW, STEPS_IN_WINDOW_PER_WORKER = 2**16, 256

# Far above all that is of use, and far from where float32 ends.
LARGEST_FACTOR, LONGEST_SECONDS = 1e6, 1e9
SMALLEST_EPSILON = 1e-30
MOST_FACTORS = 100

Layer = dict[str, Any]


def _no_zero(path: Path) -> Path:
    if "\0" in str(path):
        raise ValueError("no file name holds a zero character")
    return path


Fraction = Annotated[float, Field(ge=0, le=1)]
Factor = Annotated[float, Field(ge=0, le=LARGEST_FACTOR)]
# Not strict, because YAML has paths as text and tuples as lists; what is in a tuple is strict.
PathFromText = Annotated[Path, Field(strict=False), AfterValidator(_no_zero)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)


class Cluster(_Section):
    workers: int = Field(ge=1, le=MOST_WORKERS_OF_A_CLUSTER)
    parameter_servers: int = Field(ge=1, le=256)
    evaluator: bool
    intra_op_threads: int = Field(ge=1, le=256)
    wire: Literal["auto", "bfloat16", "float32"]
    steps_per_dispatch: Literal["auto"] | Annotated[int, Field(ge=1, le=1000)]
    straggler: str = Field(max_length=200)
    pin_workers: Literal["auto", True, False]
    isolation: Literal["auto", "require", "off"]

    @field_validator("straggler")
    @classmethod
    def _stragglers_are_known(cls, text: str) -> str:
        parse_stragglers(text)
        return text.strip()


class Data(_Section):
    dataset: Literal["auto", "cifar10", "synthetic"]
    data_dir: PathFromText | None
    augmentation: Augmentation


class Model(_Section):
    name: ModelName
    precision: Literal["auto", "bfloat16", "float32"]
    activation: Literal["relu", "gelu", "silu"]


class Training(_Section):
    mode: Mode
    seed: int = Field(ge=0, lt=2**31)
    batch_size_per_worker: int = Field(ge=1, le=10_000)
    epochs: float = Field(gt=0, le=100_000)
    steps: int | None = Field(ge=1, le=1_000_000_000)
    label_smoothing: Fraction
    max_staleness: int | None = Field(ge=0, le=1000)
    max_clock_lag: int | None = Field(ge=0, le=1000)
    backup_workers: int = Field(ge=0, le=999)
    simulate_workers: int | None = Field(ge=1, le=1000)
    staleness_method: StalenessMethod


class DelayCompensation(_Section):
    strength: Factor
    decay: Fraction


class Elastic(_Section):
    local_steps: int = Field(ge=1, le=1000)
    beta: float = Field(gt=0, le=1)


class LearningRateFactor(_Section):
    # No regular expression: of some, a search takes longer than anybody waits.
    match: str = Field(max_length=100)
    factor: Factor

    @field_validator("match")
    @classmethod
    def _is_a_pattern(cls, pattern: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9_/*?-]+", pattern):
            raise ValueError("write a part of a variable's path: letters, digits, _ - / and, for any others, ? and *")
        return pattern


class Optimizer(_Section):
    rule: Literal["sgd", "momentum", "nesterov", "adam"]
    learning_rate: float = Field(gt=0, le=LARGEST_FACTOR)
    momentum: float = Field(ge=0, lt=1)
    beta_2: float = Field(ge=0, lt=1)
    epsilon: float = Field(ge=SMALLEST_EPSILON, le=LARGEST_FACTOR)
    weight_decay: Factor
    learning_rate_factors: tuple[LearningRateFactor, ...] = Field(strict=False, max_length=MOST_FACTORS)


class Lookahead(_Section):
    every_updates: int = Field(ge=0, le=100_000)
    decay: Fraction


class Schedule(_Section):
    kind: Literal["constant", "triangle", "cosine"]
    warmup_fraction: Fraction
    start_factor: Fraction
    end_factor: Fraction


class Evaluation(_Section):
    augment_last: bool
    after_training: bool
    validation_examples: int = Field(ge=0, le=10_000_000)


class Checkpoints(_Section):
    every_seconds: Literal["auto"] | Annotated[float, Field(gt=0, le=LONGEST_SECONDS)]
    every_epochs: float | None = Field(gt=0, le=100_000)
    snapshot_every_seconds: float = Field(gt=0, le=LONGEST_SECONDS)
    keep: int = Field(ge=1, le=1_000_000)


class RunConfig(_Section):
    cluster: Cluster
    data: Data
    model: Model
    training: Training
    delay_compensation: DelayCompensation
    elastic: Elastic
    optimizer: Optimizer
    lookahead: Lookahead
    schedule: Schedule
    checkpoints: Checkpoints
    evaluation: Evaluation

    @model_validator(mode="after")
    def _fits_together(self) -> RunConfig:
        mode, cluster, training = self.training.mode, self.cluster, self.training
        check_switches(mode, flat(self.model_dump()))
        if mode in ("bounded", "sync-ps") and cluster.parameter_servers > 1:
            # Who may go on, and whose gradient came too late, is decided in one place.
            raise ValueError(f"cluster.parameter_servers: got {cluster.parameter_servers}: mode {mode} works with 1")
        if training.backup_workers and training.backup_workers >= cluster.workers:
            raise ValueError(f"training.backup_workers: got {training.backup_workers}: it needs more workers than that")
        if training.simulate_workers is not None and training.simulate_workers < cluster.workers:
            raise ValueError(
                f"training.simulate_workers: got {training.simulate_workers}: it needs at least cluster.workers, "
                f"{cluster.workers}"
            )
        if training.staleness_method == "momentum" and self.optimizer.rule == "sgd":
            raise ValueError("training.staleness_method: got 'momentum': optimizer.rule sgd has none to correct")
        if not parse_stragglers(cluster.straggler).are_among(self.training_workers):
            raise ValueError(
                f"cluster.straggler: got '{cluster.straggler}': mode {mode} has workers 0 to {self.training_workers - 1}"
            )
        if mode == "elastic" and self.optimizer.rule != "sgd":
            raise ValueError(f"optimizer.rule: got '{self.optimizer.rule}': mode elastic needs sgd")
        return self

    def check_fits_one_machine(self) -> None:
        """Raises UserError where there are more tasks than one machine has any use for."""
        for name, most in (("workers", MOST_WORKERS), ("parameter_servers", MOST_PARAMETER_SERVERS)):
            if (wanted := getattr(self.cluster, name)) > most:
                raise UserError(
                    f"cluster.{name}: got {wanted}: on one machine at most {most}; on several: {PROGRAM} task"
                )

    @property
    def on_parameter_servers(self) -> bool:
        """Return whether chief, parameter servers and workers are processes of their own."""
        return self.training.mode in PARAMETER_SERVER_MODES

    @property
    def slices(self) -> int:
        """Into how many slices the parameters are cut."""
        return self.cluster.parameter_servers if self.on_parameter_servers else 1

    @property
    def training_workers(self) -> int:
        """Processes that compute gradients."""
        return 1 if self.training.mode == "single" else self.cluster.workers

    @property
    def steps_per_update(self) -> int:
        """Step ids that are spent on one update: more than one where workers' gradients are averaged."""
        return self.cluster.workers if self.training.mode in ("sync", "sync-ps") else 1

    @property
    def bounds(self) -> tuple[int | None, int | None]:
        """Of mode bounded: versions that an update may lag behind, and steps that a worker may be ahead; None: any."""
        staleness, lag = self.training.max_staleness, self.training.max_clock_lag
        return (DEFAULT_MAX_STALENESS if staleness is None and lag is None else staleness), lag

    @property
    def gradients_per_update(self) -> int:
        """Gradients that one update averages; those of backup workers come late and are dropped."""
        return self.steps_per_update - self.training.backup_workers

    @property
    def batches_per_step(self) -> int:
        """Batches behind one step id: more than one where a worker takes local steps."""
        return self.elastic.local_steps if self.training.mode == "elastic" else 1

    @property
    def moving_rate(self) -> float:
        """Share of the way to each other that an exchange of elastic averaging moves a worker and the centre."""
        return self.elastic.beta / self.cluster.workers

    @property
    def examples_per_step(self) -> int:
        """Images behind one step id."""
        return self.training.batch_size_per_worker * self.batches_per_step

    @property
    def examples_per_update(self) -> int:
        """Images behind one update."""
        return self.examples_per_step * self.gradients_per_update

    @property
    def updates_at_once(self) -> int:
        """Updates that are only heard of together: a dispatch where all workers take the same, which none may time."""
        if self.training.mode != "sync":
            return 1
        return dispatch_size(self.cluster.steps_per_dispatch, workers=1, per_second=0.0, left=math.inf)

    @property
    def ledger_window(self) -> int:
        """Return how many steps may be open, or accepted and not yet read by the chief, at a time: a power of 2.

        Enough for all that a worker may be handed before a slow one has ended what it has.
        """
        most = max(LEDGER_WINDOW, STEPS_IN_WINDOW_PER_WORKER * self.training_workers)
        at_once = 2 * self.updates_at_once * self.steps_per_update
        return 1 << (max(most, at_once) - 1).bit_length()

    @property
    def longest_update_seconds(self) -> float:
        """How long nothing may be heard of a new update although all is well: what waits for one waits for longer."""
        own_s = self.examples_per_step / SLOWEST_EXAMPLES_PER_SECOND
        stragglers = parse_stragglers(self.cluster.straggler)
        return self.updates_at_once * stragglers.longest_step_s(own_s, self.training_workers, self.training.seed)

    def total_updates(self, train_examples: int) -> int:
        """Updates of the whole run: `training.steps` where it is set, else those of `epochs` passes over the images."""
        if self.training.steps is not None:
            return self.training.steps
        return max(1, round(self.training.epochs * train_examples / self.examples_per_update))

    def total_steps(self, train_examples: int) -> int:
        """Step ids of the whole run."""
        return self.total_updates(train_examples) * self.steps_per_update

    def to_yaml(self) -> str:
        return dump_yaml(self.model_dump(mode="json"))

    @property
    def wire(self) -> str:
        """The dtype of weights and gradients between the processes: "bfloat16" or "float32"."""
        return self.model.precision if self.cluster.wire == "auto" else self.cluster.wire

    def with_values(self, values: Layer) -> RunConfig:
        """The same configuration with some values replaced, e.g. `{"model.precision": "float32"}`; validated again."""
        return _validated(_merged(self.model_dump(mode="json"), _nested(values)), "configuration")


def build_config(file: Path | None = None, overrides: Layer | None = None) -> RunConfig:
    """The configuration from all its layers.

    Args:
      file: a YAML file that overrides the defaults, or None.
      overrides: dotted key → value, e.g. `{"cluster.workers": 2}`; the last word.
    Raises:
      UserError: a file that can't be read, an unknown key, a value of the wrong type or range, or one that the mode does
        not use. A file may repeat the defaults: that of a finished run holds every setting.
    """
    from_file, from_options = read_yaml(file) if file else {}, _nested(overrides or {})
    user = _merged(from_file, from_options)
    base = _defaults(user)
    given_here, defaults = flat(from_options), flat(base)
    try:
        config = RunConfig.model_validate(_merged(base, user))
    except ValidationError as error:
        raise UserError(first_error(error, _origin(error, file, given_here), "configs/default.yaml")) from error
    changed = {key: value for key, value in flat(from_file).items() if value != defaults.get(key)}
    for origin, given in (("options", given_here), (str(file), changed)):
        try:
            check_used((config.training.mode,), given)
        except ValueError as error:
            raise UserError(f"{origin}: {error}") from error
    return config


def _defaults(user: Layer) -> Layer:
    """Return the layers under the user's: the defaults, and the recipe of the network that is chosen."""
    base = read_yaml(CONFIG_FOLDER / "default.yaml")
    model = _merged(base, user).get("model")
    name = model.get("name") if isinstance(model, dict) else None
    recipe = CONFIG_FOLDER / "models" / f"{name}.yaml"
    if name not in MODEL_NAMES or not recipe.exists():
        return base
    layer = read_yaml(recipe)
    modes = recipes.read_modes(layer, str(recipe))
    base = _merged(base, {key: value for key, value in layer.items() if key != recipes.MODES})
    return _merged(base, recipes.found_for(modes, _merged(base, user), user))


def _origin(error: ValidationError, file: Path | None, options: Layer) -> str:
    """Return where the user has the first wrong value from; of values that don't fit together it may be both."""
    field = ".".join(str(part) for part in error.errors()[0]["loc"])
    if file is None or field and any(f"{field}.".startswith(f"{key}.") for key in options):
        return "options"
    return str(file) if field or not options else f"{file} and options"


def rates_found(config: RunConfig) -> recipes.Found | None:
    """What the recipe of its network has for the mode, workers and batch of a configuration, used or not."""
    recipe = CONFIG_FOLDER / "models" / f"{config.model.name}.yaml"
    place = (config.training.mode, config.training_workers, config.training.batch_size_per_worker)
    return next((found for found in recipes.read_modes(read_yaml(recipe), str(recipe)) if found.place == place), None)


def load_config(file: Path) -> RunConfig:
    """A complete configuration, as a run has written it down."""
    return _validated(read_yaml(file), str(file))


def parse_assignment(text: str) -> tuple[str, Any]:
    """`'optimizer.learning_rate=0.1'` → `('optimizer.learning_rate', 0.1)`; the value is read as YAML."""
    key, separator, value = text.partition("=")
    if not separator or not re.fullmatch(r"\w+(\.\w+){1,9}", key.strip()):
        raise UserError(f"--set {text!r:.300}: write it as section.key=value, e.g. optimizer.learning_rate=0.1")
    try:
        return key.strip(), parse_yaml(value)
    except Malformed as error:
        raise UserError(f"--set {text!r:.300}: the value {error}") from error


def _nested(dotted: Layer) -> Layer:
    tree: Layer = {}
    for key, value in dotted.items():
        *sections, name = key.split(".")
        branch = tree
        for section in sections:
            branch = branch.setdefault(section, {})
            if not isinstance(branch, dict):
                raise UserError(
                    f"{key}: '{section}' is given as {branch!r:.300}, where a section with its settings belongs"
                )
        branch[name] = value
    return tree


def _merged(under: Layer, over: Mapping[str, Any]) -> Layer:
    """`over` on top of `under`, section by section; lists are replaced whole."""
    result = dict(under)
    for key, value in over.items():
        both_sections = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = _merged(result[key], value) if both_sections else value
    return result


def _validated(tree: Layer, origin: str) -> RunConfig:
    try:
        return RunConfig.model_validate(tree)
    except ValidationError as error:
        raise UserError(first_error(error, origin, "configs/default.yaml")) from error
