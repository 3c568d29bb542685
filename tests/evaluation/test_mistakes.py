"""The proof finds mistakes: what it finds in which mode stands in a table, which is also on the page about the proof.

`--exhaustive` tries every mistake in every mode. Otherwise some are tried, each once, and a wrong gradient in modes that have
code of their own to compute it again.
"""

import re
from unittest import mock

import numpy as np
import pytest

from ps_cluster.config.equations import Matrix
from ps_cluster.config.optimizer_rules import OptimizerRule
from ps_cluster.evaluation.recomputation import without_cut_matrices
from ps_cluster.installation import IMPORT_FOLDER
from ps_cluster.runs.update_samples import SampledShard
from ps_cluster.server import sample_positions
from ps_cluster.server.update_rules import muon
from ps_cluster.server.update_rules.muon import orthogonal
from ps_cluster.server.update_rules.nesterov import Nesterov
from ps_cluster.training.step import TrainStep
from tests.helpers.exhaustive import EXHAUSTIVE, mostly
from tests.helpers.local_training import TABLES, train
from tests.helpers.mistakes import MISTAKES

pytestmark = pytest.mark.slow

INT8 = {"mode.name": "async", "cluster.wire": "int8"}
TRIED = {
    "single": {"mode.name": "single"},
    "async": {"mode.name": "async"},
    "async, 2 ps": {"mode.name": "async", "cluster.parameter_servers": 2},
    "async, int8": INT8,
    "async, int8, 2 ps": INT8 | {"cluster.parameter_servers": 2},
    # The first 8 updates end before others are handed out. So the second sample is of update 8, which applies 3 gradients.
    "gather and lookahead": {
        "mode.name": "async", "staleness.method": "gather", "staleness.gather": 3, "lookahead.every_updates": 3,
        "checkpoints.every_epochs": 2.0, "checkpoints.exact": True,
    },
    "bounded": {"mode.name": "bounded"},
    "bounded, tables": TABLES | {"mode.name": "bounded", "optimizer.rule": "adagrad"},
    "async, tables, 2 ps": TABLES | {"mode.name": "async", "cluster.parameter_servers": 2, "optimizer.rule": "adam"},
    "sync-ps": {"mode.name": "sync-ps"},
    "sync": {"mode.name": "sync"},
    "elastic": {"mode.name": "elastic", "optimizer.rule": "sgd"},
    "elastic, 2 ps": {"mode.name": "elastic", "optimizer.rule": "sgd", "cluster.parameter_servers": 2},
    "diloco": {"mode.name": "diloco"},
    "diloco, 2 ps": {"mode.name": "diloco", "cluster.parameter_servers": 2},
    "sync-diloco": {"mode.name": "sync-diloco"},
    "layers": {"mode.name": "layers"},
}  # fmt: skip
NEVER_FOUND = {"one exponent bit of a weight flips"}
WITH_TABLES = {"async, tables, 2 ps", "bounded, tables"}
# Mistakes in code that a mode does not run.
ONLY_IN = {
    "one of a hundred rows is not updated": WITH_TABLES,
    "the gradients of two rows are exchanged": WITH_TABLES,
    "rows of other indices are given": WITH_TABLES,
    "rows of an old version are given": WITH_TABLES,
    "what a push leaves out is lost": {"async, int8", "async, int8, 2 ps"},
    "the centre of elastic moves too far": {"elastic", "elastic, 2 ps"},
    "the outer rate of diloco is wrong": {"diloco", "diloco, 2 ps", "sync-diloco"},
}
NOT_IN = {
    "elastic": {
        "three times the learning rate is applied",
        "the kernel of the optimizer never runs",
        "stale weights are given as new ones",
        "an update is applied twice",
    },
    "sync": {"an update has no row"},
    # No checkpoint could be written after it, so the training stands still, which the launcher ends.
    "gather and lookahead": {"an update has no row"},
    # Every second round would be missing, so the training stands still, which the launcher ends.
    "sync-ps": {"an update is applied twice"},
    "sync-diloco": {"an update is applied twice"},
}
# Of the modes whose updates the proof computes again by code of its own, those that are tried at every change.
USUAL_MODES = ("gather and lookahead", "async, tables, 2 ps", "sync-ps", "elastic", "diloco", "layers")
# Mistakes that are tried at every change → what the proof says about the quantity that is wrong. It may find more.
USUAL_MISTAKES = {
    "three times the learning rate is applied": "the change of the weights is not what the equation of the update says",
    "an update is applied twice": "its version is ",
    "the moving statistics are lost": "the change of the moving statistics does not follow from the pushed statistics",
    "one of a hundred rows is not updated": "the change of the weights is not what the equation of the update says",
    "rows of other indices are given": "numbers in rows of tables",
    "the sign of the gradient is wrong": "its gradient differs from the one that was computed again",
}


def is_made(mode: str, mistake: str) -> bool:
    """Return whether a mode runs the code in which a mistake is."""
    return mode in ONLY_IN.get(mistake, {mode}) and mistake not in NOT_IN.get(mode.partition(",")[0], set())


def is_often_tried(mode: str, mistake: str) -> bool:
    """Return whether a mistake is tried at every change: in the first mode that makes it, and a wrong gradient in others."""
    if mistake == "the sign of the gradient is wrong":
        return mode in ("diloco", "layers")
    return mode == next(one for one in TRIED if is_made(one, mistake)) and mistake in USUAL_MISTAKES


