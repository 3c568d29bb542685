"""Write the report's page: one HTML file that needs no other file."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from ps_cluster.comparison import origin
from ps_cluster.comparison.groups import Group, arms, stragglers
from ps_cluster.comparison.table import Row, cells, headings, tables
from ps_cluster.comparison.words import Findings, are_few
from ps_cluster.reporting.html_page import rendered
from ps_cluster.reporting.plot import Plot

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
    common = origin.common_settings(groups)
    return {
        "common": common,
        "groups": [(group, origin.group_settings(group, common)) for group in groups],
        "commands": [(record, origin.command(record)) for group in groups for record in group.records],
        "machines": origin.machines(groups),
    }
