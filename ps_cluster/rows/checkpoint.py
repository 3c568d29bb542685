"""The header of a checkpoint: its step, the names of its arrays, and what a training needs to go on beside them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, Strict, model_validator

from ps_cluster.rows.base import Count, Histogram, Index, Number, Pid, Row
from ps_cluster.rows.dataset import Kind
from ps_cluster.training.training_clock import Times

MOST_OPEN = 2**24  # step ids between the first that is missing and the last that is in; windows are shorter


class StepsState(Row):
    """A set of step ids (training/step_set.py): all below `below`, those `beyond` it; `count`: how many are in."""

    below: Count
    beyond: list[Count] = []
    count: Count

    @model_validator(mode="after")
    def _is_a_window(self) -> StepsState:
        if self.beyond and not self.below <= min(self.beyond) <= max(self.beyond) < self.below + MOST_OPEN:
            raise ValueError(f"step {max(self.beyond)} is out of reach of {self.below}")
        return self


class TallyState(Row):
    """Sums over the ledger (training/tally.py). `workers`: index, pid, updates, examples of each process.

    `first_updates`: worker, when its first update was applied [s of training], examples of all until then.
    """

    examples: Count = 0
    workers: list[Annotated[tuple[Index, Pid, Count, Count], Strict(False)]] = []
    staleness: Histogram = {}
    first_updates: list[Annotated[tuple[Count, Number, Count], Strict(False)]] = []


class ProgressState(Row):
    """What was scheduled and applied (training/run_progress.py)."""

    scheduled: StepsState
    applied: StepsState
    tally: TallyState
    mixed: Count


class Meta(Row):
    """What a checkpoint says beside its arrays; None where a simpler writer does not say it.

    Attributes:
      config: the run's, as config.yaml has it. examples: behind its updates.
      times, progress: what a leader goes on with.
    """

    config: dict[str, Any] | None = None
    dataset_kind: Kind | None = None
    train_seconds: Number | None = None
    examples: Count | None = None
    times: Times | None = None
    progress: ProgressState | None = None


class Header(Row):
    """The member `header` of the file."""

    step: Count
    meta: Meta
    arrays: Annotated[list[Annotated[str, Field(pattern=r"^[a-z0-9_]{1,60}$")]], Field(max_length=100)]
