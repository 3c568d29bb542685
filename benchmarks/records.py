"""Keep each figure as a record, and make the tables of the pages from the records.

    python -m benchmarks.records write     # the tables of README.md and of docs/, from benchmarks/records/*.json
    python -m benchmarks.records age       # the records that are older than the code they measure

A page names the records of a table in the line above it: `<!-- records: default_run arms -->`. What follows, up to
`<!-- end -->`, is made by this program.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any, Literal

import click
from pydantic import BaseModel, ConfigDict

from ps_cluster.cli.command_line import OneLineErrors
from ps_cluster.errors import UserError
from ps_cluster.files.json_files import read_json
from ps_cluster.files.writing import write_json, write_whole
from ps_cluster.installation import IMPORT_FOLDER
from ps_cluster.report.terminal import print_line
from ps_cluster.system import machine

RECORDS = IMPORT_FOLDER / "benchmarks" / "records"
PAGES = (IMPORT_FOLDER / "README.md", *(IMPORT_FOLDER / "docs" / name for name in ("results.md", "far-apart.md")))
# The code that one training runs: what it computes, and what it costs.
TRAINING = tuple(f"ps_cluster/{name}" for name in ("data", "models", "server", "training"))
_TABLE = re.compile(r"(<!-- records: ([\w ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


class Column(BaseModel):
    """A column of a record's table.

    Attributes:
      heading: its first line.
      digits: behind the point; numbers of several measurements are shown as `spread` says.
      spread: "range": median (lowest to highest); "deviation": mean ± standard deviation.
    """

    model_config = ConfigDict(extra="forbid")

    heading: str
    digits: int = 0
    spread: Literal["range", "deviation"] = "range"

    def text(self, value: Any, digits: int | None = None) -> str:
        """Return a cell: of a text, of one number, or of the numbers of all measurements. `digits`: of this row."""
        numbers = f",.{self.digits if digits is None else digits}f"
        if value is None:
            return ""
        if isinstance(value, str):
            return value
        if not isinstance(value, list) or len(value) == 1:
            return f"{value[0] if isinstance(value, list) else value:{numbers}}"
        if self.spread == "deviation":
            return f"{mean(value):{numbers}} ± {stdev(value):{numbers}}"
        return f"{median(value):{numbers}} ({min(value):{numbers}} to {max(value):{numbers}})"


class Record(BaseModel):
    """What one command measured, with every single value.

    Attributes:
      command: gives the figures again.
      commit: of the code that was measured.
      date: of the day, as 2026-01-31.
      machine: its processor, cores and libraries.
      columns: by the keys of the rows, in the order of the table.
      rows: text, a number, or a list of the numbers of all measurements, by column; "digits": of this row, if they are
        others than its columns'.
    """

    model_config = ConfigDict(extra="forbid")

    command: str
    commit: str
    date: str
    machine: dict[str, Any]
    columns: dict[str, Column]
    rows: list[dict[str, Any]]

    @property
    def source(self) -> str:
        """Where the figures come from, on one line."""
        return f"`{self.command}`, {machine.processor_of(self.machine)}, {self.date}, commit {self.commit}."

    def cells(self) -> list[list[str]]:
        """Return the table's cells, by rows; the last one is the number of measurements."""
        return [
            [*(column.text(row.get(key), row.get("digits")) for key, column in self.columns.items()), f"{_count(row)}"]
            for row in self.rows
        ]

    def lines_changed_since(self) -> int | None:
        """Return how many lines of the code that decides the figures have changed since; None if git can't say."""
        words = ("git", "diff", "--numstat", self.commit, "HEAD", "--", *TRAINING)
        told = subprocess.run(words, cwd=IMPORT_FOLDER, capture_output=True, text=True)
        if told.returncode:
            return None
        return sum(int(count) for line in told.stdout.splitlines() for count in line.split()[:2] if count.isdigit())


def _count(row: dict[str, Any]) -> int:
    return min((len(value) for value in row.values() if isinstance(value, list)), default=1)


def read(name: str) -> Record:
    """Return a record by its name. Raises UserError if there is none."""
    path = RECORDS / f"{name}.json"
    try:
        return read_json(path, Record)
    except FileNotFoundError:
        raise UserError(f"records: got '{name}': there is no {path}") from None


def keep(output: Path | None, rows: list[dict[str, Any]], columns: dict[str, Column]) -> Record:
    """Return the record of the command that runs now, and write it where there is an `output`."""
    here = machine.describe()
    record = Record(
        command=_without_paths("python", "-m", f"benchmarks.{Path(sys.argv[0]).stem}", *sys.argv[1:]),
        commit=here.pop("commit") or "unknown",
        date=time.strftime("%Y-%m-%d"),
        machine=here,
        columns=columns,
        rows=rows,
    )
    if output is not None:
        write_json(output, record.model_dump())
    return record


def _without_paths(*words: str) -> str:
    """Return a command with a name in place of each path, which others don't have: `--data-dir DATA_DIR`."""
    pairs = zip(("", *words), words)
    return " ".join(
        before[2:].upper().replace("-", "_") if word.startswith("/") else shlex.quote(word) for before, word in pairs
    )


def table(records: Sequence[Record]) -> str:
    """Return records with the same columns as one Markdown table. That of several has a column with the commits."""
    columns, first = records[0].columns, records[0].rows[0]
    headings = [*(column.heading for column in columns.values()), "n"]
    sides = [*("---" if isinstance(first.get(key), str) else "---:" for key in columns), "---:"]
    rows = [cells for record in records for cells in record.cells()]
    if len(records) > 1:
        headings, sides = [*headings, "commit"], [*sides, "---"]
        rows = [[*cells, record.commit] for record in records for cells in record.cells()]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (headings, sides, *rows))


def print_table(record: Record) -> None:
    for line in table([record]).splitlines():
        print_line(line)


def with_tables(page: str) -> str:
    """Return the text of a page, each of its tables made from the records that the line above names."""

    def made(match: re.Match[str]) -> str:
        records = [read(name) for name in match[2].split()]
        sources = "\n\n".join(record.source for record in records)
        return f"{match[1]}{table(records)}\n\n{sources}\n{match[3]}"

    return _TABLE.sub(made, page)


@click.group(cls=OneLineErrors)
def main() -> None:
    """Make the tables of the pages from the records, and see which records are old."""


@main.command()
def write() -> None:
    """Write the tables of README.md and of the pages in docs/."""
    for page in PAGES:
        write_whole(page, with_tables(page.read_text(encoding="utf-8")))


@main.command()
def age() -> None:
    """Print how many lines of the code that decides the figures of each record have changed since."""
    for path in sorted(RECORDS.glob("*.json")):
        record = read(path.stem)
        lines = record.lines_changed_since()
        told = (
            "its commit is not here"
            if lines is None
            else f"{lines:,} lines of its code changed since"
            if lines
            else "new"
        )
        print_line(f"{path.stem}: {record.date}, commit {record.commit}: {told}")


if __name__ == "__main__":
    main()
