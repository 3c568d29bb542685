"""Estimate the memory that a training will take, before it starts, for networks that were never measured.

The launcher can't build a network, so it estimates only for networks that were measured. Here the estimate is computed
from the network itself, in the process that has built the network.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

from ps_cluster.config import RunConfig
from ps_cluster.config.lazy import keras, tf
from ps_cluster.config.networks import NETWORKS
from ps_cluster.config.objectives import ExampleSpec
from ps_cluster.config.optimizer_rules import RULES
from ps_cluster.config.staleness_methods import METHODS
from ps_cluster.errors import UserError
from ps_cluster.models.flat import FlatNetwork
from ps_cluster.server.capabilities import Capabilities
from ps_cluster.system.limits import FreeMemory

# The number of copies of all weights in float32 that a task holds at its peak: docs/results.md, "What breaks first".
# The copies of a worker include messages to and from it that are in the memory of the parameter servers.
WORKER_COPIES, SERVER_COPIES, LEADER_COPIES, EVALUATOR_COPIES = 6, 8, 9, 4
# The number of copies of embedding tables at the peak (docs/tables.md, "Sizes"). All servers together hold copies of the
# tables and their slots during a snapshot. The leader holds copies of the tables without their slots when it begins,
# and the evaluator holds such copies while it recomputes an update.
SERVER_TABLE_COPIES, LEADER_TABLE_COPIES, EVALUATOR_TABLE_COPIES = 2.1, 2.0, 8.6
# The package's networks make a worker grow by 0.35 to 1.2 times the floats of a forward pass. If the floats take some
# 100 MB or more, the worker grows by at least 0.6 times the floats. A training is refused only if even this share of its
# estimate does not fit.
SURE_SHARE = 0.7
_BOOT_ID = "/proc/sys/kernel/random/boot_id"  # a file with a different content on each machine
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
    of_tables = table_bytes(config, network.tables.size, network.tables.keyed_size)
    needs = needed_bytes(config, network.weights.length, activations) + of_tables
    if needs <= room.memory_bytes:
        return None
    share, less = "", "fewer cluster.workers or a smaller training.batch_size_per_worker need less memory"
    if of_tables > needs / 2:  # workers do not hold tables, so fewer workers would not help
        share = (
            f"of which {of_tables / 1e9:.1f} GB are for the embedding tables (their weights take "
            f"{4 * network.tables.size / 1e9:.2f} GB; the rest is for copies and optimizer slots), "
        )
        less = (
            "to need less memory, make the tables smaller, choose an optimizer rule with fewer slots, or set --no-evaluator "
            "or evaluation.recompute_updates=false"
        )
    need = f"training takes about {needs / 1e9:.1f} GB of memory, {share}and {room}"
    line = f"model.name: got '{config.model.name}': {need}: {less}"
    if SURE_SHARE * needs > room.memory_bytes:
        raise UserError(line)
    return f"memory: {line}; the system may kill processes of the run"


def needed_bytes(config: RunConfig, weights: int, activations: int) -> int:
    """Return the bytes that all tasks together will take, in addition to their memory without a network.

    Args:
      weights: the number of weights of the network.
      activations: the bytes of all floats of a forward pass of a batch.
    """
    # The number of whole networks that are computed at the same time.
    whole = 1 if config.chosen_mode.shares_steps else config.most_workers
    copies = (WORKER_COPIES + kept_by_worker(config)) * whole + LEADER_COPIES
    if config.chosen_mode.has_parameter_servers or config.chosen_mode.shares_steps:
        copies += SERVER_COPIES  # all shards together hold the weights once
    if config.cluster.evaluator:
        copies += EVALUATOR_COPIES
    return (copies + kept_for_workers(config)) * 4 * weights + whole * activations


def table_bytes(config: RunConfig, numbers: int, keys: int = 0) -> int:
    """Return the bytes that embedding tables take in all tasks together if they are exchanged row by row.

    Workers hold no tables.

    Args:
      numbers: the number of weights in all tables.
      keys: the number of int64 values that dynamic embedding tables use to record the row of each key.
    """
    of_keys = round((SERVER_TABLE_COPIES + LEADER_TABLE_COPIES) * 8 * keys)
    others = LEADER_TABLE_COPIES
    if config.cluster.evaluator:
        others += EVALUATOR_TABLE_COPIES if config.evaluation.recompute_updates else EVALUATOR_COPIES
    return bytes_on_servers(config, numbers) + round(others * 4 * numbers) + of_keys


def bytes_on_servers(config: RunConfig, numbers: int) -> int:
    """Return the bytes that tables with `numbers` weights take on all parameter servers together."""
    slots = len(RULES[config.optimizer.rule].update.slot_names) + config.chosen_mode.averages
    return round(SERVER_TABLE_COPIES * (1 + slots) * 4 * numbers)


class Machine(NamedTuple):
    """A machine with parameter servers: its free memory, and the indices of the servers that are on it."""

    room: FreeMemory
    servers: tuple[int, ...]


class TableMemoryLimit:
    """Adds up the sizes of embedding tables while a network is built, and refuses a table before it takes memory."""

    def __init__(self, config: RunConfig, room: FreeMemory | None, machines: Callable[[], Sequence[Machine]]):
        """Start with no tables.

        Args:
          room: the free memory for all tasks together; None if the tasks are on several machines.
          machines: returns the machines of the parameter servers. It is called only if the tasks are on several
            machines.
        """
        self._config, self._room, self._find_machines = config, room, machines
        self._numbers = 0

    @cached_property
    def _machines(self) -> Sequence[Machine]:
        return self._find_machines() if self._room is None else ()

    def add(self, layer: keras.layers.Embedding) -> None:
        """Add a table that is about to be created. Raises UserError if the tables so far surely do not fit."""
        config, rows, width = self._config, int(layer.input_dim), int(layer.output_dim)
        if rows < config.model.rows_from or not layer.trainable:
            return
        self._numbers += rows * width
        table = f"the embedding table of '{layer.name}' ({rows:,} rows of width {width})"
        tables = f"{table} and the tables of earlier layers take about"
        if self._room is not None and SURE_SHARE * table_bytes(config, self._numbers) > self._room.memory_bytes:
            less = "fewer or narrower rows" + ", or --no-evaluator," * config.cluster.evaluator
            of_server = bytes_on_servers(config, self._numbers) / config.shards / 1e9
            raise UserError(
                f"model.name: got '{config.model.name}': {tables} {table_bytes(config, self._numbers) / 1e9:.1f} GB, "
                f"of which {of_server:.1f} GB are on each parameter server, but {self._room}: {less} need less memory"
            )
        for room, servers in self._machines:
            needs = bytes_on_servers(config, self._numbers) * len(servers) / config.shards
            if SURE_SHARE * needs > room.memory_bytes:
                names = " and ".join(f"ps-{server}" for server in servers)
                raise UserError(
                    f"cluster.parameter_servers: got {config.shards}: {tables} {needs / 1e9:.1f} GB on {names}, but {room}: "
                    "use fewer or narrower rows, or put parameter servers on more machines"
                )


def machines_of(devices: Sequence[str]) -> list[Machine]:
    """Return the machines of the parameter servers on these devices, without machines whose free memory is unknown."""
    found: dict[str, tuple[int, list[int]]] = {}
    for server, device in enumerate(devices):
        with tf.device(device):
            boot, memory = (tf.io.read_file(file).numpy().decode() for file in (_BOOT_ID, "/proc/meminfo"))
        free_kb = re.search(r"^MemAvailable:\s*(\d+) kB", memory, re.MULTILINE)
        if free_kb:
            found.setdefault(boot, (1024 * int(free_kb[1]), []))[1].append(server)
    return [Machine(FreeMemory(free), tuple(servers)) for free, servers in found.values()]


def kept_for_workers(config: RunConfig) -> int:
    """Return how many vectors, each with one number for every weight, the shards keep in addition to the weights.

    The mode and the staleness method may need such vectors for each worker. If pulls get older versions of the weights,
    to emulate more workers, the shards also keep these versions.
    """
    kind, method, delay = *_kinds(config), config.chosen_mode.delay(config)
    of_mode = (kind.vectors_per_worker + kind.slots_per_worker) * config.training_workers
    of_method = (method.vectors_per_worker + method.slots_per_worker) * config.most_workers
    return of_mode + of_method + (delay + 1 if delay > 0 else 0)


def kept_by_worker(config: RunConfig) -> int:
    """Return how many vectors, each with one number for every weight, a worker keeps in addition to the weights.

    If compression omits a part of each push, the worker keeps the remainder of its earlier pushes, and that of the
    current push. With local steps, the worker also keeps its optimizer's slots, two more copies of its state while it
    writes the state to files, and the mode's vectors (`Mode.worker_vectors`). Variables that were created under an
    earlier leader do not count, because a new leader frees them before it creates its own.
    """
    left_out = under_way = int(config.compresses_pushes)
    if not config.chosen_mode.synchrony.takes_local_steps:
        return left_out + under_way
    in_files = left_out + len(RULES[config.optimizer.rule].update.slot_names)
    return 3 * in_files + under_way + config.chosen_mode.worker_vectors(config)


def _kinds(config: RunConfig) -> tuple[Capabilities, Capabilities]:
    """Return the capabilities of the mode's shards, and those of the staleness method."""
    return config.chosen_mode.shard.capabilities, METHODS[config.staleness.method].correction.capabilities


