"""Create parameter stores in this process, and minimise a quadratic function with them."""

from contextlib import contextmanager

import numpy as np
import tensorflow as tf

from ps_cluster.config import build_config
from ps_cluster.files.tensor_files import Pieces
from ps_cluster.models.flat import flatten
from ps_cluster.models.rows import NO_ROWS
from ps_cluster.runs.checkpoints import Checkpoint, as_full_state, load, save
from ps_cluster.runs.ledger import COUNTS, WORKER_COLUMNS
from ps_cluster.runs.resharding import resharded
from ps_cluster.server.initial_state import InitialState
from ps_cluster.server.shard import ParameterShard
from ps_cluster.server.store import ParameterStore, StepPush
from ps_cluster.server.vector_on_server import Extent
from ps_cluster.training.building import arrangement_of
from ps_cluster.training.step import WHOLE_PERIOD, Compute

LENGTH = 7
IN_ASYNC = {"mode.name": "async", "staleness.method": "none"}


class Plain(Compute):
    """Computes a step by a function of step id, weights, statistics and limits."""

    def __init__(self, function):
        self._function = function

    def __call__(self, step, /, weights, statistics, limits=WHOLE_PERIOD, rows=NO_ROWS):
        return self._function(step, weights, statistics, limits)


NO_EXAMPLES = (np.int64(0), np.int64(0))  # the number and the checksum of the examples of a step without examples


def make_store(
    shards=1,
    *,
    steps=400,
    statistics=3,
    keep=1.0,
    factors=None,
    wire="float32",
    kind=ParameterShard,
    values=None,
    length=LENGTH,
    **optimizer,
):
    if optimizer.get("rule") == "sgd":
        optimizer.pop("momentum", None)  # the tests of all rules pass it
    settings = {f"optimizer.{key}": value for key, value in ({"weight_decay": 0.0} | optimizer).items()}
    config = build_config(overrides={"cluster.wire": wire, "training.steps": steps} | settings | (values or {}))
    return ParameterStore(
        ["/device:CPU:0"] * shards,
        InitialState(
            np.linspace(-1, 1, length, dtype=np.float32),
            np.ones(length, np.float32) if factors is None else np.asarray(factors, np.float32),
            np.zeros(statistics, np.float32),
            np.full(statistics, keep, np.float32),
        ).split(shards),
        config=config,
        total_steps=config.total_steps(50_000),
        shard_class=kind,
    )


class StoreOfTables:
    """A parameter store of a network with embedding tables."""

    def __init__(self, network, rows, servers, *, rule, steps, kind=ParameterShard, mode=IN_ASYNC, keyed=None):
        """Create the store.

        Args:
          rows: the rows of each group of tables.
          mode: the settings of the mode.
          keyed: the groups whose rows are found by their keys.
        """
        self.network, self.servers = network, servers
        weights = flatten(network.variables)
        nothing = np.zeros([2, 3], np.float32)
        start = InitialState(weights, np.ones_like(weights), *nothing, tables=rows, keyed=keyed or {})
        values = {
            "optimizer.rule": rule,
            "optimizer.weight_decay": 0.0,
            "cluster.wire": "float32",
            "training.steps": steps,
        }
        self.store = ParameterStore(
            ["/device:CPU:0"] * servers, start.split(servers), config=build_config(overrides=values | mode),
            total_steps=steps, shard_class=kind, arrangement=arrangement_of(network, servers),
        )  # fmt: skip

    @property
    def state(self):
        return state_of(self.store)


def row(learning_rate=0.1, worker=0):
    values = dict.fromkeys(WORKER_COLUMNS, 0.0) | {"learning_rate": learning_rate, "worker": worker, "examples": 1}
    return tf.constant([values[name] for name in WORKER_COLUMNS], tf.float64)


def pull(store, worker=0):
    return store.pull(tf.constant(worker, tf.int64))


@contextmanager
def eagerly():
    """Run graphs operation by operation, which takes some 5 ms. Tracing a graph takes some 100 ms.

    This does not show mistakes that depend on the order in which a graph runs its operations.
    """
    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(before)


def state_of(store):
    """Return the arrays that a checkpoint of the store has."""
    with eagerly():
        arrays, _ = store.snapshot([0] * len(store.shards), closed=0)
        return {
            name: np.concatenate(list(array.read())) if isinstance(array, Pieces) else array
            for name, array in arrays.items()
        }


def after_changes(folder, store, change, *others):
    """Save a full state, call `change`, save the rows that have changed, and restore what was saved in other stores.

    Return the loaded snapshot.
    """
    with eagerly():
        full = save_snapshot(folder, store, 1, Extent.FULL)
        since = as_full_state(full, load(full))
        change()
        found = load(save_snapshot(folder, store, 2, Extent.CHANGED, since))
        for other in others:
            other.restore({**resharded(found, len(other.shards)).arrays, **found.changed})
    return found


def save_snapshot(folder, store, step, extent, since=None):
    """Write the state of a store; return the path."""
    arrays, _ = store.snapshot([0] * len(store.shards), 0, extent)
    pieces = {name: array for name, array in arrays.items() if isinstance(array, Pieces)}
    whole = {name: array for name, array in arrays.items() if name not in pieces}
    return save(folder, Checkpoint(step, whole, pieces=pieces, since=since), keep=9)


def ledger_of(store):
    """Return the rows of each shard in the order of their steps, and the counters of each shard by name."""
    with eagerly():
        ledgers = store.read_ledgers([0] * len(store.shards))
    counts = [dict(zip(COUNTS, own.tolist(), strict=True)) for own in ledgers.counts]
    return [np.sort(rows, order="step") for rows in ledgers.rows], counts


def quadratic_step(store, target):
    """Return a function of a step id that pulls, computes the gradient of |w - target|^2 / 2, and pushes."""
    target = tf.constant(target, tf.float32)

    @tf.function(autograph=False)
    def run(step, info):
        pulled = store.pull(tf.cast(info[WORKER_COLUMNS.index("worker")], tf.int64))
        gradient = pulled.weights - tf.cast(target, pulled.weights.dtype)
        return store.push(StepPush(step, pulled.versions, gradient, tf.ones_like(pulled.statistics), info))

    return run


def run_quadratic(store, steps, target, learning_rate=0.1):
    run = quadratic_step(store, target)
    for step in range(steps):
        run(tf.constant(step, tf.int64), row(learning_rate))
    return state_of(store)["weights"]
