"""Every method against the same mathematics in numpy, with workers whose pulls and pushes interleave."""

import uuid

import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.config import STALENESS_METHODS, build_config
from ps_cluster.training.ledger import WORKER_COLUMNS
from ps_cluster.training.parameter_store import ParameterStore
from ps_cluster.training.staleness import METHODS, corrected_momentum, effective_optimizer, make_method
from ps_cluster.training.update_rules import UpdateRule
from tests.helpers.stores import state_of

LENGTH, WORKERS = 5, 3
START = np.array([-1, -0.5, 0.25, 0.5, 2], np.float32)
RATE, DECAY = 0.1, 0.2  # learning rate, weight decay
STRENGTH, MEAN_DECAY = 2.0, 0.9
CORRECTING = [name for name in STALENESS_METHODS if name not in ("none", "momentum")]
WITH_BACKUPS = ["dc_constant", "dc_adaptive", "gap_aware"]

# "<0": worker 0 pulls; "0>": it pushes. Worker 2 is slow, worker 0 pushes twice after one pull.
INTERLEAVED = "<0 <1 <2 0> <0 0> <0 1> 0> 0> <1 2> <2 1> <0 <1 2> 1> 0> <1 1>"


class Server:
    """One slice with a real update rule, put together as the parameter store does."""

    def __init__(self, name, rule="sgd"):
        config = build_config(
            overrides={
                "optimizer.rule": rule,
                "optimizer.momentum": 0.9,
                "optimizer.weight_decay": DECAY,
                "delay_compensation.strength": STRENGTH,
                "delay_compensation.decay": MEAN_DECAY,
            }
        )
        with tf.device("/device:CPU:0"):
            self.weights = tf.Variable(START)
            self.method = make_method(name, config.delay_compensation, self.weights, WORKERS)
            self.rule = UpdateRule(config.optimizer, self.weights, np.ones(LENGTH, np.float32))
            self.section = tf.CriticalSection(shared_name=f"staleness-{uuid.uuid4()}")

    @tf.function(autograph=False)
    def pull(self, worker):
        def read():
            weights = self.weights.read_value()
            with tf.control_dependencies(self.method.on_pull(worker, weights)):
                return tf.identity(weights)

        return self.section.execute(read)

    @tf.function(autograph=False)
    def push(self, worker, staleness, gradient):
        def apply():
            before = tf.identity(self.weights.read_value())
            corrected, rate = self.method.correct(gradient, tf.constant(RATE), worker, staleness)
            with tf.control_dependencies([before]):
                applied = self.rule.apply(tf.identity(corrected), tf.identity(rate), tf.constant(0, tf.int64))
            with tf.control_dependencies([applied]), tf.control_dependencies(self.method.after_update(before)):
                return tf.identity(corrected), tf.identity(rate)

        return self.section.execute(apply)


class Reference:
    """The same in numpy and float64, from the formulas of the papers."""

    def __init__(self, name, rule="sgd"):
        self.name, self.momentum = name, 0.9 if rule == "momentum" else 0.0
        self.weights = START.astype(np.float64)
        self.velocity, self.mean_square = np.zeros(LENGTH), np.zeros(LENGTH)
        self.backups, self.steps = {}, []

    def pull(self, worker):
        self.backups[worker] = self.weights.copy()

    def push(self, worker, staleness, gradient):
        g, rate = self.correct(worker, staleness, gradient.astype(np.float64))
        before = self.weights
        self.velocity = self.momentum * self.velocity - rate * g
        self.weights = before - rate * DECAY * before + self.velocity
        self.steps.append(self.weights - before)
        return g, rate

    def correct(self, worker, staleness, g):
        moved = self.weights - self.backups.get(worker, self.weights)
        if self.name == "inverse" and staleness:
            return g, RATE / staleness
        if self.name == "dc_constant":
            return g + STRENGTH * g * g * moved, RATE
        if self.name == "dc_adaptive":
            self.mean_square = MEAN_DECAY * self.mean_square + (1 - MEAN_DECAY) * g**2
            return g + STRENGTH / np.sqrt(self.mean_square + 1e-7) * g * g * moved, RATE
        if self.name == "gap_aware" and self.steps:
            # The bias-corrected average written out: the weights of the steps, newest last, sum to one.
            shares = 0.999 ** np.arange(len(self.steps))[::-1]
            usual = np.sqrt(shares @ np.square(self.steps) / shares.sum())
            return g / (np.abs(moved) / usual + 1), RATE
        return g, RATE


