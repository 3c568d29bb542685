"""Write the report of a comparison (the page, its plots, and the numbers as CSV and JSON), and print it."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from ps_cluster.config import changed
from ps_cluster.files.values import one_line_text
from ps_cluster.files.writing import write_json, write_whole
from ps_cluster.installation import PROGRAM
from ps_cluster.report.pages import rendered
from ps_cluster.tools.compare.comparison_plan import REPORT
from ps_cluster.tools.compare.comparison_plots import make_plots
from ps_cluster.tools.compare.fairness import check, warn_of_rates
from ps_cluster.tools.compare.findings import GroupFinding, differences_of, group_rows, run_rows, to_csv
from ps_cluster.tools.compare.groups import Group, arms, make_groups, make_views, stragglers
from ps_cluster.tools.compare.metric import ACCURACY, ERROR
from ps_cluster.tools.compare.records import Record, limit_of, read_record
from ps_cluster.tools.compare.result_tables import Table, print_tables, tables
from ps_cluster.tools.compare.verdict import notes, results, verdict

SCHEMA = 4


@dataclass(frozen=True)
class WrittenReport:
    """The path of a report's page, and the parts of the report that are printed."""

    page: Path
    warnings: Sequence[str]
    headline: Sequence[str]
    tables: Sequence[Table]


def write_report(
    run_roots: Sequence[Path],
    output: Path,
    *,
    target: float | None = None,
    baseline: str | None = None,
    force: bool = False,
    arm_keys: Collection[str] = (),
) -> WrittenReport:
    """Compare finished runs and write report.html, plots/, rows.csv, groups.csv and report.json into `output`.

    Args:
      target: a score. The report says after how many seconds and how many examples each arm reached it. An accuracy is
        from 0 to 1. If the target is None, it is chosen by `chosen_target`.
      baseline: the label of the arm that all other arms are compared with. If it is None, the baseline is the arm
        "sync" if there is one, else the arm of the first run.
      force: compare runs even if they differ in what must be equal; the report begins with these differences.
      arm_keys: dotted keys that individual arms set, and in which runs may therefore differ.
    Raises:
      UserError: a directory holds no finished run, `fairness.check` refuses the runs, or no arm is called `baseline`.
    """
    records = [read_record(root) for root in run_roots]
    groups = make_groups(records)
    warnings = check(records, groups, force, arm_keys)
    warnings += warn_of_rates(groups)
    if any(record.summary.dataset_kind == "synthetic" for record in records):
        warnings.insert(0, f"Generated {groups[0].unit}: no number here says anything about real data.")
    target = chosen_target(records, target)
    views = make_views(groups, baseline)
    limit_s = limit_of(records)
    times = [] if limit_s is None else [limit_s / 4, limit_s / 2, limit_s]
    findings = [GroupFinding.of(group, target, times) for group in groups]
    differences = differences_of(groups, views, target)
    of_runs, of_groups = run_rows(groups, target, times), group_rows(findings)
    headline = [*results(findings), *verdict(groups, differences, target), *notes(groups, target)]
    shown, plots = tables(findings, differences), make_plots(groups, views)
    page = rendered(
        __package__,
        "report.html",
        script="sort.js",
        overview=_overview(groups, target, limit_s),
        warnings=warnings,
        headline=headline,
        metric=groups[0].metric,
        unit=groups[0].unit,
        limit_s=limit_s,
        tables=shown,
        plots=plots,
        **_origins(groups),
    )
    content = {
        "schema": SCHEMA,
        "warnings": warnings,
        "metric": groups[0].metric.noun,
        "examples": groups[0].metric.examples,
        "unit": groups[0].unit,
        "target": target,
        "headline": headline,
        "differences": [one.row() for one in differences],
        "rows": of_runs,
        "groups": of_groups,
    }
    for plot in plots:
        write_whole(output / "plots" / f"{plot.name}.png", plot.png)
        write_whole(output / "plots" / f"{plot.name}.svg", plot.svg)
    write_whole(output / "rows.csv", to_csv(of_runs))
    write_whole(output / "groups.csv", to_csv(of_groups))
    write_json(output / REPORT, content)
    write_whole(output / "report.html", page)
    return WrittenReport(output / "report.html", warnings, headline, shown)


def print_report(report: WrittenReport, console: Console) -> None:
    """Print the warnings, the findings in words, the tables and the path of the page."""
    for line in report.warnings:
        console.print(line, style="bold yellow", highlight=False, markup=False)
    console.print()
    for line in report.headline:
        console.print(f"- {line}", highlight=False, markup=False)
    print_tables(report.tables, console)
    console.print()
    console.print(f"report  {report.page}", soft_wrap=True, highlight=False, markup=False)


