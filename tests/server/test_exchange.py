"""An exchange is a push and the pull that follows, in one critical section."""

import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.config import build_config
from ps_cluster.runs.run_dir import IDENTITY
from ps_cluster.server.shard import APPLIED, NO_STEP, REFUSED, ParameterShard
from ps_cluster.server.store import StepPush
from ps_cluster.training.modes.elastic import ElasticShard
from ps_cluster.training.step import StepResult
from ps_cluster.training.worker import steps_graph
from tests.helpers.exhaustive import mostly
from tests.helpers.stores import NO_EXAMPLES, Plain, eagerly, ledger_of, make_store, pull, row, state_of
from tests.helpers.waiting import identity, run_workers

STEPS = 12


def gradient_of(weights, step):
    return weights[..., :7] * 0 + tf.cast(step % 5, weights.dtype) - 2


def pushed_and_pulled(store):
    """Take STEPS steps, each a pull and a push. Returns all that was pulled."""
    seen = []
    for step in range(STEPS):
        pulled = store.pull(identity(0), step=identity(step), asks_for_step=True)
        seen.append(pulled)
        moved = gradient_of(tf.reshape(pulled.weights, [-1, 7])[0], step)
        store.push(StepPush(identity(step), pulled.versions, moved, tf.ones_like(pulled.statistics), row()))
    return seen


def exchanged(store):
    """Take the same steps, each an exchange but for one pull at the beginning. Returns all that was pulled."""
    messages, seen = store.pull_messages(identity(0), [], identity(0)), []
    for step in range(STEPS):
        pulled = store.read_messages(messages, asks_for_step=True)
        seen.append(pulled)
        following = step + 1 if step + 1 < STEPS else NO_STEP
        moved = gradient_of(tf.reshape(pulled.weights, [-1, 7])[0], step)
        fresh = tf.ones_like(pulled.statistics)
        messages = store.exchange(StepPush(identity(step), pulled.versions, moved, fresh, row()), identity(following))
    assert store.outcomes(messages).numpy().tolist() == [APPLIED] * len(store.shards)
    *vectors, numbers = tf.nest.flatten(messages[0])
    assert {vector.shape[0] for vector in vectors} == {0} and numbers.shape[0] == 3, "nothing follows"
    return seen


@pytest.mark.parametrize(
    ("shards", "kind", "wire", "values"),
    [
        (1, ParameterShard, "float32", {}),
        (1, ParameterShard, "bfloat16", {"mode.simulate_workers": 6}),
        pytest.param(2, ParameterShard, "bfloat16", {"staleness.method": "dc_adaptive"}, marks=pytest.mark.exhaustive),
        (1, ElasticShard, "bfloat16", {"mode.name": "elastic", "optimizer.rule": "sgd"}),
    ],
    ids=["one shard", "emulated workers", "two shards with a method that remembers pulls", "elastic"],
)
def test_exchanges_pull_and_leave_the_same_bits_as_pulls_and_pushes(shards, kind, wire, values):
    stores = [make_store(shards, wire=wire, kind=kind, values=values) for _ in range(2)]
    for apart, together in zip(pushed_and_pulled(stores[0]), exchanged(stores[1]), strict=True):
        for field in ("weights", "statistics", "versions", "is_replay"):
            assert vars(together)[field].numpy().tobytes() == vars(apart)[field].numpy().tobytes(), field
    one, other = ({name: array.tobytes() for name, array in state_of(store).items()} for store in stores)
    assert one == other
    (first, *_), (second, *_) = (ledger_of(store)[0] for store in stores)
    for column in ("step", "version", "staleness"):
        assert first[column].tolist() == second[column].tolist()


@pytest.mark.slow
def test_no_update_comes_between_a_push_and_the_answer_to_it():
    store = make_store(1, rule="sgd")

    @tf.function(autograph=False)
    def exchange(step, versions, info):
        answer = store.exchange(StepPush(step, versions, tf.ones([7]), tf.zeros([3]), info), identity(0))
        return store.read_messages(answer, asks_for_step=True).versions

    exchange.get_concrete_function(identity(0), tf.constant([0], tf.int64), row())
    answered = {}

    def work(worker):
        for step in range(worker, 300, 3):
            answered[step] = exchange(identity(step), pull(store).versions, row(worker=worker)).numpy().tolist()

    run_workers(work)
    ((rows,), _) = ledger_of(store)
    assert [answered[step] for step in range(300)] == [[int(version)] for version in rows["version"]]


@eagerly()
def test_the_answer_to_a_replay_is_not_applied_and_says_what_the_ledger_has():
    store = make_store(2, rule="sgd")

    def exchange(step, following):
        pulled = pull(store)
        push = StepPush(identity(step), pulled.versions, tf.ones([7]), tf.zeros([3]), row())
        answer = store.exchange(push, identity(following))
        return store.read_messages(answer, asks_for_step=True), store.outcomes(answer).numpy().tolist()

    assert [exchange(0, 1)[1], exchange(1, 2)[1]] == [[APPLIED] * 2] * 2
    weights = pull(store).weights.numpy()
    after_first, outcomes = exchange(0, 1)
    assert after_first.is_replay and outcomes == [REFUSED] * 2, "step 1 was accepted"
    again, _ = exchange(1, 2)
    assert not again.is_replay and (again.weights.numpy() == weights).all()
    assert [counts["refused"] for counts in ledger_of(store)[1]] == [2, 2]


@pytest.mark.parametrize("shards", mostly([1, 2], 2))
def test_a_dispatch_pulls_once_and_gives_the_same_weights_as_a_dispatch_for_each_step(shards, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.array([0, 1], np.int64).tofile(IDENTITY)
    config = build_config(overrides={"cluster.wire": "float32", "training.steps": 400})

    def compute(step, weights, statistics, limits):
        gradient = weights * tf.cast(step + 1, tf.float32)
        return StepResult(gradient, tf.ones_like(statistics), *(tf.constant(0.1),) * 3, *NO_EXAMPLES)

    states = []
    for dispatches in ([[0, 1, 2, 3, 4, 5]], [[0], [1], [2], [3], [4], [5]]):
        store = make_store(shards)
        run = steps_graph(store, Plain(compute), config)
        for step_ids in dispatches:
            assert run(tf.constant(step_ids, tf.int64), tf.constant(0.0, tf.float64)) == len(step_ids)
        rows, _counts = ledger_of(store)
        for own in rows:
            assert own["staleness"].tolist() == [0] * 6 and own["version"].tolist() == [1, 2, 3, 4, 5, 6]
        in_order = rows[0]
        # Within a dispatch a step has its parameters before it begins, and they come after the update before it.
        assert (in_order["asked_time"][1:] >= in_order["applied_time"][:-1]).all()
        states.append(state_of(store)["weights"])
    assert states[0].tobytes() == states[1].tobytes()
