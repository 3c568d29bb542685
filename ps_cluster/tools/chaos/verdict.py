"""Judge a disturbed run against undisturbed ones. Pure functions of what they wrote."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, median, variance
from typing import Any

from rich.console import Console
from rich.padding import Padding

from ps_cluster.files.json_files import Json
from ps_cluster.report.summary import UPDATES
from ps_cluster.report.terminal import LEFT, RIGHT, facts_table, plain_table
from ps_cluster.system import machine
from ps_cluster.tools.compare.estimates import t_quantile

# Undisturbed asynchronous runs of one seed differ in the order in which their updates arrive. How much they differ depends on
# machine, mode and network: at the highest rate of the recipe three runs had 65.75, 57.83 and 65.77 % (tutorial_cnn, 3
# workers, the generated data). So the spread is measured each time, by at least this many runs, or nothing is claimed.
LEAST_UNDISTURBED = 3


# Durations in a summary that can't exceed the run's, whatever happened to the machine's clock. In seconds.
DURATIONS = ("train_seconds", "rolled_back_seconds", "interrupted_seconds")


def complaints(
    disturbed: Json,
    undisturbed: Sequence[Json],
    total: int,
    step_ids: Sequence[int],
    test_examples: int,
    seconds: float,
) -> list[str]:
    """Return the problems, one line each; empty if the run passes.

    Args:
      disturbed: its summary. undisturbed: the summary of each undisturbed run.
      total: updates that each should have.
      step_ids: step ids in the ledger of the disturbed run.
      seconds: duration of the disturbed run by this process's clock.
    """
    return [
        *_ledger("disturbed", disturbed, total),
        *_ids(step_ids, total * disturbed["gradients"]["per_update"]),
        *_durations(disturbed, seconds),
        *_outcomes(disturbed, undisturbed),
        *(problem for summary in undisturbed for problem in _ledger("undisturbed", summary, total)),
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


def expected_accuracy(undisturbed: Sequence[float], test_examples: int) -> tuple[float, float] | None:
    """Return the interval that holds the accuracy of one more undisturbed run in 99 of 100 cases; None with too few runs.

    It is Student's prediction interval. Runs that are accidentally alike do not make it narrower than the binomial noise
    of the test examples does, where one example more right and one more wrong keep that noise above zero.
    """
    n = len(undisturbed)
    if n < LEAST_UNDISTURBED:
        return None
    mean = fmean(undisturbed)
    share = (mean * test_examples + 1) / (test_examples + 2)
    spread = max(variance(undisturbed), share * (1 - share) / test_examples)
    half = t_quantile(n - 1, percent=99) * math.sqrt(spread * (1 + 1 / n))
    return max(0.0, mean - half), min(1.0, mean + half)


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


def _outcomes(disturbed: Json, undisturbed: Sequence[Json]) -> Iterator[str]:
    """Yield a line if only the disturbed run diverged: a loss that is not a finite number is more than noise."""
    if disturbed["outcome"] != "completed" and all(summary["outcome"] == "completed" for summary in undisturbed):
        yield f"the outcome of the disturbed run is '{disturbed['outcome']}', and undisturbed it is 'completed'"


def _accuracy(disturbed: Json, undisturbed: Sequence[Json], total: int, test_examples: int) -> Iterator[str]:
    scores = [summary["evaluation"] for summary in (disturbed, *undisturbed)]
    if steps := [score["step"] for score in scores if score["step"] != total]:
        yield f"the last checkpoint scored is that of step {steps[0]}, not {total}"
        return
    accuracy, *others = (score["test_accuracy"] for score in scores)
    expected = expected_accuracy(others, test_examples)
    if expected and not expected[0] <= accuracy <= expected[1]:
        low, high = expected
        yield (
            f"accuracy {accuracy:.2%} is outside {low:.2%} to {high:.2%}, which holds 99 of 100 undisturbed runs, as "
            f"estimated from {len(others)}"
        )


# Report a chaos run: chaos.json for programs and a table for people, with the same values.

SCHEMA = 2  # in 1, `accuracy` had one undisturbed run, and a tolerance of the difference


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
    """All that is known of a disturbed run, and of the undisturbed ones beside it.

    Attributes:
      leader: the task that never restarts alone.
      seconds: from the start of the disturbed run to the end of the recovery from the last fault.
      skipped: name of a kind that could not be injected → reason.
      restarts: of each task in that time. resumes: of the whole run in that time.
      disturbed: its summary; None if it did not get that far. undisturbed: the summary of each run that ended.
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
    undisturbed: list[Json] = field(default_factory=list)
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
        accuracy, *others = (summary["evaluation"]["test_accuracy"] for summary in (disturbed, *undisturbed))
        if None not in (accuracy, *others):
            expected = expected_accuracy(others, evidence.test_examples)
            report["accuracy"] = {"disturbed": accuracy, "undisturbed": others, "expected": expected}
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
    if accuracy:
        others = ", ".join(f"{other:.2%}" for other in accuracy["undisturbed"])
        yield (
            "test accuracy",
            f"{accuracy['disturbed']:.2%}, undisturbed {others} (generated images): {_judged(accuracy)}",
        )
    for name, reason in report["skipped"].items():
        yield "skipped", f"{name}: {reason}"
    yield "verdict", "passed" if report["passed"] else "FAILED: " + report["problems"][0]


def _judged(accuracy: Json) -> str:
    """Return what the accuracies say. An undisturbed run differs from the next one, so few of them say nothing."""
    if accuracy["expected"] is None:
        return (
            "not enough undisturbed runs to say whether the faults changed it "
            f"(--undisturbed-runs {LEAST_UNDISTURBED} or more)"
        )
    low, high = accuracy["expected"]
    where = "inside" if low <= accuracy["disturbed"] <= high else "outside"
    return f"{where} {low:.2%} to {high:.2%}, which holds 99 of 100 undisturbed runs"


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