def chosen_target(records: Sequence[Record], target: float | None) -> float | None:
    """Return the target, which is the score up to which the report counts the seconds and the examples of each run.

    If `target` is None, choose a round number: the hardest that every run reached later than at its first score. Runs
    that diverged are ignored. Return None if there is no such number, or if a model that only guesses would reach it.

    Raises:
      UserError: the metric can't have the user's target.
    """
    metric = records[0].metric
    if target is not None:
        metric.check_target(target)
        return target
    not_diverged = [record for record in records if not record.diverged]
    found = metric.default_target(
        [record.best for record in not_diverged if record.best is not None],
        [record.track[0][1] for record in not_diverged if record.track],
    )
    if metric.noun not in (ACCURACY.noun, ERROR.noun):  # for other metrics, runs do not record the score of guessing
        return found
    guesses = [record.summary.guess for record in records if record.summary.guess is not None]
    is_guessed = found is not None and any(metric.reaches(guess, found) for guess in guesses)
    return None if is_guessed else found


def _overview(groups: Sequence[Group], target: float | None, limit_s: float | None) -> dict[str, str]:
    records = [record for group in groups for record in group.records]

    def distinct(values: Iterable[object]) -> str:
        return ", ".join(dict.fromkeys(map(str, values)))

    summaries = [record.summary for record in records]
    examples = [record.examples for record in records]
    work = f"{min(examples):,}" if min(examples) == max(examples) else f"{min(examples):,} to {max(examples):,}"
    return {
        "arms": distinct(arms(groups)),
        "stragglers": distinct(stragglers(groups)),
        "seeds": distinct(sorted(record.seed for record in records)),
        "runs": str(len(records)),
        f"{groups[0].unit} trained on, each run": work,
        **({} if limit_s is None else {"seconds of training, each run": f"{limit_s:g}"}),
        "scores of each run": _scored(records, limit_s),
        "data set": distinct(f"{run.dataset} ({run.dataset_kind})" for run in summaries),
        "model": distinct(run.model for run in summaries),
        "precision": distinct(run.precision for run in summaries),
        **({} if target is None else {f"target {groups[0].metric.noun}": groups[0].metric.goal(target)}),
    }


def _scored(records: Sequence[Record], limit_s: float | None) -> str:
    """Return, in words, how many scores each run has.

    If `limit_s` is None, also say whether all runs were scored after the same numbers of examples.
    """
    not_diverged = [record for record in records if not record.diverged] or list(records)
    counts = sorted({len(record.scores) for record in not_diverged})
    if limit_s is not None:
        return f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    if len(counts) > 1:
        return f"{counts[0]} to {counts[-1]}, not at the same numbers of {not_diverged[0].summary.unit}"
    places = zip(*([score.examples for score in record.scores] for record in not_diverged))
    apart = max(max(place) - min(place) for place in places) / min(record.examples for record in not_diverged)
    unit = not_diverged[0].summary.unit
    return f"{counts[0]}, at about the same numbers of {unit} (at most {apart:.1%} of the training apart)"


def _origins(groups: Sequence[Group]) -> dict[str, object]:
    """Return what the page shows on the origin of the runs: common settings, settings of each group, and machines."""
    records = [record for group in groups for record in group.records]
    settings = [_changed(record) for record in records]
    common = {key: value for key, value in settings[0].items() if all(other.get(key) == value for other in settings)}
    options = (
        [
            f"--set {shlex.quote(f'{key}={value}')}"
            for key, value in _changed(group.first).items()
            if key not in common and key != "training.seed"
        ]
        for group in groups
    )
    machines = Counter(record.summary.machine for record in records if record.summary.machine)
    return {
        "common": common,
        "groups": [(group, " ".join(own)) for group, own in zip(groups, options)],
        "again": f"{PROGRAM} run --config RUN_DIR/config.yaml",
        "machines": [
            {"runs": str(runs)} | {name: one_line_text(value) for name, value in machine.model_dump().items()}
            for machine, runs in machines.items()
        ],
    }


def _changed(record: Record) -> dict[str, str]:
    """Return the settings of a run that differ from the defaults. Omit the data folder: it depends on the machine."""
    return {key: one_line_text(one.value) for key, one in changed(record.config).items() if key != "data.data_dir"}
