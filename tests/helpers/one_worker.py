"""Train a Keras model in this process with the package's graph of pull, compute and push."""

import os

import numpy as np
import tensorflow as tf

from ps_cluster.config import build_config
from ps_cluster.data.batches import BatchRows
from ps_cluster.models.flat import FlatNetwork, flatten, statistics_of
from ps_cluster.runs.run_dir import IDENTITY
from ps_cluster.server.initial_state import InitialState
from ps_cluster.server.store import ParameterStore
from ps_cluster.training.step import TrainBatch, TrainStep
from ps_cluster.training.worker import steps_graph
from tests.helpers.stores import state_of

PLAIN = {
    "optimizer.rule": "sgd",
    "optimizer.learning_rate": 0.1,
    "optimizer.weight_decay": 0.0,
    "optimizer.learning_rate_factors": [],
    "schedule.kind": "constant",
    "schedule.warmup_fraction": 0.0,
    "training.label_smoothing": 0.0,
    "model.precision": "float32",
}


class GivenBatches(TrainStep):
    """Steps on given batches. `rows`: name of a field → array [steps, B, ...]."""

    def __init__(self, rows, *arguments, **named):
        super().__init__(*arguments, **named)
        self._rows = rows

    def packed(self, drawn):
        return {name: tf.constant(array)[drawn.step] for name, array in self._rows.items()}

    def batch(self, step, packed=None):
        rows = dict(packed or {name: tf.constant(array)[step] for name, array in self._rows.items()})
        rows = BatchRows(target=rows.pop("target"), weight=rows.pop("weight", None), inputs=rows)
        targets = self._head.targets(rows.target)
        ids = tf.range(tf.shape(rows.target, tf.int64)[0])
        return TrainBatch(rows.inputs, targets, self._head.weights(targets, rows.weight), ids)


class Alone:
    """The graph of a worker's steps without a parameter server. An update is w - rate * gradient."""

    def __init__(self, model, spec, rows, settings=None):
        self.config = build_config(overrides=PLAIN | {"training.steps": len(rows["target"])} | (settings or {}))
        self._network = FlatNetwork(model)
        if self._network.has_changing_statistics:
            self._network.count_calls(spec)
        self._vectors = flatten(model.trainable_variables), flatten(statistics_of(model))
        self._compute = GivenBatches(rows, self.config, self._network, spec, train_examples=1000)
        self._result = tf.function(lambda *given: self._compute(*given)._asdict(), autograph=False)

    def step(self, step):
        """Take one step; return the vectors of weights and statistics after it."""
        result = self._result(tf.constant(step, tf.int64), *map(tf.constant, self._vectors))
        weights, statistics = self._vectors
        weights = weights - (result["learning_rate"] * result["gradient"]).numpy()
        self._vectors = weights, self._network.keep * statistics + result["fresh"].numpy()
        return self._vectors


class OneWorker(Alone):
    """A worker and its parameter server in this process. The working directory must be writable."""

    def __init__(self, *of_a_step):
        super().__init__(*of_a_step)
        np.array([0, os.getpid()], np.int64).tofile(IDENTITY)
        weights, statistics = self._vectors
        start = InitialState(weights, np.ones_like(weights), statistics, self._network.keep)
        steps = self.config.training.steps
        self._store = ParameterStore(["/device:CPU:0"], [start], config=self.config, total_steps=steps)
        self._run = steps_graph(self._store, self._compute, self.config)

    def step(self, step):
        """Take one step; return the vectors of weights and statistics after it."""
        self._run(tf.constant([step], tf.int64), tf.constant(0.0, tf.float64))
        state = state_of(self._store)
        return state["weights"], state["statistics"]
