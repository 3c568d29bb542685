"""Measure how the time of a step and the memory of the parameter servers depend on the size of embedding tables.

    python -m benchmarks.table_sizes --output RECORD
    python -m benchmarks.table_sizes --millions 1,10 --servers 1,2 --rounds 1 --steps 300

Network dlrm is trained on data set clicks by rule adagrad in mode async with 2 workers, without checkpoints during the
training. The rows are those of all 26 tables together. The time of an update is a mean over the second half of a run.
The memory is that of all servers together while they train, minus their memory with hardly any rows; it is expected to
be rows x width x 4 x 2 bytes, as adagrad has one slot. The servers need twice as much for a moment at the end, when the
state is saved. Sizes that this machine can't hold are refused before anything is measured.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import click
import psutil

import ps_cluster
from benchmarks.records import Column, keep, print_table
from ps_cluster.cli.command_line import OneLineCommand
from ps_cluster.cli.value_types import OUTPUT_FILE, CommaList, Integer
from ps_cluster.config import build_config
from ps_cluster.config.tasks import PS
from ps_cluster.config.user_settings import parse_assignment
from ps_cluster.data.sets.clicks import COLUMNS as TABLES
from ps_cluster.errors import UserError
from ps_cluster.files.json_files import read_json
from ps_cluster.files.values import with_noun
from ps_cluster.report.terminal import print_line
from ps_cluster.runs.ledger_csv import read_csv
from ps_cluster.runs.result_rows import ProgressRow, Summary
from ps_cluster.runs.rows import ClusterFile
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.system.limits import free_memory
from ps_cluster.tools.bench.cases import UPDATES_ONLY
from ps_cluster.training.memory import table_bytes

SETTINGS: dict[str, Any] = {
    "data.dataset": "clicks", "data.zipf_exponent": 1.2, "model.name": "dlrm", "model.rows_from": 1,
    "model.precision": "float32", "optimizer.rule": "adagrad", "optimizer.learning_rate": 0.01, "schedule.kind": "constant",
    "mode.name": "async", "cluster.workers": 2, "training.batch_size_per_worker": 512, "evaluation.draw_results": False,
    **UPDATES_ONLY,
}  # fmt: skip
COPIES = 2  # of each row on its server: the row and its slot of adagrad
HARDLY_ANY = 100  # rows of each table in the runs that measure the memory that does not depend on rows
PROCESSES_BYTES = 1.5e9  # the memory of all processes without tables, and of the data
INTEGERS = CommaList(Integer(1, 1000))
COLUMNS = {
    "rows": Column(heading="rows"),
    "width": Column(heading="width"),
    "servers": Column(heading="servers"),
    "ms": Column(heading="ms an update", digits=2),
    "to_smallest": Column(heading="to that of the fewest rows", digits=2),
    "distinct": Column(heading="distinct rows of a batch"),
    "memory": Column(heading="servers' memory for rows [GB]", digits=3),
    "of_expected": Column(heading="to rows x width x 4 x 2 bytes", digits=2),
    "peak": Column(heading="servers' peaks while saving [GB]", digits=2),
}


class Measurement(NamedTuple):
    """The measurements of one run.

    Attributes:
      ms: the milliseconds from one update to the next.
      distinct: the number of distinct rows of a batch.
      training_bytes: the memory of all servers together while they train.
      peak_bytes: the sum of the peak memory of each server.
    """

    ms: float
    distinct: float
    training_bytes: float
    peak_bytes: float


def settings_of(rows_per_table: int, width: int, servers: int, assignments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of one run. The user's `assignments` take precedence."""
    sizes = {"data.rows": rows_per_table, "model.row_width": width, "cluster.parameter_servers": servers}
    return {**SETTINGS, **sizes, **assignments}


