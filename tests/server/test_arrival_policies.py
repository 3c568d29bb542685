"""Methods that drop late gradients, gather several or predict weights, against numbers computed by hand."""

from contextlib import nullcontext

import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.config import build_config
from ps_cluster.config.staleness_methods import METHODS
from ps_cluster.errors import UserError
from ps_cluster.runs.run_dir import IDENTITY
from ps_cluster.server.shard import APPLIED, DROPPED, REFUSED
from ps_cluster.server.store import StepPush
from ps_cluster.training.step import StepResult
from ps_cluster.training.worker import steps_graph
from tests.helpers.exhaustive import mostly
from tests.helpers.stores import LENGTH, NO_EXAMPLES, Plain, eagerly, ledger_of, make_store, pull, row, state_of
from tests.helpers.waiting import identity

START, RATE = np.linspace(-1, 1, LENGTH), 0.5
GRADIENTS = np.random.default_rng(2).normal(size=[12, LENGTH])


def store_of(method, shards=1, **settings):
    values = {"staleness.method": method} | {f"staleness.{name}": value for name, value in settings.items()}
    return make_store(shards, values=values, rule="sgd")


def pushed(store, *turns):
    """Push the gradient of each (step, version pulled); return the outcomes."""
    outcomes = []
    for step, version in turns:
        versions = tf.constant([version] * len(store.shards), tf.int64)
        gradient = tf.constant(GRADIENTS[step], tf.float32)
        outcomes.append(
            int(tf.reduce_max(store.push(StepPush(identity(step), versions, gradient, tf.zeros([3]), row(RATE)))))
        )
    return outcomes


def weights_after(*gradients):
    return pytest.approx(START - RATE * np.sum(gradients, axis=0), abs=1e-5)


@pytest.mark.parametrize("shards", [1, 3])
@eagerly()
def test_a_gradient_of_too_many_versions_ago_is_dropped_and_may_come_again(shards):
    store = store_of("drop", shards, max_delay=2)
    outcomes = pushed(store, (0, 0), (1, 0), (2, 0), (3, 2), (2, 3), (2, 3), (4, 0))
    assert outcomes == [APPLIED, APPLIED, DROPPED, APPLIED, APPLIED, REFUSED, DROPPED]
    assert state_of(store)["weights"] == weights_after(*GRADIENTS[[0, 1, 2, 3]])
    rows, counts = ledger_of(store)
    for own, numbers in zip(rows, counts):
        assert own["staleness"].tolist() == [0, 1, 0, 0] and own["staleness"].max() < 2
        assert (numbers["version"], numbers["dropped"], numbers["refused"]) == (4, 2, 1)


@pytest.mark.parametrize(
    ("values", "kept"),
    [({"cluster.max_workers": 8}, 6), ({"mode.simulate_workers": 5}, 10), ({"cluster.workers": 1}, 2)],
)
@eagerly()
def test_the_usual_staleness_is_that_of_workers_that_train_or_are_emulated(values, kept):
    """Not that of places for workers that `scale` may add. A gradient may be twice the usual staleness late."""
    store = make_store(values={"staleness.method": "drop", **values}, rule="sgd", steps=20)
    outcomes = pushed(store, *((step, 0) for step in range(12)))
    assert outcomes == [APPLIED] * kept + [DROPPED] * (12 - kept)


@pytest.mark.parametrize("shards", mostly([1, 3], 3))
def test_k_gradients_change_the_weights_together_each_for_less_the_more_changes_it_missed(shards):
    store = store_of("gather", shards, gather=3)
    assert pushed(store, (0, 0), (1, 0)) == [APPLIED] * 2
    assert state_of(store)["weights"] == weights_after(0 * GRADIENTS[0]), "two of three are there"
    pushed(store, (2, 1))
    first = GRADIENTS[:3].sum(axis=0) / 3
    assert state_of(store)["weights"] == weights_after(first), "all saw the newest weights, whatever the version"
    pushed(store, (3, 3), (4, 2))  # 4 was pulled before the change
    pushed(store, (5, 4))
    second = (GRADIENTS[3] + GRADIENTS[4] / np.sqrt(2) + GRADIENTS[5]) / 3
    assert state_of(store)["weights"] == weights_after(first, second)
    pushed(store, (6, 0))  # it missed two changes
    other = store_of("gather", shards, gather=3)
    other.restore(state_of(store))
    pushed(other, (7, 6), (8, 6))
    third = (GRADIENTS[6] / np.sqrt(3) + GRADIENTS[7] + GRADIENTS[8]) / 3
    assert state_of(other)["weights"] == weights_after(first, second, third), "what was gathered is in checkpoints"
    assert [numbers["version"] for numbers in ledger_of(other)[1]] == [9] * shards


@eagerly()
def test_a_method_with_any_correction_may_gather_gradients(monkeypatch):
    monkeypatch.setattr(type(METHODS["none"]), "gathered_gradients", lambda self, config: 2)
    store = store_of("none")
    pushed(store, (0, 0), (1, 0), (2, 0))
    assert state_of(store)["weights"] == weights_after(GRADIENTS[:2].mean(axis=0))


