"""The parameter store on this process's own device: the same graph that runs on a parameter server."""

from functools import partial

import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.config import build_config
from ps_cluster.config.modes import MODES
from ps_cluster.errors import UserError
from ps_cluster.runs.checkpoints import Checkpoint
from ps_cluster.runs.resharding import is_aligned, resharded
from ps_cluster.runs.run_dir import IDENTITY
from ps_cluster.server.shard import APPLIED, REFUSED, ParameterShard, Push
from ps_cluster.server.store import StepPush
from ps_cluster.training.modes.bounded import BoundedShard
from ps_cluster.training.step import StepResult
from tests.helpers.stores import (
    LENGTH,
    NO_EXAMPLES,
    Plain,
    eagerly,
    ledger_of,
    make_store,
    pull,
    quadratic_step,
    row,
    run_quadratic,
    state_of,
)
from tests.helpers.waiting import identity, run_workers

RULES = ["sgd", "momentum", "nesterov", "adam", "rmsprop", "adagrad", "ftrl"]
TARGET = np.array([3, -2, 0.5, 1, 0, -1, 2], np.float32)
FACTORS = np.array([1, 1, 0, 2, 1, 0.5, 1])
L1, L2 = 0.7, 0.4  # of ftrl
OWN = {  # the settings of each rule
    **{rule: {"momentum": 0.9} for rule in ("momentum", "nesterov", "adam", "rmsprop")},
    "ftrl": {"l1": L1, "l2": L2 / 2},
}


def reference(rule, steps, *, decay=0.0, factors=np.ones(LENGTH), momentum=0.9, learning_rate=0.1):
    """The same mathematics in numpy, in float64."""
    w = np.linspace(-1, 1, LENGTH)
    m, v = np.zeros(LENGTH), np.full(LENGTH, 0.1 if rule in ("adagrad", "ftrl") else 0.0)
    for t in range(1, steps + 1):
        g = w - TARGET
        w = w - learning_rate * decay * (factors != 0) * w
        if rule == "adam":
            m = momentum * m + (1 - momentum) * g
            v = 0.999 * v + 0.001 * g * g
            rate = learning_rate * np.sqrt(1 - 0.999**t) / (1 - momentum**t)
            w = w - factors * rate * m / (np.sqrt(v) + 1e-7)
        elif rule == "rmsprop":
            v = 0.9 * v + 0.1 * g * g
            m = momentum * m + learning_rate * g / np.sqrt(v + 1e-7)
            w = w - factors * m
        elif rule == "adagrad":
            v = v + g * g
            w = w - learning_rate * factors * g / (np.sqrt(v) + 1e-7)
        elif rule == "ftrl":  # the paper's algorithm 1, where m is z, and a weight's own rate is its alpha
            alpha, root = learning_rate * np.where(factors == 0, 1, factors), np.sqrt(v + g * g)
            m = m + g - (root - np.sqrt(v)) / alpha * w
            shrunk = np.where(np.abs(m) <= L1, 0, -(m - np.sign(m) * L1) / (root / alpha + L2))
            v, w = v + g * g, np.where(factors == 0, w, shrunk)
        else:
            m = (momentum if rule != "sgd" else 0) * m - learning_rate * factors * g
            w = w + (momentum * m - learning_rate * factors * g if rule == "nesterov" else m)
    return w


