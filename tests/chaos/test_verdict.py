import copy
import io

import pytest
from rich.console import Console

from ps_cluster.tools.chaos.verdict import (
    Evidence,
    Injected,
    by_kind,
    complaints,
    expected_accuracy,
    make_report,
    print_report,
)

GOOD = {
    "outcome": "completed",
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


def with_accuracy(value):
    return changed("evaluation", test_accuracy=value)


def found(disturbed=GOOD, undisturbed=(GOOD,), ids=range(5)):
    return complaints(disturbed, undisturbed, 5, ids, 4000, 30.0)


def test_a_run_with_an_exact_ledger_and_the_same_accuracy_passes():
    assert found() == []


# Equal, undisturbed asynchronous runs of `chaos --faults 3`.
MEASURED = (0.6575, 0.5783, 0.6577)


@pytest.mark.parametrize("order", range(3))
def test_a_run_is_not_failed_for_the_noise_of_equal_runs(order):
    first, *others = (with_accuracy(MEASURED[(order + place) % 3]) for place in range(3))
    assert found(first, others[:1]) == []
    assert found(first, others) == []


def test_one_or_two_undisturbed_runs_are_too_few_to_judge_an_accuracy():
    assert found(with_accuracy(0.10), [GOOD]) == found(with_accuracy(0.10), [GOOD, GOOD]) == []
    assert expected_accuracy([0.9, 0.9], 4000) is None


def test_several_undisturbed_runs_give_the_interval_that_an_accuracy_has_to_lie_in():
    undisturbed = [with_accuracy(value) for value in (0.90, 0.91, 0.92, 0.91, 0.90)]
    # mean 0.908, sd 0.00837, t(4) of 99 % 4.604: 0.908 ± 4.604 x 0.00837 x sqrt(1.2)
    assert expected_accuracy([0.90, 0.91, 0.92, 0.91, 0.90], 4000) == pytest.approx((0.8658, 0.9502), abs=1e-4)
    assert found(with_accuracy(0.87), undisturbed) == []
    assert found(with_accuracy(0.86), undisturbed) == [
        "accuracy 86.00% is outside 86.58% to 95.02%, which holds 99 of 100 undisturbed runs, as estimated from 5"
    ]


def test_undisturbed_runs_that_are_alike_leave_the_noise_of_the_test_examples():
    low, high = expected_accuracy([0.5] * 3, 400)
    assert high - low == pytest.approx(2 * 9.925 * (0.25 / 400 * 4 / 3) ** 0.5)
    low, high = expected_accuracy([1.0] * 3, 400)
    assert 0.9 < low < 1.0 == high


def test_a_disturbed_run_that_alone_diverged_is_told():
    diverged = {**GOOD, "outcome": "diverged"}
    assert found(diverged) == ["the outcome of the disturbed run is 'diverged', and undisturbed it is 'completed'"]
    assert found(diverged, [diverged]) == []


def test_an_update_of_synchronous_training_has_a_gradient_of_every_worker():
    both = {**GOOD, "workers": [{"updates": 5}, {"updates": 5}], "gradients": {"applied": 10, "per_update": 2}}
    assert found(both, [both], range(10)) == []
    one_lost = {**both, "gradients": {"applied": 9, "per_update": 2}}
    assert any("9 gradients, not 2 in each of 5" in line for line in found(one_lost, [both], range(10)))


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
    assert any(words in line for line in found(disturbed, ids=ids))


def test_an_undisturbed_run_whose_ledger_is_not_exact_is_told():
    assert any(
        "the undisturbed run is not exact" in line for line in found(undisturbed=[GOOD, changed("updates", lost=1)])
    )


def test_recoveries_are_summed_up_by_kind():
    rows = {row["kind"]: row for row in by_kind(FAULTS)}
    assert list(rows) == ["kill worker", "kill ps", "all"]
    assert (rows["kill worker"]["median_recovery_s"], rows["kill worker"]["longest_recovery_s"]) == (5.0, 6.0)
    assert (rows["kill ps"]["recovered"], rows["kill ps"]["median_recovery_s"]) == (0, None)
    assert (rows["all"]["faults"], rows["all"]["recovered"]) == (3, 2)


def printed(report):
    console = Console(file=io.StringIO(), width=200)
    print_report(report, console)
    return console.file.getvalue()


def test_the_report_says_whether_there_are_enough_undisturbed_runs_to_judge_the_accuracy():
    several = [with_accuracy(value) for value in MEASURED]
    few, enough = (
        make_report(Evidence({}, "chief-0", disturbed=GOOD, undisturbed=runs, test_examples=4000), [])
        for runs in (several[:1], several)
    )
    assert few["accuracy"] == {"disturbed": 0.90, "undisturbed": [0.6575], "expected": None}
    assert (
        "90.00%, undisturbed 65.75% (generated images): not enough undisturbed runs to say whether the faults changed it "
        "(--undisturbed-runs 3 or more)"
    ) in printed(few)
    assert "undisturbed 65.75%, 57.83%, 65.77% (generated images): inside" in printed(enough)


@pytest.mark.parametrize("complete", [True, False])
def test_the_report_is_printed_however_far_the_runs_came(complete):
    runs = {"disturbed": GOOD, "undisturbed": [GOOD], "test_examples": 4000, "restarts": {"chief-0": 1}}
    more = {"skipped": {"link cut": "no network"}, "resumes": 2, **(runs if complete else {})}
    evidence = Evidence({}, "chief-0", FAULTS, seconds=30, **more)
    report = make_report(evidence, [] if complete else ["the run failed"])
    text = printed(report)
    assert "link cut: no network" in text
    assert "kill worker" in text and ("passed" in text) == complete
    assert (
        ("5 scheduled · 5 applied" in text) == complete
        and ("90.00%" in text) == complete
        and ("started again 1 times by the launcher and 2 times with --resume" in text) == complete
    )
