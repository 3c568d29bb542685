"""Plan the runs of a comparison: every arm does the same work for each combination of seed, straggler and batch."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import groupby, product
from pathlib import Path
from random import Random
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from ps_cluster.config import RunConfig, build_config, user_code, uses_found_rates
from ps_cluster.config.modes import MODES
from ps_cluster.config.schedules import CONSTANT
from ps_cluster.config.schema import MOST_EPOCHS
from ps_cluster.config.sections import check_used, flat, joined, nested, uses, without_unused
from ps_cluster.config.setting_types import AUTO, COMPILED
from ps_cluster.config.stragglers import parse_stragglers
from ps_cluster.config.user_settings import of_options, trust_names
from ps_cluster.errors import UserError
from ps_cluster.files.values import first_error
from ps_cluster.files.yaml_files import read_yaml

Batch = Literal["same_per_update", "same_per_worker"]
BATCHES: tuple[Batch, ...] = get_args(Batch)
MOST_RUNS = 2000  # the most runs of a comparison; more would take longer than a month
LONGEST_NAME = 150  # characters in the name of a run's folder
REPORT = "report.json"
PLAN = "comparison.yaml"  # in the folder of a comparison, beside runs/
OF_LENGTH = ("training.epochs", "training.steps", "training.max_seconds", "checkpoints.every_epochs")
SCORES_IN_TIME = 8  # how often each run is scored in a comparison with a time limit
# These settings depend on the share of the training that is done. A time limit leaves this share unknown, so they are off.
OFF_WITH_TIME_LIMIT = {
    "schedule.kind": CONSTANT, "schedule.warmup_fraction": 0.0, "schedule.image_scales": [], "lookahead.every_updates": 0
}  # fmt: skip


class PlannedArm(BaseModel):
    """An arm of a comparison: one way to train. `set` has the settings of this arm alone, by dotted key.

    If `batches` is set, it replaces the `batches` of the comparison.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    mode: Annotated[str, AfterValidator(MODES.check_name)]
    batches: Annotated[tuple[Batch, ...], Field(strict=False, min_length=1, max_length=2)] | None = None
    set: Annotated[dict[Annotated[str, Field(pattern=r"^\w+(\.\w+)+$")], Any], AfterValidator(flat)] = {}


