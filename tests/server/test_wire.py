"""Check the compression of pushes (int8 by blocks, or the largest values), whose residual joins the next push.

Also check messages, which pack several vectors into one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.config import build_config
from ps_cluster.errors import UserError
from ps_cluster.private_names import variable_of_process
from ps_cluster.runs.proof import RoundShape, ShardAudit
from ps_cluster.runs.run_dir import IDENTITY
from ps_cluster.server.initial_state import InitialState
from ps_cluster.server.shard import APPLIED, ParameterShard, Push
from ps_cluster.server.store import StepPush
from ps_cluster.server.wire import BLOCK, LARGE_BYTES, Int8, MessageLayout, TopK
from ps_cluster.training.modes.bounded import BoundedShard
from ps_cluster.training.modes.diloco import DilocoShard
from ps_cluster.training.modes.sync_ps import RoundShard
from ps_cluster.training.step import StepResult
from ps_cluster.training.worker_state import ErrorFeedback
from tests.helpers.exhaustive import mostly
from tests.helpers.stores import LENGTH, NO_EXAMPLES, Plain, eagerly, ledger_of, make_store, pull, row, state_of
from tests.helpers.waiting import identity

RANDOM = np.random.default_rng(1)
VECTOR = tf.constant(RANDOM.normal(size=600) * np.repeat([1e-6, 1.0, 1e4], 200), tf.float32)


def seed(number):
    return tf.constant([7, number], tf.int32)


def sent(codec, vector):
    """Return what arrives. Check that each part of the message is as its field says."""
    parts = codec.encode(vector)
    assert [(part.dtype, part.shape[0]) for part in parts] == list(codec.fields)
    return codec.decode(parts).numpy()


def test_int8_sends_whole_steps_of_the_largest_value_of_each_block():
    codec, values = Int8(600), VECTOR.numpy()
    assert codec.fields == ((tf.int8, 3 * BLOCK), (tf.float32, 3)), "a byte a weight, and a scale for each 256"
    arrived = sent(codec, VECTOR)
    for begin in range(0, 600, BLOCK):
        block, given = arrived[begin : begin + BLOCK], values[begin : begin + BLOCK]
        step = np.abs(given).max() / 127
        assert np.abs(block - given).max() <= step / 2 * 1.001
        assert block / step == pytest.approx(np.round(block / step), abs=1e-3)
        assert np.abs(block).max() == pytest.approx(np.abs(given).max(), rel=1e-6)
    assert not sent(codec, tf.zeros(600)).any(), "a block of zeros has a step of 0"


def test_what_is_rounded_arrives_as_it_is_and_its_mean_has_no_bias():
    codec = Int8(600)
    run = tf.function(codec.rounded, autograph=False)
    rounded = np.stack([run(VECTOR, seed(number)).numpy() for number in range(2000)])
    for one in rounded[:50]:
        assert sent(codec, tf.constant(one)) == pytest.approx(one, rel=1e-5)
    step = np.repeat([np.abs(VECTOR[i : i + BLOCK]).max() / 127 for i in range(0, 600, BLOCK)], BLOCK)[:600]
    error = (rounded.mean(axis=0) - VECTOR.numpy()) / step
    assert np.abs(error).max() < 5 * 0.5 / np.sqrt(2000), "5 sigma of a mean of 2,000"
    assert np.abs(rounded - VECTOR.numpy()).max(axis=0).mean() > 0.3 * step.mean(), "single ones are off"


def test_top_k_sends_the_values_that_are_farthest_from_0():
    codec, values = TopK(600, 0.01), VECTOR.numpy()
    assert codec.fields == ((tf.float32, 6), (tf.int32, 6))
    arrived = sent(codec, VECTOR)
    largest = np.argsort(-np.abs(values))[:6]
    assert sorted(np.flatnonzero(arrived)) == sorted(largest) and (arrived[largest] == values[largest]).all()
    assert (codec.rounded(VECTOR, seed(0)).numpy() == arrived).all()
    assert TopK(10, 0.001).fields[0] == (tf.float32, 1), "at least one"


def applied(feedback):
    """Return a function of a step and its gradient: what is pushed, which a single shard applies."""

    @tf.function(autograph=False)
    def push(step, gradient):
        sent = feedback(step, gradient)
        with tf.control_dependencies(sent.settle(tf.constant([APPLIED]))):
            return tf.identity(sent.vector)

    return push


@pytest.mark.parametrize("codec", [Int8(600), TopK(600, 0.01)])
def test_what_a_push_leaves_out_goes_with_the_next_ones(codec):
    push = applied(ErrorFeedback(codec.rounded, [600], seed=3, name=type(codec).__name__))
    total = np.zeros(600)
    for step in range(300):
        total += push(identity(step), VECTOR).numpy()
        if step == 0:
            assert total == pytest.approx(codec.rounded(VECTOR, tf.constant([3, 0])).numpy()), "nothing was left out"
    # Each value has come through but for what is left now, which is as much as was wanted of a few steps.
    left = np.abs(300 * VECTOR.numpy() - total)
    limit = 110 if isinstance(codec, TopK) else 1.1  # ⌈600 / 6⌉ pushes until each has had its turn
    scale = np.array([np.abs(VECTOR[i : i + BLOCK]).max() for i in range(0, 600, BLOCK)]).repeat(BLOCK)[:600]
    assert (left <= limit * np.maximum(scale / 127 if limit < 2 else np.abs(VECTOR).max(), 1e-12)).all()


def test_all_graphs_of_a_training_know_what_its_pushes_left_out():
    codec = TopK(4, 0.25)
    first, repeats = (applied(ErrorFeedback(codec.rounded, [4], 3, name="one training")) for _ in range(2))
    vector = tf.constant([4.0, 3.0, 2.0, 1.0])
    assert first(identity(0), vector).numpy().tolist() == [4, 0, 0, 0]
    assert repeats(identity(1), vector).numpy().tolist() == [0, 6, 0, 0]


@pytest.mark.parametrize("has_files", [True, False])
def test_with_files_what_was_left_out_survives_the_process(has_files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    codec, files = TopK(LENGTH, 0.1), ("one", "other") if has_files else ()
    vector = np.arange(1.0, LENGTH + 1)
    for number, expected in enumerate([LENGTH, 2 * (LENGTH - 1)] if has_files else [LENGTH] * 2):
        with tf.Graph().as_default() as graph:
            run = applied(ErrorFeedback(codec.rounded, [LENGTH], 3, files, name=f"{number}"))
            pushed = run(identity(number), tf.constant(vector, tf.float32))
        # Its variables are its own, as of a process.
        assert tf.compat.v1.Session(graph=graph).run(pushed).max() == expected
    assert len(list(tmp_path.iterdir())) == 2 * has_files


@pytest.mark.parametrize("wire", ["int8", "top_k"])
@pytest.mark.parametrize("shards", [1, 3])
@eagerly()
def test_a_store_applies_what_was_sent_and_pulls_are_in_bfloat16(wire, shards):
    values = {"cluster.top_k_share": 0.3} if wire == "top_k" else {}
    store = make_store(shards, wire=wire, rule="sgd", values=values)
    gradient = tf.constant(RANDOM.normal(size=LENGTH), tf.float32)
    pulled, before = pull(store), state_of(store)["weights"]
    assert pulled.weights.dtype == tf.bfloat16
    wanted = store.rounded(gradient, seed(0))
    store.push(StepPush(identity(0), pulled.versions, wanted, pulled.statistics, row(0.5)))
    assert state_of(store)["weights"] == pytest.approx(before - 0.5 * wanted.numpy(), abs=1e-5)
    assert abs(wanted.numpy() - gradient.numpy()).max() > 1e-4


MESSAGE = ((tf.bfloat16, 5), (tf.float32, 0), (tf.int64, 2), (tf.float64, 3))


def vectors():
    return [
        tf.constant([1, -2, 3.5, 0, 1e30], tf.bfloat16),
        tf.zeros([0]),
        tf.constant([-1, 2**60], tf.int64),
        tf.constant([np.pi, 1e300, -0.0], tf.float64),
    ]


def assert_the_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert one.numpy().tobytes() == other.numpy().tobytes()


def test_small_vectors_travel_as_one_and_come_out_bit_for_bit():
    message = MessageLayout(MESSAGE)
    (packed,) = message.pack(vectors())
    assert packed.dtype == tf.uint8 and packed.shape == [5 * 2 + 2 * 8 + 3 * 8]
    assert_the_same(message.unpack([packed]), vectors())


def test_a_large_vector_travels_by_itself(monkeypatch):
    monkeypatch.setattr("ps_cluster.server.wire.LARGE_BYTES", 3 * 8)
    message = MessageLayout(MESSAGE)
    large, packed = message.pack(vectors())
    assert large.dtype == tf.float64 and packed.shape == [5 * 2 + 2 * 8]
    assert_the_same(message.unpack([large, packed]), vectors())


def test_a_vector_of_another_dtype_is_refused():
    with pytest.raises(TypeError, match="bfloat16 .5. was given float32"):
        MessageLayout(MESSAGE).pack([tf.zeros([5]), *vectors()[1:]])


@pytest.mark.parametrize("length", [5, LARGE_BYTES])
@pytest.mark.parametrize("is_sent", [True, False])
def test_a_short_answer_has_the_tensors_of_a_message_and_its_last_vector_alone(is_sent, length):
    fields = ((tf.bfloat16, length), (tf.float32, 0), (tf.int64, 2))
    vectors, last = [tf.zeros([length], dtype) for dtype, length in fields[:-1]], tf.constant([7, -2], tf.int64)
    layout = MessageLayout(fields, is_sent)
    whole, short = layout.pack([*vectors, last]), layout.short(last)
    assert [(tensor.dtype, len(tensor.shape)) for tensor in short] == [(one.dtype, len(one.shape)) for one in whole]
    assert layout.last(whole).numpy().tolist() == layout.last(short).numpy().tolist() == [7, -2]
    assert sum(tensor.shape[0] * tensor.dtype.size for tensor in short) == 16


def test_a_message_is_as_small_as_promised():
    long = make_store(wire="int8", rule="sgd", length=100_000), make_store(wire="float32", rule="sgd", length=100_000)
    small, large = (store.shards[0].push_message.bytes for store in long)
    assert large > 400_000 and small < 0.26 * large
    assert long[0].shards[0].pull_message.bytes == pytest.approx(200_000, rel=0.01)


SGD = {"optimizer.rule": "sgd", "optimizer.weight_decay": 0.0, "cluster.workers": 1, "training.steps": 400}
TWO_WORKERS = {"cluster.workers": 2}
FRAGMENTS = {
    "mode.name": "diloco", "mode.local_steps": 2, "mode.fragments": True, "cluster.parameter_servers": 2,
    "mode.outer_rate": 1.0, "mode.outer_momentum": 0.0,
}  # fmt: skip
BACKUP = {"mode.name": "sync-ps", "mode.backup_workers": 1, "cluster.workers": 2}
TOO_STALE = TWO_WORKERS | {"staleness.method": "drop", "staleness.max_delay": 1}


@dataclass(frozen=True)
class Lost:
    """Pushes of a worker that are not applied, since another worker's come first, with gradients of 0.

    `before`: (shard, step) of those that come before all. `meanwhile`: (step, version) of those that come while the worker
    computes its step 2 for the first time.
    """

    shards: int = 1
    kind: type[ParameterShard] = ParameterShard
    wire: str = "top_k"
    values: dict[str, Any] = field(default_factory=dict)
    before: Sequence[tuple[int, int]] = ()
    meanwhile: Sequence[tuple[int, int]] = ()


LOST = {
    "all servers have the step": Lost(shards=2, values=TWO_WORKERS, before=[(0, 3), (1, 3)]),
    "one of two servers has the step": Lost(shards=2, wire="int8", values=TWO_WORKERS, before=[(0, 3), (0, 5), (1, 6)]),
    "too stale": Lost(values=TOO_STALE, meanwhile=[(100, 2), (101, 3)]),
    "bounded": Lost(kind=BoundedShard, values={"mode.name": "bounded", "cluster.workers": 2}, before=[(0, 3)]),
    "late for a round": Lost(kind=RoundShard, values=BACKUP, meanwhile=[(5, 2)]),
    "fragments": Lost(2, DilocoShard, "int8", FRAGMENTS, before=[(0, 3), (1, 1)]),
}
STEPS = 8
# Numbers that bfloat16 holds too.
GRADIENTS = np.random.default_rng(5).integers(-127, 127, [2 * STEPS, LENGTH]).astype(np.float32) / 64


def arrive(store, part, step, version=0):
    """Let a push of worker 1 arrive at one shard."""
    own = store.shards[part]
    arguments = tf.zeros([own.length]), tf.zeros([own.statistics_length]), row(1.0, worker=1)
    return own.push(Push(identity(step), identity(version), *arguments))


@pytest.mark.parametrize("name", mostly(LOST, "one of two servers has the step", "late for a round"))
def test_the_gradients_that_count_are_what_was_applied_and_what_is_left_out(name, tmp_path, monkeypatch):
    lost = LOST[name]
    monkeypatch.chdir(tmp_path)
    np.array([0, 1], np.int64).tofile(IDENTITY)
    values = SGD | {"cluster.wire": lost.wire, "cluster.top_k_share": 0.3} | lost.values
    store = make_store(lost.shards, kind=lost.kind, values=values, rule="sgd", statistics=0)
    config, pending = build_config(overrides=values), list(lost.meanwhile)
    for part, step in lost.before:
        arrive(store, part, step)

    def meanwhile(step):
        while pending and step == lost.meanwhile[0][1] * config.steps_per_update:
            arrive(store, 0, *pending.pop(0))
        return step

    def compute(step, weights, statistics, limits=None):
        number = tf.ensure_shape(tf.py_function(meanwhile, [step], tf.int64), []) if pending else step
        gradient = tf.cast(tf.gather(GRADIENTS, number), weights.dtype)
        return StepResult(gradient, tf.zeros_like(statistics), *(tf.constant(1.0),) * 3, *NO_EXAMPLES)

    mode = config.chosen_mode
    nothing = np.zeros(0, np.float32)
    start = InitialState(*(np.ones(LENGTH, np.float32),) * 2, nothing, nothing)
    run = mode.dispatch(store, mode.worker_step(Plain(compute), config, start, nothing), config, repeats=False)
    before, steps = state_of(store)["weights"], range(STEPS)
    run(tf.constant(STEPS if mode.averages else steps, tf.int64), tf.constant(0.0, tf.float64))
    rows, counts = ledger_of(store)
    assert all(own["refused"] + own["dropped"] for own in counts) and not pending, "something was lost"
    ends = np.cumsum([part.length for part in store.shards])
    applied = np.split(before - state_of(store)["weights"], ends[:-1])
    for index, (own, part) in enumerate(zip(rows, store.shards)):
        shard_audit = ShardAudit(RoundShape(config.steps_per_update, 1, 2))
        shard_audit.read(own)
        assert "remainder_before" not in shard_audit.wrong_values
        counted = own["step"][own["worker"] == 0].astype(int)
        assert 0 < len(counted) <= STEPS
        gradients = GRADIENTS[counted]
        name, begin = "left-out", ends[index] - part.length
        if mode.synchrony.takes_local_steps:
            # A shard's exchange brings the steps since the one before: shard 1 has it in the middle of a period.
            first = 2 * counted - index
            gradients = GRADIENTS[first + 1] + np.where(first[:, None] >= 0, GRADIENTS[first], 0)
            name, begin = f"left-out-{index}", 0
        wanted = np.split(gradients.sum(axis=0), ends[:-1])[index]
        left_out = variable_of_process(f"{store.leader_prefix}/{name}/vector", [], tf.float32).read_value().numpy()
        assert np.linalg.norm(left_out) > 0.001
        assert applied[index] + left_out[begin : begin + part.length] == pytest.approx(wanted, abs=1e-4)


def test_a_mode_without_pushes_refuses_it():
    with pytest.raises(UserError, match="cluster.wire: got 'int8': mode sync sends no pushes"):
        build_config(overrides={"mode.name": "sync", "cluster.wire": "int8"})
