"""The request of `ps-cluster scale`, the launcher's answer, and what the summary says about changes."""

from __future__ import annotations

from typing import Literal

from ps_cluster.run.rows.base import Count, Index, Row, Seconds, Text


class ScaleRequest(Row):
    """The number of workers that somebody asks for."""

    workers: Index


class ScaleAnswer(Row):
    """The launcher's answer on one line: its action, or the reason for none.

    Attributes:
      outcome: "replaced": a newer request came before the launcher had seen this one.
    """

    line: Text
    outcome: Literal["done", "refused", "replaced"]


class ScalingRow(Row):
    """A change of the number of workers while a run trained: by `ps-cluster scale`, or because one was given up.

    Attributes:
      applied: updates until then, as far as known. train_seconds: seconds of training until then, likewise.
      before, workers: how many there were before and after it.
    """

    applied: Count
    train_seconds: Seconds
    before: Count
    workers: Count
