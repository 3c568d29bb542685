"""The request of `ps-cluster scale`, the launcher's answer, and what the summary says about it."""

from __future__ import annotations

from ps_cluster.run.rows.base import Count, Index, Row, Text, Word


class ScaleRequest(Row):
    """The number of workers that somebody asks for. `asked`: a name of this request, which the answer repeats."""

    asked: Word
    workers: Index


class ScaleAnswer(Row):
    """The launcher's answer on one line: its action, or the reason for none."""

    asked: Word
    line: Text
    refused: bool


class ScalingRow(Row):
    """A change of the number of workers: how many there were then, and how many updates had been applied."""

    applied: Count
    workers: Count
