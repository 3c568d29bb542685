"""The memory that a network will take is estimated before its training starts."""

import keras
import pytest
import tensorflow as tf

from ps_cluster.config import build_config
from ps_cluster.config.objectives import ArrayField, ExampleSpec
from ps_cluster.errors import UserError
from ps_cluster.models.build import before_each_embedding
from ps_cluster.models.embedding_tables import Tables
from ps_cluster.models.flat import FlatNetwork
from ps_cluster.system.limits import FreeMemory
from ps_cluster.training import memory
from tests.helpers.stores import LENGTH, make_store

SPEC = ExampleSpec({"row": ArrayField("float32", (6,))}, ArrayField("uint8", ()), classes=("a", "b", "c"))
GB = 10**9
FRAGMENTS = {"mode.name": "diloco", "mode.fragments": True, "cluster.parameter_servers": 2}


def config(**values):
    return build_config(None, {"data.dataset": "synthetic", "model.name": "mlp"} | values)


def network():
    row = keras.Input([6])
    return FlatNetwork(keras.Model(row, keras.layers.Dense(3)(keras.layers.Dense(100, activation="relu")(row))))


def test_activations_are_the_outputs_of_all_layers_and_grow_with_the_batch():
    one = memory.activation_bytes(network(), SPEC, 1)
    product_bias_relu, scores = 3 * 100, 2 * 3
    assert 4 * (product_bias_relu + scores) <= one <= 4 * (product_bias_relu + scores + 20)
    assert memory.activation_bytes(network(), SPEC, 50) > 49 * 4 * (product_bias_relu + scores)


def test_each_further_worker_takes_copies_of_the_weights_and_its_activations():
    two, three = (memory.needed_bytes(config(**{"cluster.workers": n}), 10**6, 10**7) for n in (2, 3))
    assert three - two == memory.WORKER_COPIES * 4 * 10**6 + 10**7


@pytest.mark.parametrize(
    ("values", "vectors"),
    [
        ({"mode.name": "sync-diloco", "optimizer.rule": "adam"}, 3 * 2 + 1),
        ({"mode.name": "sync-diloco", "optimizer.rule": "momentum"}, 3 + 1),
        ({"cluster.wire": "int8"}, 2),
        ({"mode.name": "diloco", "optimizer.rule": "adam", "cluster.wire": "top_k"}, 3 * (2 + 1) + 1 + 1),
        (FRAGMENTS | {"optimizer.rule": "adam"}, 3 * 2 + 2),
    ],
)
def test_what_a_worker_keeps_from_one_exchange_to_the_next_is_counted(values, vectors):
    def of_a_worker(values):
        two, three = (memory.needed_bytes(config(**values | {"cluster.workers": n}), 10**6, 0) for n in (2, 3))
        return three - two

    assert of_a_worker(values) == of_a_worker({}) + vectors * 4 * 10**6


def test_a_mode_without_parameter_servers_and_a_run_without_evaluator_need_less():
    usual = memory.needed_bytes(config(), 10**6, 0)
    assert memory.needed_bytes(config(**{"mode.name": "sync"}), 10**6, 0) < usual
    assert memory.needed_bytes(config(**{"cluster.evaluator": False}), 10**6, 0) < usual


def test_what_fits_is_not_talked_about_what_may_not_fit_is_said_and_what_cannot_fit_is_refused():
    some, needs = network(), memory.needed_bytes(config(), 1003, memory.activation_bytes(network(), SPEC, 128))
    assert memory.check_memory(config(), some, SPEC, FreeMemory(needs)) is None
    line = memory.check_memory(config(), some, SPEC, FreeMemory(needs - 1))
    assert line.startswith("memory: model.name: got 'mlp'") and "fewer cluster.workers" in line
    assert memory.check_memory(config(), some, SPEC, None) is None  # on several machines
    with pytest.raises(UserError, match="model.name: got 'mlp'.*the control group \\(cgroup\\) allows"):
        memory.check_memory(config(), some, SPEC, FreeMemory(GB, int(memory.SURE_SHARE * needs) - 1))


def test_tables_take_copies_with_their_slots_and_the_advice_is_about_them():
    keys = keras.Input([1], dtype="int32")
    layers = keras.layers
    model = keras.Model(keys, layers.Dense(3)(layers.Flatten()(layers.Embedding(10**5, 4, name="table")(keys))))
    tables = Tables([model.get_layer("table")])
    spec = ExampleSpec(
        {"keys": ArrayField("int32", (1,), codes=(10**5,))}, ArrayField("uint8", ()), classes=("a", "b", "c")
    )
    of_values, bytes_of_table = {}, 4 * 4 * 10**5
    for rule, slots in (("sgd", 0), ("adagrad", 1), ("adam", 2)):
        for evaluator, recomputes in ((False, True), (True, False), (True, True)):
            values = {
                "optimizer.rule": rule,
                "cluster.evaluator": evaluator,
                "evaluation.recompute_updates": recomputes,
            }
            of_values[slots, evaluator + evaluator * recomputes] = (
                memory.table_bytes(config(**values), tables.size) / bytes_of_table
            )
    of_evaluator = (0, memory.EVALUATOR_COPIES, memory.EVALUATOR_TABLE_COPIES)
    assert of_values == {
        (slots, which): pytest.approx(
            memory.SERVER_TABLE_COPIES * (1 + slots) + memory.LEADER_TABLE_COPIES + of_evaluator[which]
        )
        for slots in range(3)
        for which in range(3)
    }
    rule = {"optimizer.rule": "adagrad"}
    needs = memory.table_bytes(config(**rule), tables.size)
    line = memory.check_memory(config(**rule), FlatNetwork(model, tables=tables), spec, FreeMemory(needs))
    assert "0.0 GB are for the embedding tables" in line and "--no-evaluator" in line and "cluster.workers" not in line


