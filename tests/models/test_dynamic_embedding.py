"""`DynamicEmbedding` as a layer of plain Keras, and what it is refused for."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.config import build_config
from ps_cluster.config.objectives import ArrayField, ExampleSpec
from ps_cluster.errors import UserError
from ps_cluster.layers import DynamicEmbedding
from ps_cluster.models.embedding_tables import TableCall, Tables
from ps_cluster.models.finding_tables import find_tables
from ps_cluster.models.keyed_rows import EMPTY, KeyedTableLayout
from ps_cluster.training.table_limits import check_keyed

KEYS = np.array([[3, -(2**62)], [2**63 - 1, 3]])
SPEC = ExampleSpec({"ids": ArrayField("int64", (2,))}, ArrayField("uint8", ()), classes=("0", "1"))


def network(*, ids_of=lambda ids: ids, **options):
    ids, layer = keras.Input([2], dtype="int64", name="ids"), DynamicEmbedding(32, 3, name="keys", **options)
    return keras.Model(ids, keras.layers.Dense(2)(keras.layers.Flatten()(layer(ids_of(ids))))), layer


def mixed(bits):
    """Return SplitMix64's finaliser in numpy. `bits`: uint64."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ bits >> np.uint64(shift)) * np.uint64(factor)
    return bits ^ bits >> np.uint64(31)


def test_initial_rows_and_buckets_are_splitmix64_of_seed_and_key():
    form = KeyedTableLayout("keys", 7, 16, 3, seed=9, scale=0.3)
    keys = np.random.default_rng(0).integers(EMPTY, 2**63 - 1, 500)
    counters = mixed(keys.view(np.uint64) + mixed(np.array([9], np.uint64)))[:, None]
    bits = mixed(counters + np.arange(1, 4, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(40)
    expected = (bits.astype(np.float32) * np.float32(2.0**-23) - 1) * np.float32(0.3)
    assert (form.initial(tf.constant(keys)).numpy() == expected).all()
    assert (form.bucket_of(tf.constant(keys)).numpy() == mixed(keys.view(np.uint64)).view(np.int64) % 7).all()


def test_a_saved_layer_finds_its_rows_again_and_gives_others_their_initial_values(tmp_path):
    model, layer = network(seed=4, admit_after=2, expire_after=7)
    bucket = int(layer.layout.bucket_of(tf.constant([3], tf.int64))[0])
    keys, rows = np.full(32, EMPTY), np.zeros([32, 3], np.float32)
    keys[bucket * 16 + 5], rows[bucket * 16 + 5] = 3, (1, 2, 3)
    layer.keys.assign(keys)
    layer.embeddings.assign(rows)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras").get_layer("keys")
    assert loaded.layout == layer.layout
    found, initial = loaded(tf.constant(KEYS)).numpy(), layer.layout.initial(tf.constant(KEYS.ravel())).numpy()
    assert (found[0, 0] == [1, 2, 3]).all() and (found[1, 1] == [1, 2, 3]).all()
    assert (found[0, 1] == initial[1]).all() and (found[1, 0] == initial[2]).all()
    assert (loaded(tf.constant([EMPTY])).numpy() == layer.layout.initial(tf.constant([EMPTY])).numpy()).all()


def test_words_are_keys_by_their_fingerprints():
    layer = DynamicEmbedding(32, 3)
    words = layer(tf.constant([["the", "film"], ["film", "the"]])).numpy()
    assert (words[0] == words[1][::-1]).all() and (words[0, 0] != words[0, 1]).any()
    assert (layer.as_keys(tf.constant(["the"])) == tf.bitcast(tf.fingerprint(["the"]), tf.int64)).numpy().all()


def test_keras_alone_trains_a_model_only_if_the_layer_is_frozen():
    model, layer = network()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(ValueError, match="Keras alone can't train 'keys': call ps_cluster.fit"):
        model.fit(KEYS, np.array([0, 1]), verbose=0)
    layer.trainable = False
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(KEYS, np.array([0, 1]), verbose=0)


@pytest.mark.parametrize(
    ("refused", "told"),
    [
        (lambda: DynamicEmbedding(0, 3), "budget: got 0: it has to be at least 1"),
        (lambda: DynamicEmbedding(5, 3, expire_after=0), "expire_after: got 0"),
        (
            lambda: DynamicEmbedding(5, 3, name="keys")(tf.constant([0.5])),
            "'keys' got keys of float32: give integers or strings",
        ),
    ],
    ids=["no rows", "no versions", "floats"],
)
def test_what_the_layer_can_not_do_is_refused(refused, told):
    with pytest.raises(ValueError, match=told):
        refused()


def test_a_layer_of_keys_is_a_table_of_any_size_or_the_run_is_refused():
    model, layer = network()
    tables = find_tables(model, SPEC, rows_from=10**6)
    assert [table.layer for table in tables.tables] == [layer] and tables.keyed == {0: layer}
    with pytest.raises(UserError, match="DynamicEmbedding 'keys' can't be trained: mode.name is sync"):
        find_tables(model, SPEC, rows_from=1, against="mode.name is sync")
    by_weights = network(ids_of=lambda ids: keras.ops.cast(keras.layers.Dense(2)(ids), "int64"))[0]
    with pytest.raises(UserError, match="its ids depend on weights"):
        find_tables(by_weights, SPEC, rows_from=1)
    layer.trainable = False
    assert not find_tables(model, SPEC, rows_from=1, against="anything")


def test_an_update_that_is_a_mean_is_refused_by_name():
    tables = Tables([network()[1]])
    check_keyed(build_config(overrides={"mode.name": "async"}), tables)
    with pytest.raises(UserError, match="mode.name: got 'sync-ps': .* 'keys' can't be the mean"):
        check_keyed(build_config(overrides={"mode.name": "sync-ps"}), tables)


def test_a_reserved_key_stops_the_step_with_the_name_of_the_layer():
    tables = Tables([network()[1]])
    calls = [TableCall(tables.tables[0], tf.constant([1, EMPTY], tf.int64))]
    with pytest.raises(tf.errors.InvalidArgumentError, match="DynamicEmbedding layer keys got reserved keys"):
        tables.table_rows_of(calls, servers=1)
