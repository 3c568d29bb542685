import numpy as np
import tensorflow as tf

from ps_cluster.config import build_config
from ps_cluster.server.leftovers import new_leader_prefix
from ps_cluster.server.shard import APPLIED
from ps_cluster.server.store import StepPush
from ps_cluster.tools.bench import empty
from tests.helpers.data import only_named
from tests.helpers.stores import ledger_of, row, state_of


def test_step_pushes_what_it_pulled_and_is_in_the_ledger(tmp_path):
    config = build_config(
        None, {"training.steps": 3, "cluster.wire": "float32", "optimizer.rule": "sgd", "optimizer.weight_decay": 0.0}
    )
    dataset = only_named("cifar10", tmp_path, 50_000, 10_000)
    prefix = new_leader_prefix()
    store, compute = empty.build_with(7)(config, dataset, ["/device:CPU:0"] * 2, "/device:CPU:0", prefix, None)
    pulled, step = store.pull(tf.constant(0, tf.int64)), tf.constant(1, tf.int64)
    result = compute(step, pulled.weights, pulled.statistics)
    outcome = store.push(StepPush(step, pulled.versions, result.gradient, result.fresh, row(learning_rate=0.0)))
    assert outcome.numpy().tolist() == [APPLIED, APPLIED]
    assert state_of(store)["weights"].tolist() == np.zeros(7).tolist()
    assert [rows["step"].tolist() for rows in ledger_of(store)[0]] == [[1], [1]]


def test_every_size_of_a_cluster_is_a_job_counted_in_steps(tmp_path):
    jobs = empty.jobs(only_named("cifar10", tmp_path, 50_000, 10_000), {})
    sizes = [(weights, workers, servers) for weights in (1_000, 1_000_000) for workers in (3, 16) for servers in (1, 4)]
    assert [tuple(job.about.values()) for job in jobs] == sizes
    for job, (weights, workers, servers) in zip(jobs, sizes, strict=True):
        ((arm,), cluster) = job.arms, job.case.cluster
        assert (cluster.workers, cluster.parameter_servers) == (workers, servers)
        assert arm.arguments == (empty.__name__, str(weights)) and job.examples_counted_as_one == 128
