"""Build the parts that a training computes with: the network, the parameter store, and a worker's step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import accumulate
from typing import Protocol

import tensorflow as tf

from ps_cluster.config import RunConfig
from ps_cluster.config.equations import Matrix
from ps_cluster.config.networks import NETWORKS
from ps_cluster.data.packed import PackedDataset
from ps_cluster.errors import UserError
from ps_cluster.models import flat
from ps_cluster.models.build import before_each_embedding
from ps_cluster.models.build import build as build_model
from ps_cluster.models.user_networks import check_image_sizes, unused_parts
from ps_cluster.runs.run_dir import log_line
from ps_cluster.server.arrangement import Arrangement, Part, RowRange
from ps_cluster.server.initial_state import InitialState, ends_of_shards
from ps_cluster.server.store import ParameterStore
from ps_cluster.system.limits import FreeMemory
from ps_cluster.training.devices import accelerator_of
from ps_cluster.training.memory import TableMemoryLimit, check_memory, machines_of
from ps_cluster.training.step import Compute, TrainStep
from ps_cluster.training.table_limits import check_keyed, reason_against_rows, tables_of


class Build(Protocol):
    """A function that builds the parameter store and the computation of the workers' steps, as `build` does."""

    def __call__(
        self,
        config: RunConfig,
        dataset: PackedDataset,
        devices: Sequence[str],
        own_device: str,
        leader_prefix: str,
        free: FreeMemory | None,
        /,
    ) -> tuple[ParameterStore, Compute]: ...


def build(
    config: RunConfig,
    dataset: PackedDataset,
    devices: Sequence[str],
    own_device: str,
    leader_prefix: str,
    free: FreeMemory | None,
    accelerator_of: Callable[[RunConfig], str | None] = accelerator_of,
) -> tuple[ParameterStore, Compute]:
    """Build the parameter store, with one shard on each of `devices`, and the computation of the workers' steps.

    Args:
      own_device: the device of this process on which the network is built.
      leader_prefix: the prefix of the names of all resources that the leader creates on servers (server/leftovers.py).
      free: the free memory for all tasks together; None if the tasks are on several machines, whose memory is unknown.
      accelerator_of: returns the device on which each worker computes the network, or None for the worker's processor.
    """
    network, start = make_network(config, dataset, own_device, devices, free)
    start = replace(start, leader_prefix=leader_prefix)
    # With local steps, workers update the matrices, and hold each of them as a whole. So the servers may cut matrices.
    on_servers = replace(start, matrices=()) if config.chosen_mode.synchrony.takes_local_steps else start
    arrangement = arrangement_of(network, len(devices), on_servers.matrices) if network.tables else None
    store = make_store(config, dataset, network, devices, on_servers.split(len(devices)), arrangement)
    step = TrainStep(
        config, network, dataset.spec, train_examples=dataset.train_examples, accelerator=accelerator_of(config)
    )
    compute = config.chosen_mode.worker_step(step, config, start, network.keep)
    if not isinstance(compute, Compute):  # the user may have written the mode
        raise UserError(
            f"mode '{config.mode.name}': its worker_step returned {type(compute).__name__}: return the TrainStep, or another "
            "subclass of ps_cluster.training.step.Compute"
        )
    return store, compute


