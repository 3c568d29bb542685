"""The metric that decides, and the rule of early stopping: functions of settings and scores alone."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps_cluster.config import build_config
from ps_cluster.config.objectives import ArrayField, ExampleSpec
from ps_cluster.errors import UserError
from ps_cluster.runs.monitor import EarlyStopping, Monitor, checked_monitor_mode
from ps_cluster.runs.result_rows import EvaluationRow, PatienceExhausted

TWO = ExampleSpec({"x": ArrayField("float32", (3,))}, ArrayField("int64", ()), classes=("no", "yes"))
NUMBERS = ExampleSpec({"x": ArrayField("float32", (3,))}, ArrayField("float32", ()), "regression")


def configured(**values):
    return build_config(None, {f"evaluation.{name}": value for name, value in values.items()})


def settings(**values):
    return configured(**values).evaluation


def row(step=1, **scores):
    return EvaluationRow(step=step, **{"test_loss": 1.0, **scores})


ON_BOTH = row(
    test_accuracy=0.9, validation_accuracy=0.8, validation_loss=1.2, metrics={"auc": 0.7}, validation_metrics={"auc": 0.6},
    compiled={"profit": 30.0}, validation_compiled={"profit": 20.0},
)  # fmt: skip


@pytest.mark.parametrize(
    ("chosen", "score", "merit", "words"),
    [
        ({}, row(test_accuracy=0.9), 0.9, "test accuracy 90.00%"),
        ({}, row(test_error=0.25), -0.25, "test error 0.25"),
        ({}, ON_BOTH, 0.8, "validation accuracy 80.00%"),
        ({"monitor": "loss"}, ON_BOTH, -1.2, "validation loss 1.2"),
        ({"monitor": "val_auc"}, ON_BOTH, 0.6, "validation auc 0.6"),
        ({"monitor": "auc"}, row(metrics={"auc": 0.7}), 0.7, "test auc 0.7"),
        ({"monitor": "profit", "monitor_mode": "max"}, ON_BOTH, 20.0, "validation profit 20"),
        ({"monitor": "auc", "monitor_mode": "min"}, ON_BOTH, -0.6, "validation auc 0.6"),
        ({}, row(test_accuracy=0.9, test_loss=None), -math.inf, "test accuracy 90.00%"),
        ({"monitor": "auc"}, row(test_accuracy=0.9), -math.inf, "test auc not a finite number"),
    ],
)
def test_scores_are_compared_by_the_chosen_metric_on_held_out_examples_if_there_are_any(chosen, score, merit, words):
    monitor = Monitor.of(settings(**chosen))
    assert (monitor.merit(score), monitor.words(score)) == (merit, words)


@pytest.mark.parametrize(
    ("chosen", "spec", "of_network", "found"),
    [
        ({}, TWO, None, "auto"),
        ({"monitor": "auc"}, TWO, None, "max"),
        ({"monitor": "rmse"}, NUMBERS, None, "min"),
        ({"monitor": "recall@5", "recall_at": 5}, NUMBERS, {"rmse": "min"}, "max"),
        ({"monitor": "mae"}, NUMBERS, {"mae": "min"}, "min"),
        ({"monitor": "profit", "monitor_mode": "max"}, TWO, {"profit": None}, "max"),
    ],
)
def test_the_direction_is_known_by_the_metric_or_given(chosen, spec, of_network, found):
    assert checked_monitor_mode(settings(**chosen), spec, of_network) == found


@pytest.mark.parametrize(
    ("chosen", "of_network", "line"),
    [
        (
            {"monitor": "error"}, None,
            "evaluation.monitor: got 'error': choose a metric by which a run of this network on this data is scored: "
            "accuracy, loss, auc, log_loss and f1",
        ),
        (
            {"monitor": "prfit"}, {"profit": None},
            "evaluation.monitor: got 'prfit': did you mean 'profit'? choose a metric by which a run of this network on this "
            "data is scored: accuracy, loss and profit",
        ),
        (
            {"monitor": "profit"}, {"profit": None},
            "evaluation.monitor_mode: got 'auto': it is not known whether a larger or a smaller profit is better: write max or "
            "min",
        ),
    ],
)  # fmt: skip
def test_a_metric_that_can_not_decide_is_refused_in_one_line(chosen, of_network, line):
    with pytest.raises(UserError) as refused:
        checked_monitor_mode(settings(**chosen), TWO, of_network)
    assert str(refused.value) == line


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"evaluation.monitor_mode": "max"}, "evaluation.monitor_mode: got 'max': evaluation.monitor names no"),
        (
            {"evaluation.patience": 3, "cluster.evaluator": False},
            "evaluation.patience: got 3: cluster.evaluator is false, so no checkpoint is scored: turn the evaluator on",
        ),
        ({"evaluation.patience": 3, "evaluation.after_training": True}, "evaluation.patience: got 3: with evaluation.after_tr"),
        ({"evaluation.patience": 0}, "evaluation.patience"),
        ({"evaluation.min_delta": -1}, "evaluation.min_delta"),
    ],
)  # fmt: skip
def test_settings_that_contradict_each_other_are_refused(values, line):
    with pytest.raises(UserError, match=line.replace("(", r"\(")):
        build_config(None, values)


def stops(values, rows, *, ended_at=-1):
    """The reasons to stop that a process sees after each score of a test accuracy; None: the loss is not finite."""
    following, found = EarlyStopping(configured(**values), ended_at), []
    for step, accuracy in rows:
        following.add_score(row(step, test_accuracy=accuracy, test_loss=None if accuracy is None else 1.0))
        found.append(following.due and following.due.step)
    return found


def test_patience_counts_scored_checkpoints_without_a_better_metric():
    falling = [(1, 0.5), (2, 0.6), (3, 0.6), (4, 0.55), (5, 0.5)]
    assert stops({"patience": 2}, falling) == [None, None, None, 4, 4]
    assert stops({"patience": 3}, falling) == [None, None, None, None, 5]
    assert stops({}, falling) == [None] * 5
    assert stops({"patience": 2, "min_delta": 0.2}, falling) == [None, None, 3, 3, 3]
    assert stops({"patience": 2}, [(1, None), (2, None), (3, 0.1)]) == [None, 2, 2]


def test_a_step_that_is_scored_again_counts_once():
    assert stops({"patience": 2}, [(1, 0.5), (2, 0.4), (2, 0.4), (1, 0.5)]) == [None] * 4


def test_after_a_run_has_ended_in_order_its_patience_counts_anew():
    rows = [(1, 0.5), (2, 0.4), (3, 0.4), (4, 0.4), (5, 0.4), (6, 0.4)]
    assert stops({"patience": 2}, rows, ended_at=4) == [None, None, None, None, 5, 5]


def test_the_reason_names_metric_examples_and_the_best_step():
    following = EarlyStopping(configured(patience=1, monitor="auc"))
    for step, auc in ((4, 0.8), (9, 0.7)):
        following.add_score(row(step, validation_loss=1.0, validation_metrics={"auc": auc}))
    reason = PatienceExhausted(step=9, patience=1, monitor="auc", examples="validation", best_step=4, best_value=0.8)
    assert following.due == reason
    assert reason.line == (
        "validation auc has not become better in 1 scored checkpoint up to step 9; the best value is that of step 4"
    )


def keras_stops(accuracies, patience, min_delta):
    """The index at which Keras's rule stops: EarlyStopping.on_epoch_end, as in its documentation."""
    best, waited = -math.inf, 0
    for index, value in enumerate(accuracies):
        if value - min_delta > best:
            best, waited = value, 0
        else:
            waited += 1
            if waited >= patience:
                return index
    return None


@given(
    st.lists(st.integers(0, 20).map(lambda n: n / 20), min_size=1, max_size=30),
    st.integers(1, 5),
    st.sampled_from([0.0, 0.125]),
)
def test_it_stops_where_keras_stops(accuracies, patience, min_delta):
    found = stops({"patience": patience, "min_delta": min_delta}, list(enumerate(accuracies)))
    assert next((index for index, step in enumerate(found) if step is not None), None) == keras_stops(
        accuracies, patience, min_delta
    )
