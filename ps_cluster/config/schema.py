"""Define the typed sections of a configuration, and the values that a run derives from them."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError, create_model, field_validator, model_validator

from ps_cluster.config.datasets import DATASETS, DataSettings
from ps_cluster.config.dispatch_size import dispatch_size
from ps_cluster.config.isolation import Isolation
from ps_cluster.config.modes import MODES, Mode, ModeSettings, Waits
from ps_cluster.config.networks import NetworkSettings
from ps_cluster.config.optimizer_rules import RULES, RuleSettings
from ps_cluster.config.samples import ALL, Sample, WorkerParts, parse_sample
from ps_cluster.config.schedules import ScheduleSettings
from ps_cluster.config.sections import (
    CHOICE_BY_SECTION,
    NestedSettings,
    adapted_to_choices,
    check_switches,
    chosen_kinds,
    flat,
    merged,
    nested,
)
from ps_cluster.config.setting_types import AUTO, COMPILED, LARGEST_FACTOR, Fraction, Section
from ps_cluster.config.staleness_methods import METHODS, StalenessSettings
from ps_cluster.config.stragglers import parse_stragglers
from ps_cluster.errors import UserError
from ps_cluster.files.values import first_error
from ps_cluster.files.yaml_files import dump_yaml
from ps_cluster.installation import PROGRAM

PAGE = "docs/configuration.md"  # lists all settings

# The limits on one machine. More tasks would only wait for processors and memory.
MOST_WORKERS, MOST_PARAMETER_SERVERS = 8, 4
MOST_WORKERS_OF_A_CLUSTER = 1000
MOST_EPOCHS = 100_000
# The assumed speed of one worker until a step has been measured. The largest network of this package reaches 215
# examples per second in float32 on a core of its own.
SLOWEST_EXAMPLES_PER_SECOND = 20.0
STEPS_IN_TIME = 3  # training waits for a step for at least this many steps of the slowest worker

# The window, in steps, of a shard's ledger on the parameter server: 8.9 MB of rows and 0.5 MB of step ids.
LEDGER_WINDOW, STEPS_IN_WINDOW_PER_WORKER = 2**16, 256

# A network learns little if an epoch has fewer than FEW_UPDATES updates and the whole training has fewer than
# ENOUGH_UPDATES.
FEW_UPDATES, ENOUGH_UPDATES = 10, 200
LONGEST_SECONDS = 1e9  # far above any useful value
ClassWeight = Annotated[float, Field(gt=0, le=LARGEST_FACTOR)]
LOSSY = ("int8", "top_k")  # values of cluster.wire


class ClusterSettings(Section):
    workers: int = Field(
        ge=1, le=MOST_WORKERS_OF_A_CLUSTER, description=f"Number of workers; on one machine at most {MOST_WORKERS}."
    )
    min_workers: int | None = Field(
        default=None, ge=1, le=MOST_WORKERS_OF_A_CLUSTER,
        description="The smallest number of workers that `ps-cluster scale` accepts; null: `cluster.workers`.",
    )  # fmt: skip
    max_workers: int | None = Field(
        default=None, ge=1, le=MOST_WORKERS_OF_A_CLUSTER,
        description="The largest number of workers that `ps-cluster scale` accepts; null: `cluster.workers`.",
    )  # fmt: skip
    parameter_servers: int = Field(
        ge=1,
        le=256,
        description=f"Number of parameter servers; on one machine at most {MOST_PARAMETER_SERVERS}.",
    )
    evaluator: bool = Field(description="Start an additional process that scores every new checkpoint.")
    intra_op_threads: int = Field(
        ge=1,
        le=256,
        description="Threads of one operation in a worker. Keep 1 if there are as many workers as cores.",
    )
    wire: Literal["auto", "bfloat16", "float32", "int8", "top_k"] = Field(
        description="Dtype in which weights and gradients are sent; auto: the dtype of the network. int8: gradients are "
        "rounded to 8-bit integers, with a scale for each 256 values. top_k: only the largest values of a gradient are sent. "
        "With int8 and top_k, weights are sent in bfloat16, and what a push leaves out is added to the worker's next push."
    )
    top_k_share: float = Field(
        gt=0, le=1, description="Share of the gradient's values that a push sends if `wire` is top_k."
    )
    steps_per_dispatch: Literal["auto"] | Annotated[int, Field(ge=1, le=1000)] = Field(
        description="Number of step ids in one dispatch to a worker; each step still has its own pull and push. auto: "
        "about half a second of work, or more if over 100 workers share the chief."
    )
    straggler: str = Field(
        max_length=200,
        description="Make workers slow on purpose. none: no worker. 2:5x: the steps of worker 2 take 5 times as long. "
        "1:+0.2s: each step of worker 1 takes 0.2 s longer. Join several with ';'. random:gamma: random factors for all "
        "workers and steps.",
    )
    pin_workers: Literal["auto", True, False] = Field(
        description="Pin each worker to separate cores, or to one core if there are few. auto: pin in modes whose "
        "workers never wait for each other, but not in `compare`, `sweep` and `ensemble`."
    )
    gpus: Literal["none", "auto"] = Field(
        description="Compute the network on GPUs. auto: each worker gets one of the machine's GPUs, and several workers "
        "share a GPU if there are fewer GPUs than workers. Parameter servers, chief and evaluator stay on processors."
    )
    lost_after_seconds: float = Field(
        ge=1,
        le=3600,
        description="With `task`: a connection counts as lost after this many seconds without an answer. If a dispatch has "
        "brought no update for this many seconds, another worker gets its steps too.",
    )
    longest_step_seconds: Literal["auto"] | Annotated[float, Field(gt=0, le=86_400)] = Field(
        description="How many seconds a worker's step may take. Training counts as stuck only if it has no update for at "
        f"least this time. auto: {STEPS_IN_TIME} times the measured step time of the slowest worker. The first update may "
        "take longer."
    )
    isolation: Isolation = Field(
        description="Give the run a private network that no other program can reach; auto: if the system allows it. "
        "interface=NAME, for `task` only: close the task's port to all other interfaces."
    )

    @property
    def on_gpus(self) -> bool:
        """True if the workers compute on GPUs."""
        return self.gpus == AUTO

    @field_validator("straggler")
    @classmethod
    def _stragglers_are_known(cls, text: str) -> str:
        parse_stragglers(text)
        return text.strip()


class TrainingSettings(Section):
    seed: int = Field(ge=0, lt=2**31, description="Decides batches, augmentation and initial weights.")
    batch_size_per_worker: int = Field(ge=1, le=10_000, description="Examples in one batch of one worker.")
    epochs: float = Field(
        gt=0, le=MOST_EPOCHS, description="Passes over the training examples; ignored if `training.steps` is set."
    )
    steps: int | None = Field(
        ge=1,
        le=1_000_000_000,
        description="Updates of the whole run, by all workers together; null: `training.epochs` decides.",
    )
    max_seconds: float | None = Field(
        default=None,
        gt=0,
        le=1e9,
        description="Stop early after this many seconds of training, counted from the first step. The steps under way are "
        "finished, and the last checkpoint is scored. Schedules still follow `training.epochs` or `training.steps`. null: "
        "no limit.",
    )
    sample: str = Field(
        default=ALL,
        max_length=15_000,
        description="The training examples that the run uses. all: every example. shard:worker: each worker has its "
        "own disjoint part, drawn at random. files:worker: each worker has whole files of a table that consists of several "
        "files. rows:3000,7000: worker 0 has examples 0 to 2999, worker 1 has 3000 to 6999. shard:0/4: the first of four "
        "parts. bootstrap:7: a sample of the same size, drawn with replacement with seed 7. An epoch is a pass over "
        "these examples.",
    )
    label_smoothing: Fraction = Field(description="The part of each label that is spread evenly over all classes.")
    class_weights: dict[str, ClassWeight] = Field(
        default={},
        max_length=100_000,
        description="The weight of a class's examples in the loss, by the name or label of the class. A class that is not "
        "named has weight 1.",
    )

    @field_validator("sample")
    @classmethod
    def _sample_is_known(cls, text: str) -> str:
        parse_sample(text)
        return text


class LookaheadSettings(Section):
    every_updates: int = Field(
        ge=0,
        le=100_000,
        description="Set the weights to their moving mean whenever this many updates are done; 0: never. Not used by "
        "modes with local steps.",
    )
    decay: Fraction = Field(
        description="Decay of the moving mean per update at the end of training. Before the end, the decay is smaller."
    )


class EvaluationSettings(Section):
    augment_last: bool = Field(
        description="Also score the last checkpoint with the mean outputs for six views of each image: the image, two copies "
        "that are shifted by a pixel, and the mirror images of these three."
    )
    after_training: bool = Field(
        description="Keep all checkpoints, including that of the initial weights, and score them after training, so "
        "that scoring does not slow the training down."
    )
    draw_results: bool = Field(description="Draw the page results/results.html when the run has ended.")
    gradients: bool = Field(
        description="For TensorBoard, write histograms of the gradients on 50 training examples; --tensorboard turns this on."
    )
    validation_examples: int = Field(
        ge=0,
        le=10_000_000,
        description="Hold out this many training examples: no batch contains them, and the best model is chosen by its "
        "score on them. 0: the best model is chosen on the test examples, so its test score is too high.",
    )
    scored_examples: int | None = Field(
        default=None,
        ge=1,
        le=10_000_000,
        description="Score at most this many test examples and at most this many held-out examples, spread evenly over the "
        "data. The page of results then shows no predictions. null: all.",
    )
    recall_at: int | None = Field(
        default=None,
        ge=1,
        le=100_000,
        description="Also score recall@k for this k, if each example is a pair of a user and an item. The items that a user "
        "does not have in training are ranked by score, and recall@k is the share of the user's held-out items that are "
        "among the first k. null: recall is not scored.",
    )
    monitor: str = Field(
        min_length=1,
        max_length=200,
        description="The metric that chooses the best model, stops early and judges the trials of a sweep: accuracy, "
        "error, loss, auc, f1, log_loss, rmse, r2, recall@10 (if `recall_at` is 10), or a metric of the "
        "network's compile(), with or without Keras's prefix val_. "
        "auto: accuracy or error. The metric is measured on held-out examples if there are any, else on the test "
        "examples.",
    )
    monitor_mode: Literal["auto", "max", "min"] = Field(
        description="Whether a larger (max) or a smaller (min) value of the metric is better. auto: the name of the "
        "metric decides."
    )
    patience: int | None = Field(
        ge=1,
        le=1_000_000,
        description="Stop early after this many scored checkpoints in a row without a better metric; the steps under "
        "way are finished, and the last checkpoint is scored. null: never. Needs cluster.evaluator.",
    )
    min_delta: float = Field(
        ge=0,
        le=1e15,
        description="For `patience`, a metric counts as better only if it is better by more than this value.",
    )
    recompute_updates: bool = Field(
        description="For the proof (the check of a run's updates), compute a sample of the updates again outside the cluster. "
        "Needs cluster.evaluator."
    )

    @property
    def recall_name(self) -> str | None:
        """The name of the recall metric in the rows of evaluation results, e.g. "recall@10"; None without recall."""
        return None if self.recall_at is None else f"recall@{self.recall_at}"

    @field_validator("monitor")
    @classmethod
    def _without_prefix(cls, name: str) -> str:
        """Remove Keras's prefix val_, because here all metrics are measured on examples that are not trained on."""
        return name.removeprefix("val_") or name

    @model_validator(mode="after")
    def _is_about_one_metric(self) -> EvaluationSettings:
        if self.monitor == AUTO and self.monitor_mode != AUTO:
            raise ValueError(
                f"evaluation.monitor_mode: got '{self.monitor_mode}': evaluation.monitor names no metric: name one, or "
                "leave both out"
            )
        return self


