"""Define the rows that describe a packed data set: its manifest, how its columns are encoded, and a run's pointer to it."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from ps_cluster.config.datasets import MOST_CLASSES
from ps_cluster.runs.rows import Count, Number, Row, Word

Name = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$")]
Kind = Literal["real", "synthetic"]
MOST_FILES = 2**20
Examples = Annotated[int, Field(gt=0, le=2**40)]
# The dtypes of arrays from which rows can be gathered.
DType = Literal["bool", "uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64"]
Checksum = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
FieldName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")]  # part of a file's name


class DatasetPointer(Row):
    """The content of a run's dataset.json: the folder of the packed data set, which the tasks of this machine read.

    If this row and the manifest in the folder disagree, the manifest is right.
    """

    name: Name | None = None
    kind: Word | None = None
    unit: Word = "examples"  # the plural noun for the examples, e.g. "images"
    directory: Annotated[str, Field(max_length=4096, pattern=r"^[^\x00]+$")]


class FieldRow(Row):
    """The description of one array of the examples (`ArrayField` in config/objectives.py)."""

    dtype: Literal[DType, "string"]
    shape: Annotated[list[Annotated[int, Field(ge=1, le=2**31)]], Field(max_length=8)]
    mean: list[Number] = []
    std: list[Number] = []
    codes: list[Annotated[int, Field(ge=1, le=2**31)]] = []
    characters: Annotated[int, Field(ge=0, le=2**31)] = 0
    code: Literal["", "uint8", "uint16", "int32"] = ""

    @model_validator(mode="after")
    def _texts_have_characters(self) -> Self:
        if (self.dtype == "string") != bool(self.characters and self.code):
            raise ValueError(
                "an array of dtype string needs the fields 'characters' and 'code', and an array of another dtype must "
                "not have them"
            )
        return self


class OtherTargetRow(Row):
    """The description of the target of a further output of a network (`OtherTarget` in config/objectives.py)."""

    field: FieldRow
    objective: Name
    classes: Annotated[list[Word], Field(max_length=MOST_CLASSES)]


class Manifest(Row):
    """The content of dataset.json in the folder of a packed data set.

    Attributes:
      weight: the field with the weight of an example; null if all examples count equally.
      output: the name of the network's output that predicts `target`; "" if `others` is empty.
      others: the targets of the network's further outputs, by the name of the output.
      source: the archive or folder that was packed; "" if there is none.
      file_rows: how many training examples come from each file, in the order of the files; empty if that is not known.
      bytes: the size of each file, by its name.
      sha256: the checksum of each file, by its name; empty until all files are written.
    """

    format: int
    name: Name
    kind: Kind
    objective: Name
    inputs: Annotated[dict[FieldName, FieldRow], Field(min_length=1, max_length=100)]
    target: FieldRow
    weight: FieldRow | None = None
    classes: Annotated[list[Word], Field(max_length=MOST_CLASSES)]
    output: Annotated[str, Field(pattern=r"^([a-z][a-z0-9_]{0,39})?$")] = ""
    others: Annotated[dict[FieldName, OtherTargetRow], Field(max_length=100)] = {}
    train_examples: Examples
    test_examples: Examples
    source: Annotated[str, Field(max_length=4096)] = ""
    notes: list[Annotated[str, Field(max_length=2000)]] = []
    file_rows: Annotated[list[Count], Field(max_length=MOST_FILES)] = []
    bytes: dict[Word, Count]
    sha256: dict[Word, Checksum] = {}


class NumberColumn(Row):
    """A numeric column of a table. The network gets (value - mean) / std; a missing value is replaced by the mean.

    `mean` and `std` are computed from the training rows that have a value. `is_time`: the values are dates or times, in
    seconds. `missing`: how many training rows have no value.
    """

    name: Name
    mean: float
    std: float
    is_time: bool = False
    missing: Count = 0


class CategoryColumn(Row):
    """A categorical column of a table.

    The network gets code 1 for the first of `values`, 2 for the second and so on, and 0 for any other value.
    `missing`: how many training rows have no value.
    """

    name: Name
    values: list[str]
    missing: Count = 0


class TableEncoding(Row):
    """The content of a packed table's encoding.json: how its columns, in order, become inputs.

    It depends only on the training rows of the table.
    """

    target: Name
    numbers: list[NumberColumn]
    categories: list[CategoryColumn]
    texts: list[Name] = []
