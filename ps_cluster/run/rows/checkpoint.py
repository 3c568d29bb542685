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


class Stretch(Row):
    """What one leader did up to a state: the one that it is in, or the one from which the next leader went on.

    Attributes:
      epoch: of the leader (run/leaders.py); 0 for one that has no claim. step: of the state.
      rows, checksums: how many rows each of its journals has up to there, and the checksum in the last of them
        (run/journal.py). A journal without rows has the checksum with which it began.
      rules: the settings that decided learning rate and bound of staleness of its steps, as text; empty: not known.
    """

    epoch: Count = 0
    step: Count
    rows: list[Count]
    checksums: list[Count]
    rules: Annotated[str, Field(max_length=10_000)] = ""

    @model_validator(mode="after")
    def _is_of_some_slices(self) -> Stretch:
        if not self.rows or len(self.rows) != len(self.checksums):
            raise ValueError(f"{len(self.rows)} numbers of rows, {len(self.checksums)} checksums")
        return self


class Meta(Row):
    """Facts in a checkpoint beside its arrays; None where the writer does not record them.

    Attributes:
      config: the run's, as in config.yaml. examples: trained by its updates.
      times, progress: state that a leader resumes with.
      data: what tells the packed data set from another (run/agreement.py).
      network: path and shape of each variable, in the order in which they lie in the vectors, the statistics last.
      leaders: what each leader did of the work in it, one after the other; the last one has written it.
    """

    config: dict[str, Any] | None = None
    dataset_kind: Kind | None = None
    train_seconds: Number | None = None
    examples: Count | None = None
    times: Times | None = None
    progress: ProgressState | None = None
    data: dict[Word, Word] | None = None
    network: list[Text] | None = None
    leaders: list[Stretch] = []


class Header(Row):
    """The header of a checkpoint's file."""

    step: Count
    meta: Meta
    arrays: Annotated[list[Annotated[str, Field(pattern=r"^[a-z0-9_]{1,60}$")]], Field(max_length=100)]
