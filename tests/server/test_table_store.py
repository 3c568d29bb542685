"""The parameter store of a network with embedding tables: rows are pulled, pushed, saved and restored exactly once."""

import tracemalloc

import keras
import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.config import build_config
from ps_cluster.files.tensor_files import Pieces, open_tensors
from ps_cluster.models.embedding_tables import TableCall, Tables
from ps_cluster.models.flat import FlatNetwork, flatten
from ps_cluster.models.rows import NO_ROWS
from ps_cluster.runs.checkpoint_arrays import form_of
from ps_cluster.runs.checkpoints import Checkpoint, CheckpointHeader, load, save
from ps_cluster.runs.resharding import is_aligned, resharded
from ps_cluster.runs.run_dir import IDENTITY
from ps_cluster.server.arrangement import BLOCK_NUMBERS
from ps_cluster.server.shard import APPLIED, DROPPED, REFUSED, ParameterShard
from ps_cluster.server.store import StepPush
from ps_cluster.training.building import arrangement_of
from ps_cluster.training.modes.sync_ps import RoundShard, SyncPs
from ps_cluster.training.step import WHOLE_PERIOD, Compute, StepResult
from tests.helpers.exhaustive import mostly
from tests.helpers.stores import IN_ASYNC, NO_EXAMPLES, StoreOfTables, after_changes, eagerly, ledger_of, row
from tests.helpers.waiting import identity

RATE, STEPS = 0.1, 100
SHAPES = {"first": (16, 3), "second": (8, 2), "third": (7, 3)}
# Of each step the ids that are looked up in each table, some of them more than once. Rows 10 to 15 of "first" never are.
LOOKED_UP = [
    {"first": [3, 9, 3, 0], "second": [1], "third": [6, 6]},
    {"first": [9, 8], "second": [7, 0, 1], "third": [5]},
    {"first": [], "second": [2, 2], "third": [6, 0, 3]},
    {"first": [1, 2, 4, 5, 6, 7], "second": [1], "third": [1]},
]
LEDGER = ("accepted_steps", "counts")


class Stored(StoreOfTables):
    """A store whose network has weights between its tables, two of which have the same width."""

    def __init__(self, servers, rule="sgd", kind=ParameterShard, mode=IN_ASYNC, shapes=SHAPES):
        keras.utils.set_random_seed(0)
        tables = [keras.layers.Embedding(*shape, name=name) for name, shape in shapes.items()]
        dense = [keras.layers.Dense(2, name="begin"), keras.layers.Dense(1, name="end")]
        ids = keras.Input([1], dtype="int32")
        parts = [tables[0](ids), dense[0](tables[1](ids)), *(table(ids) for table in tables[2:])]
        model = keras.Model(ids, dense[1](keras.layers.Concatenate()(parts)))
        network = FlatNetwork(model, tables=Tables(tables))
        self.first = flatten(model.trainable_variables)
        rows = network.tables.take_values()
        super().__init__(network, rows, servers, rule=rule, steps=STEPS, kind=kind, mode=mode)

    def rows(self, looked_up):
        tables = self.network.tables
        calls = [TableCall(table, tf.constant(looked_up[table.layer.name], tf.int64)) for table in tables.tables]
        return tables.table_rows_of(calls, self.servers)

    def positions(self, rows):
        """Return where the numbers of a vector of weights and rows are in the network's vector."""
        variables, sizes = self.network.model.trainable_variables, self.network.all_weights.sizes
        begins = dict(zip([v.path for v in variables], np.cumsum([0, *sizes])))
        dense = [begins[v.path] + np.arange(np.prod(v.shape)) for v in self.network.variables]
        found = [np.concatenate(dense)]
        for group, ids in enumerate(rows.ids):
            for number in ids.numpy():
                of_group = (table for table in self.network.tables.tables if table.group == group)
                (table,) = (one for one in of_group if 0 <= number - one.first < one.rows)
                first = begins[table.layer.embeddings.path] + (number - table.first) * table.width
                found.append(first + np.arange(table.width))
        return np.concatenate(found)

    def pull(self, looked_up, worker=0):
        rows = self.rows(looked_up)
        return rows, self.store.pull(identity(worker), rows=rows)

    def push(self, step, pulled, worker=0, factor=1.0):
        """Push the pulled values times a factor as their gradient; return the outcomes."""
        gradient, fresh = factor * pulled.weights, tf.ones_like(pulled.statistics)
        info = row(RATE, worker)
        return (
            self.store.push(StepPush(identity(step), pulled.versions, gradient, fresh, info, pulled.rows))
            .numpy()
            .tolist()
        )

    def step(self, step):
        _, pulled = self.pull(LOOKED_UP[step % len(LOOKED_UP)])
        return self.push(step, pulled)

    def train(self, *steps):
        for step in steps:
            assert self.step(step) == [APPLIED] * self.servers


