"""Rows that appear with their keys: admitted, evicted, expired, saved and restored as a table in plain Python says."""

from functools import cached_property

import keras
import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.layers import DynamicEmbedding
from ps_cluster.models.embedding_tables import TableCall, Tables
from ps_cluster.models.flat import FlatNetwork, assign
from ps_cluster.models.keyed_rows import EMPTY, KeyedTableLayout
from ps_cluster.runs.checkpoint_arrays import KEYED
from ps_cluster.runs.checkpoints import Checkpoint
from ps_cluster.runs.resharding import resharded
from ps_cluster.runs.result_rows import KeyedUse
from ps_cluster.server.shard import APPLIED, REFUSED
from ps_cluster.server.store import StepPush
from ps_cluster.training.table_occupancy import TableOccupancy
from tests.helpers.exhaustive import mostly
from tests.helpers.stores import StoreOfTables, after_changes, eagerly, row
from tests.helpers.waiting import identity

pytestmark = pytest.mark.slow
RATE, STEPS, WIDTH, UPDATES = 0.1, 30, 3, 20


class Stored(StoreOfTables):
    """A store whose network has an ordinary table, dense weights and a dynamic embedding table."""

    def __init__(self, servers, budget=96, **form):
        keras.utils.set_random_seed(0)
        self.keyed = DynamicEmbedding(budget, WIDTH, seed=5, **form)
        self.numbered = keras.layers.Embedding(7, WIDTH, name="numbered")
        ids = keras.Input([1], dtype="int64")
        parts = [layer(ids) for layer in (self.keyed, self.numbered)]
        self.model = keras.Model(ids, keras.layers.Dense(1)(keras.layers.Concatenate()(parts)))
        network = FlatNetwork(self.model, tables=Tables([self.keyed, self.numbered]))
        rows = tuple(np.asarray(layer.embeddings.value) for layer in (self.numbered, self.keyed))  # in groups' order
        super().__init__(network, rows, servers, rule="adagrad", steps=STEPS, keyed=network.tables.keyed_parts())

    @cached_property
    def _graph(self):
        tables = self.network.tables

        @tf.function(autograph=False, input_signature=[tf.TensorSpec([], tf.int64), tf.TensorSpec([None], tf.int64)])
        def run(step, keys):
            two = tf.constant([1, 2], tf.int64)
            rows = tables.table_rows_of(
                [TableCall(one, keys if one.keyed else two) for one in tables.tables], self.servers
            )
            pulled = self.store.pull(identity(0), rows=rows)
            fresh = tf.ones_like(pulled.statistics)
            pushed = self.store.push(StepPush(step, pulled.versions, pulled.weights, fresh, row(RATE), rows))
            return rows.ids[1], self.network.split_rows(pulled.weights, rows)[2], pushed

        return run

    def step(self, step, keys):
        """Pull keys and push their rows as the gradient. Return what was pulled, key → row, and the outcomes."""
        ids, rows, outcomes = self._graph(identity(step), tf.constant(keys))
        return dict(zip(ids.numpy().tolist(), rows.numpy(), strict=True)), outcomes.numpy().tolist()

    def train(self, *steps):
        for step in steps:
            assert self.step(step, keys_of(step))[1] == [APPLIED] * self.servers

    @property
    def with_rows(self):
        """The keys that have a row, int64 [buckets, ways]; EMPTY at the other places."""
        return self.state[KEYED].reshape(self.keyed.layout.buckets, -1)[:, : self.keyed.layout.ways]


def keys_of(step):
    """Return the keys of a step: a few are frequent, most are rare, and some are very large or below 0."""
    draw = np.random.default_rng(step)
    frequent = draw.integers(0, 20, 12)
    rare = draw.integers(-(2**62), 2**62, 10) if step % 3 else draw.integers(20, 400, 25)
    return np.concatenate([frequent, rare, frequent[:2]])


class Table:
    """The same table in plain Python: of each bucket a list of [key, last use, row, squares], and one of those that wait."""

    def __init__(self, layout):
        self.layout, self.ended = layout, 0
        keys = np.unique(np.concatenate([keys_of(step) for step in range(UPDATES)]))
        self.bucket = dict(zip(keys.tolist(), layout.bucket_of(tf.constant(keys)).numpy())).__getitem__
        self.initial = dict(zip(keys.tolist(), layout.initial(tf.constant(keys)).numpy())).__getitem__
        self.buckets = [[[None, -2, None, None] for _ in range(layout.ways)] for _ in range(layout.buckets)]
        self.waiting = [[[None, -2, 0] for _ in range(layout.ways)] for _ in range(layout.buckets)]

    def find(self, cells, key, now):
        for cell in cells:
            if cell[0] == key and (self.layout.expire_after is None or now - cell[1] <= self.layout.expire_after):
                return cell
        return None

    def pull(self, keys, now):
        found = {key: self.find(self.buckets[self.bucket(key)], key, now) for key in keys}
        return {key: self.initial(key) if cell is None else cell[2] for key, cell in found.items()}

    def push(self, gradients, now):
        entering = []
        for key in gradients:  # all keys are looked at before the first one enters
            rows, waiting = self.buckets[self.bucket(key)], self.waiting[self.bucket(key)]
            cell, waits = self.find(rows, key, now), self.find(waiting, key, now)
            if cell:
                cell[1] = now
            elif 1 + (waits[2] if waits else 0) < self.layout.admit_after:
                if waits:
                    waits[1:] = now, waits[2] + 1
                else:
                    self.clear(rows + waiting, key)
                    entering.append((waiting, [key, now, 1]))
            else:
                self.clear(rows + waiting, key)
                entering.append((rows, [key, now, self.initial(key), np.full(WIDTH, 0.1, np.float32)]))
        for cells, content in entering:
            oldest = min(cells, key=lambda cell: cell[1])
            if oldest[1] < now:
                lives = oldest[0] is not None and self.find([oldest], oldest[0], now) is not None
                self.ended += len(content) == 4 and lives
                oldest[:] = content
        for key, gradient in gradients.items():
            if cell := self.find(self.buckets[self.bucket(key)], key, now):
                cell[3] = cell[3] + gradient**2
                cell[2] = cell[2] - RATE * gradient / (np.sqrt(cell[3]) + 1e-7)

    def clear(self, cells, key):
        for cell in cells:
            if cell[0] == key:
                cell[:2] = None, -2


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        np.testing.assert_allclose(found[key], values, rtol=1e-4, atol=1e-6, err_msg=str(key))


