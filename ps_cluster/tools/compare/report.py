"""Write the comparison to files: the page, its plots, and the numbers as CSV and JSON."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from ps_cluster.config import build_config
from ps_cluster.config.recipes import BELONG_TOGETHER
from ps_cluster.files.writing import write_whole
from ps_cluster.installation import PROGRAM
from ps_cluster.report.pages import Plot, rendered
from ps_cluster.tools.compare import sentences, table
from ps_cluster.tools.compare.groups import Group, arms, check, flat_settings, make_groups, make_views, stragglers
from ps_cluster.tools.compare.plots import make_plots
from ps_cluster.tools.compare.records import Record, read_record
from ps_cluster.tools.compare.sentences import Findings, are_few, headline
from ps_cluster.tools.compare.table import Row, cells, headings, tables, warn_of_scaled, warn_of_unknown

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
    found = sentences.findings(groups, views, target)
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
    for section in report.findings if sentences.are_few(report.findings) else ():
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


# Write the report's page: one HTML file that needs no other file.

_IDENTITY = {"arm": "arm", "batch": "batch per worker / update", "straggler": "straggler"}


def render_page(
    *,
    groups: Sequence[Group],
    rows: Sequence[Row],
    target: float | None,
    headline: Sequence[str],
    findings: Sequence[Findings],
    plots: Sequence[Plot],
    warnings: Sequence[str],
) -> str:
    """Return the page's HTML, made of the results of the other modules."""
    return rendered(
        __package__,
        "report.html",
        overview=_overview(groups),
        written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        warnings=warnings,
        headline=headline,
        findings=findings,
        details_open=are_few(findings),
        first=groups[0],
        metric=groups[0].metric,
        unit=groups[0].unit,
        target=target,
        tables=_tables(groups[0], target),
        rows=[_identity(row) | cells(row) for row in rows],
        plots=plots,
        **_origins(groups),
    )


def _overview(groups: Sequence[Group]) -> dict[str, str]:
    records = [record for group in groups for record in group.records]
    examples = [record.examples for record in records]
    work = f"{min(examples):,}" if min(examples) == max(examples) else f"{min(examples):,} to {max(examples):,}"
    return {
        "arms": ", ".join(arms(groups)),
        "stragglers": ", ".join(stragglers(groups)),
        "seeds": ", ".join(str(seed) for seed in sorted({record.seed for record in records})),
        "runs": str(len(records)),
        f"{groups[0].unit} trained on, each run": work,
        "data set": ", ".join(dict.fromkeys(f"{record.dataset} ({record.dataset_kind})" for record in records)),
        "model": ", ".join(dict.fromkeys(record.model for record in records)),
        "precision": ", ".join(dict.fromkeys(record.precision for record in records)),
    }


def _tables(group: Group, target: float | None) -> dict[str, dict[str, str]]:
    """Return title → columns of each table, as key → heading."""
    names = headings(group.metric, group.unit, target)
    return {title: _IDENTITY | {key: names[key] for key in keys} for title, keys in tables(group.metric).items()}


def _identity(row: Row) -> dict[str, str]:
    batch = f"{row['batch_per_worker']} / {row['batch_per_update']}"
    return {"arm": row["arm"], "batch": batch, "straggler": row["straggler"]}


def _origins(groups: Sequence[Group]) -> dict[str, Any]:
    common = common_settings(groups)
    return {
        "common": common,
        "groups": [(group, group_settings(group, common)) for group in groups],
        "commands": [(record, command(record)) for group in groups for record in group.records],
        "machines": machines(groups),
    }


# Say where each run comes from: its settings against the defaults, the command that repeats it, and the machine.

_PLACES = ("data.data_dir",)  # depend on the machine


def common_settings(groups: Sequence[Group]) -> dict[str, str]:
    """Return the non-default settings that all runs share, as `section.key` → value in YAML's flow style."""
    changed = [_changed(record) for group in groups for record in group.records]
    return {key: value for key, value in changed[0].items() if all(other.get(key) == value for other in changed)}


def group_settings(group: Group, common: Mapping[str, str]) -> str:
    """Return the further settings of this group as command-line options. The seed is shown beside them."""
    changed = _changed(group.first)
    return _options({key: value for key, value in changed.items() if key not in common and key != "training.seed"})


def command(record: Record) -> str:
    """Return a command that trains the same run again."""
    return f"{PROGRAM} run {_options(_changed(record))}".rstrip()


def machines(groups: Sequence[Group]) -> list[dict[str, str]]:
    """Return each machine that runs were trained on, with its number of runs. Older runs did not record it."""
    noted = Counter(json.dumps(record.machine) for group in groups for record in group.records if record.machine)
    return [
        {"runs": str(runs)} | {name: _flow(value) for name, value in json.loads(machine).items()}
        for machine, runs in noted.items()
    ]


def _changed(record: Record) -> dict[str, str]:
    # Settings of another mode, rule, … than the default's have no default here, and are named.
    defaults = flat_settings(build_config(None, {"model.name": record.config.model.name}))
    settings = flat_settings(record.config)
    named = {key for key, value in settings.items() if key not in defaults or value != defaults[key]} | {"model.name"}
    together = {f"optimizer.{name}" for name in BELONG_TOGETHER}
    if named & together:  # giving one of them stops the recipe's table from filling in the others
        named |= together
    return {key: _flow(value) for key, value in settings.items() if key in named and key not in _PLACES}


def _flow(value: Any) -> str:
    """Return a value in YAML's flow style. JSON is YAML; plain words stay without quotes."""
    return value if isinstance(value, str) else json.dumps(value)


def _options(settings: Mapping[str, str]) -> str:
    return " ".join(f"--set {shlex.quote(f'{key}={value}')}" for key, value in settings.items())
