"""The manifest of a packed data set, and the file of a run that points to one."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ps_cluster.catalogue.datasets import MOST_CLASSES
from ps_cluster.run.rows.base import Count, Number, Row, Word

Name = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$")]
Kind = Literal["real", "synthetic"]
Examples = Annotated[int, Field(gt=0, le=2**40)]
DType = Literal[
    "bool", "uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64"
]  # that rows can be gathered from
Checksum = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
FieldName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")]  # part of a file's name


class DatasetPointer(Row):
    """dataset.json of a run: the packed folder that this machine's tasks map. Its manifest is authoritative."""

    name: Name | None = None
    kind: Word | None = None
    unit: Word = "examples"  # the word for several of its examples
    directory: Annotated[str, Field(max_length=4096, pattern=r"^[^\x00]+$")]


class FieldRow(Row):
    """An array of the examples (catalogue/examples.py)."""

    dtype: DType
    shape: Annotated[list[Annotated[int, Field(ge=1, le=2**31)]], Field(max_length=8)]
    mean: list[Number] = []
    std: list[Number] = []
    codes: list[Annotated[int, Field(ge=1, le=2**31)]] = []


class Manifest(Row):
    """dataset.json of a packed folder.

    `weight`: how much an example counts; null if all count alike. `source`: archive or folder that it was packed from; ""
    if there is none. `notes`: lines for a person to read. `bytes`: file name → size. `sha256`: file name → checksum; without
    it in copies of earlier versions.
    """

    format: int
    name: Name
    kind: Kind
    objective: Name
    inputs: Annotated[dict[FieldName, FieldRow], Field(min_length=1, max_length=100)]
    target: FieldRow
    weight: FieldRow | None = None
    classes: Annotated[list[Word], Field(max_length=MOST_CLASSES)]
    train_examples: Examples
    test_examples: Examples
    source: Annotated[str, Field(max_length=4096)] = ""
    notes: list[Annotated[str, Field(max_length=2000)]] = []
    bytes: dict[Word, Count]
    sha256: dict[Word, Checksum] = {}


class NumberColumn(Row):
    """A column of numbers of a table. The network gets (value - mean) / std; a missing value is the mean."""

    name: Name
    mean: float
    std: float


class CategoryColumn(Row):
    """A column of names of a table. The network gets 1 for the first of `values` and so on, 0 for any other."""

    name: Name
    values: list[str]


class TableEncoding(Row):
    """encoding.json of a packed table: how its columns became inputs, in their order, by the training rows alone."""

    target: Name
    numbers: list[NumberColumn]
    categories: list[CategoryColumn]
