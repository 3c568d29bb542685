import io

import pytest
from rich.console import Console

from ps_cluster.tools.chaos.chaos_report import Evidence, HostedFacts, Injected, by_kind, make_report, print_report
from ps_cluster.tools.chaos.settings import ChaosSettings
from tests.tools.chaos.test_verdict import GOOD, MEASURED, RESULT, with_accuracy

FAULTS = [
    Injected("kill worker", ("worker-1",), 0.0, False, 4.0),
    Injected("kill worker", ("worker-0",), 9.0, False, 6.0),
    Injected("kill ps", ("ps-0",), 20.0, True, None),
]


def test_recoveries_are_summed_up_by_kind():
    rows = {row.kind: row for row in by_kind(FAULTS)}
    assert list(rows) == ["kill worker", "kill ps", "all"]
    assert (rows["kill worker"].median_recovery_s, rows["kill worker"].longest_recovery_s) == (5.0, 6.0)
    assert (rows["kill ps"].recovered, rows["kill ps"].median_recovery_s) == (0, None)
    assert (rows["all"].faults, rows["all"].recovered) == (3, 2)


def printed(report):
    console = Console(file=io.StringIO(), width=200)
    print_report(report, console)
    return console.file.getvalue()


def test_the_report_says_whether_there_are_enough_undisturbed_runs_to_judge_the_accuracy():
    several = [with_accuracy(value) for value in MEASURED]
    few, enough = (
        make_report(Evidence(ChaosSettings(), disturbed=GOOD, undisturbed=runs, test_examples=4000), [])
        for runs in (several[:1], several)
    )
    assert few.accuracy and few.accuracy.model_dump() == {"disturbed": 0.90, "undisturbed": [0.6575], "expected": None}
    assert (
        "90.00%, undisturbed 65.75% (generated data): not enough undisturbed runs to say whether the faults changed it "
        "(--undisturbed-runs 3 or more)"
    ) in printed(few)
    assert "undisturbed 65.75%, 57.83%, 65.77% (generated data): inside" in printed(enough)


@pytest.mark.parametrize("complete", [True, False])
def test_the_report_is_printed_however_far_the_runs_came(complete):
    runs = {"disturbed": GOOD, "undisturbed": [GOOD], "test_examples": 4000, "restarts": {"chief-0": 1}}
    more = {"skipped": {"link cut": "no network"}, "resumes": 2, **(runs if complete else {})}
    evidence = Evidence(ChaosSettings(), FAULTS, seconds=30, **more)
    report = make_report(evidence, [] if complete else ["the run failed"])
    text = printed(report)
    assert "link cut: no network" in text
    assert "kill worker" in text and ("passed" in text) == complete
    assert (
        ("5 scheduled · 5 applied" in text) == complete
        and ("90.00%" in text) == complete
        and ("restarted 1 time by the launcher and 2 times by --resume; 1 fault required a restart" in text) == complete
    )


def test_the_table_says_where_tasks_were_and_how_often_each_was_restarted():
    places = {"ps-0": "host-0", "worker-0": "host-1"}
    hosted = HostedFacts(places=places, rolled_back_seconds=1.5, unsaved_seconds=2.0)
    restarts = {"ps-0": 2, "worker-0": 0}
    report = make_report(Evidence(ChaosSettings(), seconds=30, restarts=restarts, disturbed=RESULT, hosted=hosted), [])
    text = printed(report)
    assert "host-0: ps-0 · host-1: worker-0" in text
    assert "ps-0 2" in text and "worker-0 0" not in text
    assert "1.5 s of the 2.0 s of training that had not been saved" in text
