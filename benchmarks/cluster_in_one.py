"""Measure what the chief does with so many servers, all of them in this process; for `benchmarks.scale`.

    python -m benchmarks.cluster_in_one PS WORKERS WEIGHTS

Prints seconds as JSON: of a look without rows and of a snapshot, each at all slices at once and one after the
other, and of a dispatch that computes nothing. The servers share this machine's cores with the chief.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import numpy as np
import portpicker
import tensorflow as tf

from ps_cluster.config import build_config
from ps_cluster.server.shard import Start
from ps_cluster.server.store import ParameterStore
from ps_cluster.training.membership import connect

TIMES, CLOSURES = 15, 300


def start_servers(counts: dict[str, int]) -> tuple[dict[str, list[str]], list[tf.distribute.Server]]:
    """Start the servers of each type but the chief; return all addresses, and the servers."""
    cluster = {
        kind: [f"127.0.0.1:{portpicker.pick_unused_port()}" for _ in range(count)]
        for kind, count in {"chief": 1, **counts}.items()
    }
    spec = tf.train.ClusterSpec(cluster)
    servers = [
        tf.distribute.Server(spec, job_name=kind, task_index=index, protocol="grpc")
        for kind, count in counts.items()
        for index in range(count)
    ]
    return cluster, servers


def seconds(act: Callable[[], object], times: int = TIMES) -> float:
    """Return the median time that `act` takes. The first call builds graphs and does not count."""
    act()
    found = []
    for _ in range(times):
        began = time.perf_counter()
        act()
        found.append(time.perf_counter() - began)
    return median(found)


def store_on(ps: int, weights: int) -> ParameterStore:
    nothing = np.zeros(0, np.float32)
    start = Start(np.zeros(weights, np.float32), np.ones(weights, np.float32), statistics=nothing, keep=nothing)
    devices = [f"/job:ps/replica:0/task:{index}/device:CPU:0" for index in range(ps)]
    config = build_config(
        overrides={"training.steps": 1000, "cluster.parameter_servers": ps, "cluster.wire": "float32"}
    )
    return ParameterStore(devices, start.split(ps), config=config, total_steps=1000)


def one_by_one(store: ParameterStore, act: Callable[[ParameterStore], object]) -> Callable[[], object]:
    """Return `act` on a store whose slices are called one after the other, as with code before there were threads."""
    return lambda: [act(alone) for alone in _each(store)]


def _each(store: ParameterStore) -> list[ParameterStore]:
    found = []
    for part in store.slices:
        alone = ParameterStore.__new__(ParameterStore)
        vars(alone).update(vars(store) | {"slices": [part]})
        found.append(alone)
    return found


def main(ps: int, workers: int, weights: int) -> None:
    cluster, servers = start_servers({"ps": ps, "worker": workers})
    coordinator, _ = connect(cluster)
    store = store_on(ps, weights)
    acts: dict[str, Callable[[ParameterStore], object]] = {
        "look": lambda one: one.read_ledgers([0] * len(one.slices)),
        "snapshot": lambda one: one.snapshot([0] * len(one.slices), closed=0),
    }
    found = {name: seconds(partial(act, store)) for name, act in acts.items()}
    found |= {f"{name}_one_by_one": seconds(one_by_one(store, act)) for name, act in acts.items()}

    @tf.function(autograph=False)
    def nothing() -> tf.Tensor:
        return tf.constant(0)

    def dispatch() -> None:
        for _ in range(CLOSURES):
            coordinator.schedule(nothing)
        coordinator.join()

    print(json.dumps(found | {"dispatch": seconds(dispatch, 3) / CLOSURES, "servers": len(servers)}))
    sys.stdout.flush()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
    os._exit(0)  # servers in a process never end by themselves
