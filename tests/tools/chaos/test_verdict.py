import pytest

from ps_cluster.runs.result_rows import Summary, TrainingResult, WorkerSummary
from ps_cluster.tools.chaos.verdict import complaints, complaints_of_hosted, expected_accuracy

NONE_LOST = {"duplicated": 0, "lost": 0, "replays_refused": 1, "mixed": 0}
GOOD = Summary.model_validate(
    {
        "outcome": "completed",
        "updates": {"scheduled": 5, "applied": 5, "rolled_back": 3, **NONE_LOST},
        "workers": [{"index": 0, "pid": 1, "updates": 2}, {"index": 1, "pid": 2, "updates": 3}],
        "gradients": {"applied": 5, "per_update": 1},
        "train_seconds": 20.0, "rolled_back_seconds": 1.0,
        "evaluation": {"step": 5, "test_accuracy": 0.90},
    }
)  # fmt: skip
RESULT = TrainingResult.model_validate(
    {
        "outcome": "stopped",
        "updates": {"scheduled": 9, "applied": 9, "rolled_back": 4, **NONE_LOST},
        "gradients": {"applied": 9, "per_update": 1},
        "workers": [{"index": 0, "pid": 1, "updates": 5}, {"index": 1, "pid": 2, "updates": 4}],
        "rolled_back_seconds": 1.5,
    }
)


def changed(section=None, **values):
    """GOOD with other values, of a section or of its own."""
    if section:
        values = {section: getattr(GOOD, section).model_copy(update=values)}
    return GOOD.model_copy(update=values)


def workers(*updates):
    return [WorkerSummary(index=index, pid=index + 1, updates=count) for index, count in enumerate(updates)]


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
        "accuracy 86.00% is outside 86.58% to 95.02%, the interval that is expected to contain 99 of 100 undisturbed runs "
        "(estimated from 5 runs)"
    ]


def test_undisturbed_runs_that_are_alike_leave_the_noise_of_the_test_examples():
    low, high = expected_accuracy([0.5] * 3, 400)
    assert high - low == pytest.approx(2 * 9.925 * (0.25 / 400 * 4 / 3) ** 0.5)
    low, high = expected_accuracy([1.0] * 3, 400)
    assert 0.9 < low < 1.0 == high


def test_a_disturbed_run_that_alone_diverged_is_told():
    diverged = changed(outcome="diverged")
    assert found(diverged) == ["the outcome of the disturbed run is 'diverged', but undisturbed runs are 'completed'"]
    assert found(diverged, [diverged]) == []


def test_an_update_of_synchronous_training_has_a_gradient_of_every_worker():
    gradients = GOOD.gradients.model_copy(update={"applied": 10, "per_update": 2})
    both = changed(workers=workers(5, 5), gradients=gradients)
    assert found(both, [both], range(10)) == []
    one_lost = changed(workers=workers(5, 5), gradients=gradients.model_copy(update={"applied": 9}))
    assert any(
        "9 gradients, but 5 updates with 2 gradients each need 10" in line
        for line in found(one_lost, [both], range(10))
    )


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        ({"disturbed": changed("updates", lost=1)}, "ledger of the disturbed run should have each of 5 updates once"),
        ({"disturbed": changed("updates", duplicated=1)}, "1 duplicated"),
        ({"disturbed": changed("updates", scheduled=6)}, "6 scheduled, 5 applied"),
        (
            {"ids": [0, 1, 2, 3, 3]},
            "updates.csv should hold each of 5 steps once, but its 5 rows hold 4 different steps",
        ),
        ({"ids": [0, 1, 2, 3, 5]}, "should hold each of 5 steps once"),
        ({"disturbed": changed("updates", scheduled=4, applied=4)}, "4 scheduled, 4 applied, 0 duplicated and 0 lost"),
        ({"disturbed": changed("evaluation", step=4)}, "of step 4, not 5"),
        ({"disturbed": changed(workers=workers(4))}, "5 applied gradients, but the counts of its workers add up to 4"),
        (
            {"disturbed": changed(train_seconds=3620.0)},
            "train_seconds of the disturbed run is 3620.0, but the run took 30.0",
        ),
        ({"disturbed": changed(interrupted_seconds=-3600.0)}, "interrupted_seconds of the disturbed run is -3600.0"),
        ({"undisturbed": [GOOD, changed("updates", lost=1)]}, "the undisturbed run should have each of 5"),
    ],
)
def test_each_violation_is_reported(runs, words):
    assert any(words in line for line in found(**runs))


LOST = {"updates": RESULT.updates.model_copy(update={"lost": 1})}


@pytest.mark.parametrize(
    ("change", "steps", "unsaved", "left", "words"),
    [
        ({}, range(9), 1.5, [], None),
        ({}, range(9), 1.4, [], "1.5 s of training were rolled back, but only 1.4 s had not been saved"),
        ({}, range(9), 1.5, ["worker-1"], "worker-1 did not end when training had ended"),
        ({}, [0, *range(8)], 1.5, [], "updates.csv should hold each of 9 steps once, but its 9 rows hold 8"),
        (LOST, range(9), 1.5, [], "the ledger of the disturbed run should have each of 9 updates once"),
    ],
)  # fmt: skip
def test_what_does_not_hold_of_a_run_on_hosts_is_told(change, steps, unsaved, left, words):
    found = complaints_of_hosted(RESULT.model_copy(update=change), list(steps), unsaved, left)
    assert found == [] if words is None else [line for line in found if line.startswith(words)]