def after_updates(stored, rule, steps):
    """Return weights and accumulator of the network's vector in numpy, float64: each step's gradient is its weights."""
    weights, squares = stored.first.astype(np.float64), np.full(len(stored.first), 0.1)
    for step in range(steps):
        indices = stored.positions(stored.rows(LOOKED_UP[step % len(LOOKED_UP)]))
        gradient = weights[indices]
        squares[indices] += gradient**2
        rate = RATE / (np.sqrt(squares[indices]) + 1e-7) if rule == "adagrad" else RATE
        weights[indices] -= rate * gradient
    return weights, squares


@pytest.mark.parametrize("servers", [1, 3])
@eagerly()
def test_rows_that_are_pulled_are_those_of_the_network_in_the_order_of_their_servers(servers):
    stored = Stored(servers)
    for looked_up in LOOKED_UP:
        rows, pulled = stored.pull(looked_up)
        assert (pulled.weights.numpy() == stored.first[stored.positions(rows)]).all()
        for group, width in enumerate([3, 2]):
            names = [name for name, shape in SHAPES.items() if shape[1] == width]
            begins = dict(zip(names, np.cumsum([0, *(SHAPES[name][0] for name in names)])))
            asked = [begins[name] + number for name in names for number in looked_up[name]]
            assert sorted(rows.ids[group].numpy()) == sorted(set(asked)), "each once"
            assert rows.ids[group].numpy()[rows.indices[group]].tolist() == asked
        count = sum(map(len, rows.ids))
        numbers = sum(len(ids) * width for ids, width in zip(rows.ids, [3, 2]))
        assert [int(value) for value in stored.store.row_counts(rows)] == [count, numbers]


@pytest.mark.parametrize("servers", mostly([1, 2, 3], 3))
@pytest.mark.parametrize("rule", ["sgd", "adagrad"])
@eagerly()
def test_a_checkpoint_has_weights_rows_and_slots_at_their_places_in_the_whole_network(rule, servers):
    stored = Stored(servers, rule)
    stored.train(*range(6))
    weights, squares = after_updates(stored, rule, 6)
    state = stored.state
    np.testing.assert_allclose(state["weights"], weights, rtol=1e-5, atol=1e-7)
    if rule == "adagrad":
        np.testing.assert_allclose(state["slot_accumulator"], squares, rtol=1e-5)
    untouched = set(range(len(weights))) - {p for up in LOOKED_UP for p in stored.positions(stored.rows(up)).tolist()}
    assert (state["weights"][sorted(untouched)] == stored.first[sorted(untouched)]).all() and untouched
    parts = stored.store.shards
    assert sum(part.parameters for part in parts) == len(weights)
    assert stored.store.state_bytes == sum(array.nbytes for name, array in state.items() if name not in LEDGER)


