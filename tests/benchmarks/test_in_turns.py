import json

import pytest

from benchmarks import in_turns, scaling
from benchmarks.in_turns import Case, Shown
from benchmarks.records import Record, table


def figures(rate, staleness=2.0):
    """One round of `benchmarks.timed_run`."""
    return {
        "steps_per_second": rate,
        "examples_per_second": 128 * rate,
        "bytes_per_second": 8e6 * rate,
        "pull_seconds": 0.002,
        "push_seconds": 0.001,
        "shares": {
            "pulls": 0.2,
            "computes": 0.5,
            "pushes": 0.1,
            "applies": 0.03,
            "returns": 0.04,
            "dispatch": 0.03,
            "idle": 0.1,
        },
        "cpu_seconds_per_step": {"chief": 0.0001, "ps": 0.0005, "worker": 0.012},
        "staleness": {"mean": staleness, "p95": 3, "max": 5},
        "peak_memory_bytes": 2.5e9,
    }


def test_rounds_go_through_all_cases_in_turn_and_what_is_known_is_written_after_each(tmp_path):
    measured, output = [], tmp_path / "figures.json"

    def case(name):
        def measure():
            measured.append((name, output.exists()))
            return {"rate": len(measured)}

        return Case({"name": name}, measure)

    record = in_turns.measure([case("a"), case("b")], 2, [Shown("rate", "rate")], output)
    assert measured == [("a", False), ("b", True), ("a", True), ("b", True)]
    assert record.rows == [{"name": "a", "rate": [1, 3]}, {"name": "b", "rate": [2, 4]}]
    assert Record.model_validate(json.loads(output.read_text())) == record


@pytest.mark.parametrize(
    ("shown", "cells"),
    [
        (scaling.OF_NETWORKS, ["12,160 (11,520 to 12,800)", "1.75 (1.50 to 2.25)", *["3.00 (3.00 to 3.00)"]]),
        (scaling.OF_PARAMETERS, ["95.0 (90.0 to 100.0)", "2.00 (2.00 to 2.00)", "1.00 (1.00 to 1.00)", "760 (720 to 800)"]),
        (scaling.OF_PROCESSES, ["2.5 (2.5 to 2.5)", "0.10 (0.10 to 0.10)"]),
    ],
)  # fmt: skip
def test_every_figure_has_a_column_with_median_lowest_and_highest(shown, cells):
    rounds = iter([figures(90.0, 1.5), figures(100.0, 2.25), figures(95.0, 1.75)])
    record = in_turns.measure([Case({"M weights": 0.1, "ps": 4}, lambda: next(rounds))], 3, shown, None)
    *_, line = table([record]).splitlines()
    first, second, *others = line.strip("| ").split(" | ")
    assert (first, second, others[-1]) == ("0.1", "4", "3") and others[: len(cells)] == cells
    assert len(others) == len(shown) + 1


def test_a_single_measurement_is_shown_without_a_spread():
    record = in_turns.measure(
        [Case({"ps": 1}, lambda: figures(90.4))], 1, [Shown("steps/s", "steps_per_second", 1)], None
    )
    assert table([record]).splitlines()[-1] == "| 1 | 90.4 | 1 |"
