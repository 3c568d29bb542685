"""Keep all measured numbers in records, and make the tables of the pages from the records.

    python -m benchmarks.records write     # the tables of README.md and docs/, from benchmarks/records/*.json
    python -m benchmarks.records age       # how much of the code has changed since each record
    python -m benchmarks.records difference cifar10_94 cifar10_94_single    # of two trainings with the same seeds

A page names the records of a table in the line above the table: `<!-- records: default_run arms -->`. This program makes what
follows, up to `<!-- end -->`: the table and, for each record, its command, processor, date and commit. After
`<!-- figures: default_run arms -->` it makes the table alone, without commits.
"""

from __future__ import annotations

import math
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
from ps_cluster.runs.machine_rows import MachineRow
from ps_cluster.system import machine
from ps_cluster.tools.compare.estimates import t_quantile

RECORDS = IMPORT_FOLDER / "benchmarks" / "records"
PAGES = (IMPORT_FOLDER / "README.md", *(IMPORT_FOLDER / "docs" / name for name in ("results.md", "clusters.md")))
# The code that one training runs, which decides what it computes and what it costs.
TRAINING = tuple(f"ps_cluster/{name}" for name in ("data", "models", "server", "training"))
_TABLE = re.compile(r"(<!-- (records|figures): ([\w ]+) -->\n).*?(<!-- end -->)", re.DOTALL)

Value = str | float | list[float] | None
"""The content of a cell: a text, one number, or the numbers of all measurements."""


class Column(BaseModel):
    """A column of a record's table.

    Attributes:
      digits: the number of digits after the point.
      spread: how several numbers are shown. "range": median (lowest to highest); "deviation": mean ± standard deviation;
        "interval": mean ± half of its 95 % interval.
    """

    model_config = ConfigDict(extra="forbid")

    heading: str
    digits: int = 0
    spread: Literal["range", "deviation", "interval"] = "range"

    def text(self, value: Value, digits: int | None = None) -> str:
        """Return the text of a cell. `digits`: replaces the `digits` of the column."""
        spec = f",.{self.digits if digits is None else digits}f"
        if isinstance(value, list) and len(value) > 1:
            if self.spread == "deviation":
                return f"{mean(value):{spec}} ± {stdev(value):{spec}}"
            if self.spread == "interval":
                return f"{mean(value):{spec}} ± {half_interval(value):{spec}}"
            return f"{median(value):{spec}} ({min(value):{spec}} to {max(value):{spec}})"
        if isinstance(value, list):
            (value,) = value
        return (value or "") if isinstance(value, str | None) else f"{value:{spec}}"


def half_interval(values: Sequence[float]) -> float:
    """Return half of the 95 % interval of the mean of values; 0 for a single one."""
    n = len(values)
    return t_quantile(n - 1) * stdev(values) / math.sqrt(n) if n > 1 else 0.0


class Record(BaseModel):
    """The results of one command, with every single measured value.

    Attributes:
      commit: the commit of the code that was measured.
      date: the day of the measurement, as 2026-01-31.
      machine: the processor, cores and libraries of the measurement, without the commit.
      columns: key in the rows → column, in the order of the table.
      rows: key → `Value` for each column. A row may also have the key "digits", which replaces those of all columns.
      settings: section → its settings in the measured training, if a test compares them with those of today.
    """

    model_config = ConfigDict(extra="forbid")

    command: str
    commit: str
    date: str
    machine: MachineRow
    columns: dict[str, Column]
    rows: list[dict[str, Any]]
    settings: dict[str, Any] | None = None

    def cells(self) -> list[list[str]]:
        """Return the texts of the table by rows. The last cell of a row is the number of measurements."""
        found = []
        for row in self.rows:
            count = min((len(value) for value in row.values() if isinstance(value, list)), default=1)
            cells = (column.text(row.get(key), row.get("digits")) for key, column in self.columns.items())
            found.append([*cells, f"{count}"])
        return found


def read(name: str) -> Record:
    """Return a record by its name. Raises UserError if there is none."""
    path = RECORDS / f"{name}.json"
    try:
        return read_json(path, Record)
    except FileNotFoundError:
        raise UserError(f"records: got '{name}': there is no {path}") from None


