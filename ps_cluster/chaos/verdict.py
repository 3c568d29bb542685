"""Judge a disturbed run against an undisturbed one. Pure functions of what both wrote."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

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
      unsaved_seconds: the sum, over all deaths of its leader, of the time since it had saved.
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
        yield f"{seconds:.1f} s of training were rolled back, the snapshots were {unsaved_seconds:.1f} s old"


def _accuracy(disturbed: Json, undisturbed: Json, total: int, test_examples: int) -> Iterator[str]:
    scores = [summary["evaluation"] for summary in (disturbed, undisturbed)]
    if steps := [score["step"] for score in scores if score["step"] != total]:
        yield f"the last checkpoint scored is that of step {steps[0]}, not {total}"
        return
    first, second = (score["test_accuracy"] for score in scores)
    if abs(first - second) > tolerance(first, second, test_examples):
        yield f"accuracy {first:.2%} against {second:.2%} undisturbed is more than noise"
