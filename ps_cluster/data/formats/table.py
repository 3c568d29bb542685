"""Read the data format `table`: CSV or Parquet, in one file or in several."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

from ps_cluster.config.datasets import Contents
from ps_cluster.data.folders import files_in, folders_in, not_read
from ps_cluster.data.formats import PathFormat
from ps_cluster.data.splits import TRAIN, SplitNames, is_split, splits_in
from ps_cluster.data.table_files import TABLES, columns_of, ending_of, open_tables
from ps_cluster.data.table_sets import TableSettings, contents_of_tables
from ps_cluster.files.patterns import folder_of, is_pattern, matches
from ps_cluster.files.values import Malformed, one_line


class TableFormat(PathFormat[TableSettings]):
    name = "table"
    version = 5
    looks_for = (
        "a .csv, .tsv or .parquet file whose first line names the columns (.csv.gz too), a folder with train.csv and test.csv, "
        "or a folder or pattern, such as 'data/*.parquet', whose files are the parts of one table"
    )
    takes_patterns = True
    endings = tuple(TABLES)
    Settings = TableSettings

    def recognises(self, path: Path) -> bool:
        if is_pattern(path):
            return bool(_by_split(matches(path)))
        return super().recognises(path) or (os.path.isdir(path) and bool(_table_files(path)))

    def one_change(self, path: Path) -> str:
        if os.path.isfile(path):
            known = ((one, advice) for advice, endings in _ADVICE.items() for one in endings)
            found = next(((one, advice) for one, advice in known if path.name.lower().endswith(one)), None)
            return f"is a {found[0]} file: {found[1]}" if found else ""
        inner = [name for name in folders_in(path) if _table_files(path / name)] if os.path.isdir(path) else []
        return f"has tables in its folder '{inner[0]}': give that folder" if inner else ""

    def read(self, source: Path | None, settings: TableSettings) -> Contents:
        notes: tuple[str, ...] = ()
        files = {"train": [self.path]}
        if is_pattern(self.path):
            found, root = matches(self.path), folder_of(self.path)
            others = [file for file in found if not ending_of(file)]
            files, notes = _files_of_splits(_by_split(found), others, root, settings.target)
        elif self.path.is_dir():
            others = _other_files(self.path)
            files, notes = _files_of_splits(_table_files(self.path), others, self.path, settings.target)
        tables = open_tables(files, (*settings.categorical, *settings.text))
        with_commas = [table.what for table in tables.values() if table.has_decimal_commas]
        contents = contents_of_tables(tables, settings)
        commas = (f"{' and '.join(with_commas)}: numbers are read with decimal commas",) if with_commas else ()
        return replace(contents, notes=(*commas, *contents.notes, *notes))


_AS_TABLE = "save the table as .csv or .parquet"
_ADVICE = {
    _AS_TABLE: (".xlsx", ".xls", ".ods", ".json", ".jsonl", ".ndjson", ".feather", ".arrow", ".orc", ".avro"),
    f"{_AS_TABLE}, or its arrays as .npz": (".db", ".sqlite", ".h5", ".hdf5", ".pkl", ".pickle", ".mat"),
    "compress the table by gzip, as .csv.gz, or unpack it": (".csv.bz2", ".csv.xz", ".csv.zip", ".csv.zst"),
    "unpack it, and give the folder": (".zip", ".tar", ".tar.gz", ".tgz", ".7z"),
    "unpack it": (".gz", ".bz2", ".xz", ".zst"),
}
"""The endings of files that this format can't read, by the advice about them. The first matching ending decides."""

# Names that programs give to the files of a split: train.csv, train-00000-of-00002.parquet, test_1.csv.gz.
_PART_NAME = re.compile(r"([A-Za-z]+)(?:[-_.]?\d.*)?")


def _table_files(folder: Path) -> dict[str, list[Path]]:
    """Return the tables in a folder, by split. Folders in it that have the name of a split are searched too.

    A table that belongs to no split is listed under its own name. Files whose names begin with "_" are skipped,
    because some programs add such files to describe the tables.
    """
    found: dict[str, list[Path]] = {}
    for split, file in _files_and_splits(folder):
        if ending_of(file):
            found.setdefault(split or _split_of(file.name) or file.name, []).append(file)
    return found


def _other_files(folder: Path) -> list[Path]:
    """Return the files that are not tables, in a folder and in its folders of splits."""
    return [file for _, file in _files_and_splits(folder) if not ending_of(file)]


