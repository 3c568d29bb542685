"""Print the list of all data sets, and the contents of a data set without images, as tables for people."""

from __future__ import annotations

import time

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ps_cluster.config.objectives import ExampleSpec
from ps_cluster.data.class_examples import groups_of
from ps_cluster.data.describing import FieldStatistics, describe, example_rows
from ps_cluster.data.inventory import Entry, PackedCopy
from ps_cluster.data.packed import PackedDataset
from ps_cluster.files.json_files import Json
from ps_cluster.files.values import number_text
from ps_cluster.report.terminal import FOLD, LEFT, RIGHT, ColumnOptions, megabytes, plain_table

MOST_GROUPS, MOST_COLUMNS, ROWS = 30, 10, 5  # the largest numbers of groups, columns and rows that are shown
_BAR, _LONGEST_NAME = 30, 20  # widths in characters


def print_entries(entries: list[Entry], console: Console) -> None:
    """Print a table of data sets: a row for each copy that is packed for training, or one row if there is no copy."""
    name: ColumnOptions = {**FOLD, "max_width": _LONGEST_NAME}
    rest: ColumnOptions = {**FOLD, "ratio": 1}
    table = plain_table(**{"data set": name, "examples": LEFT, "form, origin, name of the packed copy": rest})
    for entry in entries:
        for copy in entry.copies:
            table.add_row(Text(entry.name, "bold"), *_cells_of(copy))
        if not entry.copies:
            size = sum(one.bytes for one in entry.downloads)
            archive = f"\n{megabytes(size)} to download" if size and not entry.archives else ""
            table.add_row(entry.name, Text(f"not packed{archive}", "dim"), Text(_origin(entry), "dim"))
    console.print(table)


def entries_as_json(entries: list[Entry]) -> list[Json]:
    """Return the data sets and their copies as JSON for other programs, in more detail than `print_entries` shows."""
    return [
        {
            "name": entry.name,
            "title": entry.title,
            "kind": "synthetic" if entry.generated else "real",
            "copies": [_copy_as_json(copy) for copy in entry.copies],
            "archives": [str(path) for path in entry.archives],
            "downloads": [one._asdict() for one in entry.downloads],
        }
        for entry in entries
    ]


def print_table_of(dataset: PackedDataset, console: Console) -> None:
    """Print a data set: its fields, some examples, and the number of examples of each class or range of the target."""
    described = describe(dataset)
    console.print(_fields_table(described))
    read = min(one.rows for one in described)
    if read < dataset.train_examples:
        console.print(
            f"computed from {read:,} of {dataset.train_examples:,} training examples, in evenly spaced pieces",
            style="dim",
        )
    console.print()
    console.print(_groups_table(dataset))
    console.print()
    console.print(_rows_table(dataset))


def form(spec: ExampleSpec) -> str:
    """Return a description of the examples, e.g. "images 32x32x3, 10 classes"."""
    texts = []
    for name, field in spec.inputs.items():
        sides = "x".join(map(str, field.shape)) or "a number"
        alone = field.is_image and len(spec.inputs) == 1
        texts.append(f"images {sides}" if alone else f"{name} {sides} {field.dtype}")
    return f"{', '.join(texts)}, {f'{len(spec.classes):,} classes' if spec.classes else spec.objective}"


def _cells_of(copy: PackedCopy) -> tuple[Text, Text]:
    """Return the second and third cell of the row of a packed copy. Each has several lines."""
    dataset, name = copy.dataset, Text(copy.directory.name, "dim")
    packed = copy.packed_time
    day = "no date" if packed is None else time.strftime("%Y-%m-%d", time.localtime(packed))
    facts = f"{megabytes(copy.bytes)}\n{day}"
    if dataset is None:
        return Text("DAMAGED\n", "bold red") + Text(facts, "default"), Text("\n").join(
            (Text(copy.problem, "red"), name)
        )
    made = Text("generated ", "yellow") if dataset.kind == "synthetic" else Text()
    origin = [Text(dataset.source)] if dataset.source else []
    examples = f"{dataset.train_examples:,} + {dataset.test_examples:,}"
    checksum = Text(f"SHA-256 {dataset.checksum[:12]}…", "dim")
    return Text(f"{examples}\n{facts}"), Text("\n").join(
        (made + Text(form(dataset.spec), "default"), *origin, name, checksum)
    )


def _origin(entry: Entry) -> str:
    """Return in words where a data set that is not packed will come from."""
    if entry.archives:
        return f"packed when it is first used, from {entry.archives[0]}"
    if entry.downloads:
        first, *more = entry.downloads
        others = f", and {len(more)} more files" if more else ""
        return f"downloaded when it is first used\n{first.file}, SHA-256 {first.sha256[:12]}…{others}"
    return f"{'generated' if entry.generated else 'read'} when it is first used"


def _copy_as_json(copy: PackedCopy) -> Json:
    about: Json = {"directory": str(copy.directory), "bytes": copy.bytes, "packed_at": copy.packed_time}
    if copy.dataset is None:
        return about | {"damaged": copy.problem}
    spec = copy.dataset.spec
    fields = {name: {"dtype": field.dtype, "shape": list(field.shape)} for name, field in spec.inputs.items()}
    return about | {
        "damaged": None,
        "checksum": copy.dataset.checksum,
        "source": copy.dataset.source or None,
        "train_examples": copy.dataset.train_examples,
        "test_examples": copy.dataset.test_examples,
        "objective": spec.objective,
        "inputs": fields,
        "target": {"dtype": spec.target.dtype, "shape": list(spec.target.shape)},
        "classes": list(spec.classes),
    }


def _fields_table(described: list[FieldStatistics]) -> Table:
    numbers = dict.fromkeys(("min", "mean", "std", "max", "missing"), RIGHT)
    table = plain_table(field=FOLD, dtype=LEFT, shape=LEFT, **numbers)
    for one in described:
        found = (one.low, one.mean, one.std, one.high)
        texts = ("–" if value is None else number_text(value) for value in found)
        shape = "x".join(map(str, one.shape)) or "1"
        table.add_row(one.name, one.dtype, shape, *texts, Text(f"{one.missing:,}", "red" if one.missing else "dim"))
    return table


def _groups_table(dataset: PackedDataset) -> Table:
    """Return the counts of each class, label or range of the target, with bars."""
    table = plain_table(target=FOLD, training=RIGHT, test=RIGHT, **{"": ColumnOptions()})
    groups = groups_of(dataset)
    most = max(group.train_examples for group in groups)
    for group in groups[:MOST_GROUPS]:
        bar = Text("━" * round(_BAR * group.train_examples / max(1, most)), "cyan")
        table.add_row(group.name, f"{group.train_examples:,}", f"{group.test_examples:,}", bar)
    if len(groups) > MOST_GROUPS:
        table.add_row(Text(f"and {len(groups) - MOST_GROUPS:,} more", "dim"))
    return table


def _rows_table(dataset: PackedDataset) -> Table:
    names, rows = example_rows(dataset, slice(ROWS))
    table = plain_table()
    for name in names[:MOST_COLUMNS]:  # several columns may have the same name
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*row[:MOST_COLUMNS])
    if len(names) > MOST_COLUMNS:
        table.caption = f"and {len(names) - MOST_COLUMNS:,} more columns"
    return table
