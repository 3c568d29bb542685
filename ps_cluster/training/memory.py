"""Estimate, before training starts, the memory that it takes with a network for which there is no measurement.

The launcher can't build a network, so it estimates only with networks that were measured. The estimate here is computed from
the network itself, in the process that has built it.
"""

from __future__ import annotations

from ps_cluster.config import RunConfig
from ps_cluster.config.networks import NETWORKS
from ps_cluster.config.objectives import ExampleSpec
from ps_cluster.config.optimizer_rules import RULES
from ps_cluster.config.staleness_methods import METHODS
from ps_cluster.errors import UserError
from ps_cluster.models.flat import FlatNetwork
from ps_cluster.models.tables import Tables
from ps_cluster.server.capabilities import Capabilities
from ps_cluster.system.limits import FreeMemory

# The number of copies of all weights in float32 that a task holds at its peak: docs/results.md, "What breaks first".
# The copies of a worker include messages to and from it that are in the memory of the parameter servers.
WORKER_COPIES, SERVER_COPIES, LEADER_COPIES, EVALUATOR_COPIES = 6, 8, 9, 4
# The copies of embedding tables with their slots that the servers together and the leader hold at their peak, during a
# snapshot, and those of the tables alone that the evaluator holds while it computes an update again: docs/tables.md, "Sizes".
SERVER_TABLE_COPIES, LEADER_TABLE_COPIES, EVALUATOR_TABLE_COPIES = 3.5, 4.4, 14
# The package's networks make a worker grow by 0.35 to 1.2 times the floats of a forward pass; networks with some 100 MB of
# floats or more, by at least 0.6. A training is refused if even this share of its estimate does not fit.
SURE_SHARE = 0.7
# Operations whose results take no new memory.
_VIEWS = frozenset({"Const", "Identity", "IdentityN", "Placeholder", "Reshape", "Split", "SplitV", "Squeeze"})
# TensorFlow can't send a larger tensor. Its error is "Cannot encode a Tensor that exceeds the 2GB protobuf limit".
MOST_SENT_BYTES = 2**31 - 2**20


def check_memory(config: RunConfig, network: FlatNetwork, spec: ExampleSpec, room: FreeMemory | None) -> str | None:
    """Return a line for the user if training may take more memory than is free, else None.

    Args:
      room: the free memory for all tasks together; None if the tasks are on several machines, whose memory is unknown.

    Raises:
      UserError: training surely takes more memory than is free, or a shard is too large to be sent.
    """
    _check_shards(config, network)
    if room is None or NETWORKS[config.model.name].worker_mb is not None:
        return None  # the launcher has already checked it
    activations = activation_bytes(network, spec, config.training.batch_size_per_worker)
    needs = needed_bytes(config, network.weights.length, activations) + table_bytes(config, network.tables)
    if needs <= room.memory_bytes:
        return None
    line = (
        f"model.name: got '{config.model.name}': training it takes about {needs / 1e9:.1f} GB more, and {room}: fewer "
        "cluster.workers or a smaller training.batch_size_per_worker take less"
    )
    if SURE_SHARE * needs > room.memory_bytes:
        raise UserError(line)
    return f"memory: {line}; the system may end processes of the run"


def needed_bytes(config: RunConfig, weights: int, activations: int) -> int:
    """Return the bytes that all tasks together will take, in addition to their memory without a network.

    Args:
      weights: the number of weights of the network.
      activations: the bytes of all floats of a forward pass of a batch.
    """
    whole = 1 if config.mode_kind.shares_steps else config.most_workers  # networks that are computed at the same time
    copies = (WORKER_COPIES + kept_by_worker(config)) * whole + LEADER_COPIES
    if config.mode_kind.has_parameter_servers or config.mode_kind.shares_steps:
        copies += SERVER_COPIES  # all shards together hold the weights once
    if config.cluster.evaluator:
        copies += EVALUATOR_COPIES
    return (copies + kept_for_workers(config)) * 4 * weights + whole * activations


def table_bytes(config: RunConfig, tables: Tables) -> int:
    """Return the bytes that embedding tables, whose rows travel, take in all tasks together. No worker holds them."""
    slots = len(RULES[config.optimizer.rule].update.slot_names) + config.mode_kind.averages
    once = SERVER_TABLE_COPIES + LEADER_TABLE_COPIES
    of_rows = (once * (1 + slots) + EVALUATOR_TABLE_COPIES * config.cluster.evaluator) * 4 * tables.size
    return round(of_rows + once * 8 * tables.keyed_size)


def kept_for_workers(config: RunConfig) -> int:
    """Return how many vectors of all weights the shards keep for workers: for the mode, the method and old versions."""
    kind, method, delay = *_kinds(config), config.mode_kind.delay(config)
    of_mode = (kind.vectors_per_worker + kind.slots_per_worker) * config.training_workers
    of_method = (method.vectors_per_worker + method.slots_per_worker) * config.most_workers
    return of_mode + of_method + (delay + 1 if delay > 0 else 0)


def kept_by_worker(config: RunConfig) -> int:
    """Return how many vectors of all weights a worker keeps from one exchange to the next, in addition to the weights.

    If pushes lose values, the worker keeps the remainder of its earlier pushes, and that of the current push. With local steps
    it also keeps its optimizer's slots, and while it writes its state to files, two more copies of the state. Then there are
    the mode's vectors (`Mode.worker_vectors`). A new leader frees the variables that an earlier leader left in a worker before
    it creates new ones.
    """
    left_out = under_way = int(config.loses_of_pushes)
    if not config.mode_kind.promise.takes_local_steps:
        return left_out + under_way
    in_files = left_out + len(RULES[config.optimizer.rule].update.slot_names)
    return 3 * in_files + under_way + config.mode_kind.worker_vectors(config)


def _kinds(config: RunConfig) -> tuple[Capabilities, Capabilities]:
    """Return the capabilities of the mode's shards, and those of the staleness method."""
    return config.mode_kind.shard.capabilities, METHODS[config.staleness.method].correction.capabilities


def activation_bytes(network: FlatNetwork, spec: ExampleSpec, batch_size: int) -> int:
    """Return the bytes of all floats that a forward pass in training mode computes, as far as their shapes are known."""
    outputs = [
        output
        for operation in network.trace(spec, batch_size).graph.get_operations()
        if operation.type not in _VIEWS
        for output in operation.outputs
    ]
    return sum(x.dtype.size * (x.shape.num_elements() or 0) for x in outputs if x.dtype.is_floating)


def _check_shards(config: RunConfig, network: FlatNetwork) -> None:
    rows = config.most_workers if any(kind.slots_per_worker for kind in _kinds(config)) else 1
    weights = network.weights.length + network.tables.size
    # Snapshots are sent in float32, and the keys of rows in int64.
    largest = max(-(-weights // config.shards) * 4 * rows, -(-network.tables.keyed_size // config.shards) * 8)
    if config.mode_kind.has_parameter_servers and largest > MOST_SENT_BYTES:
        servers = -(-largest * config.shards // MOST_SENT_BYTES)
        raise UserError(
            f"cluster.parameter_servers: got {config.shards}: the network has {weights:,} weights"
            f"{f', kept for each of {rows} workers' * (rows > 1)}, and a parameter server can send at most "
            f"{MOST_SENT_BYTES / 1e9:.1f} GB at once: take at least {servers}"
        )