@pytest.mark.parametrize("rule", RULES)
@eagerly()
def test_a_quadratic_equals_the_same_mathematics_in_numpy(rule):
    store = make_store(rule=rule, learning_rate_factors=[], **OWN.get(rule, {}))
    assert run_quadratic(store, 12, TARGET) == pytest.approx(reference(rule, 12), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(
    ("rule", "shards"), [("nesterov", 2), ("adam", 1), ("rmsprop", 1), ("adagrad", 1), ("ftrl", 1)]
)
def test_decoupled_decay_and_factors_equal_numpy(rule, shards):
    decay = 0.0 if rule == "ftrl" else 0.2
    store = make_store(shards, rule=rule, weight_decay=decay, factors=FACTORS, **OWN.get(rule, {}))
    expected = reference(rule, 50, decay=decay, factors=FACTORS)
    weights = run_quadratic(store, 50, TARGET)
    assert weights == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert weights[2] == np.linspace(-1, 1, LENGTH, dtype=np.float32)[2]  # its factor is 0


@eagerly()
def test_a_step_pushed_twice_is_applied_once_and_the_replay_counted():
    store = make_store(2)
    run = quadratic_step(store, TARGET)
    assert run(tf.constant(5, tf.int64), row()).numpy().tolist() == [APPLIED, APPLIED]
    weights = state_of(store)["weights"]
    assert run(tf.constant(5, tf.int64), row()).numpy().tolist() == [REFUSED, REFUSED]
    rows, counts = ledger_of(store)
    assert counts == [{"version": 1, "accepted": 1, "refused": 1, "dropped": 0}] * 2
    assert [own["step"].tolist() for own in rows] == [[5], [5]]
    assert (state_of(store)["weights"] == weights).all()


@eagerly()
def test_a_step_that_only_one_shard_has_is_applied_on_the_other_alone():
    store = make_store(2)
    pulled = pull(store)
    one = store.shards[0]
    weights, statistics = pulled.weights[: one.length], pulled.statistics[:2]
    one.push(Push(tf.constant(0, tf.int64), pulled.versions[0], weights, statistics, row()))
    assert quadratic_step(store, TARGET)(tf.constant(0, tf.int64), row()).numpy().tolist() == [REFUSED, APPLIED]
    rows, counts = ledger_of(store)
    assert counts[0] == {"version": 1, "accepted": 1, "refused": 1, "dropped": 0}
    assert counts[1] == {"version": 1, "accepted": 1, "refused": 0, "dropped": 0}
    assert [own["step"].tolist() for own in rows] == [[0], [0]]


@pytest.mark.parametrize(
    ("mode", "kind", "shards"),
    [("async", ParameterShard, 2), pytest.param("bounded", BoundedShard, 1, marks=pytest.mark.slow)],
)
def test_a_step_that_all_shards_have_is_not_computed_again_and_one_that_a_shard_lacks_is(
    mode, kind, shards, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    np.array([0, 1], np.int64).tofile(IDENTITY)
    store, computed = make_store(shards, kind=kind, values={"mode.name": mode}), tf.Variable(tf.zeros([4], tf.int32))

    def compute(step, weights, statistics, limits):
        with tf.control_dependencies([computed.scatter_nd_add([[step]], [1])]):
            return StepResult(weights - TARGET, tf.ones_like(statistics), *(tf.constant(0.1),) * 3, *NO_EXAMPLES)

    config = build_config(overrides={"mode.name": mode, "cluster.wire": "float32"})
    run = config.chosen_mode.dispatch(store, Plain(compute), config, repeats=True)
    pulled, one = pull(store), store.shards[0]
    if shards > 1:  # a worker died between its pushes of step 0
        weights, statistics = pulled.weights[: one.length], pulled.statistics[:2]
        one.push(Push(identity(0), pulled.versions[0], weights, statistics, row()))
    run(tf.constant([0, 1], tf.int64), tf.constant(0.0, tf.float64))
    weights = state_of(store)["weights"]
    run(tf.constant([0, 1, 2], tf.int64), tf.constant(0.0, tf.float64))
    run(tf.constant([1, 3], tf.int64), tf.constant(0.0, tf.float64))
    assert computed.numpy().tolist() == [1, 1, 1, 1]
    rows, counts = ledger_of(store)
    assert [own["step"].tolist() for own in rows] == [[0, 1, 2, 3]] * shards
    assert [own["refused"] for own in counts] == [4 if shards > 1 else 3, 3][:shards], "replays are counted"
    assert not np.array_equal(state_of(store)["weights"], weights)


def test_three_hundred_pushes_of_three_threads_are_applied_three_hundred_times():
    store = make_store(2, rule="sgd")
    run = quadratic_step(store, TARGET)
    run(tf.constant(0, tf.int64), row())

    def work(worker):
        for step in range(1 + worker, 300, 3):
            run(tf.constant(step, tf.int64), row(worker=worker))

    run_workers(work)
    rows, counts = ledger_of(store)
    assert counts == [{"version": 300, "accepted": 300, "refused": 0, "dropped": 0}] * 2
    assert state_of(store)["statistics"].tolist() == [300.0] * 3, "no contribution to the statistics is lost"
    for own in rows:
        version, staleness = own["version"], own["staleness"]
        assert own["step"].tolist() == list(range(300)) and sorted(version) == list(range(1, 301))
        assert (staleness >= 0).all() and (staleness < version).all()
        in_order = own[np.argsort(version)]
        times = np.stack([in_order[name] for name in ("entered_time", "applied_time")], axis=1)
        assert (np.diff(times.ravel()) >= 0).all(), "one update at a time"


@eagerly()
def test_staleness_is_the_version_applied_to_less_the_version_read():
    store = make_store(1)
    old = pull(store)
    run = quadratic_step(store, TARGET)
    for step in range(4):
        run(tf.constant(step, tf.int64), row())
    store.push(StepPush(tf.constant(9, tf.int64), old.versions, old.weights, old.statistics, row()))
    (rows,), _ = ledger_of(store)
    assert rows["step"].tolist() == [0, 1, 2, 3, 9] and rows["staleness"].tolist() == [0, 0, 0, 0, 4]


def test_each_row_is_read_once_in_the_order_in_which_it_was_accepted():
    store = make_store(2)
    run = quadratic_step(store, TARGET)

    def push(*steps):
        for step in steps:
            run(tf.constant(step, tf.int64), row())

    push(1, 0, 4)
    first = store.read_ledgers([0, 0])
    assert [rows["step"].tolist() for rows in first.rows] == [[1, 0, 4]] * 2
    assert [rows["version"].tolist() for rows in first.rows] == [[1, 2, 3]] * 2
    push(3, 2, 2)
    assert [rows["step"].tolist() for rows in store.read_ledgers([3, 1]).rows] == [[3, 2], [0, 4, 3, 2]]
    arrays, then = store.snapshot([5, 4], closed=2)
    assert [rows["step"].tolist() for rows in then.rows] == [[], [2]] and (arrays["counts"] == then.counts).all()
    assert arrays["accepted_steps"].tolist() == [[2, 3, 4, 5]] * 2, "2 are closed; each of the others + 1"


@eagerly()
def test_a_restored_store_goes_on_exactly_where_the_snapshot_was():
    whole, first, second = (make_store(rule="adam") for _ in range(3))
    run_quadratic(whole, 20, TARGET)
    run_quadratic(first, 10, TARGET)
    second.restore(state_of(first))
    run = quadratic_step(second, TARGET)
    for step in range(20):  # the first ten are in the ledger and refused
        run(tf.constant(step, tf.int64), row())
    assert (state_of(second)["weights"] == state_of(whole)["weights"]).all()
    expected = {"version": 20, "accepted": 20, "refused": 10, "dropped": 0}
    assert ledger_of(second)[1] == [expected]
    (new,) = second.read_ledgers([10]).rows
    assert new["step"].tolist() == list(range(10, 20))


def test_bfloat16_on_the_wire_keeps_the_stored_weights_in_float32():
    store = make_store(1, wire="bfloat16", rule="sgd")
    assert pull(store).weights.dtype == tf.bfloat16
    quadratic_step(store, TARGET)(tf.constant(0, tf.int64), row())
    weights = state_of(store)["weights"]
    assert weights.dtype == np.float32
    rounded = tf.cast(np.linspace(-1, 1, LENGTH, dtype=np.float32), tf.bfloat16)
    gradient = tf.cast(rounded - tf.cast(TARGET, tf.bfloat16), tf.float32).numpy()
    assert weights == pytest.approx(np.linspace(-1, 1, LENGTH) - 0.1 * gradient, abs=1e-6)


KEPT = [  # what is kept beside the weights: vectors, rows of workers, numbers of shards, slow weights
    {"rule": "adam", "values": {"staleness.method": "gap_aware", "lookahead.every_updates": 2}},
    {"rule": "sgd", "values": {"mode.name": "elastic"}},
]


@pytest.mark.parametrize("settings", KEPT, ids=str)
@eagerly()
def test_a_state_cut_for_other_numbers_of_shards_and_back_has_the_same_bits(settings):
    mode = MODES[settings["values"].get("mode.name", "async")]
    make = partial(make_store, kind=mode.shard, **settings)
    store = make(2)
    for step in range(3):
        pulled = pull(store, worker=step % 2)
        statistics, info = tf.ones_like(pulled.statistics), row(worker=step % 2)
        store.push(StepPush(tf.constant(step, tf.int64), pulled.versions, tf.constant(TARGET), statistics, info))
    begun = found = Checkpoint(3, state_of(store) | {"waiting": np.zeros([0, 1])})
    for shards in (1, 3, 2):
        assert is_aligned(found.arrays)
        store, found = make(shards), resharded(found, shards)
        store.restore(found.arrays)
        found = Checkpoint(3, state_of(store) | {"waiting": found.arrays["waiting"]})
    assert found.arrays.keys() == begun.arrays.keys()
    assert all(array.tobytes() == begun.arrays[name].tobytes() for name, array in found.arrays.items())


@pytest.mark.parametrize(
    ("kind", "value", "told"),
    [
        ("state", 0, "Own.state: 'own' is a single number: give it the shape [1], or let `slots` return it"),
        ("state", np.zeros(2, np.float16), "Own.state: 'own' is float16: checkpoints hold bool, float32, float64, "
         "int32, int64, uint8"),
        ("slots", [0], "Own.slots: 'own' is int32: a slot has to be float32"),
        ("slots", [0.0, 0.0], "Own.slots: 'own' has the shape [2]: a slot is a single number, or its last axis has a "
         "number for each of the shard's 7 weights; let `state` return this variable instead"),
    ],
)  # fmt: skip
def test_state_of_a_users_shard_that_no_checkpoint_can_hold_is_told_before_training(kind, value, told):
    with pytest.raises(UserError) as error:
        make_store(kind=shard_with(value, kind))
    assert str(error.value) == told


def test_a_name_that_no_checkpoint_can_hold_is_told_before_training():
    with pytest.raises(UserError, match="^Own.state: got the name 'each_my-own': names in checkpoints, also those of"):
        make_store(kind=shard_with(0.0, "slots", "my-own"))


def shard_with(value, hook="state", name="own"):
    """Return a class of shards whose `state` or `slots` has a variable with this first value and name."""

    def own(shard):
        if not hasattr(shard, "own"):
            shard.own = tf.Variable(value)
        return getattr(super(made, shard), hook) | {name: shard.own}

    made = type("Own", (ParameterShard,), {hook: property(own)})
    return made


@eagerly()
def test_a_users_array_of_another_dtype_is_refused():
    saved = state_of(make_store(2, kind=shard_with(np.array([1.5, 2.5]))))
    told = "the checkpoint does not fit this configuration: its array 'own' is float64, not int64"
    with pytest.raises(UserError, match=told):
        make_store(2, kind=shard_with(np.array([1, 2]))).restore(saved)


@eagerly()
@pytest.mark.parametrize(
    ("saved", "first", "expected"),
    [
        ([1, 2, 3], [0, 0, 0], [1, 2, 3]),
        ([[1, 2]], [[6, 7], [8, 9]], [[1, 2], [8, 9]]),
        ([[1, 2], [3, 4]], [[6, 7]], [[1, 2]]),
    ],
)
def test_a_users_array_is_restored_and_new_workers_have_the_first_values_of_their_rows(saved, first, expected):
    store = make_store(2, kind=shard_with(first))
    store.restore(state_of(make_store(2, kind=shard_with(saved))))
    assert [shard.own.numpy().tolist() for shard in store.shards] == [expected] * 2
