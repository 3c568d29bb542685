"""Check the results of a run with faults (disturbed), alone or against runs without faults (undisturbed)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import fmean, variance

from ps_cluster.runs.result_rows import Summary, TrainingResult
from ps_cluster.tools.compare.estimates import t_quantile

# Undisturbed asynchronous runs of one seed differ in the order in which their updates arrive. How much they differ depends on
# machine, mode and network: with adam at a rate of 0.003 three runs had 65.75, 57.83 and 65.77 % (tutorial_cnn, 3
# workers, the generated data). So each command measures the spread with at least this many runs, or makes no claim.
LEAST_UNDISTURBED = 3


def complaints(
    disturbed: Summary,
    undisturbed: Sequence[Summary],
    total: int,
    step_ids: Sequence[int],
    test_examples: int,
    seconds: float,
) -> list[str]:
    """Return the problems of a disturbed run (a run with faults), one line each; empty if the run passes.

    Args:
      total: the number of updates that each run should have.
      step_ids: the step ids in the ledger of the disturbed run.
      seconds: the duration of the disturbed run, measured by this process.
    """
    problems = [*_ledger("disturbed", disturbed, total), *_ids(step_ids, total * _per_update(disturbed))]
    # Whatever happened to the machine's clock, no duration in the summary can exceed the run's.
    for name, value in (
        ("train_seconds", disturbed.train_seconds),
        ("rolled_back_seconds", disturbed.rolled_back_seconds),
        ("interrupted_seconds", disturbed.interrupted_seconds),
    ):
        if not 0 <= value <= seconds:
            problems.append(f"{name} of the disturbed run is {value:.1f}, but the run took {seconds:.1f} s")
    # Noise alone does not make a loss infinite or NaN.
    if disturbed.outcome != "completed" and all(summary.outcome == "completed" for summary in undisturbed):
        problems.append(
            f"the outcome of the disturbed run is '{disturbed.outcome}', but undisturbed runs are 'completed'"
        )
    for summary in undisturbed:
        problems += _ledger("undisturbed", summary, total)
    return [*problems, *_accuracy(disturbed, undisturbed, total, test_examples)]


def complaints_of_hosted(
    result: TrainingResult, step_ids: Sequence[int], unsaved_seconds: float, still_there: Sequence[str]
) -> list[str]:
    """Return the problems of a run on simulated hosts that was stopped at the end, one line each.

    Args:
      unsaved_seconds: the time from the last update in a saved state to the death of the leader, summed over all
        deaths.
      still_there: the tasks that had not ended some time after the leader's end.
    """
    applied, rolled_back = result.updates.applied, result.rolled_back_seconds
    found = [*_ledger("disturbed", result, applied), *_ids(step_ids, applied * _per_update(result))]
    if not 0 <= rolled_back <= unsaved_seconds:
        found.append(
            f"{rolled_back:.1f} s of training were rolled back, but only {unsaved_seconds:.1f} s had not been saved"
        )
    return [*found, *(f"{task} did not end when training had ended" for task in still_there)]


def expected_accuracy(undisturbed: Sequence[float], test_examples: int) -> tuple[float, float] | None:
    """Return the interval that would hold the accuracy of another undisturbed run (without faults) in 99 of 100 cases.

    Return None with fewer than LEAST_UNDISTURBED runs. The interval is Student's prediction interval. It is at least as
    wide as the binomial noise of the test examples, even if the runs are equal by accident. This noise is computed as
    if one more prediction were right and one more were wrong, so that it is never zero.
    """
    n = len(undisturbed)
    if n < LEAST_UNDISTURBED:
        return None
    mean = fmean(undisturbed)
    share = (mean * test_examples + 1) / (test_examples + 2)
    spread = max(variance(undisturbed), share * (1 - share) / test_examples)
    half = t_quantile(n - 1, percent=99) * math.sqrt(spread * (1 + 1 / n))
    return max(0.0, mean - half), min(1.0, mean + half)


def _ledger(name: str, run: Summary | TrainingResult, total: int) -> Iterator[str]:
    updates, gradients, per_update = run.updates, run.gradients, _per_update(run)
    if not updates.scheduled == updates.applied == total or updates.duplicated or updates.lost:
        yield (
            f"the ledger of the {name} run should have each of {total} updates once, but it has {updates.scheduled} "
            f"scheduled, {updates.applied} applied, {updates.duplicated} duplicated and {updates.lost} lost updates"
        )
    if gradients.applied != total * per_update:
        yield (
            f"the {name} run applied {gradients.applied} gradients, but {total} updates with {per_update} gradients each "
            f"need {total * per_update}"
        )
    by_workers = sum(worker.updates for worker in run.workers)
    if by_workers != gradients.applied:
        yield (
            f"the ledger of the {name} run has {gradients.applied} applied gradients, but the counts of its workers add up to "
            f"{by_workers}"
        )


def _per_update(run: Summary | TrainingResult) -> int:
    return run.gradients.per_update or 0  # An unknown number leads to a complaint.


def _ids(step_ids: Sequence[int], total: int) -> Iterator[str]:
    if list(step_ids) != list(range(total)):
        yield (
            f"updates.csv should hold each of {total} steps once, but its {len(step_ids)} rows hold {len(set(step_ids))} "
            "different steps"
        )


def _accuracy(disturbed: Summary, undisturbed: Sequence[Summary], total: int, test_examples: int) -> Iterator[str]:
    scores = [summary.evaluation for summary in (disturbed, *undisturbed)]
    if steps := [score.step for score in scores if score.step != total]:
        yield f"the last checkpoint scored is that of step {steps[0]}, not {total}"
        return
    accuracy, *others = (score.test_accuracy or 0.0 for score in scores)
    expected = expected_accuracy(others, test_examples)
    if expected and not expected[0] <= accuracy <= expected[1]:
        low, high = expected
        yield (
            f"accuracy {accuracy:.2%} is outside {low:.2%} to {high:.2%}, the interval that is expected to contain 99 of "
            f"100 undisturbed runs (estimated from {len(others)} runs)"
        )