@pytest.mark.parametrize(
    ("values", "vectors"),
    [
        ({}, 0),
        ({"mode.name": "elastic", "optimizer.rule": "sgd"}, 2 * 3),
        ({"staleness.method": "dc_constant"}, 3),
        ({"staleness.method": "gap_aware"}, 3),
        ({"staleness.method": "dc_adaptive"}, 2 * 3),
        ({"mode.simulate_workers": 8}, 8 - 3 + 1),
    ],
)
def test_the_vectors_that_a_shard_keeps_for_each_worker_are_counted(values, vectors):
    values = values | {"cluster.workers": 3}
    some = config(**values)
    (part,) = make_store(values=values, kind=some.chosen_mode.shard).shards
    rings = part.history._rings[:1] if part.history._length > 1 else []
    own = [*vars(part).values(), *vars(part._correction).values(), *part.slots.values(), *rings]
    tables = {id(one): one for one in own if isinstance(one, tf.Variable) and one.shape[1:] == [LENGTH]}
    rows = [table.shape[0] for table in tables.values()]
    assert sum(rows) == vectors == memory.kept_for_workers(some)
    whole, length = memory.needed_bytes(some, 10**6, 0), 4 * 10**6
    assert whole == memory.needed_bytes(config(), 10**6, 0) + vectors * length


def test_what_is_kept_for_each_worker_has_to_be_sent_too(monkeypatch):
    monkeypatch.setattr(memory, "MOST_SENT_BYTES", 4 * 1003)
    memory.check_memory(config(), network(), SPEC, FreeMemory(GB))
    adaptive = config(**{"staleness.method": "dc_adaptive", "cluster.workers": 3})
    with pytest.raises(UserError, match="kept separately for each of 3 workers, .* take at least 3 parameter servers"):
        memory.check_memory(adaptive, network(), SPEC, FreeMemory(GB))


def test_a_shard_that_is_too_large_for_one_message_asks_for_more_parameter_servers(monkeypatch):
    monkeypatch.setattr(memory, "MOST_SENT_BYTES", 1000)
    with pytest.raises(UserError, match="cluster.parameter_servers: got 1: .* 1,003 weights.* take at least 5"):
        memory.check_memory(config(), network(), SPEC, FreeMemory(GB))
    memory.check_memory(config(**{"cluster.parameter_servers": 5}), network(), SPEC, FreeMemory(GB))


def built(to_come):
    """Build two tables and a small embedding; return the numbers of weights of those that were created."""
    ids, layers = keras.Input([1], dtype="int32"), []
    try:
        with before_each_embedding(to_come.add):
            for rows in (20_000, 50, 20_000):
                layers.append(keras.layers.Embedding(rows, 8))
                layers[-1](ids)
    except UserError as error:
        return [layer.count_params() for layer in layers if layer.built], str(error)
    return [layer.count_params() for layer in layers], ""


def test_tables_that_can_not_fit_are_refused_before_they_take_memory():
    some = config(**{"optimizer.rule": "adagrad", "cluster.parameter_servers": 2})
    needs, numbers = memory.table_bytes(some, 2 * 20_000 * 8), [20_000 * 8, 50 * 8, 20_000 * 8]
    assert built(memory.TableMemoryLimit(some, FreeMemory(needs), pytest.fail)) == (numbers, "")
    refused, line = built(memory.TableMemoryLimit(some, FreeMemory(int(memory.SURE_SHARE * needs) - 1), pytest.fail))
    assert refused == numbers[:2] and "(20,000 rows of width 8)" in line and "on each parameter server" in line
    assert keras.layers.Embedding(9, 2)(keras.Input([1], dtype="int32")).shape == (None, 1, 2)


def test_on_several_machines_the_one_that_is_too_small_for_its_servers_is_named():
    some = config(**{"optimizer.rule": "adagrad", "cluster.parameter_servers": 3})
    needs = memory.bytes_on_servers(some, 2 * 20_000 * 8)
    least = int(memory.SURE_SHARE * needs * 2 / 3) + 1
    machines = [memory.Machine(FreeMemory(least // 2 + 1), (1,)), memory.Machine(FreeMemory(least), (0, 2))]
    assert built(memory.TableMemoryLimit(some, None, lambda: machines))[1] == ""
    machines[1] = memory.Machine(FreeMemory(least - 2), (0, 2))
    assert "GB on ps-0 and ps-2, but the machine has" in built(memory.TableMemoryLimit(some, None, lambda: machines))[1]


def test_servers_tell_of_their_machine_and_its_free_memory():
    (machine,) = memory.machines_of(["/device:CPU:0"] * 2)
    assert machine.servers == (0, 1) and 0 < machine.room.memory_bytes < 1e15