def keep(
    output: Path | None,
    rows: list[dict[str, Any]],
    columns: dict[str, Column],
    *,
    commit: str | None = None,
    settings: dict[str, Any] | None = None,
) -> Record:
    """Make a record of the command that runs now, write it to `output` unless that is None, and return it.

    Args:
      rows, columns: as in `Record`.
      commit: the commit of the code that was measured, if an earlier command measured it; by default that of the code
        that runs now.
      settings: as in `Record`.
    """
    here = machine.describe()
    words = ("python", "-m", f"benchmarks.{Path(sys.argv[0]).stem}", *sys.argv[1:])
    command = " ".join(_without_path(word, before) for before, word in zip(("", *words), words))
    commit, date = commit or here.commit or "unknown", time.strftime("%Y-%m-%d")
    without_commit = MachineRow.model_validate(here.model_dump(exclude={"commit"}))
    record = Record(
        command=command, commit=commit, date=date, machine=without_commit, columns=columns, rows=rows, settings=settings
    )
    if output is not None:
        write_json(output, record.model_dump(exclude=None if settings else {"settings"}))
    return record


def _without_path(word: str, before: str) -> str:
    """Return a word of a command. A path, which exists on this machine only, becomes a name: `--data-dir DATA_DIR`.

    `before`: the word before it, which names the path if it is an option.
    """
    key, equals, value = word.rpartition("=")
    if not value.startswith("/"):
        return shlex.quote(word)
    named = key or (before if before.startswith("--") else "path")
    return f"{key}{equals}{named.rpartition('.')[2].removeprefix('--').upper().replace('-', '_')}"


def table(records: Sequence[Record], *, commits: bool = False) -> str:
    """Return records with equal columns as one Markdown table. `commits`: whether to add a column of commits."""
    columns, first = records[0].columns, records[0].rows[0]
    headings = [*(column.heading for column in columns.values()), "n", "commit"]
    sides = [*("---" if isinstance(first.get(key), str) else "---:" for key in columns), "---:", "---"]
    rows = [headings, sides, *([*cells, record.commit] for record in records for cells in record.cells())]
    if not commits:
        rows = [cells[:-1] for cells in rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def print_table(record: Record) -> None:
    """Print a record as a Markdown table."""
    for line in table([record]).splitlines():
        print_line(line)


@click.group(cls=OneLineErrors)
def main() -> None:
    """Make the tables of the pages from the records, or show which records are old."""


@main.command()
def write() -> None:
    """Write the tables of README.md and of the pages in docs/."""

    def made(match: re.Match[str]) -> str:
        records = [read(name) for name in match[3].split()]
        if match[2] == "figures":
            return f"{match[1]}{table(records)}\n{match[4]}"
        sources = "\n\n".join(
            f"`{record.command}`, {machine.processor_of(record.machine)}, {record.date}, commit {record.commit}."
            for record in records
        )
        return f"{match[1]}{table(records, commits=len(records) > 1)}\n\n{sources}\n{match[4]}"

    for page in PAGES:
        write_whole(page, _TABLE.sub(made, page.read_text(encoding="utf-8")))


@main.command()
def age() -> None:
    """Print for each record how many lines have changed since then in the code that the figures depend on."""
    for path in sorted(RECORDS.glob("*.json")):
        record = read(path.stem)
        commit, *_ = record.commit.split(", ")  # several commits, if the trainings of a study used different code
        words = ("git", "diff", "--numstat", commit.removesuffix("-dirty"), "HEAD", "--", *TRAINING)
        ended = subprocess.run(words, cwd=IMPORT_FOLDER, capture_output=True, text=True)
        lines = sum(int(count) for line in ended.stdout.splitlines() for count in line.split()[:2] if count.isdigit())
        changed = (
            "its commit is not in this checkout" if ended.returncode else f"{lines:,} lines of its code changed since"
        )
        print_line(f"{path.stem}: {record.date}, commit {record.commit}: {changed}")


@main.command()
@click.argument("of")
@click.argument("against")
def difference(of: str, against: str) -> None:
    """Print the means of two repeated trainings (benchmarks/headline.py), and the difference OF minus AGAINST, seed by seed."""
    mine, theirs = ({str(row["figure"]).partition(", ")[2]: row for row in read(name).rows} for name in (of, against))
    means, differences = (Column(heading="", spread=spread) for spread in ("deviation", "interval"))
    for figure in [name for name in mine if name in theirs]:
        values, digits = [one[figure]["values"] for one in (mine, theirs)], mine[figure].get("digits")
        pairs = [a - b for a, b in zip(*values)]
        told = " against ".join(f"{means.text(one, digits)} (n = {len(one)})" for one in values)
        print_line(f"{figure}: {told}, difference {differences.text(pairs, digits)} (95 % interval, n = {len(pairs)})")


if __name__ == "__main__":
    main()
