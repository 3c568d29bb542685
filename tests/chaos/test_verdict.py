import copy
import io

import pytest
from rich.console import Console

from ps_cluster.tools.chaos.verdict import (
    RUN_SD,
    Evidence,
    Injected,
    by_kind,
    complaints,
    make_report,
    print_report,
    tolerance,
)

GOOD = {
    "updates": {
        "scheduled": 5, "applied": 5, "duplicated": 0, "lost": 0, "rolled_back": 3, "replays_refused": 1, "mixed": 0
    },
    "workers": [{"updates": 2}, {"updates": 3}],
    "gradients": {"applied": 5, "per_update": 1},
    "train_seconds": 20.0, "rolled_back_seconds": 1.0, "interrupted_seconds": 0.0,
    "evaluation": {"step": 5, "test_accuracy": 0.90},
}  # fmt: skip
FAULTS = [
    Injected("kill worker", ("worker-1",), 0.0, False, 4.0),
    Injected("kill worker", ("worker-0",), 9.0, False, 6.0),
    Injected("kill ps", ("ps-0",), 20.0, True, None),
]


def changed(section, **values):
    summary = copy.deepcopy(GOOD)
    summary[section].update(values)
    return summary


def test_a_run_with_an_exact_ledger_and_the_same_accuracy_passes():
    assert complaints(GOOD, changed("evaluation", test_accuracy=0.915), 5, range(5), 4000, 30.0) == []


def test_an_update_of_synchronous_training_has_a_gradient_of_every_worker():
    both = {**GOOD, "workers": [{"updates": 5}, {"updates": 5}], "gradients": {"applied": 10, "per_update": 2}}
    assert complaints(both, both, 5, range(10), 4000, 30.0) == []
    one_lost = {**both, "gradients": {"applied": 9, "per_update": 2}}
    assert any(
        "9 gradients, not 2 in each of 5" in line for line in complaints(one_lost, both, 5, range(10), 4000, 30.0)
    )


@pytest.mark.parametrize(
    ("disturbed", "ids", "words"),
    [
        (changed("updates", lost=1), range(5), "ledger of the disturbed run is not exact"),
        (changed("updates", duplicated=1), range(5), "1 duplicated"),
        (changed("updates", scheduled=6), range(5), "6 scheduled, 5 applied"),
        (GOOD, [0, 1, 2, 3, 3], "4 different steps in 5 rows"),
        (GOOD, [0, 1, 2, 3, 5], "not each of 5 once"),
        (changed("updates", scheduled=4, applied=4), range(5), "4 applied, 0 duplicated, 0 lost of 5"),
        (changed("evaluation", step=4), range(5), "of step 4, not 5"),
        (changed("evaluation", test_accuracy=0.83), range(5), "more than noise"),
        ({**GOOD, "workers": [{"updates": 4}]}, range(5), "4 gradients applied, its ledger says 5"),
        (
            {**GOOD, "train_seconds": 3620.0},
            range(5),
            "train_seconds of the disturbed run is 3620.0, and it took 30.0 s",
        ),
        ({**GOOD, "interrupted_seconds": -3600.0}, range(5), "interrupted_seconds of the disturbed run is -3600.0"),
    ],
)
def test_what_is_wrong_is_told(disturbed, ids, words):
    assert any(words in line for line in complaints(disturbed, GOOD, 5, ids, 4000, 30.0))


def test_noise_is_three_standard_errors_of_what_was_measured_or_of_the_shares():
    assert tolerance(0.98, 0.98, 4000) == pytest.approx(3 * 2**0.5 * RUN_SD)
    assert tolerance(0.5, 0.5, 400) == pytest.approx(3 * (2 * 0.25 / 400) ** 0.5)


def test_recoveries_are_summed_up_by_kind():
    rows = {row["kind"]: row for row in by_kind(FAULTS)}
    assert list(rows) == ["kill worker", "kill ps", "all"]
    assert (rows["kill worker"]["median_recovery_s"], rows["kill worker"]["longest_recovery_s"]) == (5.0, 6.0)
    assert (rows["kill ps"]["recovered"], rows["kill ps"]["median_recovery_s"]) == (0, None)
    assert (rows["all"]["faults"], rows["all"]["recovered"]) == (3, 2)


@pytest.mark.parametrize("complete", [True, False])
def test_the_report_is_printed_however_far_the_runs_came(complete):
    runs = {"disturbed": GOOD, "undisturbed": GOOD, "test_examples": 4000, "restarts": {"chief-0": 1}}
    more = {"skipped": {"link cut": "no network"}, "resumes": 2, **(runs if complete else {})}
    evidence = Evidence({}, "chief-0", FAULTS, seconds=30, **more)
    report = make_report(evidence, [] if complete else ["the run failed"])
    console = Console(file=io.StringIO(), width=120)
    print_report(report, console)
    text = console.file.getvalue()
    assert "link cut: no network" in text
    assert "kill worker" in text and ("passed" in text) == complete
    assert (
        ("5 scheduled · 5 applied" in text) == complete
        and ("90.00%" in text) == complete
        and ("started again 1 times by the launcher and 2 times with --resume" in text) == complete
    )
