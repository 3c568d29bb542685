"""The manifest of a packed data set, and the file of a run that points to one."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ps_cluster.run.rows.base import Count, Row, Word

Name = Literal["cifar10", "synthetic"]
Kind = Literal["real", "synthetic"]
Examples = Annotated[int, Field(gt=0, le=2**31)]


class DatasetPointer(Row):
    """dataset.json of a run: the packed folder that this machine's tasks map. Its manifest is authoritative."""

    name: Word | None = None
    kind: Word | None = None
    directory: Annotated[str, Field(max_length=4096, pattern=r"^[^\x00]+$")]


class Manifest(Row):
    """dataset.json of a packed folder.

    `bytes`: file name → size. `source`: archive or folder that it was packed from; "" if it was generated.
    """

    format: int
    name: Name
    kind: Kind
    train_examples: Examples
    test_examples: Examples
    classes: Annotated[list[Word], Field(min_length=1, max_length=256)]
    source: Annotated[str, Field(max_length=4096)] = ""
    bytes: dict[Word, Count]