@eagerly()
def test_only_gradients_of_the_newest_weights_are_gathered():
    store = store_of("same_version", gather=2)
    assert pushed(store, (0, 0), (1, 0), (2, 0), (2, 1), (2, 2), (3, 3)) == [
        *[APPLIED] * 2, *[DROPPED] * 2, *[APPLIED] * 2,
    ]  # fmt: skip
    means = GRADIENTS[:2].mean(axis=0), GRADIENTS[2:4].mean(axis=0)
    assert state_of(store)["weights"] == weights_after(*means)


@pytest.mark.parametrize("shards", mostly([1, 3], 3))
def test_with_ordered_momentum_a_gradient_has_the_place_of_its_pull(shards):
    """Worker 2 is slow: the gradient that it pulled first comes in bucket 2. By hand, with three workers and beta 0.5."""
    store = store_of("ordered_momentum", shards, momentum=0.5)
    g = GRADIENTS
    pushed(store, (0, 0), (1, 0))
    assert state_of(store)["weights"] == weights_after(1.5 * g[0], 1.5 * g[1]), "with version 1 bucket 1 begins"
    pushed(store, (3, 1), (4, 2), (5, 2), (2, 0))  # arrivals 2, 3, 4 and 5; with the fifth bucket 2 begins
    first, second = g[0] + g[1] + g[2], g[3] + g[4] + g[5]
    assert state_of(store)["weights"] == weights_after(first * (1 + 0.5 + 0.25), second * (1 + 0.5))


@eagerly()
def test_with_emulated_workers_a_bucket_of_ordered_momentum_has_a_version_for_each_of_them():
    """Three workers emulate six, so bucket 1 has the versions 1 to 6. Computed by hand with beta 0.5."""
    values = {"staleness.method": "ordered_momentum", "staleness.momentum": 0.5, "mode.simulate_workers": 6}
    store, g = make_store(values=values, rule="sgd"), GRADIENTS
    pushed(store, (0, 0), *((step, 1) for step in range(1, 7)))
    late, first = 1.5 * g[0], g[1:7].sum(axis=0)
    assert state_of(store)["weights"] == weights_after(late, first)
    pushed(store, (7, 7))  # begins bucket 2
    assert state_of(store)["weights"] == weights_after(late, first, 0.5 * (0.5 * g[0] + first), g[7])


@eagerly()
def test_ordered_momentum_ends_where_momentum_with_batches_of_k_gradients_does():
    """Of any order of arrival, once all gradients of the buckets are there."""
    buckets = GRADIENTS[:9].reshape(3, 3, LENGTH)  # pulled at versions 0 | 1 to 3 | 4 to 6
    pulls = [0, 0, 0, 1, 2, 3, 4, 5, 6]
    velocity, weights = np.zeros(LENGTH), START
    for bucket in buckets:
        velocity = 0.5 * velocity + bucket.sum(axis=0)
        weights = weights - RATE * velocity
    velocity, weights = 0.5 * velocity, weights - RATE * 0.5 * velocity  # bucket 3 has begun with arrival 7
    for order in ([0, 1, 2, 3, 4, 5, 6, 7, 8], [0, 1, 3, 4, 2, 6, 5, 8, 7]):
        store = store_of("ordered_momentum", momentum=0.5)
        pushed(store, *((step, pulls[step]) for step in order))
        arrays = state_of(store)
        assert arrays["weights"] == pytest.approx(weights, abs=1e-5)
        assert arrays["slot_ordered"] == pytest.approx(velocity, abs=1e-5)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"staleness.method": "ordered_momentum", "optimizer.rule": "adam"}, "already adds momentum: choose sgd"),
        ({"staleness.method": "drop", "staleness.stop": True}, "mode async has no local steps"),
        ({"staleness.method": "drop", "staleness.max_delay": 5, "mode.simulate_workers": 8},
         "staleness.max_delay: got 5: .* at least 5 versions old"),
        ({"staleness.method": "same_version", "mode.simulate_workers": 4}, "mode.simulate_workers: got 4"),
    ],
)  # fmt: skip
def test_what_does_not_fit_a_method_is_refused(values, told):
    with pytest.raises(UserError, match=told):
        build_config(overrides={"optimizer.rule": "sgd"} | values)


def pulled_and_pushed(store, *events):
    """Carry out "<0" (worker 0 pulls) and "0>" (it pushes twice what it pulled); return what was pulled, in order."""
    held, seen = {}, []
    for step, event in enumerate(events):
        worker = int(event.strip("<>"))
        if event.startswith("<"):
            held[worker] = pull(store, worker)
            seen.append(held[worker].weights.numpy())
            continue
        gradient = tf.cast(2 * held[worker].weights, tf.float32)
        store.push(StepPush(identity(step), held[worker].versions, gradient, tf.zeros([3]), row(RATE / 10, worker)))
    return np.array(seen)


PULLS_AND_PUSHES = "<0 <1 <2 0> <0 1> 2> <1 <2 0> 0> 2> <2 1> <1 2> <0 <2"


