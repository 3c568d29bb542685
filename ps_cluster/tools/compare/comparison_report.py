"""Write the comparison to files: the page, its plots, and the numbers as CSV and JSON. Print it."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from ps_cluster.config.layers import changed
from ps_cluster.files.writing import write_whole
from ps_cluster.installation import PROGRAM
from ps_cluster.report.pages import rendered
from ps_cluster.tools.compare import table
from ps_cluster.tools.compare.groups import (
    Group,
    arms,
    check,
    flow,
    make_groups,
    make_views,
    stragglers,
    warn_of_rates,
)
from ps_cluster.tools.compare.plots import make_plots
from ps_cluster.tools.compare.records import Record, read_record

SCHEMA = 3  # in 1, the target was called target_accuracy; in 2, differences were sentences, called findings


@dataclass(frozen=True)
class Report:
    """A written report, and its content to print."""

    page: Path
    warnings: Sequence[str]
    headline: Sequence[str]
    tables: Sequence[table.Table]


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
    warnings += warn_of_rates(groups)
    if any(record.summary.dataset_kind == "synthetic" for record in records):
        warnings.insert(0, f"Generated {groups[0].unit}: no number here says anything about real data.")
    target = chosen_target(records, target)
    views = make_views(groups, baseline)
    run_rows, group_rows = table.run_rows(groups, target), table.group_rows(groups, target)
    differences = table.difference_rows(groups, views, target)
    headline = list(table.notes(groups, differences, target))
    tables = table.tables(group_rows, differences, target)
    plots = make_plots(groups, views)
    page = rendered(
        __package__,
        "report.html",
        overview=_overview(groups),
        written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        warnings=warnings,
        headline=headline,
        metric=groups[0].metric,
        unit=groups[0].unit,
        target=target,
        tables=tables,
        plots=plots,
        **_origins(groups),
    )
    content = {
        "schema": SCHEMA,
        "warnings": warnings,
        "metric": groups[0].metric.noun,
        "unit": groups[0].unit,
        "target": target,
        "headline": headline,
        "differences": differences,
        "rows": run_rows,
        "groups": group_rows,
    }
    for plot in plots:
        write_whole(output / "plots" / f"{plot.name}.png", plot.png)
        write_whole(output / "plots" / f"{plot.name}.svg", plot.svg)
    write_whole(output / "rows.csv", table.to_csv(run_rows))
    write_whole(output / "groups.csv", table.to_csv(group_rows))
    write_whole(output / "report.json", json.dumps(content, indent=1) + "\n")
    write_whole(output / "report.html", page)
    return Report(output / "report.html", warnings, headline, tables)


def print_report(report: Report, console: Console) -> None:
    """Print warnings, tables, notes, and the path of the page."""
    for line in report.warnings:
        console.print(line, style="bold yellow", highlight=False, markup=False)
    table.print_tables(report.tables, console)
    console.print()
    for line in report.headline:
        console.print(f"- {line}", highlight=False, markup=False)
    console.print()
    console.print(f"report  {report.page}", soft_wrap=True, highlight=False, markup=False)


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


def _overview(groups: Sequence[Group]) -> dict[str, str]:
    records = [record for group in groups for record in group.records]
    summaries = [record.summary for record in records]
    examples = [record.examples for record in records]
    work = f"{min(examples):,}" if min(examples) == max(examples) else f"{min(examples):,} to {max(examples):,}"
    return {
        "arms": ", ".join(arms(groups)),
        "stragglers": ", ".join(stragglers(groups)),
        "seeds": ", ".join(str(seed) for seed in sorted({record.seed for record in records})),
        "runs": str(len(records)),
        f"{groups[0].unit} trained on, each run": work,
        "data set": ", ".join(dict.fromkeys(f"{run.dataset} ({run.dataset_kind})" for run in summaries)),
        "model": ", ".join(dict.fromkeys(str(run.model) for run in summaries)),
        "precision": ", ".join(dict.fromkeys(str(run.precision) for run in summaries)),
    }


# Say where each run comes from: its settings that are not the defaults, and the machine.

_PLACES = ("data.data_dir",)  # depend on the machine


def _origins(groups: Sequence[Group]) -> dict[str, Any]:
    """Return the settings that all runs share and those of each group, and the machines with their runs."""
    records = [record for group in groups for record in group.records]
    settings = [_changed(record) for record in records]
    common = {key: value for key, value in settings[0].items() if all(other.get(key) == value for other in settings)}
    own = [
        {key: value for key, value in _changed(group.first).items() if key not in common and key != "training.seed"}
        for group in groups
    ]
    machines = Counter(json.dumps(record.summary.machine) for record in records if record.summary.machine)
    return {
        "common": common,
        "groups": [(group, _options(one)) for group, one in zip(groups, own)],
        "again": f"{PROGRAM} run --config RUN_DIR/config.yaml",
        "machines": [
            {"runs": str(runs)} | {name: flow(value) for name, value in json.loads(machine).items()}
            for machine, runs in machines.items()
        ],
    }


def _changed(record: Record) -> dict[str, str]:
    return {key: flow(one.value) for key, one in changed(record.config).items() if key not in _PLACES}


def _options(settings: Mapping[str, str]) -> str:
    return " ".join(f"--set {shlex.quote(f'{key}={value}')}" for key, value in settings.items())