def arrangement_of(network: flat.FlatNetwork, servers: int, matrices: Sequence[Matrix] = ()) -> Arrangement:
    """Return the positions of each server's weights in the vector of all weights, for a network with embedding tables.

    Each server has a range of the weights that do not belong to tables, followed by some rows of each table
    (server/table_shard.py). `matrices`: the matrices that must not be cut into parts on several servers.
    """
    starts = accumulate([0, *network.all_weights.sizes])
    begins = dict(zip(map(id, network.model.trainable_variables), starts))
    ends = ends_of_shards(network.weights.length, servers, matrices)
    of_servers: list[list[Part]] = [[] for _ in range(servers)]
    for parts, begin, end in zip(of_servers, [0, *ends], ends):
        before = 0  # the number of weights in the variables so far
        for variable, size in zip(network.variables, network.weights.sizes):
            low, high = max(begin, before), min(end, before + size)
            if low < high:
                shift = begins[id(variable)] - before
                parts.append(RowRange(low + shift, high + shift))
            before += size
    of_keys: list[list[Part]] = [[] for _ in range(servers)]
    keys_before = 0
    for table in sorted(network.tables.tables, key=lambda table: table.group):
        begin, together = begins[id(table.layer.embeddings)], table.width * (table.keyed.ways if table.keyed else 1)
        for server, parts in enumerate(of_servers):
            first = (server - table.first) % servers
            parts.append(RowRange(begin, begin + table.rows * table.width, together, first, servers))
        if layout := table.keyed:
            end = keys_before + layout.state_size
            for server, parts in enumerate(of_keys):
                parts.append(RowRange(keys_before, end, layout.state_columns, server, servers))
            keys_before = end
    return Arrangement(of_servers, Arrangement(of_keys) if keys_before else None)


def make_network(
    config: RunConfig,
    dataset: PackedDataset,
    own_device: str,
    devices: Sequence[str] = (),
    free: FreeMemory | None = None,
) -> tuple[flat.FlatNetwork, InitialState]:
    """Build the network. Return it together with the initial values of its weights and statistics, as flat vectors.

    Args:
      own_device: the device of this process on which the network is built.
      devices: the devices of the shards; empty if the shards do not hold embedding tables.
      free: the free memory for all tasks together; None if the tasks are on several machines, whose memory is unknown.
    """
    with tf.device(own_device):
        limit = TableMemoryLimit(
            config, free, lambda: machines_of([one for one in devices if one.startswith("/job:ps")])
        )
        with nullcontext() if reason_against_rows(config) else before_each_embedding(limit.add):
            examples = dataset.inputs("train")  # the first examples may determine initial weights
            model = build_model(config.model, dataset.spec, seed=config.training.seed, examples=examples)
        for line in unused_parts(model, config):
            log_line(line)
        check_image_sizes(model, config)
        tables = tables_of(model, config, dataset.spec, notify=log_line)
        check_keyed(config, tables)
        network = flat.FlatNetwork(model, tables=tables)
        if config.model.name not in NETWORKS.own and network.has_changing_statistics:
            network.count_calls(dataset.spec)
        if warning := check_memory(config, network, dataset.spec, free):
            log_line(warning)
        weights, statistics = flat.flatten(network.variables), flat.flatten(flat.statistics_of(model))
    factors = network.weights.factors((rule.match, rule.factor) for rule in config.optimizer.learning_rate_factors)
    matrices = tuple(network.weights.matrices(config.optimizer.matrix_patterns))
    # Each batch of a step keeps the share `keep` of the statistics, so a step keeps a power of this share.
    keep = network.keep**config.batches_per_step
    return network, InitialState(
        weights, factors, statistics, keep, matrices, tables=tables.take_values(), keyed=tables.keyed_parts()
    )


def make_store(
    config: RunConfig,
    dataset: PackedDataset,
    network: flat.FlatNetwork,
    devices: Sequence[str],
    parts: Sequence[InitialState],
    arrangement: Arrangement | None = None,
    snapshot_lock: AbstractContextManager[object] = nullcontext(),
) -> ParameterStore:
    """Create the parameter store of a network, with one shard on each of `devices`.

    Args:
      parts: the initial values of each shard.
      arrangement: the positions of each shard's weights in the vector of all weights; None if the shards follow one
        another in it.
      snapshot_lock: held while a snapshot is taken.
    """
    return ParameterStore(
        devices, parts, config=config, total_steps=config.total_steps(dataset.train_examples),
        shard_class=config.chosen_mode.shard, arrangement=arrangement,
        layout=[*network.all_weights.lines, *network.statistics.lines], snapshot_lock=snapshot_lock,
    )  # fmt: skip
