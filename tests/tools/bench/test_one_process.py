"""The arms that train or compute without a cluster."""

import contextlib

import numpy as np
import psutil
import pytest
import tensorflow as tf

from ps_cluster.tools.bench import arms, keras_arms, limit, running
from ps_cluster.training.building import make_network
from ps_cluster.training.step import TrainStep
from tests.helpers.processes import wait_until

pytestmark = pytest.mark.slow


def test_one_process_trains_by_the_loss_of_the_objective(regression_case, monkeypatch):
    case, regression = regression_case
    monkeypatch.chdir(regression.directory)
    model, optimizer = keras_arms.keras_model(case, regression)
    model.set_weights([np.zeros_like(weights) for weights in model.get_weights()])
    step = keras_arms.keras_step(case, regression, model, optimizer)
    first, *_, last = [float(step(tf.constant(number, tf.int64))) for number in range(9)]
    assert 0.7 < first < 1.4, "of an output of 0, the mean: about one squared standard deviation"
    assert last < first


def test_the_limit_needs_all_of_every_gradient(regression_case, monkeypatch):
    case, regression = regression_case
    monkeypatch.chdir(regression.directory)
    network, start = make_network(case, regression, "/device:CPU:0")
    step = TrainStep(case, network, regression.spec, train_examples=regression.train_examples)
    vectors = tf.cast(start.weights, case.wire), tf.constant(start.statistics)
    results = [step(tf.constant(number, tf.int64), *vectors) for number in range(8, 8 + limit.STEPS_PER_CALL)]
    sums = [np.sum(np.asarray(one.gradient, np.float64)) + np.sum(one.fresh) + float(one.metric) for one in results]
    assert float(limit.several(step)(tf.constant(8, tf.int64), *vectors)) == pytest.approx(sum(sums), rel=1e-3)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_limit_is_computed_by_processes_that_end_with_it(regression_case, monkeypatch, tmp_path):
    monkeypatch.setenv("OF_THIS_TEST", str(tmp_path))  # which all processes inherit that the arm starts
    case, regression = regression_case
    assert running.rate_of(arms.LIMIT, case, regression) > 0

    def is_of_this_test(process):
        with contextlib.suppress(psutil.Error):
            return process.environ().get("OF_THIS_TEST") == str(tmp_path)

    wait_until(lambda: not any(map(is_of_this_test, psutil.process_iter())), within_s=5)
