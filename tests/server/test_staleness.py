"""Every method against the same mathematics in numpy, with workers whose pulls and pushes interleave."""

import uuid
from contextlib import nullcontext

import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.config import build_config
from ps_cluster.config.equations import ArrivedParts
from ps_cluster.config.optimizer_rules import RULES
from ps_cluster.config.setting_types import COMPILED
from ps_cluster.config.staleness_methods import METHODS
from ps_cluster.server.initial_state import InitialState
from ps_cluster.server.staleness.correction import Arrival
from ps_cluster.server.staleness.inverse import InverseCorrection, InverseSettings
from ps_cluster.server.staleness.momentum import corrected_momentum
from ps_cluster.server.store import ParameterStore, StepPush
from ps_cluster.server.update_rules.rule import Gradient, make_rule
from tests.helpers.stores import eagerly, make_store, pull, row, run_quadratic, state_of

LENGTH, WORKERS = 5, 3
START = np.array([-1, -0.5, 0.25, 0.5, 2], np.float32)
NOTHING = np.zeros(0, np.float32)
BEGINNING = InitialState(START, np.ones(LENGTH, np.float32), statistics=NOTHING, keep=NOTHING)
RATE, FALL, DECAY = 0.1, 0.8, 0.2  # learning rate, by which it falls from update to update, weight decay
MOMENTUM = 0.9
STRENGTH, MEAN_DECAY = 2.0, 0.9
NAMES = [name for name in METHODS.names if name != COMPILED]  # no shard has the method that stands for another one
ARRIVALS = ("drop", "gather", "same_version", "ordered_momentum", "predict")  # tests/server/test_arrival_policies.py
WITH_BACKUPS = ["dc_constant", "dc_adaptive", "gap_aware"]

# "<0": worker 0 pulls; "0>": it pushes. Worker 2 is slow, worker 0 pushes twice after one pull.
INTERLEAVED = "<0 <1 <2 0> <0 0> <0 1> 0> 0> <1 2> <2 1> <0 <1 2> 1> 0> <1 1>"


RULES_OF_SHARES = ("momentum", "nesterov", "adam", "rmsprop", "adagrad", "ftrl")


def decay_of(rule):
    return 0.0 if rule == "ftrl" else DECAY  # which has none


def own_of(method):
    """The settings of the method itself, as the reference has them."""
    known, fields = {"strength": STRENGTH, "decay": MEAN_DECAY}, METHODS[method].Settings.model_fields
    return {f"staleness.{key}": value for key, value in known.items() if key in fields}


class Server:
    """One shard with a real update rule, put together as the parameter store does."""

    def __init__(self, name, rule="sgd", decay=None, **own):
        values = {
            "optimizer.rule": rule,
            "optimizer.weight_decay": decay_of(rule) if decay is None else decay,
            "staleness.method": name if rule != "sgd" or name != "momentum" else "none",
        }
        momentum = {"optimizer.momentum": MOMENTUM} if "momentum" in RULES[rule].Settings.model_fields else {}
        own = {f"staleness.{key}": value for key, value in own.items()}
        config = build_config(overrides=values | momentum | own_of(name) | own)
        self.settings = config.staleness
        with tf.device("/device:CPU:0"):
            self.weights = tf.Variable(START)
            self.method = METHODS[name].correction(self.settings, self.weights, WORKERS, WORKERS)
            self.rule = make_rule(config.optimizer, self.weights, np.ones(LENGTH, np.float32))
            self.section = tf.CriticalSection(shared_name=f"staleness-{uuid.uuid4()}")
        self.version = 0

    def pull(self, worker):
        self._pull(tf.constant(worker, tf.int64))

    def push(self, worker, staleness, gradient, rate):
        numbers = (tf.constant(number, tf.int64) for number in (worker, staleness, self.version))
        self.version += 1
        return [tensor.numpy() for tensor in self._push(*numbers, tf.constant(gradient), tf.constant(rate, tf.float32))]

    @tf.function(autograph=False)
    def _pull(self, worker):
        def read():
            weights = self.weights.read_value()
            with tf.control_dependencies(self.method.on_pull(worker, weights)):
                return tf.identity(weights)

        return self.section.execute(read)

    @tf.function(autograph=False)
    def _push(self, worker, staleness, version, gradient, rate):
        def apply():
            before = tf.identity(self.weights.read_value())
            corrected, gradient_scale = self.method.correct(gradient, Arrival(worker, version - staleness, version))
            with tf.control_dependencies([before]):
                applied = self.rule.apply(Gradient(tf.identity(corrected), rate, version, gradient_scale))
            with tf.control_dependencies([applied]), tf.control_dependencies(self.method.after_update(before, rate)):
                return tf.identity(corrected), tf.ones([LENGTH]) * (1.0 if gradient_scale is None else gradient_scale)

        return self.section.execute(apply)


