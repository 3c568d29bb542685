"""Measure how long and how many bytes training takes to a loss, over links as they are between sites.

    python -m benchmarks.far_apart --data-dir DATA --rates 10,100 --arms async,diloco,diloco:int8 --rounds 3

Each task is on a host of its own: a network namespace of this machine. All links are slow before training begins. The hosts
share this machine's cores, so the times of the computation are not those of as many machines. The arms take turns. The loss
is the mean training loss of the last `WINDOW` examples, with local steps that of each worker's own weights; bytes are those
that all hosts have sent, headers included.
"""

from __future__ import annotations

import statistics
import subprocess
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from benchmarks.simulated_hosts import ENDED_WITHIN_S, STARTED_WITHIN_S, after, training_on_hosts, wait
from ps_cluster.cli.command_line import CommaList, Number, OneLineCommand, Whole
from ps_cluster.config import build_config
from ps_cluster.config.modes import CHIEF, MODES, PS, WORKER
from ps_cluster.errors import UserError
from ps_cluster.report.terminal import print_line
from ps_cluster.runs.proof import read_csv
from ps_cluster.tools.bench.throughput import scratch
from ps_cluster.tools.chaos.hosts import Host, program

NETWORK, MOST_STEPS, WINDOW, BELOW = "tutorial_cnn", 1_000_000, 8_000, 0.15
ARMS = "async,async:int8,sync,diloco,diloco:int8,sync-diloco,sync-diloco:int8"
# Of every arm: the rate of async and diloco, whose workers take steps with gradients of their own.
RULE = (
    "--set", "schedule.kind=constant", "--set", "schedule.warmup_fraction=0", "--set", "optimizer.learning_rate=0.003",
)  # fmt: skip


class Measured(NamedTuple):
    """Hold the figures of one arm in one round.

    Attributes:
      seconds: to the loss; None if it did not come to it. examples_per_second, bytes_per_example: of the whole measurement.
      examples: to the loss. loss: the last.
    """

    seconds: float | None
    examples: int
    examples_per_second: float
    bytes_per_example: float
    loss: float


@click.command(cls=OneLineCommand)
@click.option("--data-dir", type=click.Path(path_type=Path, exists=True), required=True, help="CIFAR-10.")
@click.option("--arms", type=CommaList(), default=ARMS, help="Modes, with :WIRE where it is another than float32.")
@click.option("--rates", type=CommaList(Number(1, 100_000)), default="10,100,1000", help="Of each link, in Mbit/s.")
@click.option("--delay-ms", type=Number(0, 1000), default=12.5, help="Of each link, one way; two links make a path.")
@click.option("--workers", type=Whole(1, 20), default=4)
@click.option("--straggler", default="none", help="E.g. 0:4x.")
@click.option("--local-steps", type=Whole(1, 1000), default=16, help="Of modes that take some.")
@click.option("--loss", type=Number(0, 10), default=1.6)
@click.option("--seconds", type=Number(5, 3600), default=120.0, help="Of each measurement, at most.")
@click.option("--rounds", type=Whole(1, 20), default=3)
def main(
    data_dir: Path,
    arms: Sequence[str],
    rates: Sequence[float],
    delay_ms: float,
    workers: int,
    straggler: str,
    local_steps: int,
    loss: float,
    seconds: float,
    rounds: int,
) -> None:
    """Print a table of arms and links: time to a loss and megabytes for it, as median (lowest to highest)."""
    for arm in arms:
        mode, _, wire = arm.partition(":")
        try:
            build_config(overrides={"mode.name": mode, "model.name": NETWORK, "cluster.wire": wire or "float32"})
        except UserError as error:
            raise UserError(f"--arms: got '{arm}': {error}") from error
    found: dict[tuple[float, str], list[Measured]] = {}
    with scratch() as folder:
        for number, rate, arm in product(range(rounds), rates, arms):
            mode, _, wire = arm.partition(":")
            options = [*RULE, "--mode", mode, "--set", f"cluster.wire={wire or 'float32'}", "--seed", str(number)]
            options += ["--set", f"cluster.straggler={straggler}", "--data-dir", str(data_dir)]
            if MODES[mode].takes_local_steps:
                options += ["--set", f"mode.local_steps={local_steps}"]
            place = folder / f"{number}-{rate:g}-{arm.replace(':', '-')}"
            measured = _measure(place, mode, workers, options, rate, delay_ms, loss, seconds)
            found.setdefault((rate, arm), []).append(measured)
            print_line(f"round {number}, {rate:g} Mbit/s, {arm}: {measured}")
    print_line(f"\n| Mbit/s | arm | s to a loss of {loss:g} | MB | examples/s | reached |")
    print_line("|---:|---|---|---|---|---:|")
    for (rate, arm), all_rounds in found.items():
        print_line(f"| {rate:g} | {arm} | {_row(all_rounds)} |")


