"""metrics/training.json: the leader's result of the finished training."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ps_cluster.run.rows.base import MOST, Count, Histogram, Index, Number, Row, Seconds, Text
from ps_cluster.run.rows.progress import WorkerRow

Difference = Annotated[int, Field(ge=-MOST, le=MOST)]  # below 0 if more was applied than scheduled


class Updates(Row):
    """The counts of docs/definitions.md, "Updates"; None if unknown."""

    scheduled: Count | None = None
    applied: Count = 0
    duplicated: Count | None = None
    lost: Difference | None = None
    rolled_back: Count | None = None
    replays_refused: Count | None = None
    mixed: Count | None = None


class Gradients(Row):
    """Gradients scheduled, applied and too late, and the number that an update averages."""

    scheduled: Count | None = None
    applied: Count | None = None
    dropped: Count | None = None
    per_update: Count | None = None


class StalenessRow(Row):
    """Staleness of the applied gradients, in versions; None if not measured."""

    mean: Seconds | None = None
    p50: Count | None = None
    p95: Count | None = None
    max: Count | None = None
    histogram: Histogram = {}


class SliceProof(Row):
    """Counters of a slice (run/ledger.py, COUNTS), and the rows and distinct steps of its journal."""

    index: Index
    rows: Count
    steps: Count
    version: Count
    applied: Count
    accepted: Count
    refused: Count
    dropped: Count


class Proof(Row):
    """Agreement of all evidence, and what disagrees, one line each."""

    holds: bool
    problems: list[Text] = []
    slices: list[SliceProof] = []

    @property
    def problem(self) -> str | None:
        """The first disagreement; None if there is none."""
        return None if self.holds else next(iter(self.problems), "no reason is given")


class Server(Row):
    """A parameter server and the number of its parameters."""

    index: Index
    parameters: Count


class TrainingResult(Row):
    """The leader's result, times in seconds of training.

    Attributes:
      completed: all updates were applied before any stop.
      diverged: a weight is NaN or infinite; training was stopped then.
      bad_losses: steps whose loss was NaN or infinite.
    """

    completed: bool
    diverged: bool = False
    bad_losses: Count = 0
    train_seconds: Number = 0.0
    rolled_back_seconds: Seconds = 0.0
    interrupted_seconds: Seconds = 0.0
    goodput: Number | None = None
    examples_per_second: Seconds | None = None
    updates: Updates = Updates()
    gradients: Gradients = Gradients()
    proof: Proof | None = None
    staleness: StalenessRow = StalenessRow()
    workers: list[WorkerRow] = []
    parameter_servers: list[Server] = []