class Comparison(BaseModel):
    """A comparison of several arms, each of which is a mode with its settings.

    Attributes:
      batches: "same_per_update" gives every update the same number of examples, workers x batch size, in every mode.
        "same_per_worker" gives every worker the same batch size.
      learning_rate: how an arm's rate follows from the rate in `settings`, or else from the network's default rate.
        "linear" multiplies that rate by examples per update / batch size (Goyal et al. 2017, arXiv:1706.02677, section
        2.1, for SGD). "same" takes it as it is. An arm's rate is not multiplied if the arm sets it, or if it was
        tuned for this network, mode, number of workers and batch.
      score_every_epochs: the number of passes over the training examples from one checkpoint to the next, if `seconds`
        is not given. The checkpoints are scored after training, so scoring takes no training time.
      seconds: all runs train for this long instead of on the same number of examples, at a constant learning rate. Each
        run is scored `SCORES_IN_TIME` times, at equal intervals.
      settings: the settings of all runs, by dotted key. In a file, they may also be nested: `training: {epochs: 3}`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)
    # The tuples themselves are not strict, since YAML has lists; their items are strict.
    arms: Annotated[tuple[PlannedArm, ...], Field(strict=False, min_length=1, max_length=100)]
    seeds: int = Field(default=3, ge=1, le=100)
    stragglers: Annotated[tuple[str, ...], Field(strict=False, min_length=1, max_length=20)] = ("none",)
    batches: Annotated[tuple[Batch, ...], Field(strict=False, min_length=1, max_length=2)] = BATCHES
    learning_rate: Literal["linear", "same"] = "linear"
    score_every_epochs: float = Field(default=1 / 8, gt=0, le=1000)
    seconds: float | None = Field(default=None, ge=1, le=1e6)
    target_score: float | None = Field(default=None, gt=0)
    settings: Annotated[dict[str, Any], AfterValidator(flat)] = {}

    def arms_by_batch(self) -> Iterator[tuple[Batch, PlannedArm]]:
        """Yield each arm once with each of its `batches`, i.e. with "same_per_update", "same_per_worker", or both."""
        for batch in BATCHES:
            for arm in self.arms:
                if batch in (arm.batches or self.batches):
                    yield batch, arm

    @property
    def arm_keys(self) -> frozenset[str]:
        """The dotted keys that individual arms set."""
        return frozenset(key for arm in self.arms for key in arm.set)


@dataclass(frozen=True)
class PlannedRun:
    """A training run of a comparison.

    Attributes:
      name: the name of its folder.
      scaled: whether the plan has multiplied the network's learning rate for this run (`Comparison.learning_rate`).
    """

    name: str
    config: RunConfig
    scaled: bool


class WrittenPlan(BaseModel):
    """The fields of comparison.yaml that are read back. The file also has the other fields of `Comparison`."""

    settings: dict[str, Any] | None = None
    seeds: int = 0
    trained_in_this_order: list[str] = []  # the names of the runs
    rates_scaled: list[str] = []  # the names of the runs whose learning rate the comparison multiplied

    def is_part_of(self, other: WrittenPlan) -> bool:
        """Return whether `other` begins with the runs of this plan, and has at least as many seeds."""
        count = len(self.trained_in_this_order)
        return self.seeds <= other.seeds and other.trained_in_this_order[:count] == self.trained_in_this_order


def read_comparison(file: Path | None, changes: dict[str, Any], overrides: dict[str, Any]) -> Comparison:
    """Return the comparison in a file, changed by the command line.

    Args:
      changes: fields of `Comparison` given on the command line.
      overrides: dotted key → value, settings for all runs.
    Raises:
      UserError: the file can't be read, a key is unknown, or a value is not valid.
    """
    content = {
        "arms": [
            {"mode": mode.name}
            for mode in MODES
            if not mode.synchrony.takes_local_steps and mode.cluster.splits == "data"
        ],
        **(read_yaml(file) if file else {}),
    }
    content["settings"] = content.get("settings") or {}  # an empty section is None in YAML
    try:
        comparison = Comparison.model_validate(content | changes)
    except ValidationError as error:
        raise UserError(first_error(error, str(file) if file else "compare", names=Comparison.model_fields)) from error
    comparison = _with_absolute_paths(comparison, file.absolute().parent if file else Path.cwd())
    settings = joined([comparison.settings, flat(of_options(overrides).settings)])
    return comparison.model_copy(update={"settings": settings})


def _with_absolute_paths(comparison: Comparison, folder: Path) -> Comparison:
    """Return the comparison with absolute paths to the code and data that its settings name.

    Mark this code as trusted, so that it may run. Relative paths start at `folder`.
    """

    def named(settings: dict[str, Any]) -> dict[str, Any]:
        return flat(trust_names(nested(settings), folder))

    arms = tuple(
        arm.model_copy(update={"mode": user_code.trust_reference(arm.mode, folder), "set": named(arm.set)})
        for arm in comparison.arms
    )
    return comparison.model_copy(update={"arms": arms, "settings": named(comparison.settings)})


def read_plan(folder: Path) -> WrittenPlan:
    """Return the plan in a comparison's folder; an empty plan if there is none. Raises UserError for a damaged file."""
    file = folder / PLAN
    try:
        return WrittenPlan.model_validate(read_yaml(file) if file.is_file() else {})
    except ValidationError as error:
        raise UserError(first_error(error, f"'{file}'")) from error