def activation_bytes(network: FlatNetwork, spec: ExampleSpec, batch_size: int) -> int:
    """Return the bytes of all floats that a forward pass in training mode computes, as far as their shapes are known."""
    outputs = [
        output
        for operation in network.graph(spec, batch_size).graph.get_operations()
        if operation.type not in _VIEWS
        for output in operation.outputs
    ]
    return sum(x.dtype.size * (x.shape.num_elements() or 0) for x in outputs if x.dtype.is_floating)


def _check_shards(config: RunConfig, network: FlatNetwork) -> None:
    rows = config.most_workers if any(kind.slots_per_worker for kind in _kinds(config)) else 1
    weights = network.weights.length  # without tables, whose rows are never sent all at once
    # Snapshots are sent in float32, and the keys of rows in int64.
    largest = max(-(-weights // config.shards) * 4 * rows, -(-network.tables.keyed_size // config.shards) * 8)
    if config.chosen_mode.has_parameter_servers and largest > MOST_SENT_BYTES:
        servers = -(-largest * config.shards // MOST_SENT_BYTES)
        raise UserError(
            f"cluster.parameter_servers: got {config.shards}: the network has {weights:,} weights"
            f"{f', kept separately for each of {rows} workers' * (rows > 1)}, but each parameter server can send at most "
            f"{MOST_SENT_BYTES / 1e9:.1f} GB at once: take at least {servers} parameter servers"
        )
