"""Write the page of an ensemble: each member, their mean and the ensemble on the test set."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from ps_cluster.data.packed import PackedDataset
from ps_cluster.ensemble.ensemble_plan import Ensemble
from ps_cluster.ensemble.member_scores import Scores, ScoreTable, mean_of
from ps_cluster.files.writing import write_whole
from ps_cluster.installation import PROGRAM
from ps_cluster.reporting.html_page import rendered


def write_ensemble_page(
    file: Path, ensemble: Ensemble, table: ScoreTable, dataset: PackedDataset, *, model: Path, members: Path
) -> None:
    """Write the page whole. `model`: the joined one. `members`: the folder of their run directories."""
    page = rendered(
        __package__,
        "ensemble.html",
        written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        is_generated=dataset.kind == "synthetic",
        unit=dataset.spec.unit,
        headline=_headline(table),
        headings=table.headings,
        rows=table.rows,
        overview=_overview(ensemble, dataset),
        model=model,
        runs_command=f"{PROGRAM} runs {shlex.quote(str(members))}",
    )
    write_whole(file, page)


def _headline(table: ScoreTable) -> str:
    *of_members, of_ensemble = table.scores
    best = _best(of_members, larger=table.field == "accuracy")
    told = [table.metric(one) for one in (of_ensemble, mean_of(of_members), best)]
    return f"The ensemble has a test {table.field} of {told[0]}; its members have {told[1]} on average, the best {told[2]}."


def _best(scores: Sequence[Scores], *, larger: bool) -> Scores:
    return max(scores, key=lambda one: one.metric if larger else -one.metric)


def _overview(ensemble: Ensemble, dataset: PackedDataset) -> dict[str, str]:
    settings = ", ".join(f"{key}={value}" for key, value in ensemble.settings.items())
    return {
        "members": f"{ensemble.count}: {ensemble.seeds} of each of {', '.join(ensemble.models)}",
        "training examples": f"{ensemble.split} of {dataset.train_examples:,} {dataset.spec.unit}",
        "data set": f"{dataset.name} ({dataset.kind}), tested on {dataset.test_examples:,} {dataset.spec.unit}",
        "all members have": settings,
    }