def planned_runs(comparison: Comparison) -> list[PlannedRun]:
    """Return all runs, grouped by seed, then by straggler, by batch and by arm.

    A mode gets no run with a straggler setting if it does not have the worker that this setting slows down (a single
    process has only worker 0), or if it does not use the setting `cluster.straggler`. Shared settings that a mode does
    not use are left out of its runs.

    Raises:
      UserError: the settings don't fit one of the modes, one of the settings is used by no mode, or there is nothing to
        run.
    """
    count = comparison.seeds * len(comparison.stragglers) * len(comparison.batches) * len(comparison.arms)
    if count > MOST_RUNS:
        raise UserError(
            f"seeds, stragglers, batches and arms make {count:,} runs: at most {MOST_RUNS:,} can be compared"
        )
    for given in (comparison.settings, *(arm.set for arm in comparison.arms)):
        _check_length(comparison, given)
    try:
        check_used(tuple(arm.mode for arm in comparison.arms), comparison.settings)
    except ValueError as error:
        raise UserError(f"compare: {error}") from error
    runs: dict[str, PlannedRun] = {}
    places = product(range(comparison.seeds), comparison.stragglers, comparison.arms_by_batch())
    for seed, straggler, (batch, arm) in places:
        if run := _planned_run(comparison, arm, batch, straggler, seed):
            if run.name in runs and runs[run.name].config != run.config:  # names leave out sections and punctuation
                run = replace(run, name=f"{run.name}-{_digest(run.config.to_yaml())}")
            runs.setdefault(run.name, run)
    configs = [run.config for run in runs.values()]
    for config in configs:
        config.check_fits_one_machine()
    examples = {one.training.steps * one.examples_per_update for one in configs if one.training.steps is not None}
    if len(examples) > 1 and comparison.seconds is None:
        raise UserError(
            "training.steps: an update has different numbers of examples in these arms, so they would train on "
            "different numbers of examples: give training.epochs instead"
        )
    if not runs:
        raise UserError(
            f"--straggler: got {', '.join(comparison.stragglers)}: no mode of this comparison can have such a slow worker"
        )
    return list(runs.values())


def _check_length(comparison: Comparison, given: Mapping[str, Any]) -> None:
    """Raise UserError if settings contradict the length and the scoring times that the comparison sets for its runs."""
    if (every := given.get("checkpoints.every_seconds")) is not None:
        after, instead = "numbers of examples", "set score_every_epochs in the comparison's file instead"
        if comparison.seconds is not None:
            after, instead = "times", "leave this setting out"
        raise UserError(
            f"compare: checkpoints.every_seconds: got {every!r:.80}: a comparison scores all its runs after the same "
            f"{after}: {instead}"
        )
    if comparison.seconds is None:
        return
    for key in OF_LENGTH:
        if (value := given.get(key)) is not None:
            raise UserError(
                f"{key}: got {value!r:.100}: every arm of this comparison trains for {comparison.seconds:g} s: leave out "
                f"{key}, or the comparison's 'seconds'"
            )
    for key in OFF_WITH_TIME_LIMIT.keys() & given.keys():
        if given[key] != OFF_WITH_TIME_LIMIT[key]:
            raise UserError(
                f"{key}: got {given[key]!r:.100}: this setting needs the number of updates, which is unknown if every arm "
                f"trains for the same time: leave out {key}, or the comparison's 'seconds'"
            )
    if "score_every_epochs" in comparison.model_fields_set:
        raise UserError(
            f"score_every_epochs: got {comparison.score_every_epochs:g}: in a comparison with 'seconds', every run is scored "
            f"{SCORES_IN_TIME} times: leave score_every_epochs out"
        )