def _files_and_splits(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield (split, file) for the files in the folders of splits, and ("", file) for the files in `folder` itself."""
    yield from (("", folder / name) for name in files_in(folder) if not name.startswith("_"))
    for split in filter(is_split, folders_in(folder)):
        yield from ((split, file) for _, file in _files_and_splits(folder / split))


def _by_split(files: Sequence[Path]) -> dict[str, list[Path]]:
    """Return tables by the split that their paths name. A table of no split is listed under its own path."""
    found: dict[str, list[Path]] = {}
    for file in files:
        if not file.name.startswith("_") and ending_of(file):
            split = _split_of(file.name) or (file.parent.name if is_split(file.parent.name) else "")
            found.setdefault(split or str(file), []).append(file)
    return found


def _split_of(name: str) -> str:
    """Return the split that a table's name begins with, e.g. "train" for train-1.csv; "" if there is none."""
    part = _PART_NAME.fullmatch(name[: -len(ending_of(Path(name)))])
    return part[1] if part and is_split(part[1]) else ""


def _files_of_splits(
    found: Mapping[str, list[Path]], others: Sequence[Path], folder: Path, target: str | None
) -> tuple[dict[str, list[Path]], tuple[str, ...]]:
    """Return the files of each split, and lines about files that are not used.

    `found`: the result of `_table_files` or `_by_split`. `others`: the files that are not tables. `folder`: a folder
    above all files. `target`: the column to predict, if it is known.

    Raises Malformed if there are no tables, or there are tables to test on but none to train on.
    """
    if not found:
        raise Malformed(f"it has no tables, that is, no files whose names end in {', '.join(TABLES)}")
    notes: tuple[str, ...] = ()
    if splits := splits_in(found):
        no_split = tuple(name for name in found if name not in (splits.train, splits.test, *splits.unused))
        splits, notes = _tested_on_labels(splits._replace(not_splits=no_split), found, target)
        files = {"train": found[splits.train]} | ({"test": found[splits.test]} if splits.test else {})
        notes = (*notes, *splits.notes)
    elif tests := [name for name in found if is_split(name)]:
        raise Malformed(f"it has '{tests[0]}' but no '{TRAIN}': rename the table with the training rows to {TRAIN}.csv")
    else:
        files = {"train": [file for parts in found.values() for file in parts]}
    for split, parts in files.items():
        files[split], copies = _without_copies(folder, parts)
        notes = (*notes, *copies)
    for first, *more in files.values():
        if more:
            names = f"{first.relative_to(folder)} to {more[-1].relative_to(folder)}"
            notes = (*notes, f"{len(more) + 1:,} files are the parts of one table: {names}")
    return files, (*notes, *not_read(others, folder, "not tables"))


def _tested_on_labels(
    splits: SplitNames, found: Mapping[str, list[Path]], target: str | None
) -> tuple[SplitNames, tuple[str, ...]]:
    """Choose the first test split that has the column `target`. Return the new `splits`, and lines on skipped splits.

    If no test split has this column, choose the last one. `contents_of_tables` then decides what to do with it.
    """
    if target is None or splits.test is None:
        return splits, ()
    *earlier, last = splits.test, *splits.unused
    unlabelled = tuple(takewhile(lambda name: target not in columns_of(found[name][0]), earlier))
    test, *unused = (*earlier, last)[len(unlabelled) :]
    column = one_line(target, 100)
    notes = tuple(f"'{name}' is not used: it has no column '{column}' to predict" for name in unlabelled)
    return splits._replace(test=test, unused=tuple(unused)), notes


def _without_copies(folder: Path, files: Sequence[Path]) -> tuple[list[Path], tuple[str, ...]]:
    """Return one file of each name, sorted, and lines about the other files, which are not used.

    Files whose names differ only in their endings are taken to hold the same rows, e.g. train.csv, train.csv.gz, and
    the files in a folder train. The file whose ending comes first in TABLES is used, and a file is preferred to a
    folder of files.
    """
    by_ending = sorted(files, key=lambda file: (list(TABLES).index(ending_of(file)), file))
    used: dict[Path, Path] = {}  # path without an ending → file
    for file in by_ending:
        used.setdefault(_without_ending(file), file)
    kept, notes = [], []
    for file in sorted(files):
        copy_of = next((place for place in file.parents if place in used), None)
        if copy_of is not None:
            notes.append(
                f"'{copy_of.relative_to(folder)}/' is not used: '{used[copy_of].name}' has the same name except for its ending"
            )
        elif (first := used[_without_ending(file)]) != file:
            notes.append(
                f"'{file.relative_to(folder)}' is not used: '{first.name}' has the same name except for its ending"
            )
        else:
            kept.append(file)
    return kept, tuple(dict.fromkeys(notes))


def _without_ending(file: Path) -> Path:
    return file.parent / file.name[: -len(ending_of(file))]
