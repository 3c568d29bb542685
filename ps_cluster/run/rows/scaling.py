"""The request of `ps-cluster scale`, the launcher's answer, and what the summary says about it."""

from __future__ import annotations

from typing import Literal

from ps_cluster.run.rows.base import Count, Index, Row, Text


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
    """A change of the number of workers: how many there were then, and how many updates had been applied."""

    applied: Count
    workers: Count