def training_order(runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """Return the runs in training order: seed after seed, and the arms of each seed in an order that the seed decides.

    Slow changes of the machine then affect all arms, and no arm always follows the same other arm.
    """
    order: list[PlannedRun] = []
    for seed, of_seed in groupby(runs, key=lambda run: run.config.training.seed):
        shuffled = list(of_seed)
        Random(seed).shuffle(shuffled)
        order += shuffled
    return order


def _planned_run(comparison: Comparison, arm: PlannedArm, batch: Batch, straggler: str, seed: int) -> PlannedRun | None:
    """Return the run of an arm; None if the arm's mode can't have this straggler."""
    shared = without_unused(arm.mode, comparison.settings)
    values = {**shared, **arm.set, "mode.name": arm.mode, "training.seed": seed}
    config = build_config(None, deepcopy(values))
    try:
        stragglers = parse_stragglers(straggler)
    except ValueError as error:
        raise UserError(f"--straggler: {error}") from error
    has_stragglers = uses(arm.mode, "cluster.straggler")
    if not stragglers.are_among(config.training_workers) or (stragglers and not has_stragglers):
        return None
    size = config.training.batch_size_per_worker
    if batch == "same_per_update":
        # A single process has no workers, but its updates need as many examples as the updates of the other modes.
        workers = (comparison.settings | arm.set).get("cluster.workers", config.cluster.workers)
        values["training.batch_size_per_worker"] = _share_of_an_update(config, workers)
    if has_stragglers:
        values["cluster.straggler"] = straggler
    config = _placed_and_scored_alike(build_config(None, deepcopy(values)), comparison)
    times = config.training.batch_size_per_worker * config.gradients_per_update / size
    rate = config.optimizer.learning_rate
    is_own = arm.set.get("optimizer.learning_rate") is not None or uses_found_rates(config)
    scaled = comparison.learning_rate == "linear" and not is_own and times != 1 and rate is not None
    if scaled:
        config = config.with_values({"optimizer.learning_rate": rate * times})
    # `batch` is not part of the name: if both values give the same batch size (sync), one run serves both.
    own = (f"{key.rpartition('.')[2]}={value}" for key, value in arm.set.items())
    labels = (arm.mode, *own, f"batch={config.training.batch_size_per_worker}", straggler)
    name = "-".join(re.sub(r"[^\w.=+]+", "_", label) for label in labels)
    if len(name) > LONGEST_NAME:
        name = f"{name[:LONGEST_NAME]}-{_digest(name)}"
    return PlannedRun(f"{name}-seed{seed}", config, scaled)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _share_of_an_update(config: RunConfig, workers: int) -> int:
    """Return the batch size per worker that gives an update the same number of examples in every mode.

    The number of examples in an update is then `workers` times the batch size in `config`. Raises UserError if the mode
    of `config` can't divide this number into equal batches.
    """
    size, gradients = config.training.batch_size_per_worker, config.gradients_per_update
    share, left = divmod(size * workers, gradients * config.batches_per_step)
    if left:
        raise UserError(
            f"training.batch_size_per_worker: got {size}: with {workers} workers an update needs {size * workers} "
            f"examples, which can't be split into the {gradients * config.batches_per_step} equal batches that an "
            f"update of mode {config.mode.name} has"
        )
    return share


def _placed_and_scored_alike(config: RunConfig, comparison: Comparison) -> RunConfig:
    """Return `config` with the training length, scoring and CPU pinning that all runs of the comparison have.

    If `config` has a pinning other than `auto`, it is kept. If `config` has `checkpoints.every_epochs`, this is kept
    unless `comparison.seconds` is set.
    """
    values: dict[str, Any] = {"evaluation.after_training": True}
    if (seconds := comparison.seconds) is not None:
        values |= OFF_WITH_TIME_LIMIT | {
            "training.max_seconds": seconds,
            "training.steps": None,
            "training.epochs": MOST_EPOCHS,
        }
        if config.schedule.kind == COMPILED:  # kept, so that the schedule of a compile() is refused and not ignored
            values["schedule.kind"] = COMPILED
        values |= {"checkpoints.every_seconds": seconds / SCORES_IN_TIME, "checkpoints.every_epochs": None}
    elif config.checkpoints.every_epochs is None:
        values["checkpoints.every_epochs"] = comparison.score_every_epochs
    if config.cluster.pin_workers == AUTO:  # AUTO pins in some modes only, so arms would differ in more than the mode
        values["cluster.pin_workers"] = False
    return config.with_values(values)
