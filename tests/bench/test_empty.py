import numpy as np
import tensorflow as tf

from ps_cluster.config import build_config
from ps_cluster.server.shard import APPLIED
from ps_cluster.tools.bench import empty
from tests.helpers.data import only_named
from tests.helpers.stores import ledger_of, row, state_of


def test_step_pushes_what_it_pulled_and_is_in_the_ledger(tmp_path):
    config = build_config(
        None, {"training.steps": 3, "cluster.wire": "float32", "optimizer.rule": "sgd", "optimizer.weight_decay": 0.0}
    )
    dataset = only_named("cifar10", tmp_path, 50_000, 10_000)
    store, compute = empty.build(7, config, dataset, ["/device:CPU:0"] * 2, "/device:CPU:0")
    pulled, step = store.pull(tf.constant(0, tf.int64)), tf.constant(1, tf.int64)
    result = compute(step, pulled.weights, pulled.statistics)
    outcome = store.push(step, pulled.versions, result.gradient, result.fresh, row(learning_rate=0.0))
    assert outcome.numpy().tolist() == [APPLIED, APPLIED]
    assert state_of(store)["weights"].tolist() == np.zeros(7).tolist()
    assert [rows["step"].tolist() for rows in ledger_of(store)[0]] == [[1], [1]]
