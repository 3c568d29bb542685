"""Report a chaos run: chaos.json for programs and a table for people, with the same values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from ps_cluster.chaos.disturbance import Injected
from ps_cluster.chaos.verdict import tolerance
from ps_cluster.processes import machine
from ps_cluster.reporting.summary import UPDATES

SCHEMA = 1

Json = Mapping[str, Any]


def make_report(
    *,
    settings: Json,
    injected: Sequence[Injected],
    seconds: float,
    skipped: Mapping[str, str],
    resumes: int,
    restarts: Mapping[str, int] | None,
    leader: str,
    disturbed: Json | None,
    undisturbed: Json | None,
    test_examples: int | None,
    problems: Sequence[str],
    hosted: Json | None = None,
) -> dict[str, Any]:
    """Return the content of chaos.json.

    Args:
      seconds: from the start of the disturbed run to the end of the recovery from the last fault.
      skipped: name of a kind that could not be injected → reason.
      restarts: of each task in that time; `leader` is the task that never restarts alone.
      resumes: of the whole run in that time.
      disturbed, undisturbed: the summaries; None for a run that did not get that far.
      problems: one line each; the run passes if there are none.
      hosted: of a run on hosts: "places" (task → host), "rolled_back_seconds", "unsaved_seconds" (verdict.py).
    """
    report = {
        "schema": SCHEMA,
        "passed": not problems,
        "problems": list(problems),
        "settings": dict(settings),
        "machine": machine.describe(),
        "seconds": seconds,
        "faults": [fault.to_json() for fault in injected],
        "by_kind": by_kind(injected),
        "skipped": dict(skipped),
        "resumes": resumes,
        "restarts": restarts,
        "cluster_restarts": None if restarts is None else restarts.get(leader, 0),
        "updates": {name: disturbed["updates"][name] for name in UPDATES} if disturbed else None,
        "accuracy": None,
        "hosted": hosted,
    }
    if disturbed and undisturbed and test_examples:
        first, second = (summary["evaluation"]["test_accuracy"] for summary in (disturbed, undisturbed))
        allowed = tolerance(first, second, test_examples) if None not in (first, second) else None
        report["accuracy"] = {"disturbed": first, "undisturbed": second, "tolerance": allowed}
    return report


def by_kind(injected: Sequence[Injected]) -> list[dict[str, Any]]:
    """Return a row for each kind that was injected, in the order of first injection, then a row for all."""
    rows = []
    for name in (*dict.fromkeys(fault.kind for fault in injected), None):
        faults = [fault for fault in injected if name in (None, fault.kind)]
        times = [fault.recovery_s for fault in faults if fault.recovery_s is not None]
        if faults:
            rows.append(
                {
                    "kind": name or "all",
                    "faults": len(faults),
                    "recovered": len(times),
                    "median_recovery_s": median(times) if times else None,
                    "longest_recovery_s": max(times, default=None),
                }
            )
    return rows


def print_report(report: Json, console: Console) -> None:
    """Print faults by kind with their recovery times, then the ledger and the accuracy."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("fault", no_wrap=True)
    for heading in ("injected", "recovered", "median", "longest"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in report["by_kind"]:
        times = (_seconds(row[name]) for name in ("median_recovery_s", "longest_recovery_s"))
        style = "bold" if row["kind"] == "all" else None
        table.add_row(row["kind"], str(row["faults"]), str(row["recovered"]), *times, style=style)
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    for label, value in _facts(report):
        facts.add_row(label, value)
    for part in (table, facts):
        console.print()
        console.print(Padding(part, (0, 1)))


def _facts(report: Json) -> Iterator[tuple[str, str]]:
    updates, accuracy, restarts = report["updates"], report["accuracy"], report["cluster_restarts"]
    yield "time", f"{report['seconds']:.0f} s with faults, {report['machine']['cores']} cores"
    if updates:
        yield "ledger", " · ".join(f"{updates[name]:,} {name.replace('_', ' ')}" for name in UPDATES)
    if report["hosted"]:
        yield from _of_hosts(report["hosted"], report["restarts"])
    elif restarts is not None:
        expected = sum(fault["whole_cluster"] for fault in report["faults"])
        yield (
            "cluster",
            f"started again {restarts} times by the launcher and {report['resumes']} times with --resume, after {expected} "
            "faults that ask for it",
        )
    if accuracy and accuracy["tolerance"] is not None:
        first, second = accuracy["disturbed"], accuracy["undisturbed"]
        yield (
            "test accuracy",
            f"{first:.2%}, undisturbed {second:.2%}: {100 * (first - second):+.2f} points, noise is up to "
            f"{100 * accuracy['tolerance']:.2f} (generated images)",
        )
    for name, reason in report["skipped"].items():
        yield "skipped", f"{name}: {reason}"
    yield "verdict", "passed" if report["passed"] else "FAILED: " + report["problems"][0]


def _of_hosts(hosted: Json, restarts: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    places: dict[str, list[str]] = {}
    for task, host in hosted["places"].items():
        places.setdefault(host, []).append(task)
    yield "hosts", " · ".join(f"{host}: {', '.join(tasks)}" for host, tasks in sorted(places.items()))
    yield "restarts", ", ".join(f"{task} {count}" for task, count in restarts.items() if count) or "none"
    yield (
        "rolled back",
        f"{hosted['rolled_back_seconds']:.1f} s of training; the snapshots were {hosted['unsaved_seconds']:.1f} s old",
    )


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} s"