class Reference:
    """The same in numpy and float64, from the formulas of the papers."""

    def __init__(self, name, rule="sgd"):
        self.name, self.rule = name, rule
        self.weights = START.astype(np.float64)
        self.mean, self.variance = np.zeros(LENGTH), np.zeros(LENGTH)  # momentum's velocity is a mean, too
        self.squares = np.full(LENGTH, 0.1)  # of adagrad and ftrl
        self.mean_squares = np.zeros([WORKERS, LENGTH])
        self.backups, self.steps, self.rates = {}, [], []

    def pull(self, worker):
        self.backups[worker] = self.weights.copy()

    def push(self, worker, staleness, gradient, rate):
        g, gradient_scale = self.correct(worker, staleness, gradient.astype(np.float64))
        before = self.weights
        self.weights = (
            before - rate * gradient_scale * decay_of(self.rule) * before + self.step(g, gradient_scale, rate)
        )
        self.steps.append((self.weights - before) / rate)
        self.rates.append(rate)
        return g, gradient_scale * np.ones(LENGTH)

    def step(self, g, gradient_scale, rate):
        if self.rule == "rmsprop":
            self.variance = 0.9 * self.variance + 0.1 * g**2
            self.mean = MOMENTUM * self.mean - rate * gradient_scale * g / np.sqrt(self.variance + 1e-7)
            return self.mean
        if self.rule == "adagrad":
            self.squares = self.squares + g**2
            return -rate * gradient_scale * g / (np.sqrt(self.squares) + 1e-7)
        if self.rule == "ftrl":
            root, grown = np.sqrt(self.squares), np.sqrt(self.squares + g**2)
            self.mean = self.mean + rate * gradient_scale * g - (grown - root) * self.weights
            self.squares = self.squares + g**2
            return -self.mean / grown - self.weights
        if self.rule != "adam":
            self.mean = (0 if self.rule == "sgd" else MOMENTUM) * self.mean - rate * gradient_scale * g
            return MOMENTUM * self.mean - rate * gradient_scale * g if self.rule == "nesterov" else self.mean
        count = len(self.steps) + 1
        self.mean = MOMENTUM * self.mean + (1 - MOMENTUM) * gradient_scale * g
        self.variance = 0.999 * self.variance + 0.001 * g**2
        mean, variance = self.mean / (1 - MOMENTUM**count), self.variance / (1 - 0.999**count)
        return -rate * mean / (np.sqrt(variance) + 1e-7 / np.sqrt(1 - 0.999**count))

    def correct(self, worker, staleness, g):
        moved = self.weights - self.backups.get(worker, self.weights)
        if self.name == "inverse" and staleness:
            return g, 1 / staleness
        if self.name == "delay_adaptive":
            return g, min(1, WORKERS / (staleness + 1))
        if self.name == "dc_constant":
            return g + STRENGTH * g * g * moved, 1.0
        if self.name == "dc_adaptive":
            self.mean_squares[worker] = MEAN_DECAY * self.mean_squares[worker] + (1 - MEAN_DECAY) * g**2
            return g + STRENGTH / np.sqrt(self.mean_squares[worker] + 1e-7) * g * g * moved, 1.0
        if self.name == "gap_aware" and self.steps:
            # The bias-corrected average written out: the weights of the steps, newest last, sum to one.
            shares = 0.999 ** np.arange(len(self.steps))[::-1]
            usual = max(self.rates) * np.sqrt(shares @ np.square(self.steps) / shares.sum())
            return g, 1 / (np.abs(moved) / usual + 1)
        return g, 1.0