def replay(events, *sides, seed=0):
    """Runs the events on all sides; returns what each `push` answered, a list a side, and the stalenesses."""
    random = np.random.default_rng(seed)
    version, pulled, stalenesses, answers = 0, {}, [], [[] for _ in sides]
    for event in events.split():
        worker = int(event.strip("<>"))
        if event.startswith("<"):
            pulled[worker] = version
            for side in sides:
                side.pull(tf.constant(worker, tf.int64) if isinstance(side, Server) else worker)
            continue
        gradient = random.normal(size=LENGTH).astype(np.float32)
        stalenesses.append(version - pulled.get(worker, version))
        for side, own in zip(sides, answers):
            if isinstance(side, Server):
                ids = tf.constant(worker, tf.int64), tf.constant(stalenesses[-1], tf.int64)
                own.append([tensor.numpy() for tensor in side.push(*ids, tf.constant(gradient))])
            else:
                own.append(side.push(worker, stalenesses[-1], gradient))
        version += 1
    return answers, stalenesses


def assert_same(actual, expected):
    for (gradient, rate), (expected_gradient, expected_rate) in zip(actual, expected, strict=True):
        np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(rate, expected_rate, rtol=1e-5)


def test_every_method_of_the_configuration_is_there():
    assert tuple(METHODS) == STALENESS_METHODS


