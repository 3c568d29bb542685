"""Embeddings whose rows travel: which they are, and the network as a function of the rows of a batch."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.config import build_config
from ps_cluster.config.modes import MODES
from ps_cluster.config.objectives import ArrayField, ExampleSpec
from ps_cluster.models.build import dtype_policy
from ps_cluster.models.finding_tables import find_tables
from ps_cluster.models.flat import FlatNetwork, flatten, statistics_of
from ps_cluster.training.building import arrangement_of
from ps_cluster.training.table_limits import reason_against_rows

LAYERS, OPS = keras.layers, keras.ops
BATCH, STATE = 5, tf.constant([3, 7])
WORDS = ["the", "film", "was", "good"]
FIELDS = {
    "ids": ArrayField("int32", (4,)),
    "text": ArrayField("string", (1,), characters=9, code="uint8"),
    "row": ArrayField("float32", (6,)),
}
DRAW = np.random.default_rng(0)
EXAMPLES = {
    "ids": tf.constant(DRAW.integers(0, 30, [BATCH, 4]), tf.int32),
    "text": tf.constant([["the film"], ["film good"], ["unknown"], ["good"], ["was the"]]),
    "row": tf.constant(DRAW.normal(size=[BATCH, 6]), tf.float32),
}


def spec_of(*names):
    return ExampleSpec({name: FIELDS[name] for name in names}, ArrayField("uint8", ()), classes=("0", "1"))


def inputs_of(*names):
    return {name: keras.Input(FIELDS[name].shape, dtype=FIELDS[name].dtype, name=name) for name in names}


def ending(*vectors):
    """Return the scores of a network with these vectors, [B, …] each."""
    flat = [LAYERS.GlobalAveragePooling1D()(vector) if len(vector.shape) > 2 else vector for vector in vectors]
    return LAYERS.Dense(2)(LAYERS.Concatenate()(flat) if len(flat) > 1 else flat[0])


def one_table(*, rows=30, ids_of=lambda ids: ids, **settings):
    (ids,) = inputs_of("ids").values()
    return keras.Model(ids, ending(LAYERS.Embedding(rows, 3, name="table", **settings)(ids_of(ids))))


def found(model, *names, rows_from=10, against=None):
    """Return the names of the tables that are found, and the lines that are told."""
    told = []
    spec = spec_of(*(names or ("ids",)))
    tables = find_tables(model, spec, rows_from=rows_from, against=against, notify=told.append)
    return [table.layer.name for table in tables.tables], told


LOOK_UPS = {
    "the inputs themselves": lambda ids: ids,
    "arithmetic and modulo": lambda ids: (ids * 7 + 3) % 30,
    "a column": lambda ids: ids[:, 1:2],
    "an IntegerLookup": LAYERS.IntegerLookup(vocabulary=[4, 8, 15], num_oov_indices=2),
    "hashes": LAYERS.Hashing(30),
    "crossed hashes": lambda ids: LAYERS.HashedCrossing(30)([ids[:, :1], ids[:, 1:2]]),
    "numbers of places": lambda ids: OPS.zeros_like(ids) + OPS.arange(4),
    "a random choice": lambda ids: OPS.cast(LAYERS.Dropout(0.5, seed=1)(OPS.cast(ids, "float32")), "int32") % 30,
}


@pytest.mark.parametrize("ids_of", LOOK_UPS.values(), ids=LOOK_UPS)
def test_an_embedding_whose_ids_come_from_the_inputs_without_weights_is_a_table(ids_of):
    assert found(one_table(ids_of=ids_of)) == (["table"], [])


def test_an_embedding_of_words_is_a_table():
    (text,) = inputs_of("text").values()
    words = LAYERS.TextVectorization(output_sequence_length=3, vocabulary=WORDS)(text)
    model = keras.Model(text, ending(LAYERS.Embedding(12, 3, name="table", mask_zero=True)(words)))
    assert found(model, "text") == (["table"], [])


def test_an_embedding_with_fewer_rows_than_the_setting_or_with_frozen_rows_is_no_table():
    assert found(one_table(rows=30), rows_from=31) == ([], [])
    assert found(one_table(rows=30), rows_from=30)[0] == ["table"]
    assert found(one_table(trainable=False)) == ([], [])


def codes(row):
    return OPS.argmax(LAYERS.Dense(30)(row), -1)


def with_ids_by_weights():
    (row,) = inputs_of("row").values()
    return keras.Model(row, ending(LAYERS.Embedding(30, 3, name="table")(codes(row)))), "row"


def with_ids_by_statistics():
    (row,) = inputs_of("row").values()
    ids = OPS.cast(OPS.abs(LAYERS.BatchNormalization()(row)), "int32") % 30
    return keras.Model(row, ending(LAYERS.Embedding(30, 3, name="table")(ids))), "row"


def with_ids_by_another_table():
    (ids,) = inputs_of("ids").values()
    first = LAYERS.Embedding(30, 3, name="first")(ids)
    return keras.Model(ids, ending(LAYERS.Embedding(30, 3, name="table")(OPS.argmax(first, -1)))), "ids"


def with_one_of_two_calls_by_weights():
    inputs = inputs_of("ids", "row")
    table = LAYERS.Embedding(30, 3, name="table")
    return keras.Model(inputs, ending(table(inputs["ids"]), table(codes(inputs["row"])))), "ids", "row"


class Tied(keras.Model):
    """Scores each row of its table with the table itself."""

    def __init__(self):
        super().__init__()
        self.table, self.scores = LAYERS.Embedding(30, 3, name="table"), LAYERS.Dense(2)

    def call(self, ids):
        hidden = OPS.mean(self.table(ids), axis=1)
        return self.scores(OPS.matmul(hidden, OPS.transpose(self.table.embeddings)))


class NeverCalled(keras.Model):
    def __init__(self):
        super().__init__()
        self.table, self.other = LAYERS.Embedding(30, 3, name="table"), LAYERS.Embedding(30, 2, name="other")
        self.scores = LAYERS.Dense(2)
        self.table.build()

    def call(self, ids):
        return self.scores(OPS.mean(self.other(ids), axis=1))


class Cell(keras.Layer):
    """Adds up the rows of its table."""

    state_size = 3

    def __init__(self):
        super().__init__()
        self.table = LAYERS.Embedding(30, 3, name="table")

    def build(self, shape):
        self.table.build()

    def call(self, ids, states):
        added = states[0] + self.table(OPS.cast(ids[:, 0], "int32"))
        return added, [added]


def with_a_call_in_a_cell():
    (ids,) = inputs_of("ids").values()
    return keras.Model(ids, ending(LAYERS.RNN(Cell())(OPS.cast(ids, "float32")[..., None]))), "ids"


def with_lora():
    model = one_table()
    model.get_layer("table").enable_lora(2)
    return model, "ids"


BY_WEIGHTS = "its ids depend on weights, so they are not known before the pull"
WHOLE = {
    "argmax of a Dense": (with_ids_by_weights, [], BY_WEIGHTS),
    "moving statistics": (with_ids_by_statistics, [], BY_WEIGHTS),
    "another table": (with_ids_by_another_table, ["first"], BY_WEIGHTS),
    "one of two calls": (with_one_of_two_calls_by_weights, [], BY_WEIGHTS),
    "a tied output": (lambda: (Tied(), "ids"), [], "another part of the network reads its weights too"),
    "never called": (lambda: (NeverCalled(), "ids"), ["other"], "the network never calls it"),
    "called in a recurrent cell": (with_a_call_in_a_cell, [], "it is called within a loop or a condition"),
    "a regulariser": (
        lambda: (one_table(embeddings_regularizer="l2"), "ids"), [], "it has a regulariser, which needs all rows",
    ),
    "a regulariser of outputs": (
        lambda: (one_table(activity_regularizer="l2"), "ids"), [], "it has a regulariser, which needs all rows",
    ),
    "LoRA": (with_lora, [], "it has LoRA weights or is quantized"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "tables", "reason"), WHOLE.values(), ids=WHOLE)
def test_an_embedding_that_needs_more_than_the_rows_of_its_batch_travels_whole_and_a_line_says_why(
    make, tables, reason
):
    model, *names = make()
    if not model.built:
        model(EXAMPLES["ids"])
    assert found(model, *names) == (tables, [f"the Embedding 'table' is pulled and pushed with all its rows: {reason}"])


AGAINST = [
    ({"mode.name": "diloco"}, "mode.name is diloco, which exchanges or changes all weights"),
    ({"mode.name": "sync-diloco"}, "mode.name is sync-diloco, which exchanges or changes all weights"),
    (
        {"optimizer.rule": "momentum"},
        "optimizer.rule is momentum, which changes all rows at every update (these do not: adagrad, adam, ftrl, muon_adam, "
        "sgd)",
    ),
    (
        {"staleness.method": "dc_constant"},
        "staleness.method is dc_constant, which compares all weights of two versions",
    ),
    ({"cluster.workers": 2, "mode.simulate_workers": 3}, "mode.simulate_workers keeps older versions of all weights"),
    ({"lookahead.every_updates": 5}, "lookahead.every_updates is 5, which keeps slow weights of every row"),
    (
        {"cluster.wire": "int8"},
        "cluster.wire is int8: each worker keeps the unsent remainder of every weight's gradient",
    ),
    (
        {"cluster.wire": "top_k"},
        "cluster.wire is top_k: each worker keeps the unsent remainder of every weight's gradient",
    ),
    ({"optimizer.weight_decay": 0.25}, "optimizer.weight_decay is 0.25, which shrinks every row at every update"),
    ({"optimizer.clip_norm": 1.5}, "optimizer.clip_norm is 1.5, which needs the norm of each variable"),
    (
        {"optimizer.learning_rate_factors": [{"match": "bias", "factor": 2.0}]},
        "optimizer.learning_rate_factors is set, and a factor applies to a whole variable, not to single rows",
    ),
]
SUITED = {
    "mode.name": "async", "optimizer.rule": "adam", "optimizer.weight_decay": 0.0, "optimizer.learning_rate_factors": [],
}  # fmt: skip


@pytest.mark.parametrize(("values", "reason"), AGAINST, ids=lambda value: str(value)[:40])
def test_each_setting_that_needs_all_rows_is_told_with_its_value(values, reason):
    assert reason_against_rows(build_config(overrides=SUITED | values)) == reason


def test_a_setting_that_needs_all_rows_keeps_every_table_whole():
    assert found(one_table(), against="a reason") == (
        [],
        ["the Embedding 'table' is pulled and pushed with all its rows: a reason"],
    )


def test_a_table_that_the_rule_needs_as_a_matrix_stays_whole():
    spec, told = spec_of("ids"), []
    patterns = {"kernel": ["table"], "tab*": [], "embeddings": []}
    for pattern, tables in patterns.items():
        kept = find_tables(one_table(), spec, rows_from=10, matrices=[pattern], notify=told.append).tables
        assert [table.layer.name for table in kept] == tables
    assert told == 2 * [
        "the Embedding 'table' is pulled and pushed with all its rows: optimizer.matrices names it, and an orthogonal step "
        "needs all rows"
    ]


def test_with_other_settings_rows_travel():
    suited = {
        "mode.name": ["single", "bounded", "sync-ps"], "optimizer.rule": ["sgd", "adagrad", "ftrl", "muon_adam"],
        "staleness.method": ["inverse", "predict"], "optimizer.global_clip_norm": [1.0], "optimizer.clip_value": [1.0],
        "cluster.wire": ["bfloat16"],
    }  # fmt: skip
    for key, values in suited.items():
        for value in values:
            assert reason_against_rows(build_config(overrides=SUITED | {key: value})) is None, (key, value)


def test_rows_travel_only_in_the_modes_that_the_page_of_tables_names():
    configs = [
        build_config(overrides=SUITED | {"mode.name": mode.name, "optimizer.rule": mode.own_rule or "adam"})
        for mode in MODES
    ]
    by_rows = [config.mode.name for config in configs if reason_against_rows(config) is None]
    assert sorted(by_rows) == ["async", "bounded", "single", "sync-ps"]


def functional():
    """Two groups of tables, one of which is called twice, with dropout, moving statistics and a small embedding."""
    inputs = inputs_of("ids", "text", "row")
    words = LAYERS.TextVectorization(output_sequence_length=3, vocabulary=WORDS)(inputs["text"])
    first, second = LAYERS.Embedding(30, 3, name="first", mask_zero=True), LAYERS.Embedding(17, 2, name="second")
    third, small = LAYERS.Embedding(31, 3, name="third"), LAYERS.Embedding(9, 4, name="small")
    dropped = LAYERS.SpatialDropout1D(0.5)(third(inputs["ids"] + 1))
    normal = LAYERS.BatchNormalization()(LAYERS.Dense(4)(inputs["row"]))
    parts = first(words), first(inputs["ids"]), second(inputs["ids"] % 17)
    return keras.Model(inputs, ending(*parts, dropped, normal, small(inputs["ids"] % 9)))


def sequential():
    layers = LAYERS.Embedding(30, 3, mask_zero=True, name="table"), LAYERS.LSTM(4), LAYERS.Dropout(0.3), LAYERS.Dense(2)
    return keras.Sequential([keras.Input([4], dtype="int32"), *layers])


class Subclassed(keras.Model):
    """Calls one table twice and another one in a layer of its own, and adds a loss."""

    def __init__(self):
        super().__init__()
        self.tables = [LAYERS.Embedding(30, 3, name="first"), LAYERS.Embedding(40, 3, name="second")]
        self.inner = keras.Sequential([LAYERS.Embedding(50, 2, name="third"), LAYERS.Dense(2)])
        self.scores = LAYERS.Dense(2)

    def call(self, ids):
        first, second = self.tables
        again = first(OPS.flip(ids, 1)) * second(ids + 3)
        self.add_loss(OPS.sum(again**2))
        return self.scores(OPS.mean(OPS.concatenate([first(ids), again, self.inner(ids)], -1), axis=1))


def at_each_place():
    (ids,) = inputs_of("ids").values()
    vectors = LAYERS.TimeDistributed(LAYERS.Embedding(30, 3, name="table"))(ids[..., None])
    return keras.Model(ids, ending(LAYERS.Reshape([4, 3])(vectors)))


def in_bfloat16():
    with dtype_policy("mixed_bfloat16"):
        return functional()


NETWORKS = {
    "functional": (functional, ("ids", "text", "row"), ["first", "third", "second"], [3, 2]),
    "sequential": (sequential, ("ids",), ["table"], [3]),
    "subclassed": (Subclassed, ("ids",), ["first", "second", "third"], [3, 2]),
    "each place": (at_each_place, ("ids",), ["table"], [3]),
    "bfloat16": (in_bfloat16, ("ids", "text", "row"), ["first", "third", "second"], [3, 2]),
}


def passed(network, weights, inputs, rows=None):
    """Return outputs, fresh statistics and the gradient of a loss by all weights that are given."""
    statistics = tf.constant(flatten(statistics_of(network.model)))
    with tf.GradientTape() as tape:
        tape.watch(weights)
        result = network.forward(weights, statistics, inputs, STATE, *([] if rows is None else [rows]))
        loss = tf.reduce_sum(result.outputs**2 * [1.0, 2.0]) + sum(result.losses, 0.0)
    return result.outputs.numpy(), result.fresh.numpy(), tf.convert_to_tensor(tape.gradient(loss, weights)).numpy()


@pytest.mark.parametrize(("make", "names", "tables", "widths"), NETWORKS.values(), ids=NETWORKS)
def test_with_the_rows_of_a_batch_outputs_and_gradients_are_those_of_the_whole_network(make, names, tables, widths):
    servers = 1 if make is sequential else 3
    keras.utils.set_random_seed(0)
    model, inputs = make(), {name: EXAMPLES[name] for name in names}
    if not model.built:
        model(EXAMPLES["ids"])
    network = FlatNetwork(model, tables=find_tables(model, spec_of(*names), rows_from=10))
    assert sorted(table.layer.name for table in network.tables.tables) == sorted(tables)
    assert network.tables.widths == widths
    whole = passed(FlatNetwork(model), tf.constant(flatten(model.trainable_variables)), inputs)
    rows, of_tables = network.table_rows_of(inputs, STATE, servers), network.tables.take_values()
    for ids, indices, counts, values in zip(rows.ids, rows.indices, rows.counts, of_tables, strict=True):
        assert len(set(ids.numpy().tolist())) == len(ids) < len(values) and set(indices.numpy()) == set(range(len(ids)))
        assert np.repeat(np.arange(servers), counts).tolist() == (ids.numpy() % servers).tolist(), "in order of servers"

    dense = tf.constant(flatten(network.variables))
    own = [values[ids].ravel() for ids, values in zip(rows.ids, of_tables)]
    outputs, fresh, gradient = passed(network, tf.concat([dense, *own], 0), inputs, rows)

    # Where the numbers of the vector of weights and rows are in the vector of the whole network.
    arrangement = arrangement_of(network, 1)
    positions = arrangement.positions(0, np.arange(arrangement.sizes[0]))
    of_dense, *of_groups = np.split(positions, np.cumsum([len(dense), *(v.size for v in of_tables)])[:-1])
    of_rows = [of.reshape(-1, width)[ids].ravel() for of, width, ids in zip(of_groups, widths, rows.ids)]
    in_whole = np.zeros(len(positions))
    in_whole[np.concatenate([of_dense, *of_rows])] = gradient
    rounding = 1e-2 if make is in_bfloat16 else 1e-5
    for found, expected in zip((outputs, fresh, in_whole), whole, strict=True):
        assert np.linalg.norm(found - expected) <= rounding * np.linalg.norm(expected)
    assert np.abs(in_whole[np.concatenate(of_rows)]).max() > 0


@pytest.mark.parametrize("servers", [1, 3])
def test_the_positions_of_all_servers_are_each_position_of_the_whole_network_once(servers):
    keras.utils.set_random_seed(0)
    model = functional()
    network = FlatNetwork(model, tables=find_tables(model, spec_of("ids", "text", "row"), rows_from=10))
    arrangement, whole = arrangement_of(network, servers), flatten(model.trainable_variables)
    positions = [arrangement.positions(server, np.arange(size)) for server, size in enumerate(arrangement.sizes)]
    assert sorted(np.concatenate(positions).tolist()) == list(range(len(whole)))
    dense, of_tables = np.array_split(flatten(network.variables), servers), network.tables.take_values()
    for server, of_server in enumerate(positions):
        rows = [values[server::servers].ravel() for values in of_tables]
        assert (whole[of_server] == np.concatenate([dense[server], *rows])).all()
    for vectors in (whole, np.stack([whole, -whole])):  # a slot may have a row for each worker
        cut = arrangement.cut(vectors)
        assert [part.shape[-1] for part in cut] == arrangement.sizes and (arrangement.joined(cut) == vectors).all()
    of_servers = arrangement.cut(whole)
    for most in (1, 7, len(whole)):
        at = 0
        for block in arrangement.blocks(most):
            values = np.full(block.end - block.begin, np.nan, np.float32)
            for part in block.parts:
                part.rows.put(values, of_servers[part.shard][part.place : part.place + part.rows.size])
            assert block.begin == at and (values == whole[block.begin : block.end]).all()
            assert len(values) <= max(most, *network.tables.widths)
            at = block.end
        assert at == len(whole)


def test_an_id_out_of_range_is_an_error_that_names_the_layer_and_the_ids():
    model = one_table()
    network = FlatNetwork(model, tables=find_tables(model, spec_of("ids"), rows_from=10))
    look_up = tf.function(lambda ids: network.table_rows_of({"ids": ids}, STATE, 1))
    for wrong in (-1, 30):
        ids = np.zeros([2, 4], np.int32)
        ids[1, 2] = wrong
        with pytest.raises(tf.errors.InvalidArgumentError) as error:
            look_up(tf.constant(ids))
        told = f"the Embedding layer table has rows 0 to 29, but got the ids:] [{wrong}]"
        assert told in str(error.value)
