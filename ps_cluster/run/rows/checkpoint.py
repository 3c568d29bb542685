"""The header of a checkpoint: its step, the names of its arrays, and the other state that training resumes from."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, Strict, model_validator

from ps_cluster.run.rows.base import Count, Histogram, Index, Number, Pid, Row, Text, Word
from ps_cluster.run.rows.dataset import Kind
from ps_cluster.run.training_clock import Times

MOST_OPEN = 2**24  # step ids from the first missing to the last present one; windows are shorter


class StepsState(Row):
    """A set of step ids (run/step_set.py): all below `below`, and those in `beyond`. `count`: size of the set."""

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

    `first_updates`: worker, time of its first update [s of training], examples of all workers until then.
    `bad_losses`: steps whose loss was NaN or infinite.
    """

    examples: Count = 0
    workers: list[Annotated[tuple[Index, Pid, Count, Count], Strict(False)]] = []
    staleness: Histogram = {}
    first_updates: list[Annotated[tuple[Count, Number, Count], Strict(False)]] = []
    bad_losses: Count = 0


class ProgressState(Row):
    """Scheduled and applied work (training/run_progress.py)."""

    scheduled: StepsState
    applied: StepsState
    tally: TallyState
    mixed: Count


class Meta(Row):
    """Facts in a checkpoint beside its arrays; None where the writer does not record them.

    Attributes:
      config: the run's, as in config.yaml. examples: trained by its updates.
      times, progress: state that a leader resumes with.
      data: what tells the packed data set from another (run/agreement.py).
      network: path and shape of each variable, in the order in which they lie in the vectors, the statistics last.
    """

    config: dict[str, Any] | None = None
    dataset_kind: Kind | None = None
    train_seconds: Number | None = None
    examples: Count | None = None
    times: Times | None = None
    progress: ProgressState | None = None
    data: dict[Word, Word] | None = None
    network: list[Text] | None = None


class Header(Row):
    """The member `header` of a checkpoint."""

    step: Count
    meta: Meta
    arrays: Annotated[list[Annotated[str, Field(pattern=r"^[a-z0-9_]{1,60}$")]], Field(max_length=100)]
