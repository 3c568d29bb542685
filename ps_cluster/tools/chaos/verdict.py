"""Judge a disturbed run against an undisturbed one. Pure functions of what both wrote."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from rich.console import Console
from rich.padding import Padding

from ps_cluster.report.summary import UPDATES
from ps_cluster.report.terminal import LEFT, RIGHT, facts_table, plain_table
from ps_cluster.system import machine

# Standard deviation of the accuracy of equal, undisturbed asynchronous runs: 1,720 updates of 128 images, 2 workers,
# tutorial_cnn, the generated data, n = 6 (63.9, 63.8, 61.7, 61.9, 63.8, 64.1 %). Longer runs differ less. With 64 images it
# is 2.2 points (57.3, 52.5, 54.2, 53.6, 50.7, 54.4 %). Synchronous runs of 2 workers are equal bit for bit.
RUN_SD = 0.0108
STANDARD_ERRORS = 3

Json = Mapping[str, Any]


# Durations in a summary that can't exceed the run's, whatever happened to the machine's clock. In seconds.
DURATIONS = ("train_seconds", "rolled_back_seconds", "interrupted_seconds")


def complaints(
    disturbed: Json, undisturbed: Json, total: int, step_ids: Sequence[int], test_examples: int, seconds: float
) -> list[str]:
    """Return the problems, one line each; empty if the run passes.

    Args:
      disturbed, undisturbed: their summaries.
      total: updates that each should have.
      step_ids: step ids in the ledger of the disturbed run.
      seconds: duration of the disturbed run by this process's clock.
    """
    return [
        *_ledger("disturbed", disturbed, total),
        *_ids(step_ids, total * disturbed["gradients"]["per_update"]),
        *_durations(disturbed, seconds),
        *_ledger("undisturbed", undisturbed, total),
        *_accuracy(disturbed, undisturbed, total, test_examples),
    ]


def complaints_of_hosted(
    result: Json, step_ids: Sequence[int], unsaved_seconds: float, still_there: Sequence[str]
) -> list[str]:
    """Return the problems of a run on hosts that was drained, one line each.

    Args:
      result: of its training.
      unsaved_seconds: the sum, over all deaths of its leader, of the time since the last update that a state held.
      still_there: tasks that did not end with it.
    """
    applied = result["updates"]["applied"]
    return [
        *_ledger("disturbed", result, applied),
        *_ids(step_ids, applied * result["gradients"]["per_update"]),
        *_rolled_back(result["rolled_back_seconds"], unsaved_seconds),
        *(f"{task} did not end when training had ended" for task in still_there),
    ]


def tolerance(first: float, second: float, test_examples: int) -> float:
    """Return the difference of two accuracies that is still noise: 3 standard errors of it, by the larger of two measures.

    One is measured: two asynchronous runs of one seed differ in the order in which their updates arrive (`RUN_SD`). The
    other is binomial: the difference of two shares of `test_examples` images each.
    """
    binomial = sum(accuracy * (1 - accuracy) for accuracy in (first, second)) / test_examples
    return STANDARD_ERRORS * math.sqrt(max(2 * RUN_SD**2, binomial))


def _ledger(name: str, summary: Json, total: int) -> Iterator[str]:
    updates = summary["updates"]
    if not updates["scheduled"] == updates["applied"] == total or updates["duplicated"] or updates["lost"]:
        counts = ", ".join(f"{updates[key]} {key}" for key in ("scheduled", "applied", "duplicated", "lost"))
        yield f"the ledger of the {name} run is not exact: {counts} of {total}"
    gradients = summary["gradients"]
    if gradients["applied"] != total * gradients["per_update"]:
        yield f"the {name} run applied {gradients['applied']} gradients, not {gradients['per_update']} in each of {total}"
    by_workers = sum(worker["updates"] for worker in summary["workers"])
    if by_workers != gradients["applied"]:
        yield f"the workers of the {name} run had {by_workers} gradients applied, its ledger says {gradients['applied']}"


def _ids(step_ids: Sequence[int], total: int) -> Iterator[str]:
    if list(step_ids) != list(range(total)):
        yield f"updates.csv holds {len(set(step_ids))} different steps in {len(step_ids)} rows, not each of {total} once"


def _durations(summary: Json, seconds: float) -> Iterator[str]:
    for name in DURATIONS:
        if not 0 <= summary[name] <= seconds:
            yield f"{name} of the disturbed run is {summary[name]:.1f}, and it took {seconds:.1f} s"


def _rolled_back(seconds: float, unsaved_seconds: float) -> Iterator[str]:
    if not 0 <= seconds <= unsaved_seconds:
        yield f"{seconds:.1f} s of training were rolled back, and the states lacked {unsaved_seconds:.1f} s"


def _accuracy(disturbed: Json, undisturbed: Json, total: int, test_examples: int) -> Iterator[str]:
    scores = [summary["evaluation"] for summary in (disturbed, undisturbed)]
    if steps := [score["step"] for score in scores if score["step"] != total]:
        yield f"the last checkpoint scored is that of step {steps[0]}, not {total}"
        return
    first, second = (score["test_accuracy"] for score in scores)
    if abs(first - second) > tolerance(first, second, test_examples):
        yield f"accuracy {first:.2%} against {second:.2%} undisturbed is more than noise"


# Report a chaos run: chaos.json for programs and a table for people, with the same values.

SCHEMA = 1


@dataclass(frozen=True)
class Injected:
    """An injected fault and the seconds until the run had recovered; None if it did not."""

    kind: str
    victims: tuple[str, ...]
    time: float  # monotonic s, as in rows of progress
    whole_cluster: bool
    recovery_s: float | None


@dataclass
class Evidence:
    """All that is known of a disturbed run, and of the undisturbed one beside it.

    Attributes:
      leader: the task that never restarts alone.
      seconds: from the start of the disturbed run to the end of the recovery from the last fault.
      skipped: name of a kind that could not be injected → reason.
      restarts: of each task in that time. resumes: of the whole run in that time.
      disturbed, undisturbed: the summaries; None for a run that did not get that far.
      hosted: of a run on hosts: "places" (task → host), "rolled_back_seconds", "unsaved_seconds" (runs.py).
      left: processes that outlived their run.
    """

    settings: Json
    leader: str
    injected: Sequence[Injected] = ()
    seconds: float = 0.0
    skipped: Mapping[str, str] = field(default_factory=dict)
    restarts: Mapping[str, int] | None = None
    resumes: int = 0
    disturbed: Json | None = None
    undisturbed: Json | None = None
    test_examples: int | None = None
    hosted: Json | None = None
    left: list[str] = field(default_factory=list)


def make_report(evidence: Evidence, problems: Sequence[str]) -> dict[str, Any]:
    """Return the content of chaos.json. `problems`: one line each; the run passes if there are none, and nothing is left."""
    problems = [*problems, *(f"left behind: {process}" for process in evidence.left)]
    disturbed, undisturbed, restarts = evidence.disturbed, evidence.undisturbed, evidence.restarts
    report = {
        "schema": SCHEMA,
        "passed": not problems,
        "problems": problems,
        "settings": dict(evidence.settings),
        "machine": machine.describe(),
        "seconds": evidence.seconds,
        "faults": [asdict(fault) for fault in evidence.injected],
        "by_kind": by_kind(evidence.injected),
        "skipped": dict(evidence.skipped),
        "resumes": evidence.resumes,
        "restarts": restarts,
        "cluster_restarts": None if restarts is None else restarts.get(evidence.leader, 0),
        "updates": {name: disturbed["updates"][name] for name in UPDATES} if disturbed else None,
        "accuracy": None,
        "hosted": evidence.hosted,
    }
    if disturbed and undisturbed and evidence.test_examples:
        first, second = (summary["evaluation"]["test_accuracy"] for summary in (disturbed, undisturbed))
        allowed = tolerance(first, second, evidence.test_examples) if None not in (first, second) else None
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
    table = plain_table(fault=LEFT, injected=RIGHT, recovered=RIGHT, median=RIGHT, longest=RIGHT)
    for row in report["by_kind"]:
        times = (_seconds(row[name]) for name in ("median_recovery_s", "longest_recovery_s"))
        style = "bold" if row["kind"] == "all" else None
        table.add_row(row["kind"], str(row["faults"]), str(row["recovered"]), *times, style=style)
    for part in (table, facts_table(_facts(report))):
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
        f"{hosted['rolled_back_seconds']:.1f} s of training; the states lacked {hosted['unsaved_seconds']:.1f} s",
    )


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} s"
