"""Resources with names on servers that outlive their leaders: no two leaders share one, and the next leader ends them."""

import threading

import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.config import build_config
from ps_cluster.config.modes import MODES
from ps_cluster.private_names import variable_of_process
from ps_cluster.server.initial_state import InitialState
from ps_cluster.server.leftovers import QUEUE, REGISTER, VARIABLE, free_leftovers, new_leader_prefix, note, queue_named
from ps_cluster.server.store import ParameterStore
from ps_cluster.training.step import StepResult
from tests.helpers.exhaustive import mostly
from tests.helpers.stores import NO_EXAMPLES, Plain

DEVICE = "/device:CPU:0"
ON_SERVERS = [mode for mode in MODES if mode.has_parameter_servers]


def plain_step(batch, weights, statistics, limits=None):
    zero = tf.constant(0.0)
    return StepResult(weights, tf.zeros_like(statistics), zero, zero, zero, *NO_EXAMPLES)


def dispatch_of(session, **values):
    """Return the graph of a dispatch in a leader's session, and the store that it uses."""
    config = build_config(overrides={"training.steps": 40, "cluster.wire": "float32", **values})
    vector, nothing = np.ones(6, np.float32), np.zeros(0, np.float32)
    start = InitialState(vector, vector, nothing, nothing, leader_prefix=session)
    shards = config.cluster.parameter_servers
    store = ParameterStore(
        [DEVICE] * shards, start.split(shards), config=config, total_steps=40,
        shard_class=config.chosen_mode.shard,
    )  # fmt: skip
    compute = config.chosen_mode.worker_step(Plain(plain_step), config, start, nothing)
    return config.chosen_mode.dispatch(store, compute, config, repeats=False), store


def shared_names(graph):
    """Return the names by which a traced graph's resources can be shared, whether it makes them or was given them."""
    definition = graph.graph.as_graph_def()
    nodes = [*definition.node, *(node for function in definition.library.function for node in function.node_def)]
    made = {node.attr["shared_name"].s.decode() for node in nodes if "shared_name" in node.attr}
    given = [str(tensor) for tensor in graph.captured_inputs if tensor.dtype == tf.resource]
    return made | {text.split('name="')[1].split('"')[0] for text in given if 'container="Anonymous"' not in text}


def unnamed(graph, session):
    """Return the names of resources that another leader's graph could share."""
    return {name for name in shared_names(graph) if not name.startswith(f"{session}/")} - {REGISTER}


PLAIN = [{"mode.name": mode.name, "optimizer.rule": mode.own_rule or "momentum"} for mode in ON_SERVERS]
INT8 = {"cluster.wire": "int8", "cluster.parameter_servers": 2}
FRAGMENTS = {"mode.name": "diloco", "mode.fragments": True, **INT8}


@pytest.mark.parametrize(
    "values",
    mostly([*PLAIN, {"mode.name": "async", **INT8}, FRAGMENTS], PLAIN[0], FRAGMENTS),
    ids=lambda values: "-".join(map(str, values.values())),
)
def test_every_resource_of_a_dispatch_has_the_leaders_session_in_its_name(values):
    session = new_leader_prefix(3)
    function, store = dispatch_of(session, **values)
    graph = function.get_concrete_function()
    assert unnamed(graph, session) == set()
    assert shared_names(graph), "at least the lock of a shard has a name"
    assert session.startswith("term-000003-") and store.leader_prefix == session


def test_a_queue_and_a_variable_without_the_session_in_their_names_are_found():
    by_number = tf.queue.FIFOQueue(3, tf.bool, [], shared_name="term-000003")

    @tf.function(autograph=False)
    def use():
        with tf.control_dependencies([by_number.size()]):
            return variable_of_process("pulled", [2], tf.float32).read_value()

    found = unnamed(use.get_concrete_function(), "term-000003")
    assert "pulled" in found and len(found) == 2


def test_the_next_leader_wakes_graphs_that_wait_for_an_older_one_and_frees_what_has_a_name():
    old, new = new_leader_prefix(1), new_leader_prefix(2)
    queues = [queue_named(f"{session}/changed") for session in (old, new)]
    for session in (old, new):
        note(QUEUE, [f"{session}/changed"])

    @tf.function(autograph=False)
    def fill(name=f"{old}/weights"):
        variable = variable_of_process(name, [3], tf.float32)
        with tf.control_dependencies([note(VARIABLE, [name]), variable.assign([1.0, 2.0, 3.0], read_value=False)]):
            return variable.read_value()

    assert fill().numpy().tolist() == [1, 2, 3]
    failures = []

    @tf.function(autograph=False)
    def wait():
        return queues[0].dequeue()

    def waiting():
        try:
            wait()
        except tf.errors.OpError as error:
            failures.append(error)

    thread = threading.Thread(target=waiting, daemon=True)
    thread.start()
    assert not {name for name in free_leftovers(DEVICE, 1) if old in name}, "its own are left to it"
    assert {f"{old}/changed", f"{old}/weights"} <= set(free_leftovers(DEVICE, 2))
    thread.join(60)
    assert not thread.is_alive() and len(failures) == 1
    handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[3], shared_name=f"{old}/weights")
    assert not tf.raw_ops.VarIsInitializedOp(resource=handle)
    queues[1].enqueue(True)
    assert queues[1].dequeue(), "a newer leader's are left to it"
    assert free_leftovers(DEVICE, 2) == [], "there is nothing left to end"