class CheckpointSettings(Section):
    every_seconds: Literal["auto"] | Annotated[float, Field(gt=0, le=LONGEST_SECONDS)] = Field(
        description="Write and score a checkpoint this often. auto: after 5 s of training, then whenever the time "
        "of training has doubled, but at least once a minute."
    )
    every_epochs: float | None = Field(
        gt=0,
        le=100_000,
        description="Write a checkpoint whenever this many epochs have passed, e.g. 0.125, instead of by time. Each "
        "checkpoint is kept until it is scored.",
    )
    exact: bool = Field(
        description="With every_epochs: at each checkpoint, the workers wait until it is written. So no checkpoint is late "
        "or left out, but training takes longer."
    )
    snapshot_every_seconds: float = Field(
        gt=0,
        le=LONGEST_SECONDS,
        description="Write a snapshot this often. If a parameter server or the chief dies, at most the work since the "
        "newest snapshot is lost.",
    )
    keep: int = Field(
        ge=1,
        le=1_000_000,
        description="Number of the newest checkpoints to keep. The best checkpoint is always kept too.",
    )


class RunConfig(Section):
    """All settings of a run. `fitted` creates a subclass whose sections fit the chosen mode, network, data set, …"""

    mode: ModeSettings
    staleness: StalenessSettings
    cluster: ClusterSettings
    data: DataSettings
    model: NetworkSettings
    training: TrainingSettings
    optimizer: RuleSettings
    lookahead: LookaheadSettings
    schedule: ScheduleSettings
    checkpoints: CheckpointSettings
    evaluation: EvaluationSettings

    @model_validator(mode="after")
    def _fits_together(self) -> RunConfig:
        check_switches(self.mode.name, flat(self.model_dump()))
        self.chosen_mode.check(self)
        METHODS[self.staleness.method].check(self)
        RULES[self.optimizer.rule].check(self)
        DATASETS[self.data.dataset].check(self)
        self._check_compiled()
        self._check_scale()
        self._check_patience()
        self._check_sample()
        if not parse_stragglers(self.cluster.straggler).are_among(self.most_workers):
            raise ValueError(
                f"cluster.straggler: got '{self.cluster.straggler}': mode {self.mode.name} has only workers 0 to "
                f"{self.most_workers - 1}"
            )
        return self

    def _check_compiled(self) -> None:
        """Raise ValueError if compile() decides the schedule or the staleness method, but not the optimizer rule."""
        for key, value in (("schedule.kind", self.schedule.kind), ("staleness.method", self.staleness.method)):
            if value == COMPILED and self.optimizer.rule != COMPILED:
                raise ValueError(
                    f"{key}: got '{COMPILED}', but optimizer.rule is '{self.optimizer.rule}': choose another value, or "
                    f"optimizer.rule {COMPILED}"
                )

    def _check_sample(self) -> None:
        text, sample = self.training.sample, self.sample
        if not isinstance(sample, WorkerParts):
            return
        if self.chosen_mode.shares_steps or not self.chosen_mode.has_workers:
            raise ValueError(
                f"training.sample: got '{text:.80}': mode {self.mode.name} has no workers with batches of their own: "
                "leave this setting out"
            )
        if sample.ends and len(sample.ends) != self.cluster.workers:
            raise ValueError(
                f"training.sample: got '{text:.80}': it says where the examples of {len(sample.ends)} workers end, but "
                f"cluster.workers is {self.cluster.workers}"
            )

    def _check_scale(self) -> None:
        workers = self.cluster.workers
        for name, bound, allowed in (
            ("min_workers", self.cluster.min_workers, range(1, workers + 1)),
            ("max_workers", self.cluster.max_workers, range(workers, sys.maxsize)),
        ):
            if bound is None or bound == workers:
                continue
            if why := self.chosen_mode.why_fixed:
                raise ValueError(f"cluster.{name}: got {bound}: {why}: leave it out")
            if bound not in allowed:
                side = "at most" if name == "min_workers" else "at least"
                raise ValueError(f"cluster.{name}: got {bound}: it has to be {side} cluster.workers, {workers}")

    def _check_patience(self) -> None:
        patience = self.evaluation.patience
        if patience is None:
            return
        if not self.cluster.evaluator:
            raise ValueError(
                f"evaluation.patience: got {patience}: cluster.evaluator is false, so no checkpoint is scored: turn the "
                "evaluator on, or leave evaluation.patience out"
            )
        if self.evaluation.after_training:
            raise ValueError(
                f"evaluation.patience: got {patience}: with evaluation.after_training no checkpoint is scored while the "
                "training runs: leave one of the two out"
            )

    def check_fits_one_machine(self) -> None:
        """Raise UserError if there are more tasks than are useful on one machine."""
        for name, wanted, most in (
            ("workers", self.cluster.workers, MOST_WORKERS),
            ("max_workers", self.cluster.max_workers or 0, MOST_WORKERS),
            ("parameter_servers", self.cluster.parameter_servers, MOST_PARAMETER_SERVERS),
        ):
            if wanted > most:
                raise UserError(
                    f"cluster.{name}: got {wanted}: one machine runs at most {most}; for several machines see "
                    f"{PROGRAM} task --help"
                )

    @property
    def chosen_mode(self) -> Mode:
        """The chosen mode, as an object of the registry."""
        return MODES[self.mode.name]

    @property
    def shards(self) -> int:
        """The number of shards into which the parameters are divided."""
        return self.chosen_mode.shards(self)

    @property
    def training_workers(self) -> int:
        """The number of processes that compute gradients when training begins.

        Recipes, momentum corrections and reports use this number, even after `ps-cluster scale`.
        """
        return self.cluster.workers if self.chosen_mode.has_workers else 1

    @property
    def least_workers(self) -> int:
        """The lower limit of `ps-cluster scale` for the number of processes that compute gradients."""
        least = None if self.chosen_mode.cluster.why_workers_are_fixed else self.cluster.min_workers
        return least or self.training_workers

    @property
    def most_workers(self) -> int:
        """The largest number of processes that compute gradients at any time. Every worker's index is below it."""
        most = None if self.chosen_mode.cluster.why_workers_are_fixed else self.cluster.max_workers
        return most or self.training_workers

    @property
    def steps_per_update(self) -> int:
        """The number of step ids per update: more than one if workers' gradients are averaged."""
        return self.cluster.workers if self.chosen_mode.averages else 1

    @property
    def gradients_per_update(self) -> int:
        """The fewest gradients that one update averages. Gradients that come too late are dropped."""
        return self.steps_per_update - self.chosen_mode.late_workers(self)

    @property
    def most_gradients_per_update(self) -> int:
        """The most gradients that one update averages.

        This is `steps_per_update` if an update waits for late gradients, else `gradients_per_update`.
        """
        return self.steps_per_update if self.chosen_mode.grace_seconds(self) else self.gradients_per_update

    @property
    def batches_per_step(self) -> int:
        """The number of batches per step id: more than one if a worker takes local steps."""
        return self.chosen_mode.batches_per_step(self)

    @property
    def examples_per_step(self) -> int:
        """The number of examples per step id."""
        return self.training.batch_size_per_worker * self.batches_per_step

    @property
    def examples_of_rows(self) -> list[int]:
        """For each shard, the largest number of examples in a row of its ledger (its table of accepted pushes)."""
        batches = [self.chosen_mode.batches_in_ledger_row(self, shard) for shard in range(self.shards)]
        return [self.training.batch_size_per_worker * of_shard for of_shard in batches]

    @property
    def examples_per_update(self) -> int:
        """The smallest number of examples per update."""
        return self.examples_per_step * self.gradients_per_update

    @property
    def updates_at_once(self) -> int:
        """The number of updates that the leader counts at once: with all-reduce, all updates of a dispatch; else 1."""
        return self._first_dispatch if self.chosen_mode.synchrony.waits is Waits.FOR_ALL_REDUCE else 1

    @property
    def _first_dispatch(self) -> int:
        """The number of steps (or rounds) in a worker's first dispatch, before its speed is known."""
        return dispatch_size(self.cluster.steps_per_dispatch, workers=1, per_second=0.0, left=math.inf)

    @property
    def ledger_window(self) -> int:
        """The number of step ids that a ledger, a shard's table of accepted pushes, keeps at once. It is a power of 2.

        The chief hands out a step id only if it exceeds the id of the lowest open step by less than this number. A step
        is open until the chief has read that all shards have accepted it. The number is large enough for all steps that
        fast workers can get before a slow worker has finished its dispatch.
        """
        most = max(LEDGER_WINDOW, STEPS_IN_WINDOW_PER_WORKER * self.most_workers)
        at_once = 2 * self._first_dispatch * self.steps_per_update
        return 1 << (max(most, at_once) - 1).bit_length()

    def longest_update_seconds(self, step_s: float = 0.0) -> float:
        """Return the longest expected time between two updates of a healthy run. Timeouts have to be longer.

        Args:
          step_s: the measured seconds of a step of the slowest worker, or 0 before any measurement.
        """
        grace_s, longest_s = self.chosen_mode.grace_seconds(self), self.cluster.longest_step_seconds
        if longest_s == AUTO:
            own_s = self.examples_per_step / SLOWEST_EXAMPLES_PER_SECOND
            stragglers = parse_stragglers(self.cluster.straggler)
            expected_s = stragglers.longest_step_s(own_s, self.most_workers, self.training.seed)
            return grace_s + self.updates_at_once * max(expected_s, STEPS_IN_TIME * step_s)
        return grace_s + self.updates_at_once * longest_s

    @property
    def sample(self) -> Sample | WorkerParts | None:
        """The part of the examples that the run, or each worker, uses; None if all workers use all examples."""
        return parse_sample(self.training.sample)

    def examples_seen(self, train_examples: int) -> int:
        """Return the number of examples in an epoch, if the data has `train_examples` training examples."""
        return train_examples if self.sample is None else self.sample.size(train_examples)

    def total_updates(self, train_examples: int) -> int:
        """Return the number of updates of the whole run: `training.steps`, or as many as `training.epochs` needs."""
        if self.training.steps is not None:
            return self.training.steps
        return max(1, round(self.training.epochs * self.examples_seen(train_examples) / self.examples_per_update))

    def few_updates(self, train_examples: int) -> str | None:
        """Return advice if the updates, per epoch and in all, are so few that the network learns little; else None."""
        of_an_epoch = self.examples_seen(train_examples) / self.examples_per_update
        if of_an_epoch >= FEW_UPDATES or self.total_updates(train_examples) >= ENOUGH_UPDATES:
            return None
        largest = self.training.batch_size_per_worker * of_an_epoch / FEW_UPDATES
        if largest < 1:
            return f"an epoch has {of_an_epoch:.2g} updates: train for more --epochs"
        return f"an epoch has {of_an_epoch:.2g} updates: try --batch-size {2 ** math.floor(math.log2(largest))}"

    def total_steps(self, train_examples: int) -> int:
        """Return the number of step ids of the whole run."""
        return self.total_updates(train_examples) * self.steps_per_update

    def to_yaml(self) -> str:
        return dump_yaml(self.model_dump(mode="json"))

    @property
    def recomputes_updates(self) -> bool:
        """True if the evaluator's process computes a sample of the updates again."""
        return self.evaluation.recompute_updates and self.cluster.evaluator

    @property
    def wire(self) -> str:
        """The dtype in which weights, and gradients that are not compressed, are sent: "bfloat16" or "float32"."""
        if self.compresses_pushes:
            return "bfloat16"
        return self.model.precision if self.cluster.wire == AUTO else self.cluster.wire

    @property
    def compresses_pushes(self) -> bool:
        """True if compression omits a part of each push. The worker adds the omitted part to its next push."""
        return self.cluster.wire in LOSSY

    def with_values(self, values: NestedSettings) -> RunConfig:
        """Return a validated configuration with some values replaced, e.g. `{"model.precision": "float32"}`."""
        own, changes = self.model_dump(mode="json"), nested(values)
        try:
            return fitted(merged(adapted_to_choices(own, changes), changes))
        except ValidationError as error:
            raise UserError(first_error(error, "configuration", PAGE)) from error


