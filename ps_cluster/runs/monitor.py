"""Choose the best model of a run by the scores of one metric, and find the moment to stop early."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ps_cluster.config.objectives import OBJECTIVES, ExampleSpec
from ps_cluster.config.schema import EvaluationSettings, RunConfig
from ps_cluster.config.setting_types import AUTO
from ps_cluster.errors import UserError, did_you_mean
from ps_cluster.files.values import join_names
from ps_cluster.runs.result_rows import (
    Better,
    CheckpointScores,
    EarlyStop,
    MetricText,
    MetricValues,
    PatienceExhausted,
    ProgressRow,
    TimeLimitReached,
)
from ps_cluster.runs.training_phases import UNDER_WAY

BETTER: Mapping[str, Better] = {
    "accuracy": "max", "error": "min", "loss": "min", "auc": "max", "f1": "max", "log_loss": "min", "rmse": "min",
    "r2": "max",
}  # fmt: skip


@dataclass(frozen=True)
class Monitor:
    """The metric that decides which model is best.

    `name`: "auto" stands for the accuracy or error of the objective. `better`: whether larger or smaller values are
    better; None for "auto".
    """

    name: str = AUTO
    better: Better | None = None

    @classmethod
    def of(cls, settings: EvaluationSettings) -> Monitor:
        """Return a run's monitor. Raises UserError if it is unknown whether larger or smaller values are better."""
        if settings.monitor == AUTO:
            return cls()
        if settings.monitor_mode != AUTO:
            return cls(settings.monitor, settings.monitor_mode)
        if settings.monitor not in BETTER:
            raise UserError(
                f"evaluation.monitor_mode: got 'auto': it is not known whether a larger or a smaller {settings.monitor} is "
                "better: write max or min"
            )
        return cls(settings.monitor, BETTER[settings.monitor])

    def metric(self, row: MetricValues) -> str:
        """Return the name of the metric; by default "accuracy" or, if the row has no accuracy, "error"."""
        if self.name != AUTO:
            return self.name
        return "error" if row.value_of("accuracy", row.deciding) is None else "accuracy"

    def better_of(self, row: MetricValues) -> Better:
        """Return "max" if larger values of the row's metric are better, "min" if smaller ones are."""
        return self.better or BETTER[self.metric(row)]

    def value(self, row: MetricValues) -> float | None:
        """Return the metric's value over the examples on which the best model is chosen (`MetricValues.deciding`).

        It is None if the row does not have the metric, or its value is not finite.
        """
        return row.value_of(self.metric(row), row.deciding)

    def merit(self, row: CheckpointScores) -> float:
        """Return a number by which scores are compared. The larger number is the better score.

        A score that lacks the metric, or whose test loss is not finite, gets minus infinity, so it is never the best.
        """
        value = self.value(row)
        if row.test_loss is None or value is None:
            return -math.inf
        return value if self.better_of(row) == "max" else -value

    def text(self, row: CheckpointScores) -> MetricText:
        """Return the name and the value of the metric in a row, as text."""
        return MetricText.of(self.metric(row), self.value(row))

    def words(self, row: CheckpointScores) -> str:
        """Return the set of examples, the name of the metric and its value as text, e.g. "validation auc 0.9312"."""
        return f"{row.deciding} {self.text(row)}"

    def best_so_far(self, row: CheckpointScores) -> str:
        """Return the end of a log line about the best score so far. It names the metric if the user has chosen one."""
        return f", best so far{'' if self.name == AUTO else f' by {row.deciding} {self.name}'}"


def checked_monitor_mode(
    settings: EvaluationSettings, spec: ExampleSpec, of_network: Mapping[str, Better | None] | None = None
) -> Better | Literal["auto"]:
    """Return `evaluation.monitor_mode` for the metric of a run, after checking that the run has this metric.

    `of_network`: the metrics that are scored besides accuracy, error and loss, by name: "max" if larger values of the
    metric are better, "min" if smaller values are better, None if that is unknown. By default, these are the further
    metrics of the objective.
    Raises UserError if the run does not have the metric, or if it is unknown whether larger or smaller values are better.
    """
    if settings.monitor == AUTO:
        return "auto"
    objective = OBJECTIVES[spec.objective]
    if of_network is None:
        of_network = {name: BETTER[name] for name in objective.further_metrics(spec)}
    own: dict[str, Better | None] = {name: BETTER[name] for name in (objective.metric_name, "loss")}
    of_ranking: dict[str, Better | None] = {settings.recall_name: "max"} if settings.recall_name else {}
    known = own | dict(of_network) | of_ranking
    if settings.monitor not in known:
        raise UserError(
            f"evaluation.monitor: got '{settings.monitor}': {did_you_mean(settings.monitor, known)}choose a metric by which "
            f"a run of this network on this data is scored: {join_names(list(known))}"
        )
    better = known[settings.monitor]
    if settings.monitor_mode == AUTO and better is not None:
        return better
    return Monitor.of(settings).better or "auto"


class EarlyStopping:
    """Decides when a run stops early. It reads the scores, in their order, and the training time.

    The decision depends only on rows in the run's files. So all processes that read these rows come to the same
    decision, even after restarts. Once patience has run out, counting begins again at 0, so that a resumed run has the
    full patience again. If the run has ended cleanly before, the scores up to that end do not stop it again.

    Attributes:
      due: the reason to stop now; None while there is none.
    """

    def __init__(self, config: RunConfig, ended_at: int = -1):
        """Create an object to which no score has been added yet.

        `ended_at`: the number of updates at the last clean end of the run; -1 if there was none.
        """
        self.due: EarlyStop | None = None
        self._ended_at = ended_at
        settings = config.evaluation
        self._monitor = Monitor.of(settings)
        self._patience, self._min_delta = settings.patience, settings.min_delta
        self._max_seconds = config.training.max_seconds
        self._seen: set[int] = set()
        self._waited = 0
        self._to_beat = -math.inf
        self._best: CheckpointScores | None = None

    def check_time_limit(self, row: ProgressRow) -> None:
        """Set `due` if the training time has reached `training.max_seconds` while there are updates left to apply."""
        limit, has_ended = self._max_seconds, row.phase not in UNDER_WAY or row.applied == row.total
        if self.due is None and limit is not None and row.train_seconds >= limit and not has_ended:
            self.due = TimeLimitReached(max_seconds=limit)

    def add_score(self, row: CheckpointScores) -> None:
        """Take a new score into account. If a step is scored again, only its first score counts."""
        if self._patience is None or row.step in self._seen:
            return
        self._seen.add(row.step)
        merit = self._monitor.merit(row)
        if merit > (-math.inf if self._best is None else self._monitor.merit(self._best)):
            self._best = row
        if merit > self._to_beat + self._min_delta:
            self._to_beat, self._waited = merit, 0
            return
        self._waited += 1
        if self._waited < self._patience:
            return
        self._waited = 0
        if self.due is not None or row.step <= self._ended_at:  # a stop was already reported, now or earlier
            return
        best = self._best
        self.due = PatienceExhausted(
            step=row.step,
            patience=self._patience,
            monitor=self._monitor.metric(best or row),
            examples=row.deciding,
            best_step=None if best is None else best.step,
            best_value=None if best is None else self._monitor.value(best),
        )