@pytest.mark.parametrize("servers", [1, 3])
@eagerly()
def test_an_exchange_pushes_the_rows_of_a_step_and_pulls_those_of_the_next_one(servers):
    stored, alone = Stored(servers), Stored(servers)
    rows, pulled = stored.pull(LOOKED_UP[0])
    following = stored.rows(LOOKED_UP[1])
    fresh = tf.ones_like(pulled.statistics)
    messages = stored.store.exchange(
        StepPush(identity(0), pulled.versions, pulled.weights, fresh, row(RATE), rows), identity(1), following
    )
    alone.train(0)
    assert stored.store.outcomes(messages).numpy().tolist() == [APPLIED] * servers
    answer = stored.store.read_messages(messages, asks_for_step=False, rows=following)
    assert (answer.weights.numpy() == alone.pull(LOOKED_UP[1])[1].weights.numpy()).all()
    last = stored.store.exchange(
        StepPush(identity(1), answer.versions, answer.weights, fresh, row(RATE), following), identity(-1), following
    )
    alone.train(1)
    assert stored.store.outcomes(last).numpy().tolist() == [APPLIED] * servers
    assert (stored.state["weights"] == alone.state["weights"]).all()


@pytest.mark.parametrize("servers", [1, 3])
@eagerly()
def test_a_replay_of_a_step_changes_no_row_and_is_counted(servers):
    stored = Stored(servers, "adagrad")
    stored.train(0, 1)
    before = stored.state
    assert stored.step(0) == stored.step(1) == [REFUSED] * servers
    after = stored.state
    assert all((after[name] == before[name]).all() for name in ("weights", "slot_accumulator", "statistics"))
    rows, counts = ledger_of(stored.store)
    assert counts == [{"version": 2, "accepted": 2, "refused": 2, "dropped": 0}] * servers
    assert [of_shard["step"].tolist() for of_shard in rows] == [[0, 1]] * servers


@eagerly()
def test_a_step_that_one_of_two_servers_lacks_changes_the_rows_of_that_server_alone():
    stored, whole = Stored(2), Stored(2)
    rows, pulled = stored.pull(LOOKED_UP[0])
    whole_push = StepPush(identity(0), pulled.versions, pulled.weights, pulled.statistics, row(RATE), rows)
    first, _ = stored.store._parts_of(whole_push)
    stored.store.shards[0].push(first)  # then the worker died
    arrangement = arrangement_of(stored.network, 2)
    positions = [arrangement.positions(server, np.arange(size)) for server, size in enumerate(arrangement.sizes)]
    whole.train(0)
    one, both = stored.state["weights"], whole.state["weights"]
    assert (one[positions[0]] == both[positions[0]]).all() and (one[positions[1]] == stored.first[positions[1]]).all()
    assert stored.push(0, pulled) == [REFUSED, APPLIED]
    assert (stored.state["weights"] == both).all()


@pytest.mark.parametrize("rule", mostly(["adagrad", "adam", "ftrl", "muon_adam"], "adam"))
@eagerly()
def test_a_restored_store_continues_with_the_same_bits_also_on_another_number_of_servers(rule):
    whole, first = Stored(2, rule), Stored(2, rule)
    whole.train(*range(8))
    first.train(*range(4))
    begun = found = Checkpoint(4, first.state | {"waiting": np.zeros([0, 1])})
    for servers in (1, 3, 2):
        assert is_aligned(found.arrays)
        stored, found = Stored(servers, rule), resharded(found, servers)
        stored.store.restore(found.arrays)
        found = Checkpoint(4, stored.state | {"waiting": found.arrays["waiting"]})
    assert found.arrays.keys() == begun.arrays.keys()
    assert all(array.tobytes() == begun.arrays[name].tobytes() for name, array in found.arrays.items())
    assert stored.step(3) == [REFUSED] * 2
    stored.train(*range(4, 8))
    expected, found = whole.state, stored.state
    assert all((found[name] == array).all() for name, array in expected.items() if name not in LEDGER)


