"""The form `table`: CSV or Parquet, in one file or in two."""

from __future__ import annotations

import os
from pathlib import Path

from ps_cluster.catalogue.datasets import NO_IMAGES, Contents, DataSet, DataSettings
from ps_cluster.catalogue.forms import Form
from ps_cluster.data.table_files import TABLES, open_tables
from ps_cluster.data.tables import TableSettings, contents_of_tables


class TableAt(DataSet):
    """The table of a file, or those of a folder."""

    Settings = TableSettings
    recipe = NO_IMAGES

    def __init__(self, path: Path):
        self.path: Path = path

    def read(self, source: Path | None, settings: DataSettings) -> Contents:
        assert isinstance(settings, TableSettings)
        files = {"train": self.path}
        if self.path.is_dir():
            found = {split: _file(self.path, split) for split in ("train", "test")}
            files = {split: file for split, file in found.items() if file is not None}
        return contents_of_tables(open_tables(files, settings.categorical), settings)


class TableForm(Form):
    name = "table"
    looks_for = "a .csv or .parquet file whose first line names the columns, or a folder with train.csv and test.csv"
    endings = tuple(TABLES)
    Settings = TableSettings

    def recognises(self, path: Path) -> bool:
        return super().recognises(path) or _file(path, "train") is not None

    def dataset(self, path: Path) -> DataSet:
        return TableAt(path)


def _file(folder: Path, split: str) -> Path | None:
    return next((file for ending in TABLES if os.path.isfile(file := folder / f"{split}{ending}")), None)


TABLE = TableForm()