@pytest.mark.parametrize(("rule", "shards"), [("sgd", 1), ("momentum", 1), ("adam", 3)])
def test_a_worker_gets_the_weights_that_are_expected_when_its_gradient_arrives(rule, shards):
    events = PULLS_AND_PUSHES.split()
    weights, step, versions, tau = START, np.zeros(LENGTH), 0, np.zeros(3)
    velocity, mean, variance, held, expected = np.zeros(LENGTH), 0.0, 0.0, {}, []
    for event in events:
        worker = int(event.strip("<>"))
        if event.startswith("<"):
            held[worker] = weights + tau[worker] * step, versions
            expected.append(held[worker][0])
            continue
        (given, version), before = held[worker], weights
        tau[worker] = 0.9 * tau[worker] + 0.1 * (versions - version)
        versions += 1
        gradient, rate = 2 * given, RATE / 10
        weights = weights - rate * 0.1 * weights
        if rule == "adam":
            mean, variance = 0.9 * mean + 0.1 * gradient, 0.999 * variance + 0.001 * gradient**2
            weights = weights - rate * mean / (1 - 0.9**versions) / (np.sqrt(variance / (1 - 0.999**versions)) + 1e-7)
        else:
            velocity = (0.9 if rule == "momentum" else 0) * velocity - rate * gradient
            weights = weights + velocity
        step = weights - before
    momentum = {} if rule == "sgd" else {"optimizer.momentum": 0.9}
    values = {"staleness.method": "predict"} | momentum
    store = make_store(shards, values=values, rule=rule, weight_decay=0.1)
    with nullcontext() if shards > 1 else eagerly():
        seen = pulled_and_pushed(store, *events)
    assert seen == pytest.approx(np.array(expected), rel=1e-4, abs=1e-6)
    assert np.abs(seen[-1] - state_of(store)["weights"]).max() > 1e-3, "it is not the newest"
    other = make_store(shards, values=values, rule=rule, weight_decay=0.1)
    other.restore(state_of(store))
    assert pull(other, 1).weights.numpy() == pytest.approx(weights, rel=1e-4), "how late it will be is learned anew"


@eagerly()
def test_an_emulated_worker_gets_what_was_expected_at_the_version_that_it_pulls():
    values = {"staleness.method": "predict", "mode.simulate_workers": 5, "cluster.workers": 1}
    store = make_store(values=values, rule="sgd")  # 4 versions back
    weights, tau, rate, expected = [START, START], 0.0, RATE / 10, []
    for version in range(12):
        old = max(0, version - 4)
        expected.append(weights[old + 1] + tau * (weights[old + 1] - weights[old]))
        tau = 0.9 * tau + 0.1 * (version - old)
        weights.append(weights[-1] - rate * 2 * expected[-1])
    assert pulled_and_pushed(store, *["<0", "0>"] * 12) == pytest.approx(np.array(expected), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("repeats", mostly([False, True], True))
@pytest.mark.parametrize("method", mostly(["drop", "same_version"], "drop"))
def test_a_worker_computes_a_dropped_step_again_from_what_the_answer_brought(method, repeats, tmp_path, monkeypatch):
    """Another worker's three pushes come between its first pull and its first push."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / IDENTITY).write_bytes(np.array([0, 1], np.int64).tobytes())
    settings = {"max_delay": 2} if method == "drop" else {"gather": 1}
    store, computed = store_of(method, 2, **settings), tf.Variable(tf.zeros([8], tf.int64))
    config = build_config(overrides={"cluster.wire": "float32", "staleness.method": method})

    def compute(step, weights, statistics, limits):
        taken = computed.scatter_add(tf.IndexedSlices(tf.constant([1], tf.int64), step[None]))
        with tf.control_dependencies([taken]):
            first = tf.equal(tf.reduce_sum(computed.read_value()), 1)
        others = tf.cond(first, lambda: tf.py_function(in_between, [], tf.int64), lambda: tf.constant(0, tf.int64))
        with tf.control_dependencies([others]):
            numbers = *[tf.constant(0.0)] * 2, tf.constant(RATE), *NO_EXAMPLES
            return StepResult(weights - tf.cast(step, tf.float32), tf.zeros([3]), *numbers)

    @eagerly()  # a graph inside a graph's Python function waits for a second thread, which one core does not have
    def in_between():
        pushed(store, (9, 0), (10, 0 if method == "drop" else 1), (11, 2))
        return 0

    before = START - RATE * GRADIENTS[9:12].sum(axis=0)
    run = steps_graph(store, Plain(compute), config, repeats=repeats)
    run(tf.constant([0, 1], tf.int64), tf.constant(0.0, tf.float64))
    assert computed.numpy()[:2].tolist() == [2, 1], "step 0 twice"
    expected = before - RATE * (before - 0)
    assert state_of(store)["weights"] == pytest.approx(expected - RATE * (expected - 1), abs=1e-5)
    rows, counts = ledger_of(store)
    assert [own["step"].tolist() for own in rows] == [[0, 1, 9, 10, 11]] * 2
    assert [numbers["dropped"] for numbers in counts] == [1, 1]


def test_a_store_says_whether_its_method_drops_gradients():
    assert store_of("drop").drops and not store_of("gather").drops