@pytest.mark.parametrize("servers", mostly([1, 2, 3], 2))
@pytest.mark.parametrize("rule", mostly(["sgd", "adagrad", "adam", "ftrl", "muon_adam"], "adam"))
def test_a_full_state_and_the_rows_that_have_changed_since_make_the_same_bits_on_any_number_of_servers(
    rule, servers, tmp_path
):
    stored, others = Stored(servers, rule), [Stored(number, rule) for number in (1, 2, 3)]
    with eagerly():
        stored.train(0, 1)
    found = after_changes(tmp_path, stored.store, lambda: stored.train(2, 6), *(other.store for other in others))
    expected = stored.state
    for state in (other.state for other in others):
        for name in ("statistics", *found.changed):
            assert state[name].tobytes() == expected[name].tobytes(), (name, state[name], expected[name])
    changed = len(stored.positions(stored.rows(LOOKED_UP[2])))  # both steps look up the same rows
    assert stored.store.changed_share == changed / len(stored.first)
    (path,) = tmp_path.glob("*-since-000000001.safetensors")
    _, in_file = open_tensors(path, CheckpointHeader)
    assert len(in_file["weights"]) == changed and found.changed.keys() == {
        n for n in expected if form_of(n).has_number_per_weight
    }


def test_a_save_and_a_restore_of_large_tables_hold_a_few_blocks_of_them_at_a_time(tmp_path):
    large, other = (Stored(2, "adagrad", shapes={"first": (400_000, 16), "second": (8, 2)}) for _ in range(2))
    table_bytes, most_bytes = 4 * 16 * 400_000, 2.5 * 4 * BLOCK_NUMBERS
    assert most_bytes < table_bytes
    tracemalloc.start()
    try:
        arrays, _ = large.store.snapshot([0, 0], closed=0)
        pieces = {name: array for name, array in arrays.items() if isinstance(array, Pieces)}
        whole = {name: array for name, array in arrays.items() if name not in pieces}
        assert pieces.keys() == {"weights", "slot_accumulator"}
        path = save(tmp_path, Checkpoint(0, whole, pieces=pieces), keep=1)
        found = load(path).arrays
        other.store.restore(dict(found))
        assert tracemalloc.get_traced_memory()[1] < most_bytes
    finally:
        tracemalloc.stop()
    assert path.stat().st_size > 2 * table_bytes
    assert (found["weights"] == large.first).all() and (found["slot_accumulator"] == np.float32(0.1)).all()
    assert (other.state["weights"] == large.first).all()


def rounds(**values):
    return Stored(1, "adagrad", RoundShard, {"mode.name": "sync-ps", "cluster.workers": 3} | values)


def after_a_round(stored):
    """Return weights and accumulator after a round. Its gradient is the mean, to which a worker without a row adds 0."""
    total = np.zeros(len(stored.first))
    for worker in range(3):
        indices = stored.positions(stored.rows(LOOKED_UP[worker]))
        total[indices] += (worker + 1) * stored.first[indices]
    mean, touched = total / 3, total != 0
    squares = 0.1 + mean**2
    weights = stored.first - np.where(touched, RATE * mean / (np.sqrt(squares) + 1e-7), 0)
    return weights, np.where(touched, squares, 0.1)


