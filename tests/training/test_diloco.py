"""Local steps with an optimizer that stays with the worker, and the outer step on the server."""

import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.config import build_config
from ps_cluster.errors import UserError
from ps_cluster.server.update_rules import NesterovUpdate, make_rule
from ps_cluster.training.modes.diloco import DelayedNesterov, OuterRoundShard, OuterShard
from ps_cluster.training.modes.local_steps import STATE_FILES, LocalTraining
from ps_cluster.training.modes.waiting import RoundShard
from ps_cluster.training.step import StepResult
from tests.helpers.stores import LENGTH, make_store, pull, row, state_of
from tests.helpers.waiting import identity

PERIOD, RATE = 4, 0.1
NOTHING = np.zeros(0, np.float32)
ONES = np.ones(LENGTH, np.float32)
START = np.linspace(-1, 1, LENGTH)


def config_of(mode="diloco", **values):
    return build_config(overrides={"mode.name": mode, "mode.local_steps": PERIOD, "optimizer.momentum": 0.9, **values})


def quadratic(batch, weights, statistics):
    """A training step for the gradient of |weights - batch % 5 + 2|^2 / 2."""
    number = tf.cast(batch, tf.float32)
    gradient = weights - tf.cast(batch % 5 - 2, weights.dtype)
    return StepResult(gradient, tf.zeros_like(statistics), number, number + 1, tf.constant(RATE))


def periods(config, factors=ONES):
    """Return a function of (period, weights): the distance of a period, as a new process of a worker computes it."""
    local = LocalTraining(quadratic, config, factors, NOTHING)
    with tf.Graph().as_default() as graph:
        step, weights = tf.compat.v1.placeholder(tf.int64, []), tf.compat.v1.placeholder(tf.float32, [LENGTH])
        run = tf.function(lambda *given: vars(local(*given, tf.zeros([0]))), autograph=False)
        results = {name: tensor for name, tensor in run(step, weights).items()}
    session = tf.compat.v1.Session(graph=graph)  # its variables are its own: as of a process
    return lambda number, values: session.run(results, {step: number, weights: values})


@pytest.fixture(autouse=True)
def workspace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def by_hand(rule, numbers, values):
    """Return the distance of each of several periods of adam or momentum, computed with numpy."""
    state, count, distances = [np.zeros(LENGTH), np.zeros(LENGTH)], 0, []
    for number in numbers:
        weights = np.array(values, np.float64)
        for batch in range(number * PERIOD, (number + 1) * PERIOD):
            gradient, count = weights - (batch % 5 - 2), count + 1
            if rule == "momentum":
                state[0] = 0.9 * state[0] - RATE * gradient
                weights += state[0]
            else:
                state = [0.9 * state[0] + 0.1 * gradient, 0.999 * state[1] + 0.001 * gradient**2]
                mean, square = state[0] / (1 - 0.9**count), state[1] / (1 - 0.999**count)
                weights -= RATE * mean / (np.sqrt(square) + 1e-7)
        distances.append(values - weights)
    return distances


@pytest.mark.parametrize("rule", ["momentum", "adam"])
def test_a_worker_keeps_its_optimizer_from_period_to_period_and_over_its_death(rule):
    config = config_of(**{"optimizer.rule": rule, "optimizer.weight_decay": 0.0})
    expected = by_hand(rule, range(4), START)
    worker = periods(config)
    for number in (0, 1, 2):
        assert worker(number, START)["gradient"] == pytest.approx(expected[number], rel=1e-4, abs=1e-5)
    again = periods(config)
    result = again(3, START)
    assert result["gradient"] == pytest.approx(expected[3], rel=1e-4, abs=1e-5)
    batches = range(3 * PERIOD, 4 * PERIOD)
    assert (result["loss"], result["metric"]) == (np.mean(batches), sum(batches) + PERIOD)


def test_a_file_that_a_dying_worker_left_incomplete_is_passed_over(tmp_path):
    config = config_of(**{"optimizer.rule": "momentum", "optimizer.weight_decay": 0.0})
    worker = periods(config)
    for number in (0, 1):
        worker(number, START)
    newest = max((tmp_path / name for name in STATE_FILES), key=lambda path: path.stat().st_mtime_ns)
    newest.write_bytes(newest.read_bytes()[:-1])
    expected = by_hand("momentum", (0, 2), START)[1]
    assert periods(config)(2, START)["gradient"] == pytest.approx(expected, rel=1e-4, abs=1e-5)
    for name in STATE_FILES:
        (tmp_path / name).write_bytes(b"")
    expected = by_hand("momentum", (2,), START)[0]
    assert periods(config)(2, START)["gradient"] == pytest.approx(expected, rel=1e-4, abs=1e-5)


def steps_of(shape, gradients, versions=None, **values):
    """Push gradients to a store one after the other, each from the newest version; return the weights after each."""
    store = make_store(shape.pop("slices", 1), kind=shape["kind"], values=values, rule="sgd")
    seen = []
    for step, gradient in enumerate(gradients):
        pulled = pull(store, step % 3)
        store.push(identity(step), pulled.versions, tf.constant(gradient, tf.float32), pulled.statistics, row(worker=step % 3))
        seen.append(state_of(store)["weights"])
    return seen


GRADIENTS = np.random.default_rng(0).normal(size=[7, LENGTH])


@pytest.mark.parametrize(("every", "spread"), [(1, 0.0), (3, 0.0), (3, 0.2), (3, 1 / 3)])
@pytest.mark.parametrize("slices", [1, 2])
def test_the_outer_step_is_that_of_algorithm_3_of_the_paper(every, spread, slices):
    values = {"mode.name": "diloco", "mode.momentum_every": every, "mode.momentum_spread": spread}
    seen = steps_of({"kind": OuterShard, "slices": slices}, GRADIENTS, **values)
    weights, momentum, gathered = START.copy(), np.zeros(LENGTH), np.zeros(LENGTH)
    for number, gradient in enumerate(GRADIENTS):
        gathered += gradient
        if (number + 1) % every == 0:
            momentum = 0.9 * momentum + gathered / every
            weights = weights - 0.7 * ((1 - spread * every + spread) * 0.9 * momentum + gradient / every)
            gathered = np.zeros(LENGTH)
        else:
            weights = weights - 0.7 * (spread * 0.9 * momentum + gradient / every)
        assert seen[number] == pytest.approx(weights, rel=1e-4, abs=1e-5)