@pytest.mark.parametrize("rule", ["sgd", "momentum"])
@pytest.mark.parametrize("name", STALENESS_METHODS)
def test_interleaved_workers_get_what_numpy_computes(name, rule):
    server, reference = Server(name, rule), Reference(name, rule)
    (actual, expected), stalenesses = replay(INTERLEAVED, server, reference)
    assert 0 in stalenesses and 1 in stalenesses and max(stalenesses) >= 4
    assert_same(actual, expected)
    np.testing.assert_allclose(server.weights.numpy(), reference.weights, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", CORRECTING)
def test_a_stale_gradient_is_corrected_and_a_fresh_one_is_not(name):
    (actual, plain), stalenesses = replay(INTERLEAVED, Server(name), Reference("none"))
    for (gradient, rate), (same, _), staleness in zip(actual, plain, stalenesses):
        unchanged = np.array_equal(gradient, same.astype(np.float32)) and rate == np.float32(RATE)
        # Inverse staleness divides by one as well.
        assert unchanged == (staleness == 0 or name == "inverse" and staleness == 1)


def test_inverse_staleness_divides_the_learning_rate():
    method, gradient = Server("inverse").method, tf.ones([LENGTH])
    rates = [method.correct(gradient, tf.constant(0.6), None, tf.constant(s, tf.int64))[1] for s in (0, 1, 2, 3)]
    assert [float(rate) for rate in rates] == pytest.approx([0.6, 0.6, 0.3, 0.2])


@pytest.mark.parametrize("name", WITH_BACKUPS)
def test_a_worker_that_never_pulled_is_not_corrected(name):
    server = Server(name)
    (actual, plain), _ = replay("<0 0> 0> 1> 0> 2>", server, Reference("none"))
    corrected = [
        not np.array_equal(gradient, same.astype(np.float32)) for (gradient, _), (same, _) in zip(actual, plain)
    ]
    assert corrected == [False, True, False, True, False]


@pytest.mark.parametrize("name", WITH_BACKUPS)
def test_a_restored_method_goes_on_and_corrects_again_after_the_next_pull(name):
    first, second, reference = Server(name), Server(name), Reference(name)
    replay(INTERLEAVED, first, reference)
    second.weights.assign(first.weights)
    for slot, value in first.method.slots.items():
        second.method.slots[slot].assign(value)
    reference.backups.clear()
    (actual, expected), _ = replay("2> <0 <1 0> 1> 2> <2 0> 1> 2>", second, reference, seed=1)
    assert_same(actual, expected)


@pytest.mark.parametrize("name", STALENESS_METHODS)
def test_only_vectors_of_the_slices_length_are_in_the_checkpoint(name):
    method = Server(name).method
    assert all(slot.shape == [LENGTH] and slot.dtype == tf.float32 for slot in method.slots.values())
    assert method.needs_step == (name == "gap_aware")


def test_a_weight_that_never_moves_leaves_gap_aware_finite():
    server = Server("gap_aware")
    server.weights.assign(np.zeros(LENGTH))
    worker = tf.constant(0, tf.int64)
    server.pull(worker)
    for staleness in range(3):
        gradient = tf.constant([0, 1, 0, 1, 0], tf.float32)
        corrected, _ = server.push(worker, tf.constant(staleness, tf.int64), gradient)
    assert corrected.numpy()[[0, 2, 4]].tolist() == [0, 0, 0]
    assert (corrected.numpy()[[1, 3]] > 0).all() and (corrected.numpy()[[1, 3]] < 0.5).all()


def operations_before(tensor):
    """The operations that a tensor waits for, by data and by control dependency."""
    seen, todo = set(), [tensor.op]
    while todo:
        operation = todo.pop()
        if operation not in seen:
            seen.add(operation)
            todo += [source.op for source in operation.inputs] + list(operation.control_inputs)
    return seen


def graph_of(function, *shapes_and_types):
    """The graph of a function as it was built: a `tf.function` orders what is stateful, and hides what is missing."""
    return tf.compat.v1.wrap_function(function, [tf.TensorSpec(*pair) for pair in shapes_and_types]).graph


def stateful_operations(graph):
    kinds = ("ReadVariableOp", "AssignVariableOp", "ResourceGather", "ResourceScatterUpdate")
    return {operation for operation in graph.get_operations() if operation.type in kinds}


VECTOR, NUMBER, WHOLE = ([LENGTH], tf.float32), ([], tf.float32), ([], tf.int64)


@pytest.mark.parametrize("name", WITH_BACKUPS)
def test_gradient_and_learning_rate_wait_for_all_reads_and_writes(name):
    """Weight decay, which needs the learning rate alone, would change the weights ahead of the read."""
    graph = graph_of(Server(name).method.correct, VECTOR, NUMBER, WHOLE, WHOLE)
    assert len(stateful_operations(graph)) >= 3
    for output in graph.outputs:
        assert stateful_operations(graph) <= operations_before(output)


@pytest.mark.parametrize("name", WITH_BACKUPS)
def test_who_waits_for_what_a_pull_or_an_update_returns_waits_for_all_its_writes(name):
    method = Server(name).method

    def waits(function, *arguments):
        with tf.control_dependencies(function(*arguments)):
            return tf.constant(0)

    pull = graph_of(lambda worker, given: waits(method.on_pull, worker, given), WHOLE, VECTOR)
    update = graph_of(lambda before: waits(method.after_update, before), VECTOR)
    assert len(stateful_operations(pull)) == 2 and bool(stateful_operations(update)) == method.needs_step
    for graph in (pull, update):
        assert stateful_operations(graph) <= operations_before(graph.outputs[0])


def test_the_corrected_momentum_and_that_of_asynchrony_lead_to_the_one_asked_for():
    assert corrected_momentum(0.9, 1) == pytest.approx(0.9)
    assert corrected_momentum(0.9, 2) == pytest.approx(0.4)
    assert corrected_momentum(0.9, 8) == pytest.approx(0.025)
    assert corrected_momentum(0.9, 16) == 0
    assert corrected_momentum(0.0, 4) == 0
    for workers in (1, 2, 4, 8):
        recursion = np.polymul([1, -corrected_momentum(0.9, workers)], [1, -(1 - 1 / workers)])
        assert -recursion[1] == pytest.approx(0.9)


@pytest.mark.parametrize("name", CORRECTING)
def test_a_slice_does_with_every_method_what_numpy_does(name):
    settings = {"optimizer.rule": "sgd", "optimizer.weight_decay": DECAY, "training.staleness_method": name}
    settings |= {"delay_compensation.strength": STRENGTH, "delay_compensation.decay": MEAN_DECAY}
    config = build_config(overrides=settings | {"model.precision": "float32", "training.steps": 50})
    nothing = np.zeros(0, np.float32)
    store = ParameterStore(
        ["/device:CPU:0"], START, nothing, np.ones(LENGTH, np.float32), config=config, total_steps=50
    )
    pull, push = (tf.function(part, autograph=False) for part in (lambda w: vars(store.pull(w)), store.push))
    reference, random, pulled, steps = Reference(name), np.random.default_rng(1), {}, 0
    for event in INTERLEAVED.split():
        worker = int(event.strip("<>"))
        if event.startswith("<"):
            pulled[worker] = pull(tf.constant(worker, tf.int64))
            reference.pull(worker)
            assert pulled[worker]["weights"].numpy() == pytest.approx(reference.weights, rel=1e-4, abs=1e-6)
        else:
            gradient, version = random.normal(size=LENGTH).astype(np.float32), pulled[worker]["versions"]
            row = dict.fromkeys(WORKER_COLUMNS, 0.0) | {"worker": worker, "learning_rate": RATE}
            push(
                tf.constant(steps, tf.int64),
                version,
                tf.constant(gradient),
                tf.zeros([0]),
                tf.constant([*row.values()], tf.float64),
            )
            reference.push(worker, steps - int(version[0]), gradient)
            steps += 1
    assert state_of(store)["weights"] == pytest.approx(reference.weights, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(
    ("method", "simulated", "momentum"), [("momentum", 8, 0.025), ("momentum", None, 0.9 - 2 / 3), ("none", 8, 0.9)]
)
def test_momentum_is_corrected_for_the_workers_that_staleness_comes_from(method, simulated, momentum):
    values = {"training.staleness_method": method, "training.simulate_workers": simulated}
    config = build_config(overrides=values | {"optimizer.rule": "momentum", "optimizer.momentum": 0.9})
    expected = config.optimizer.model_copy(update={"momentum": pytest.approx(momentum)})
    assert effective_optimizer(config) == expected


def test_a_slice_takes_the_momentum_of_asynchrony_off_the_optimizers():
    weights = {}
    for method, momentum in (("momentum", 0.9), ("none", corrected_momentum(0.9, 3))):
        settings = {"optimizer.rule": "momentum", "optimizer.momentum": momentum, "optimizer.weight_decay": 0.0}
        config = build_config(overrides=settings | {"model.precision": "float32", "training.staleness_method": method})
        store = ParameterStore(
            ["/device:CPU:0"], START, np.zeros(0, np.float32), np.ones(LENGTH, np.float32), config=config, total_steps=5
        )
        for step in range(5):
            row = dict.fromkeys(WORKER_COLUMNS, 0.0) | {"learning_rate": RATE}
            version = store.pull(tf.constant(0, tf.int64)).versions
            values = tf.constant([*row.values()], tf.float64)
            store.push(tf.constant(step, tf.int64), version, tf.ones(LENGTH), tf.zeros([0]), values)
        weights[method] = state_of(store)["weights"]
    assert (weights["momentum"] == weights["none"]).all() and (weights["none"] != START).all()
