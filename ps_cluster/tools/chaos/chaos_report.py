"""Report the result of `ps-cluster chaos`: as chaos.json for programs, and as a table for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from pydantic import BaseModel
from rich.console import Console
from rich.padding import Padding

from ps_cluster.files.values import with_noun
from ps_cluster.report.terminal import LEFT, RIGHT, facts_table, plain_table
from ps_cluster.runs.machine_rows import MachineRow
from ps_cluster.runs.result_rows import Summary, TrainingResult, Updates
from ps_cluster.system import machine
from ps_cluster.tools.chaos.settings import ChaosSettings
from ps_cluster.tools.chaos.verdict import LEAST_UNDISTURBED, expected_accuracy

SCHEMA = 3


@dataclass
class Injected:
    """An injected fault. `time` is in monotonic seconds; `recovery_s` is None as long as the run has not recovered."""

    kind: str
    victims: tuple[str, ...]
    time: float
    restarts_whole_cluster: bool
    recovery_s: float | None = None


class HostedFacts(BaseModel):
    """The results that only a run on several hosts has.

    Attributes:
      places: the host of each task.
      rolled_back_seconds: the seconds of training spent on updates that were rolled back.
      unsaved_seconds: the seconds from the last update in a saved state to the leader's death, summed over all its
        deaths.
    """

    places: dict[str, str]
    rolled_back_seconds: float
    unsaved_seconds: float


@dataclass
class Evidence:
    """All that is known about a run with faults (the disturbed run) and the runs without faults to compare it with."""

    settings: ChaosSettings
    injected: Sequence[Injected] = ()
    seconds: float = 0.0  # from the start of the disturbed run until it has been drained after the last fault
    skipped: Mapping[str, str] = field(default_factory=dict)  # name of a kind → why it could not be injected
    restarts: Mapping[str, int] | None = None  # how often each task was restarted in these seconds
    resumes: int = 0
    disturbed: Summary | TrainingResult | None = None  # the result of the disturbed run; None if there is none
    undisturbed: list[Summary] = field(default_factory=list)
    test_examples: int | None = None
    hosted: HostedFacts | None = None
    left: list[str] = field(default_factory=list)  # the processes that outlived their run


class KindRow(BaseModel):
    """A row of the report. It summarizes the faults of one kind, or the faults of all kinds together.

    The recovery times are None if the run recovered from none of these faults.
    """

    kind: str
    faults: int
    recovered: int
    median_recovery_s: float | None
    longest_recovery_s: float | None


class Accuracy(BaseModel):
    """The test accuracies of the run with faults (disturbed) and of the runs without faults (undisturbed).

    Attributes:
      expected: the interval that is expected to contain the accuracies of 99 of 100 undisturbed runs; None if too few
        undisturbed runs were made.
    """

    disturbed: float
    undisturbed: list[float]
    expected: tuple[float, float] | None


class ChaosReport(BaseModel):
    """The content of chaos.json, except for its first key `schema`, which holds SCHEMA.

    Attributes:
      cluster_restarts: how often the leader was restarted. A launcher restarts it only with the whole cluster.
    """

    passed: bool
    problems: list[str]
    settings: ChaosSettings
    machine: MachineRow
    seconds: float
    faults: list[Injected]
    by_kind: list[KindRow]
    skipped: dict[str, str]
    resumes: int
    restarts: dict[str, int] | None
    cluster_restarts: int | None
    updates: Updates | None
    accuracy: Accuracy | None
    hosted: HostedFacts | None


def make_report(evidence: Evidence, problems: Sequence[str]) -> ChaosReport:
    """Return the report. The run passes if there are no `problems`, and no process outlived its run."""
    problems = [*problems, *(f"a process outlived its run: {process}" for process in evidence.left)]
    disturbed, restarts = evidence.disturbed, evidence.restarts
    leader = str(evidence.settings.topology.leader)
    return ChaosReport(
        passed=not problems,
        problems=problems,
        settings=evidence.settings,
        machine=machine.describe(),
        seconds=evidence.seconds,
        faults=list(evidence.injected),
        by_kind=by_kind(evidence.injected),
        skipped=dict(evidence.skipped),
        resumes=evidence.resumes,
        restarts=None if restarts is None else dict(restarts),
        cluster_restarts=None if restarts is None else restarts.get(leader, 0),
        updates=disturbed.updates if disturbed else None,
        accuracy=_accuracy(evidence),
        hosted=evidence.hosted,
    )


def _accuracy(evidence: Evidence) -> Accuracy | None:
    if not isinstance(evidence.disturbed, Summary) or not evidence.undisturbed or not evidence.test_examples:
        return None
    accuracy = evidence.disturbed.evaluation.test_accuracy
    others = [summary.evaluation.test_accuracy for summary in evidence.undisturbed]
    known = [other for other in others if other is not None]
    if accuracy is None or len(known) < len(others):
        return None
    expected = expected_accuracy(known, evidence.test_examples)
    return Accuracy(disturbed=accuracy, undisturbed=known, expected=expected)


def by_kind(injected: Sequence[Injected]) -> list[KindRow]:
    """Return a row for each kind of fault in the order of first injection, and then a row for all kinds together."""
    rows = []
    for name in (*dict.fromkeys(fault.kind for fault in injected), "all"):
        faults = [fault for fault in injected if name in ("all", fault.kind)]
        times = [fault.recovery_s for fault in faults if fault.recovery_s is not None]
        if faults:
            median_s, longest_s = (median(times), max(times)) if times else (None, None)
            rows.append(
                KindRow(
                    kind=name,
                    faults=len(faults),
                    recovered=len(times),
                    median_recovery_s=median_s,
                    longest_recovery_s=longest_s,
                )
            )
    return rows


def print_report(report: ChaosReport, console: Console) -> None:
    """Print the faults by kind with their recovery times, then the counts of updates in the ledger and the accuracy."""
    table = plain_table(fault=LEFT, injected=RIGHT, recovered=RIGHT, median=RIGHT, longest=RIGHT)
    for row in report.by_kind:
        times = (row.median_recovery_s, row.longest_recovery_s)
        cells = (str(row.faults), str(row.recovered), *("–" if s is None else f"{s:.1f} s" for s in times))
        table.add_row(row.kind, *cells, style="bold" if row.kind == "all" else None)
    for part in (table, facts_table(_facts(report))):
        console.print()
        console.print(Padding(part, (0, 1)))


def _facts(report: ChaosReport) -> Iterator[tuple[str, str]]:
    accuracy, restarts = report.accuracy, report.cluster_restarts
    yield "time", f"{report.seconds:.0f} s with faults, {report.machine.cores} cores"
    if report.updates:
        yield "ledger", " · ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in report.updates)
    if report.hosted:
        yield from _facts_of_hosts(report.hosted, report.restarts or {})
    elif restarts is not None:
        required = with_noun(sum(fault.restarts_whole_cluster for fault in report.faults), "fault")
        by_launcher, by_resume = with_noun(restarts, "time"), with_noun(report.resumes, "time")
        yield (
            "cluster",
            f"restarted {by_launcher} by the launcher and {by_resume} by --resume; {required} required a restart",
        )
    if accuracy:
        others = ", ".join(f"{other:.2%}" for other in accuracy.undisturbed)
        judged = (
            "not enough undisturbed runs to say whether the faults changed it "
            f"(--undisturbed-runs {LEAST_UNDISTURBED} or more)"
        )
        if accuracy.expected:
            low, high = accuracy.expected
            where = "inside" if low <= accuracy.disturbed <= high else "outside"
            interval = f"{low:.2%} to {high:.2%}"
            judged = f"{where} {interval}, the interval that is expected to contain 99 of 100 undisturbed runs"
        yield "test accuracy", f"{accuracy.disturbed:.2%}, undisturbed {others} (generated data): {judged}"
    for name, reason in report.skipped.items():
        yield "skipped", f"{name}: {reason}"
    yield "verdict", "passed" if report.passed else "FAILED: " + report.problems[0]


def _facts_of_hosts(hosted: HostedFacts, restarts: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    places: dict[str, list[str]] = {}
    for task, host in hosted.places.items():
        places.setdefault(host, []).append(task)
    yield "hosts", " · ".join(f"{host}: {', '.join(tasks)}" for host, tasks in sorted(places.items()))
    yield "restarts", ", ".join(f"{task} {count}" for task, count in restarts.items() if count) or "none"
    rolled_back_s, unsaved_s = hosted.rolled_back_seconds, hosted.unsaved_seconds
    yield "rolled back", f"{rolled_back_s:.1f} s of the {unsaved_s:.1f} s of training that had not been saved"
