"""Measure what a parameter server holds for each worker, and what of it a snapshot takes; no training.

    python -m benchmarks.vectors_of_workers --workers 100

Prints bytes beyond those with one worker: of all variables of a slice, and of a snapshot's arrays.
"""

from __future__ import annotations

import gc

import click
import numpy as np
import tensorflow as tf

from ps_cluster.cli.options import OneLineCommand, Whole
from ps_cluster.config import build_config
from ps_cluster.config.layers import NamedLayer
from ps_cluster.config.registry import find
from ps_cluster.report.terminal import print_line
from ps_cluster.server.shard import Start
from ps_cluster.server.store import ParameterStore

CASES = {
    "async": {},
    "elastic": {"mode.name": "elastic"},
    **{name: {"staleness.method": name} for name in ("dc_constant", "gap_aware", "dc_adaptive")},
}


@click.command(cls=OneLineCommand)
@click.option("--workers", type=Whole(2), default=100)
@click.option("--weights", type=Whole(1), default=1_000_000)
def main(workers: int, weights: int) -> None:
    """Print a table: mode or method, MB of variables and of a snapshot, for the workers beyond the first."""
    tf.get_logger().setLevel("ERROR")  # each case has a graph of its own, as it should
    print_line(f"| {workers} workers, {weights:,} weights | variables [MB] | snapshot [MB] |")
    print_line("|---|---:|---:|")
    for name, settings in CASES.items():
        one, all_ = (_bytes(count, weights, settings) for count in (1, workers))
        held, saved = (1e-6 * (many - few) for few, many in zip(one, all_, strict=True))
        print_line(f"| `{name}` | {held:,.0f} | {saved:,.0f} |")


def _bytes(workers: int, weights: int, settings: dict[str, str]) -> tuple[int, int]:
    """Return the bytes of all variables that a slice makes, and of its snapshot."""
    nothing = np.zeros(0, np.float32)
    start = Start(np.zeros(weights, np.float32), np.ones(weights, np.float32), statistics=nothing, keep=nothing)
    values = {"training.steps": 1000, "cluster.wire": "float32", "optimizer.rule": "sgd", **settings}
    config = build_config(None, values, NamedLayer("--workers", {"cluster": {"workers": workers}}))
    before = _variables()
    kind = find(config.mode_kind.slice)
    store = ParameterStore(["/device:CPU:0"], [start], config=config, total_steps=1000, kind=kind)
    held = _variables() - before
    arrays, _ = store.snapshot([0], closed=0)
    return held, sum(array.nbytes for array in arrays.values())


def _variables() -> int:
    """Return the bytes of all variables in this process."""
    gc.collect()
    found = {id(one): one for one in gc.get_objects() if isinstance(one, tf.Variable)}
    return sum(one.shape.num_elements() * one.dtype.size for one in found.values())


if __name__ == "__main__":
    main()