def measured(settings: Mapping[str, Any]) -> Measurement:
    """Train once, and return what was measured."""
    samples: list[int] = []  # the resident memory of all servers together at each progress row
    with tempfile.TemporaryDirectory(prefix="table_sizes-") as folder:
        run_dir = RunDir(Path(folder) / "run")

        def sample_memory(row: ProgressRow) -> None:
            if row.phase == "training":
                pids = (task.pid for task in read_json(run_dir.cluster, ClusterFile).tasks if task.type == PS)
                with contextlib.suppress(psutil.Error):  # A server may have ended since.
                    samples.append(sum(psutil.Process(pid).memory_info().rss for pid in pids))

        ps_cluster.train(run_dir=run_dir.root, settings=settings, on_progress=sample_memory)
        ledger, summary = read_csv(run_dir.updates), read_json(run_dir.summary, Summary)
    half = len(ledger) // 2
    seconds = ledger["applied_time"].max() - sorted(ledger["applied_time"])[half]
    if not samples:
        raise UserError("--steps: the run was too short to measure its memory: give more steps")
    return Measurement(
        ms=1000 * seconds / (len(ledger) - half - 1),
        distinct=float(ledger["rows"].mean()),
        training_bytes=median(samples),
        peak_bytes=sum(one.peak_pss_bytes or 0 for one in summary.processes if one.type == PS),
    )


@click.command(cls=OneLineCommand)
@click.option(
    "--millions",
    type=INTEGERS,
    default="1,10,100",
    help="Rows of all tables together, in millions. Several sizes are separated by commas.",
)
@click.option("--servers", type=INTEGERS, default="1,2,4", help="Numbers of parameter servers, separated by commas.")
@click.option("--width", type=Integer(1, 1024), default=4, help="How many numbers a row has.")
@click.option("--steps", type=Integer(20, 1_000_000), default=1500, help="How many updates each run makes.")
@click.option("--rounds", type=Integer(1, 20), default=3, help="How often each size is measured. The sizes take turns.")
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="A setting of all runs.")
@click.option("--output", type=OUTPUT_FILE, help="Also write all figures to this JSON file.")
def main(
    millions: tuple[int, ...], servers: tuple[int, ...], width: int, steps: int, rounds: int,
    assignments: tuple[str, ...], output: Path | None,
) -> None:  # fmt: skip
    """Measure the time of an update and the servers' memory for tables of several sizes."""
    given: dict[str, Any] = {"training.steps": steps, **dict(map(parse_assignment, assignments))}
    sizes = [HARDLY_ANY, *(million * 10**6 // TABLES for million in sorted(millions))]
    free, largest = free_memory(), settings_of(sizes[-1], width, 1, given)
    numbers = TABLES * largest["data.rows"] * largest["model.row_width"]
    if (needs := PROCESSES_BYTES + table_bytes(build_config(None, largest), numbers)) > free.memory_bytes:
        raise UserError(
            f"--millions: got {max(millions)}: rows of width {width} take about {needs / 1e9:.1f} GB, and {free}: give "
            "fewer millions or a smaller --width"
        )
    found: dict[tuple[int, int], list[Measurement]] = {(size, count): [] for count in servers for size in sizes}
    for _ in range(rounds):
        for (size, count), of_size in found.items():
            of_size.append(measured(settings_of(size, width, count, given)))
            print_line(f"{TABLES * size:,} rows on {with_noun(count, 'server')}: {of_size[-1].ms:.2f} ms an update")
            rows = [
                row_of(found, size, count, width) for (size, count), some in found.items() if some and size > HARDLY_ANY
            ]
            if rows:
                record = keep(output, rows, COLUMNS)
    print_table(record)


def row_of(found: Mapping[tuple[int, int], list[Measurement]], size: int, servers: int, width: int) -> dict[str, Any]:
    """Return the row of a record for tables of `size` rows each. Each run is compared with the runs of the same round."""
    runs = found[size, servers]
    smallest = found[min(one for one, _ in found if one > HARDLY_ANY), servers]
    gb = [(run.training_bytes - empty.training_bytes) / 1e9 for run, empty in zip(runs, found[HARDLY_ANY, servers])]
    return {
        "rows": TABLES * size,
        "width": width,
        "servers": servers,
        "ms": [run.ms for run in runs],
        "to_smallest": [run.ms / small.ms for run, small in zip(runs, smallest)],
        "distinct": [run.distinct for run in runs],
        "memory": gb,
        "of_expected": [one * 1e9 / (TABLES * size * width * 4 * COPIES) for one in gb],
        "peak": [run.peak_bytes / 1e9 for run in runs],
    }


if __name__ == "__main__":
    main()
