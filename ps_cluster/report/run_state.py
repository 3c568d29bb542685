"""Keep the newest state of a run, and describe it in lines for people. Imports no TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from ps_cluster.config import RunConfig, rate_origin
from ps_cluster.config.objectives import OBJECTIVES
from ps_cluster.config.setting_types import AUTO
from ps_cluster.config.tasks import WORKER, Task
from ps_cluster.data.packed import PackedDataset
from ps_cluster.files.values import with_noun
from ps_cluster.notices import Notify
from ps_cluster.runs import logs
from ps_cluster.runs.logs import GENERATED_DATA
from ps_cluster.runs.monitor import Monitor
from ps_cluster.runs.result_rows import MEASURES, EvaluationRow, ProgressRow
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.runs.training_phases import Phase

SYNTHETIC = "synthetic"  # the data set that stands in for CIFAR-10


class TaskState(NamedTuple):
    """A process of the run. `state`: "running", or how it ended. `restarts`: how often the task was started again."""

    task: Task
    pid: int | None
    state: str
    restarts: int = 0


@dataclass
class RunState:
    """The newest values that were reported about a run.

    Attributes:
      row: the newest progress row; None before the first one.
      predicts: what the network predicts, in words; if it is empty, the words of the objective are shown.
    """

    config: RunConfig
    run_dir: RunDir
    dataset: PackedDataset
    tasks: Sequence[TaskState] = ()
    row: ProgressRow | None = None
    last_score: EvaluationRow | None = None
    best_score: EvaluationRow | None = None
    predicts: str = ""

    @cached_property
    def planned(self) -> int:
        """The number of updates of the whole run, according to its configuration."""
        return self.config.total_updates(self.dataset.train_examples)

    @property
    def monitor(self) -> Monitor:
        """The metric by which the best score is chosen."""
        return Monitor.of(self.config.evaluation)

    @property
    def phase(self) -> Phase:
        return self.row.phase if self.row else "starting"

    @property
    def total(self) -> int:
        return self.row.total or self.planned if self.row else self.planned

    @property
    def applied(self) -> int:
        return self.row.applied if self.row else 0

    @property
    def share_done(self) -> float:
        """The share of the training that is done: of the updates or of the time limit, whichever share is larger."""
        return max(self.applied / self.total, self._share_of_time)

    @property
    def done(self) -> str:
        """The number of updates so far and, unless the time limit comes first, of all updates, e.g. "800/1,200"."""
        is_timed = self._share_of_time > self.applied / self.total
        return f"{self.applied:,}" if is_timed else f"{self.applied:,}/{self.total:,}"

    @property
    def _share_of_time(self) -> float:
        limit = self.config.training.max_seconds
        return 0.0 if self.row is None or limit is None else min(1.0, max(0.0, self.row.train_seconds) / limit)

    @property
    def seconds_left(self) -> float | None:
        """Seconds left at the newest speed, or until the time limit; None while no speed is known."""
        if self.row is None or not self.row.examples_per_second:
            return None
        limit = self.config.training.max_seconds
        left = self.config.schedule.left(self.applied / self.total) * self.total
        # Updates may have more or fewer examples than the settings say, so the mean of the updates so far is used.
        examples = self.row.examples / self.applied if self.applied else self.config.examples_per_update
        seconds = left * examples / self.row.examples_per_second
        return seconds if limit is None else min(seconds, max(0.0, limit - self.row.train_seconds))

    @property
    def few_updates(self) -> str | None:
        """Advice about epochs with very few updates; None if the epochs have enough updates."""
        return self.config.few_updates(self.dataset.train_examples)

    def score(self, row: EvaluationRow) -> None:
        """Record a score."""
        if self.best_score is None or self.monitor.merit(row) > self.monitor.merit(self.best_score):
            self.best_score = row
        self.last_score = row  # set last, since another thread may draw the view at any moment

    @property
    def headline(self) -> str:
        """A line that names the data set, the network, its precision, the mode and the number of processes."""
        config = self.config
        dataset = "synthetic data" if self.dataset.kind == "synthetic" else f"{self.dataset.name} (real)"
        return " · ".join((dataset, config.model.name, config.model.precision, config.mode.name, _processes(config)))

    @property
    def task_line(self) -> str:
        """A line that describes what the network predicts, the optimizer, and the length of training.

        It begins like "10 classes · adam, learning rate 0.001 (cosine) · …".
        """
        config, spec, training = self.config, self.dataset.spec, self.config.training
        rate = f"{config.optimizer.rule}, learning rate {config.optimizer.learning_rate:g} ({config.schedule.kind})"
        length = with_noun(training.epochs, "epoch") if training.steps is None else with_noun(self.total, "update")
        length += "" if training.max_seconds is None else f", at most {training.max_seconds:g} s"
        parts = [self.predicts or OBJECTIVES[spec.objective].described(spec.outputs), rate]
        parts += [f"batch {training.batch_size_per_worker}", length]
        if training.label_smoothing:
            parts.append(f"label smoothing {training.label_smoothing:g}")
        # Scores are low while the network trains on small images, because it is scored on images in full size.
        sides = [field.shape[:2] for field in spec.inputs.values() if field.is_image]
        if sides and (scales := config.schedule.image_scales):
            (height, width), *_ = sides
            sizes = (f"{scale.side(height)}x{scale.side(width)} until {scale.until:.0%}" for scale in scales)
            parts.append(f"images {', '.join(sizes)} (scores are of images in full size)")
        return " · ".join(parts)

    @property
    def rate_line(self) -> str:
        """A line with the learning rate and its origin. It shows why two runs have different learning rates."""
        return f"learning rate {self.config.optimizer.learning_rate:g}: {rate_origin(self.config)}"

    @property
    def measures(self) -> list[str]:
        """The known measures of the newest updates, in words, e.g. "training loss 0.512"; or only "no update yet"."""
        if self.row is None or not self.applied:
            return ["no update yet"]
        row = self.row
        values = (
            (f"{{:,.0f}} {self.dataset.spec.unit}/s", row.examples_per_second),
            ("training loss {:.3f}", row.loss),
            ("training accuracy {:.1%}", row.accuracy),
            ("training error {:.4g}", row.error),
            ("staleness {:.2f}", row.staleness_mean),
            ("learning rate {:.3g}", row.learning_rate),
            ("epoch {:.2f}", row.epoch),
        )
        dropped = [f"{row.dropped:,} gradients dropped"] if row.dropped else []
        return [*(text.format(value) for text, value in values if value is not None), *dropped]

    @property
    def time_left(self) -> list[str]:
        """A list whose only item is the time left, in words; an empty list while the time left is unknown."""
        left = self.seconds_left
        return [f"{clock_text(left)} left"] if left is not None and self.phase == "training" else []

    @property
    def progress_line(self) -> str:
        """The newest progress row as a line for logs."""
        done = f"{self.done} updates ({self.share_done:.0%})"
        return " · ".join((self.phase, done, *self.measures, *self.time_left))


def score_line(row: EvaluationRow, monitor: Monitor) -> str:
    """Return a score as a line for logs. The score that decides which model is best comes first."""
    losses = [row.test_loss] if row.validation is None else [row.validation_loss, row.test_loss]
    parts = [f"{score}{'' if loss is None else f', loss {loss:.3f}'}" for score, loss in zip(row.scores, losses)]
    if monitor.name not in (AUTO, *MEASURES):
        parts[0] += f", {monitor.text(row)}"
    parts[0] += monitor.best_so_far(row) * row.best
    return f"step {row.step:,}: {' · '.join(parts)}"


def clock_text(seconds: float) -> str:
    """Return seconds as `m:ss` or `h:mm:ss`."""
    minutes, second = divmod(max(0, round(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def real_counterpart(dataset: str | None) -> str:
    """Return the real data that a generated data set replaces, in words."""
    return "CIFAR-10" if dataset == SYNTHETIC else "real ones"


def synthetic_notice(dataset: PackedDataset) -> str:
    """Return the warning about a generated data set, in two sentences."""
    instead = real_counterpart(dataset.name)
    return f"SYNTHETIC DATA: generated {dataset.spec.unit}, not {instead}. No number of this run says anything about {instead}."


def synthetic_banner(dataset: PackedDataset) -> list[str]:
    """Return the warning of `synthetic_notice` as lines between two lines of exclamation marks."""
    edge, notice = "!" * 60, synthetic_notice(dataset)
    return [edge, *(f"!!  {sentence.rstrip('.')}." for sentence in notice.split(". ")), edge]


def warn_of_generated(dataset: PackedDataset, notify: Notify) -> None:
    """If a data set is generated, show a conspicuous warning that says so."""
    if dataset.kind == "synthetic":
        for line in synthetic_banner(dataset) if logs.chosen().is_text else [synthetic_notice(dataset)]:
            notify(GENERATED_DATA(line))


def _processes(config: RunConfig) -> str:
    if WORKER not in config.chosen_mode.cluster.types:
        return "1 process"
    workers = with_noun(config.cluster.workers, "worker")
    return f"{workers} + {config.cluster.parameter_servers} ps" if config.chosen_mode.has_parameter_servers else workers