def replay(events, *sides, seed=0, first=0):
    """Runs the events on all sides; returns what each `push` answered, a list a side, and the stalenesses."""
    random = np.random.default_rng(seed)
    version, pulled, stalenesses, answers = 0, {}, [], [[] for _ in sides]
    for event in events.split():
        worker = int(event.strip("<>"))
        if event.startswith("<"):
            pulled[worker] = version
            for side in sides:
                side.pull(worker)
            continue
        gradient = random.normal(size=LENGTH).astype(np.float32)
        stalenesses.append(version - pulled.get(worker, version))
        for side, own in zip(sides, answers):
            own.append(side.push(worker, stalenesses[-1], gradient, RATE * FALL ** (first + version)))
        version += 1
    return answers, stalenesses


def assert_same(actual, expected):
    for (gradient, gradient_scale), (expected_gradient, expected_share) in zip(actual, expected, strict=True):
        np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(gradient_scale, expected_share, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        *((name, "sgd") for name in NAMES if name not in ARRIVALS),
        # Those that scale a gradient: each rule applies the scale in its own way.
        *((name, rule) for name in ("inverse", "gap_aware") for rule in RULES_OF_SHARES),
    ],
)
def test_interleaved_workers_get_what_numpy_computes(name, rule):
    server, reference = Server(name, rule), Reference(name, rule)
    with eagerly() if rule != "sgd" else nullcontext():  # the order in a graph is that of the method, whatever the rule
        (actual, expected), stalenesses = replay(INTERLEAVED, server, reference)
    assert 0 in stalenesses and 1 in stalenesses and max(stalenesses) >= 4
    assert_same(actual, expected)
    np.testing.assert_allclose(server.weights.numpy(), reference.weights, rtol=1e-5, atol=1e-6)


class WithEquation(Server):
    """A shard that also computes every correction by the `equation` of its method, and compares the two."""

    def __init__(self, name, **own):
        super().__init__(name, **own)
        self.name = name

    def parts(self, worker):
        """Return the weights, the slots, and the worker's rows of slots with a row for each worker, all float64."""
        state = {name: value.numpy() for name, value in (self.method.slots | self.method.backups).items()}
        rows = {name: value[worker] if value.ndim == 2 else value for name, value in state.items()}
        return {name: np.atleast_1d(values).astype(np.float64) for name, values in rows.items()}

    def push(self, worker, staleness, gradient, rate):
        arrived = ArrivedParts(
            gradient.astype(np.float64), staleness, self.version, WORKERS,
            weights=self.weights.numpy().astype(np.float64), slots=self.parts(worker),
        )  # fmt: skip
        expected = METHODS[self.name].equation(self.settings, arrived)
        answer = super().push(worker, staleness, gradient, rate)
        scale = 1.0 if expected.gradient_scale is None else expected.gradient_scale
        assert_same([answer], [(expected.gradient, scale * np.ones(LENGTH))])
        after = self.parts(worker)
        for slot, value in (expected.slots or {}).items():
            np.testing.assert_allclose(after[slot], value, rtol=1e-5, atol=1e-7)
        return answer


@pytest.mark.parametrize(
    ("name", "own"), [*((name, {}) for name in NAMES), ("inverse", {"fades_over": 12}), ("gather", {"gather": 2})]
)
def test_the_equation_of_a_method_says_what_its_shard_computes(name, own):
    (answers,), stalenesses = replay(INTERLEAVED, WithEquation(name, **own))
    assert len(answers) == len(stalenesses) and max(stalenesses) >= 4


def is_unscaled(answer, plain):
    """Whether a gradient is applied as it is, all of it."""
    (gradient, gradient_scale), (same, _) = answer, plain
    return bool(np.array_equal(gradient, same.astype(np.float32)) and np.all(gradient_scale == 1))