def _row(rounds: Sequence[Measured]) -> str:
    there = [one for one in rounds if one.seconds is not None]
    cells = [
        _spread(one.seconds for one in there if one.seconds is not None),
        _spread(one.examples * one.bytes_per_example / 1e6 for one in there),
        _spread(one.examples_per_second for one in rounds),
        f"{len(there)} of {len(rounds)}",
    ]
    return " | ".join(cells)


def _spread(values: Iterable[float]) -> str:
    known = list(values)
    return f"{statistics.median(known):,.0f} ({min(known):,.0f}–{max(known):,.0f})" if known else "–"


def _measure(
    folder: Path,
    mode: str,
    workers: int,
    options: Sequence[str],
    rate_mbit: float,
    delay_ms: float,
    loss: float,
    seconds: float,
) -> Measured:
    """Train on hosts until the loss is reached or the time is over."""
    shared = ("--dataset", "cifar10", "--model", NETWORK, "--precision", "float32", "--steps", str(MOST_STEPS))
    types = [kind for kind in (CHIEF, PS, WORKER) if kind in MODES[mode].tasks]
    training = training_on_hosts(
        folder, types, workers, 1, (*shared, *options), lambda machine: machine.slow(f"{rate_mbit:g}mbit", delay_ms)
    )
    with training as (run, machines):
        rows: list[dict[str, Any]] = []

        def begun() -> bool:
            rows.extend(run.new_rows())
            return bool(rows) and rows[-1]["applied"] > 0

        wait(run, begun, STARTED_WITHIN_S)
        sent, is_over = _sent(machines), after(seconds)
        # A row has the mean loss of the newest updates, which comes to the loss before the mean of more examples does.
        wait(run, lambda: begun() and (is_over() or (rows[-1]["loss"] or loss) < loss - BELOW), seconds + 1)
        sent = _sent(machines) - sent
        run.interrupt()
        wait(run, lambda: run.exit_code is not None, ENDED_WITHIN_S, may_end=True)
    return _read(read_csv(run.files.updates), sent, loss)


def _read(updates: np.ndarray, sent: int, loss: float) -> Measured:
    updates = np.sort(updates, order="applied_time")
    times, examples = updates["applied_time"] - updates["applied_time"][0], np.cumsum(updates["examples"])
    sums = np.concatenate([[0.0], np.cumsum(updates["loss"] * updates["examples"])])
    first = np.searchsorted(examples, examples - WINDOW, side="right")
    before = np.concatenate([[0.0], examples])[first]
    means = (sums[1:] - sums[first]) / (examples - before)
    reached = np.flatnonzero((means <= loss) & (examples >= WINDOW))
    place = reached[0] if reached.size else -1
    return Measured(
        float(times[place]) if reached.size else None,
        int(examples[place]),
        float(examples[-1] / max(times[-1], 1e-9)),
        sent / float(examples[-1]),
        float(means[-1]),
    )


def _sent(machines: Iterable[Host]) -> int:
    """Return the bytes that the hosts have sent so far."""
    total = 0
    for machine in machines:
        process = machine.popen([program("cat"), "/proc/self/net/dev"], stdout=subprocess.PIPE)
        lines = process.communicate()[0].decode().splitlines()
        total += sum(int(line.split()[9]) for line in lines if line.strip().startswith("eth0:"))
    return total


if __name__ == "__main__":
    main()
