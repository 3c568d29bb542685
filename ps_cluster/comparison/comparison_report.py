"""Write the comparison to files: the page, its plots, and the numbers as CSV and JSON."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from ps_cluster.comparison import table, words
from ps_cluster.comparison.compatibility import check
from ps_cluster.comparison.groups import make_groups, make_views
from ps_cluster.comparison.headline import headline
from ps_cluster.comparison.page import render_page
from ps_cluster.comparison.plots import make_plots
from ps_cluster.comparison.rates import warn_of_scaled, warn_of_unknown
from ps_cluster.comparison.run_records import Record, read_record
from ps_cluster.comparison.table import Row
from ps_cluster.comparison.words import Findings
from ps_cluster.files.writing import write_whole
from ps_cluster.reporting.plot import Plot

SCHEMA = 2  # in 1, the target was called target_accuracy


@dataclass(frozen=True)
class Report:
    """A written report, and its content to print."""

    page: Path
    warnings: tuple[str, ...]
    target: float | None
    group_rows: tuple[Row, ...]
    headline: tuple[str, ...]
    findings: tuple[Findings, ...]


def write_report(
    run_roots: Sequence[Path],
    output: Path,
    *,
    target: float | None = None,
    baseline: str | None = None,
    force: bool = False,
    own: Collection[str] = (),
) -> Report:
    """Compare finished runs and write report.html, plots/, rows.csv, groups.csv and report.json into `output`.

    Args:
      target: for time and examples to target, a share of 1 for accuracies; None takes the hardest round one that all
        runs reached.
      baseline: label of the arm that others are compared with; None takes "sync" if there is one, else the arm of the
        first run given.
      force: compare runs that differ in what must be equal, and say so on top.
      own: dotted keys of settings that arms set on purpose, which may differ.
    Raises:
      UserError: a directory holds no finished run, the runs may not be compared, or no arm is the baseline.
    """
    records = [read_record(root) for root in run_roots]
    groups = make_groups(records)
    warnings = check(records, groups, force, own)
    warnings += [*warn_of_scaled(groups), *warn_of_unknown(groups)]
    if any(record.dataset_kind == "synthetic" for record in records):
        warnings.insert(0, synthetic(groups[0].unit))
    target = chosen_target(records, target)
    views = make_views(groups, baseline)
    found = words.findings(groups, views, target)
    short = headline(groups, views)
    run_rows, group_rows = table.run_rows(groups, target), table.group_rows(groups, target)
    plots = make_plots(groups, views)
    page = render_page(
        groups=groups, rows=group_rows, target=target, headline=short, findings=found, plots=plots, warnings=warnings
    )
    content = {
        "schema": SCHEMA,
        "warnings": warnings,
        "metric": groups[0].metric.noun,
        "unit": groups[0].unit,
        "target": target,
        "headline": short,
        "findings": [asdict(section) for section in found],
        "rows": run_rows,
        "groups": group_rows,
    }
    _write_plots(output / "plots", plots)
    write_whole(output / "rows.csv", table.to_csv(run_rows))
    write_whole(output / "groups.csv", table.to_csv(group_rows))
    write_whole(output / "report.json", json.dumps(content, indent=1) + "\n")
    write_whole(output / "report.html", page)
    return Report(output / "report.html", tuple(warnings), target, tuple(group_rows), tuple(short), tuple(found))


def print_report(report: Report, console: Console) -> None:
    """Print warnings, tables, the main findings, the details if they are few, and the path of the page."""
    for line in report.warnings:
        console.print(line, style="bold yellow", highlight=False, markup=False)
    table.print_tables(report.group_rows, report.target, console)
    if report.headline:
        console.print()
        console.print("What was found", style="bold")
    for sentence in report.headline:
        console.print(f"- {sentence}", highlight=False, markup=False)
    for section in report.findings if words.are_few(report.findings) else ():
        console.print()
        console.print(section.about, style="bold", highlight=False, markup=False)
        for sentence in section.sentences:
            console.print(f"- {sentence}", highlight=False, markup=False)
    console.print()
    console.print(f"report  {report.page}", soft_wrap=True, highlight=False, markup=False)


def synthetic(unit: str) -> str:
    """Return the warning for runs on data that a program made up."""
    return f"Generated {unit}: no number here says anything about real data."


def chosen_target(records: Sequence[Record], target: float | None) -> float | None:
    """Return the target, by default the hardest round one that every run reached. Runs that diverged are ignored.

    Raises:
      UserError: the metric can't have it.
    """
    metric = records[0].metric
    if target is not None:
        metric.check_target(target)
        return target
    return metric.default_target([record.best for record in records if record.best is not None and not record.diverged])


def _write_plots(folder: Path, plots: Sequence[Plot]) -> None:
    for plot in plots:
        write_whole(folder / f"{plot.name}.png", plot.png)
        write_whole(folder / f"{plot.name}.svg", plot.svg)