def fitted(tree: NestedSettings | None) -> RunConfig:
    """Validate `tree`, which has to contain all required settings, and return the configuration.

    Raises:
      ValidationError: a setting is wrong.
      UserError: the user's code that a setting names can't be loaded.
    """
    kinds = chosen_kinds(tree or {})
    return _class_with(tuple((section, kind.Settings) for section, kind in kinds.items())).model_validate(tree)


def section_classes() -> dict[str, type[Section]]:
    """Return the class of each section, by name. A class has only settings that all choices of its section share."""
    classes = {name: field.annotation for name, field in RunConfig.model_fields.items()}
    return {name: kind for name, kind in classes.items() if isinstance(kind, type) and issubclass(kind, Section)}


@lru_cache
def known_keys() -> tuple[str, ...]:
    """Return the names of the sections, and the dotted keys of all settings.

    Settings that only some modes, networks, … have are included.
    """
    found = dict.fromkeys(section_classes())
    for section, model in section_classes().items():
        kinds = CHOICE_BY_SECTION[section].kinds.with_settings if section in CHOICE_BY_SECTION else ()
        for settings in (model, *(kind.Settings for kind in kinds)):
            found |= dict.fromkeys(_keys(settings, f"{section}."))
    return tuple(found)


def _keys(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _keys(field.annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


@lru_cache
def _class_with(settings: tuple[tuple[str, type[Section]], ...]) -> type[RunConfig]:
    """Return a subclass of RunConfig with the given classes as its sections."""
    fields: dict[str, Any] = {section: (kind, ...) for section, kind in settings}
    return create_model("RunConfig", __base__=RunConfig, **fields)