def test_the_scaling_of_inverse_fades_over_the_updates_that_are_given():
    method = InverseCorrection(InverseSettings(method="inverse", fades_over=100), tf.Variable([0.0]), WORKERS, WORKERS)

    def gradient_scale(staleness, now):
        arrival = Arrival(None, tf.constant(now - staleness, tf.int64), tf.constant(now, tf.int64))
        return float(method.correct(tf.ones([1]), arrival)[1])

    # 4^-p with p = 1 - 36/100, 1 - 50/100, 0.
    assert [
        gradient_scale(4, 36),
        gradient_scale(4, 50),
        gradient_scale(4, 100),
        gradient_scale(4, 10_000),
    ] == pytest.approx([4**-0.64, 0.5, 1, 1])
    assert gradient_scale(0, 0) == gradient_scale(1, 1) == 1


def test_gap_aware_measures_the_gap_in_steps_of_the_highest_rate():
    server, ones = Server("gap_aware", decay=0), np.ones(LENGTH, np.float32)  # so that each step is the learning rate
    for rate in [RATE / 2] * 10 + [RATE] * 60 + [RATE / 10] * 10:  # as a schedule rises and falls
        server.pull(0)
        server.push(0, 0, ones, rate)
    server.pull(1)
    for _ in range(5):
        server.pull(0)
        server.push(0, 0, ones, RATE / 10)
    _, gradient_scale = server.push(1, 5, ones, RATE / 10)
    np.testing.assert_allclose(gradient_scale, 1 / (1 + 5 / 10), rtol=1e-3)


@eagerly()
def test_a_resume_with_other_workers_keeps_the_rows_of_those_that_are_still_there():
    adaptive = {"staleness.method": "dc_adaptive"}
    three = make_store(2, values=adaptive)
    run_quadratic(three, 5, np.zeros(7, np.float32))
    three.push(StepPush(tf.constant(5, tf.int64), pull(three).versions, tf.ones(7), tf.zeros([3]), row(worker=2)))
    before = state_of(three)["slot_mean_square"]
    assert before[[0, 2]].any(axis=1).all()
    for workers in (2, 5):
        others = make_store(2, values=adaptive | {"cluster.workers": workers})
        others.restore(state_of(three))
        rows = state_of(others)["slot_mean_square"]
        assert rows.shape == (workers, 7) and np.array_equal(rows[:3], before[:workers]) and not rows[3:].any()


@pytest.mark.parametrize("name", WITH_BACKUPS)
def test_a_worker_that_never_pulled_is_not_corrected(name):
    server = Server(name)
    (actual, plain), _ = replay("<0 0> 0> 1> 0> 2>", server, Reference("none"))
    whole = [is_unscaled(*answers) for answers in zip(actual, plain)]
    assert whole == [True, False, True, False, True]


@pytest.mark.parametrize("name", WITH_BACKUPS)
def test_a_restored_method_goes_on_and_corrects_again_after_the_next_pull(name):
    first, second, reference = Server(name), Server(name), Reference(name)
    replay(INTERLEAVED, first, reference)
    second.weights.assign(first.weights)
    for slot, value in first.method.slots.items():
        second.method.slots[slot].assign(value)
    reference.backups.clear()
    (actual, expected), _ = replay("2> <0 <1 0> 1> 2> <2 0> 1> 2>", second, reference, seed=1, first=first.version)
    assert_same(actual, expected)


@pytest.mark.parametrize("name", NAMES)
def test_only_vectors_of_the_shards_length_and_single_numbers_are_in_the_checkpoint(name):
    method = Server(name).method
    shapes = ([LENGTH], [WORKERS, LENGTH], [])
    assert all(slot.shape in shapes and slot.dtype == tf.float32 for slot in method.slots.values())
    assert method.needs_step == (name in ("gap_aware", "predict"))