CASES = {
    "every key at once": (1, 96, {}),
    "admission after 3, a bucket for 3 servers": (3, 16, {"admit_after": 3}),
    "expiry after 4": (2, 96, {"expire_after": 4}),
    "both": (1, 32, {"admit_after": 2, "expire_after": 6}),
}


@pytest.mark.parametrize("case", mostly(CASES, "every key at once", "both"))
def test_rows_appear_and_end_as_in_a_table_of_plain_python(case):
    servers, budget, form = CASES[case]
    stored = Stored(servers, budget, **form)
    table, changed = Table(stored.keyed.layout), 0
    for step in range(UPDATES):
        found, outcomes = stored.step(step, keys_of(step))
        expected = table.pull(found, step)
        assert_same(found, expected)
        changed += sum((row != table.initial(key)).any() for key, row in expected.items())
        assert outcomes == [APPLIED] * servers
        table.push(expected, step)
    assert changed > 50 and (table.ended > 0 or "expire_after" in form)
    state = stored.state
    bookkeeping = state[KEYED].reshape(stored.keyed.layout.buckets, -1)
    assert bookkeeping[:, -1].sum() == table.ended
    assign(stored.model, state["weights"], state["statistics"][:0], state[KEYED])
    asked = sorted({cell[0] for cells in table.buckets for cell in cells if cell[0] is not None} | set(found))
    in_layer = stored.keyed(tf.constant(asked, tf.int64)).numpy()
    assert_same(dict(zip(asked, in_layer, strict=True)), table.pull(asked, UPDATES))


@eagerly()
def test_a_restored_table_continues_with_the_same_bits_on_another_number_of_servers():
    form = {"admit_after": 2, "expire_after": 9}
    whole, stored = Stored(2, **form), Stored(3, **form)
    whole.train(*range(8))
    waiting = np.zeros([0, 1])
    found = resharded(Checkpoint(8, whole.state | {"waiting": waiting}), 3).arrays
    stored.store.restore(found)
    assert stored.step(7, keys_of(7))[1] == [REFUSED] * 3
    for one in (whole, stored):
        one.train(*range(8, 12))
    state = resharded(Checkpoint(12, stored.state | {"waiting": waiting}), 2).arrays
    for name in ("weights", "slot_accumulator", KEYED):
        assert (state[name] == whole.state[name]).all(), name


@eagerly()
def test_rows_of_keys_that_have_changed_since_a_full_state_make_the_same_bits_with_it(tmp_path):
    form = {"admit_after": 2, "expire_after": 9}
    stored, restored = Stored(2, **form), Stored(3, **form)
    stored.train(*range(8))
    found = after_changes(tmp_path, stored.store, lambda: stored.train(8, 9), restored.store)
    state, expected = restored.state, stored.state
    assert 0 < stored.store.changed_share < 1 and found.changed.keys() == {"weights", "slot_accumulator"}
    for name in ("weights", "slot_accumulator", KEYED):
        assert (state[name] == expected[name]).all(), name


@eagerly()
def test_a_replay_sees_no_key():
    stored = Stored(1, admit_after=2)
    assert [stored.step(0, keys_of(0))[1] for _ in range(2)] == [[APPLIED], [REFUSED]]
    assert (stored.with_rows == EMPTY).all()
    assert stored.step(1, keys_of(0))[1] == [APPLIED]
    assert set(keys_of(0)) <= set(stored.with_rows.ravel())


def test_lines_tell_of_rows_that_ended_for_want_of_room():
    form = KeyedTableLayout("users", 1, 2, 3, seed=0, scale=1.0)
    lines = TableOccupancy([form])

    def told(ended):
        return [line.message for line in lines.log_lines({KEYED: np.array([7, EMPTY, 0, -2, 0, 0, ended])})]

    assert told(0) == []
    (line,) = told(3)
    assert line.startswith(
        "'users': 1 of 2 places in the table are used · 3 rows evicted for lack of room: give the DynamicEmbedding a"
    )
    assert told(29) == [] and len(told(30)) == 1
    assert lines.uses == [KeyedUse(name="users", places=2, rows=1, ended=30)]
