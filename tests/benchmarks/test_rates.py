import json

import pytest

from benchmarks import rates
from benchmarks.rates import Point
from ps_cluster.config.networks import read_modes
from ps_cluster.errors import UserError
from ps_cluster.files.writing import write_json, write_whole
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.tools.compare.plan import planned_runs

ASYNC, SYNC = ("async", 3, 128), ("sync", 3, 128)
POINTS = [
    Point(ASYNC, 0.001, 0.9, (0.60, 0.62)),
    Point(ASYNC, 0.002, 0.5, (0.64, 0.66)),
    Point(ASYNC, 0.004, 0.5, (0.9, None)),
    Point(SYNC, 0.001, 0.9, (0.70, 0.70)),
    Point(SYNC, 0.002, 0.9, (0.71, 0.73)),
]
GRID = {
    "model": "tutorial_cnn", "modes": ("async", "single"), "batches": (128,), "factors": (1.0, 2.0), "momenta": (0.0, 0.9),
    "epochs": 1.0, "seeds": 1, "held_out": 100, "dataset": "synthetic", "data_dir": None,
}  # fmt: skip


def test_the_grid_is_trained_with_the_rates_it_names_on_all_but_the_images_held_out():
    configs = [run.config for run in planned_runs(rates.comparison(**GRID))]
    found = [(each.mode.name, each.optimizer.learning_rate, each.optimizer.momentum) for each in configs]
    assert found == [
        (mode, rate, momentum) for mode in ("async", "single") for rate in (0.001, 0.002) for momentum in (0.0, 0.9)
    ]
    assert {each.evaluation.validation_examples for each in configs} == {100}
    assert {each.training.batch_size_per_worker for each in configs} == {128}
    assert {each.optimizer.rule for each in configs} == {"adam"}


def test_a_grid_that_no_comparison_takes_is_refused():
    with pytest.raises(UserError, match="got 144 combinations: at most 100"):
        rates.comparison(
            **GRID | {"modes": ("async",), "batches": tuple(range(1, 73)), "factors": (1.0,), "momenta": (0.0, 0.9)}
        )


def test_points_are_read_from_finished_runs_by_the_images_held_out(tmp_path):
    roots = []
    for number, run in enumerate(planned_runs(rates.comparison(**GRID | {"seeds": 2, "modes": ("single",)}))):
        run_dir = RunDir.create(tmp_path / run.name)
        write_whole(run_dir.config, run.config.to_yaml())
        scored = {"test_accuracy": 0.1, "test_loss": None if number == 1 else 2.0, "validation_accuracy": number / 10}
        write_json(run_dir.summary, {"outcome": "completed", "evaluation": scored})
        roots.append(run_dir.root)
    points = rates.read_points(roots)
    assert [(point.place, point.learning_rate, point.momentum) for point in points] == [
        (("single", 1, 128), rate, momentum) for rate in (0.001, 0.002) for momentum in (0.0, 0.9)
    ]
    assert [point.scores for point in points] == [(0, 0.4), (None, 0.5), (0.2, 0.6), (0.3, 0.7)]
    assert (points[0].score, points[1].score) == (0.2, None)


def test_the_best_of_each_mode_is_what_goes_into_the_recipe_and_one_that_diverged_is_not():
    table = json.loads(rates.recipe_lines(POINTS))
    found = {entry.place: (entry.learning_rate, entry.momentum) for entry in read_modes(table, "modes.json")}
    assert found == {ASYNC: (0.002, 0.5), SYNC: (0.002, 0.9)}
    lines = rates.table(POINTS).splitlines()
    assert sum("**" in line for line in lines) == 2 and sum("diverged" in line for line in lines) == 1
    assert [line.split(":")[0] for line in rates.at_the_edge(POINTS)] == ["sync, batch 128"]