PAIRS = [
    pytest.param(mode, mistake, marks=() if is_often_tried(mode, mistake) else EXHAUSTIVE)
    for mode in TRIED
    for mistake in MISTAKES
    if is_made(mode, mistake)
]


@pytest.mark.parametrize("mode", mostly(TRIED, *USUAL_MODES))
def test_a_training_without_a_mistake_is_proved_and_its_updates_are_computed_again(mode, tmp_path):
    trained = train(tmp_path / "run", **TRIED[mode])
    assert trained.problems == [] and trained.result.proof.holds
    recomputed = trained.result.proof.recomputed
    assert recomputed.updates >= 1 and recomputed.of == 24 and recomputed.workers.keys() == {"0"}
    checked = {"gradient", "fresh statistics", "statistics", "weights"}
    assert recomputed.largest_deviations.keys() >= checked
    assert all(deviation < 0.5 for deviation in recomputed.largest_deviations.values()), recomputed.largest_deviations


@pytest.mark.parametrize(("mode", "mistake"), PAIRS)
def test_a_mistake_is_found_or_stands_among_those_that_are_not(mode, mistake, tmp_path):
    with MISTAKES[mistake]():
        problems = train(tmp_path / "run", **TRIED[mode]).problems
    assert bool(problems) == (mistake not in NEVER_FOUND), problems
    if is_often_tried(mode, mistake):
        assert any(USUAL_MISTAKES[mistake] in problem for problem in problems), problems


@pytest.mark.parametrize(
    ("of_gradient", "of_fresh", "told"),
    [
        (1.05, 1.0, "its gradient differs from the one that was computed again"),
        (1.001, 1.05, "the statistics that it pushed differ from those that were computed again"),
    ],
)
def test_an_error_of_five_per_cent_is_found_and_a_tenth_of_a_per_cent_of_a_gradient_is_not(
    of_gradient, of_fresh, told, tmp_path, monkeypatch
):
    def scaled(self, *arguments, right=TrainStep.__call__, **named):
        result = right(self, *arguments, **named)
        return result._replace(gradient=of_gradient * result.gradient, fresh=of_fresh * result.fresh)

    monkeypatch.setattr(TrainStep, "__call__", scaled)
    problems = train(tmp_path / "run", **TRIED["single"]).problems
    assert problems and all(told in problem for problem in problems)


@pytest.mark.parametrize("parameter_servers", mostly([1, 2], 2))
def test_orthogonal_steps_are_computed_again_also_if_only_some_matrices_are_sampled(parameter_servers, tmp_path):
    settings = {
        "mode.name": "async", "cluster.parameter_servers": parameter_servers, "optimizer.rule": "muon",
        "optimizer.fixed_norm_every": 3,
    }  # fmt: skip
    with mock.patch.object(sample_positions, "WHOLE_UP_TO", 100):
        trained = train(tmp_path / "right", **settings)
        with mock.patch.object(muon, "orthogonal", lambda matrix, steps: orthogonal(matrix, steps - 1)):
            mistaken = train(tmp_path / "wrong", **settings)
    assert trained.problems == [] and trained.result.proof.recomputed.unchecked == []
    assert 0 < trained.result.proof.recomputed.largest_deviations["weights"] < 0.5
    assert mistaken.problems and all("the weights" in problem for problem in mistaken.problems)


def test_a_matrix_of_which_only_a_part_is_sampled_is_left_out():
    values = np.arange(10.0)
    shard = SampledShard(
        update=0, worker=0, version=0, positions=np.arange(2, 12), given=values, given_positions=values,
        given_statistics=values, at_pull={}, rows_at_pull=values, gradient=values,
        before={"weights": values, "count": values[:1]}, after={"weights": values + 1}, fresh=values,
        statistics_before=values, statistics_after=values,
    )  # fmt: skip
    part, matrices = without_cut_matrices(shard, [Matrix(0, 2, 2), Matrix(5, 2, 2), Matrix(10, 3, 1)])
    assert part.positions.tolist() == [4, 5, 6, 7, 8, 9]
    assert part.gradient.tolist() == part.before["weights"].tolist() == [2, 3, 4, 5, 6, 7]
    assert part.after["weights"].tolist() == [3, 4, 5, 6, 7, 8] and part.before["count"].tolist() == [0]
    assert matrices == [(1, 2, 2)]


def test_a_rule_without_an_equation_is_said_to_be_unchecked_and_its_gradients_are_checked(tmp_path):
    without = mock.patch.object(Nesterov, "equation", OptimizerRule.equation)
    with without, MISTAKES["the sign of the gradient is wrong"]():
        trained = train(tmp_path / "run", **TRIED["single"])
    recomputed = trained.result.proof.recomputed
    told = (
        "the weights and slots after updates, because optimizer.rule nesterov or the staleness method has no `equation`"
    )
    assert recomputed.unchecked == [told] and "weights" not in recomputed.largest_deviations
    assert all("its gradient differs from the one" in problem for problem in trained.problems) and trained.problems


def test_the_page_lists_the_mistakes_that_are_found_and_those_that_are_not():
    page = (IMPORT_FOLDER / "docs" / "architecture.md").read_text()
    for heading, listed in (("Found", MISTAKES.keys() - NEVER_FOUND), ("Not found", NEVER_FOUND)):
        (names,) = re.findall(rf"^\*\*{heading}\*\*: (.*?)\.\n\n", page, re.M | re.S)
        assert set(re.sub(r"\s+", " ", names).split("; ")) == set(listed)