@eagerly()
def test_a_round_applies_the_mean_of_its_workers_rows_and_the_next_one_begins_without_them():
    stored = rounds()
    for worker, looked_up in enumerate(LOOKED_UP[:3]):
        assert (stored.state["weights"] == stored.first).all(), "nothing changes before the last gradient"
        assert stored.push(worker, stored.pull(looked_up, worker)[1], worker, worker + 1.0) == [APPLIED]
    state, (weights, squares) = stored.state, after_a_round(stored)
    np.testing.assert_allclose(state["weights"], weights, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(state["slot_accumulator"], squares, rtol=1e-5)
    assert not state["slot_sum"].any() and ledger_of(stored.store)[1][0]["version"] == 1
    for worker in range(3):  # nobody looks up a row of "first" in the second round
        assert stored.push(3 + worker, stored.pull(LOOKED_UP[2], worker)[1], worker) == [APPLIED]
    whole, path = stored.network.all_weights, stored.network.tables.tables[0].layer.embeddings.path
    begin = sum(whole.sizes[: whole.paths.index(path)])
    of_first = slice(begin, begin + 16 * 3)
    assert (stored.state["weights"][of_first] == state["weights"][of_first]).all()


@eagerly()
def test_a_snapshot_within_a_round_keeps_the_sums_of_rows():
    stored, restored = rounds(), rounds()
    pulled = [stored.pull(LOOKED_UP[worker], worker)[1] for worker in range(3)]
    for worker in (0, 1):
        stored.push(worker, pulled[worker], worker, worker + 1.0)
    snapshot = stored.state
    assert snapshot["slot_sum"].any() and snapshot["gradients_summed"].tolist() == [2]
    restored.store.restore(snapshot)
    assert all((array == snapshot[name]).all() for name, array in restored.state.items())
    for one in (stored, restored):
        assert one.push(2, pulled[2], 2, 3.0) == [APPLIED]
    found, expected = restored.state, stored.state
    assert all((array == expected[name]).all() for name, array in found.items())
    np.testing.assert_allclose(found["weights"], after_a_round(stored)[0], rtol=1e-5, atol=1e-7)
    assert not found["slot_sum"].any()


def test_a_snapshot_of_changed_rows_within_a_round_has_those_that_were_only_added_to_its_sum(tmp_path):
    stored, restored = rounds(), rounds()
    with eagerly():
        pulled = [stored.pull(LOOKED_UP[worker], worker)[1] for worker in range(3)]
        stored.push(0, pulled[0], 0)
    after_changes(tmp_path / "sum", stored.store, lambda: stored.push(1, pulled[1], 1), restored.store)
    assert stored.state["slot_sum"].any() and (restored.state["slot_sum"] == stored.state["slot_sum"]).all()
    after_changes(tmp_path / "round", stored.store, lambda: stored.push(2, pulled[2], 2), restored.store)
    assert stored.store.shards[0].version.numpy() == 1
    assert all((array == restored.state[name]).all() for name, array in stored.state.items())


@eagerly()
def test_a_late_gradient_of_rows_is_dropped():
    stored = rounds(**{"mode.backup_workers": 1})
    pulled = [stored.pull(LOOKED_UP[worker], worker)[1] for worker in range(3)]
    outcomes = [stored.push(worker, pulled[worker], worker) for worker in (1, 2)]
    before = stored.state
    assert outcomes == [[APPLIED]] * 2 and stored.push(0, pulled[0]) == [DROPPED]
    after = stored.state
    assert all((after[name] == before[name]).all() for name in ("weights", "slot_accumulator", "slot_sum"))


@eagerly()
def test_a_round_that_ends_between_the_admission_of_a_worker_and_its_pull_of_rows_does_not_get_its_gradient(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    np.array([0, 1], np.int64).tofile(IDENTITY)
    stored, steps = rounds(**{"mode.backup_workers": 1}), []

    class Work(Compute):
        """The steps of worker 0. The other workers end round 0 when it has got its version, but not its rows yet."""

        def rows(self, step):
            if not stored.store.shards[0].version.numpy():
                for worker in (1, 2):
                    stored.push(worker, stored.pull(LOOKED_UP[worker], worker)[1], worker)
            return stored.rows(LOOKED_UP[int(step) % 2])

        def __call__(self, step, /, weights, statistics, limits=WHOLE_PERIOD, rows=NO_ROWS):
            steps.append(int(step))
            if steps[-1] == 3:
                stored.push(4, stored.pull(LOOKED_UP[1], 1)[1], 1)  # so that this is the last gradient of round 1
            numbers = tf.constant(0.0), tf.constant(0.0), tf.constant(RATE), *NO_EXAMPLES
            return StepResult(weights, tf.zeros([3]), *numbers)

    config = build_config(overrides={"mode.name": "sync-ps", "cluster.workers": 3, "cluster.wire": "float32"})
    run_rounds = SyncPs().dispatch(stored.store, Work(), config, repeats=False)
    run_rounds(tf.constant(2, tf.int64), tf.constant(0.0, tf.float64))
    ([ledger], [counts]) = ledger_of(stored.store)
    assert steps == [0, 3] and ledger["step"].tolist() == [1, 2, 3, 4]
    assert (counts["version"], counts["dropped"]) == (2, 1)
