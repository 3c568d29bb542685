"""Measure how fast parameters move: pull and push of steps that compute nothing, beside the machine's own limits.

    python -m benchmarks.transfer --rounds 3 --data-dir DATA --parameters 20,100

For comparison it measures, with blocks of as many float32: copies from one numpy array to another, one TCP connection
over loopback, and workers that only read a variable on the parameter server over TensorFlow's gRPC.
"""

from __future__ import annotations

import socket
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import click
import numpy as np

from benchmarks.in_turns import Case, measure, medians, open_data, options, over_rounds, print_table
from benchmarks.runs import empty_steps, per_second, plain_per_second
from ps_cluster.cli.options import CommaList, Number, OneLineCommand, Whole
from ps_cluster.config import MOST_WORKERS, RunConfig
from ps_cluster.data.packed import PackedDataset
from ps_cluster.report.terminal import make_console
from ps_cluster.tools.bench.throughput import case

FLOAT_BYTES = 4
SENDER_ENDS_WITHIN_S = 10.0
SENDER_SENDS_WITHIN_S = 30.0
COLUMNS = (
    medians("copies", ["copies"], ".1f", 1e-9),
    medians("TCP", ["tcp"], ".1f", 1e-9),
    medians("reads", ["reads"], ".1f", 1e-9),
    medians("float32", ["float32"], ".1f", 1e-9),
    over_rounds("/ reads", "float32_to_reads", ".2f"),
    medians("bfloat16", ["bfloat16"], ".1f", 1e-9),
    over_rounds("/ reads", "bfloat16_to_reads", ".2f"),
)


@click.command(cls=OneLineCommand)
@options
@click.option("--parameters", type=CommaList(Number(0.01, 500)), default="20,100", help="Millions of weights.")
@click.option("--workers", type=Whole(1, MOST_WORKERS), default=3)
def main(
    rounds: int, seconds: float, dataset: str, data_dir: Path | None, output: Path | None,
    parameters: tuple[float, ...], workers: int,
) -> None:  # fmt: skip
    """Measure how fast parameters move, beside copies, TCP and TensorFlow's gRPC alone."""
    packed = open_data(dataset, data_dir)
    base = case("tutorial_cnn", "float32", packed).with_values({"cluster.workers": workers})
    cases = [Case({"M weights": millions}, partial(rates, base, packed, seconds, millions)) for millions in parameters]
    title = f"GB/s: raw, and pulled + pushed by {workers} workers + 1 ps; n = {rounds}"
    print_table(title, measure(cases, rounds, output), COLUMNS, make_console())


def rates(base: RunConfig, packed: PackedDataset, seconds: float, millions: float) -> dict[str, float]:
    """Return bytes per second of each way to move so many weights, measured one after the other."""
    weights = round(1e6 * millions)
    size = FLOAT_BYTES * weights
    reads = size * plain_per_second("reads", base, packed, seconds, weights)
    found = {"copies": copied_bytes_per_second(size, seconds / 4), "tcp": tcp_bytes_per_second(size, seconds / 4)}
    for wire in ("float32", "bfloat16"):
        config = base.with_values({"cluster.wire": wire})
        found[wire] = empty_steps(config, packed, seconds, weights)["bytes_per_second"]
        found[f"{wire}_to_reads"] = found[wire] / reads
    return found | {"reads": reads}


def copied_bytes_per_second(size: int, seconds: float) -> float:
    """Return bytes per second of one thread that copies a block of `size` bytes again and again."""
    source, target = np.ones(size, np.uint8), np.ones(size, np.uint8)
    return size * per_second(lambda: np.copyto(target, source), seconds)


def tcp_bytes_per_second(size: int, seconds: float) -> float:
    """Return bytes per second of a process that sends blocks of `size` bytes to this one over loopback."""
    block = memoryview(bytearray(size))
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(SENDER_SENDS_WITHIN_S)
        sender = get_context("spawn").Process(target=_send, args=(server.getsockname(), size), daemon=True)
        sender.start()
        connection, _ = server.accept()
    with connection:
        connection.settimeout(SENDER_SENDS_WITHIN_S)
        rate = size * per_second(lambda: _receive(connection, block), seconds)
    sender.join(SENDER_ENDS_WITHIN_S)
    return rate


def _send(address: tuple[str, int], size: int) -> None:
    block = bytes(size)
    with socket.create_connection(address) as connection:
        try:
            while True:
                connection.sendall(block)
        except ConnectionError:  # the receiver has closed the connection
            return


def _receive(connection: socket.socket, block: memoryview) -> None:
    while block:
        if not (got := connection.recv_into(block)):
            raise ConnectionError("the sender has ended")
        block = block[got:]


if __name__ == "__main__":
    main()