def test_a_weight_that_never_moves_leaves_gap_aware_finite():
    server = Server("gap_aware")
    server.weights.assign(np.zeros(LENGTH))
    server.pull(0)
    for staleness in range(3):
        gradient, gradient_scale = server.push(0, staleness, np.array([0, 1, 0, 1, 0], np.float32), RATE)
    assert (gradient * gradient_scale)[[0, 2, 4]].tolist() == [0, 0, 0]
    assert (gradient_scale[[1, 3]] > 0).all() and (gradient_scale[[1, 3]] < 0.5).all()


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
def test_the_gradient_waits_for_all_reads_and_writes(name):
    """The update waits for the gradient, and would otherwise change the weights ahead of the read."""
    method = Server(name).method
    graph = graph_of(lambda g, *given: method.correct(g, Arrival(*given))[0], VECTOR, WHOLE, WHOLE, WHOLE)
    assert len(stateful_operations(graph)) >= 3
    assert stateful_operations(graph) <= operations_before(graph.outputs[0])


@pytest.mark.parametrize("name", WITH_BACKUPS)
def test_who_waits_for_what_a_pull_or_an_update_returns_waits_for_all_its_writes(name):
    method = Server(name).method

    def waits(function, *arguments):
        with tf.control_dependencies(function(*arguments)):
            return tf.constant(0)

    pull = graph_of(lambda worker, given: waits(method.on_pull, worker, given), WHOLE, VECTOR)
    update = graph_of(lambda before, rate: waits(method.after_update, before, rate), VECTOR, NUMBER)
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


@pytest.mark.parametrize("name", ["gap_aware", "dc_adaptive"])
def test_a_shard_does_with_a_method_what_numpy_does(name):
    settings = {"optimizer.rule": "sgd", "optimizer.weight_decay": DECAY, "staleness.method": name}
    settings |= own_of(name)
    config = build_config(overrides=settings | {"model.precision": "float32", "training.steps": 50})
    store = ParameterStore(["/device:CPU:0"], [BEGINNING], config=config, total_steps=50)
    pulling, push = (tf.function(part, autograph=False) for part in (lambda w: vars(store.pull(w)), store.push))
    reference, random, pulled, steps = Reference(name), np.random.default_rng(1), {}, 0
    for event in INTERLEAVED.split():
        worker = int(event.strip("<>"))
        if event.startswith("<"):
            pulled[worker] = pulling(tf.constant(worker, tf.int64))
            reference.pull(worker)
            assert pulled[worker]["weights"].numpy() == pytest.approx(reference.weights, rel=1e-4, abs=1e-6)
        else:
            gradient, version = random.normal(size=LENGTH).astype(np.float32), pulled[worker]["versions"]
            info = row(RATE, worker)
            push(StepPush(tf.constant(steps, tf.int64), version, tf.constant(gradient), tf.zeros([0]), info))
            reference.push(worker, steps - int(version[0]), gradient, RATE)
            steps += 1
    assert state_of(store)["weights"] == pytest.approx(reference.weights, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(
    ("method", "simulated", "momentum"), [("momentum", 8, 0.025), ("momentum", None, 0.9 - 2 / 3), ("none", 8, 0.9)]
)
def test_momentum_is_corrected_for_the_workers_that_staleness_comes_from(method, simulated, momentum):
    values = {"staleness.method": method, "mode.simulate_workers": simulated}
    config = build_config(overrides=values | {"optimizer.rule": "momentum", "optimizer.momentum": 0.9})
    expected = config.optimizer.model_copy(update={"momentum": pytest.approx(momentum)})
    assert METHODS[method].optimizer(config) == expected


def test_a_shard_takes_the_momentum_of_asynchrony_off_the_optimizers():
    weights = {}
    for method, momentum in (("momentum", 0.9), ("none", corrected_momentum(0.9, 3))):
        settings = {"optimizer.rule": "momentum", "optimizer.momentum": momentum, "optimizer.weight_decay": 0.0}
        config = build_config(overrides=settings | {"model.precision": "float32", "staleness.method": method})
        store = ParameterStore(["/device:CPU:0"], [BEGINNING], config=config, total_steps=5)
        for step in range(5):
            store.push(
                StepPush(tf.constant(step, tf.int64), pull(store).versions, tf.ones(LENGTH), tf.zeros([0]), row(RATE))
            )
        weights[method] = state_of(store)["weights"]
    assert (weights["momentum"] == weights["none"]).all() and (weights["none"] != START).all()
