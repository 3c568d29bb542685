"""Check `simulate` against clusters of hosts with slow links, each task on a host of its own.

    python -m benchmarks.simulated_hosts --workers 1,2,4,8 --ps 1,2,4
    python -m benchmarks.simulated_hosts --workers 4 --ps 1 --modes async,diloco --local-steps 16 --rate-mbit 10 --delay-ms 12.5

All hosts are network namespaces of this machine and share its cores. So batches are small and each
worker waits in every step: links decide, not cores. The costs are those of one worker without slow links. Then each
cluster trains; all links are slowed when it has begun. Examples/s and mean staleness of the time after that are compared
with the prediction.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import click
import numpy as np

from ps_cluster.cli.command_line import CommaList, NameOf, Number, OneLineCommand, Whole
from ps_cluster.config.modes import MODES
from ps_cluster.config.schema import parse_stragglers
from ps_cluster.config.tasks import CHIEF, PS, WORKER
from ps_cluster.errors import RunFailed
from ps_cluster.installation import IMPORT_FOLDER
from ps_cluster.launch.topology import ClusterTopology
from ps_cluster.report.terminal import print_line
from ps_cluster.runs.proof import read_csv
from ps_cluster.tools.bench.throughput import scratch
from ps_cluster.tools.chaos.disturbed_runs import HostedRun
from ps_cluster.tools.chaos.hosts import Host, hosts
from ps_cluster.tools.simulate.costs import Costs, Links, SimulatedCluster, calibrate, costs_of, read_run
from ps_cluster.tools.simulate.prediction import Prediction, predict

NETWORK, BATCH = "tutorial_cnn", 8
TRAINING = ("--dataset", "synthetic", "--model", NETWORK, "--batch-size", str(BATCH), "--precision", "float32")
# No snapshot passes the links while they are measured.
UNDISTURBED = ("--set", "checkpoints.snapshot_every_seconds=100000", "--set", "checkpoints.every_seconds=100000")
CALIBRATION_STEPS, MOST_STEPS = 1500, 100_000
LATENCY_S = 50e-6
STARTED_WITHIN_S, ENDED_WITHIN_S, SETTLES_S = 240.0, 120.0, 5.0


@click.command(cls=OneLineCommand)
@click.option("--workers", type=CommaList(Whole(1, 50)), default="1,2,4,8")
@click.option("--ps", "servers", type=CommaList(Whole(1, 20)), default="1,2,4")
@click.option("--modes", type=CommaList(NameOf(MODES)), default="async")
@click.option("--local-steps", type=Whole(1, 1000), default=16, help="Of modes that take some.")
@click.option("--rate-mbit", type=Number(1, 10_000), default=100.0)
@click.option("--delay-ms", type=Number(0, 1000), default=0.0, help="Of each link, one way; two links make a path.")
@click.option("--sleep", "sleep_s", type=Number(0, 10), default=0.2, help="Of each worker in each step, in seconds.")
@click.option("--seconds", type=Number(5, 600), default=20.0, help="Of each measurement.")
def main(
    workers: tuple[int, ...],
    servers: tuple[int, ...],
    modes: tuple[str, ...],
    local_steps: int,
    rate_mbit: float,
    delay_ms: float,
    sleep_s: float,
    seconds: float,
) -> None:
    """Print predicted and measured examples/s and staleness of each cluster, as a table."""
    with scratch() as folder:
        costs = _costs(folder / "one")
        print_line("| mode | workers | ps | busiest | examples/s | predicted | error | staleness | predicted | error |")
        print_line("|---|---:|---:|---|---:|---:|---:|---:|---:|---:|")
        for count, many, mode in product(workers, servers, modes):
            steps = local_steps if MODES[mode].promise.takes_local_steps else 1
            slow = ";".join(f"{worker}:+{sleep_s * steps}s" for worker in range(count))
            in_mode = ("--mode", mode, *(("--set", f"mode.local_steps={steps}") if steps > 1 else ()))
            place = folder / f"{count}-{many}-{mode}"
            measured = _measured(place, count, many, in_mode, (f"{rate_mbit}mbit", delay_ms), slow, seconds)
            links = Links(rate_mbit * 1e6 / 8, LATENCY_S + 2 * delay_ms / 1000)
            cluster = SimulatedCluster(count, many, links, mode=mode, stragglers=parse_stragglers(slow))
            print_line(_row(mode, predict(costs.with_local_steps(steps), cluster), *measured))


def _costs(root: Path) -> Costs:
    """Return the costs of one worker on this machine, without links."""
    options = ("--workers", "1", "--ps", "1", "--no-evaluator", "--steps", str(CALIBRATION_STEPS))
    argv = [sys.executable, "-m", "ps_cluster", "run", "--run-dir", str(root), *TRAINING, *options]
    ended = subprocess.run(argv, cwd=IMPORT_FOLDER, stdout=subprocess.DEVNULL, timeout=600)
    if ended.returncode:
        raise RunFailed(f"the run that is measured for its costs ended with exit code {ended.returncode}")
    return calibrate(read_run(root), costs_of(NETWORK))


def _measured(
    folder: Path,
    workers: int,
    servers: int,
    mode: tuple[str, ...],
    link: tuple[str, float],
    straggler: str,
    seconds: float,
) -> tuple[float, float]:
    """Return examples/s and mean staleness of a cluster with slow links. `link`: as `Host.slow` takes it."""
    options = (*TRAINING, *mode, "--steps", str(MOST_STEPS), "--set", f"cluster.straggler={straggler}")
    with training_on_hosts(folder, (CHIEF, PS, WORKER), workers, servers, options) as (run, machines):
        wait(run, lambda: any(row["applied"] > workers for row in run.new_rows()), STARTED_WITHIN_S)
        for machine in machines:
            machine.slow(*link)
        wait(run, after(SETTLES_S), SETTLES_S + 1)
        began = time.time()
        wait(run, after(seconds), seconds + 1)
        ended = time.time()
        run.interrupt()
        wait(run, lambda: run.exit_code is not None, ENDED_WITHIN_S, may_end=True)
    rows = read_csv(run.files.updates)
    seen = rows[(rows["applied_time"] > began) & (rows["applied_time"] <= ended)]
    return float(seen["examples"].sum()) / (ended - began), float(np.mean(seen["staleness"]))


@contextmanager
def training_on_hosts(
    folder: Path,
    types: Sequence[str],
    workers: int,
    servers: int,
    options: Sequence[str],
    prepare: Callable[[Host], None] = lambda machine: None,
) -> Iterator[tuple[HostedRun, list[Host]]]:
    """Start a training with each task on a host of its own; yield it and the hosts, all of which end after the block.

    Args:
      types: of the tasks in its mode.
      options: of `task`. No checkpoint is written, whose bytes would pass the links.
      prepare: what is done to each host before the training begins.
    """
    for path in (folder, folder / "run", folder / "output"):
        path.mkdir()
    tasks = ClusterTopology.local(types, workers, servers, evaluator=False, pick_port=lambda: 0).tasks
    with hosts(len(tasks), run_dir=folder / "run") as machines:
        for machine in machines:
            prepare(machine)
        places = dict(zip(tasks, machines))
        yield HostedRun(folder / "run", folder / "output", (*UNDISTURBED, *options), places, folder), machines


def after(seconds: float) -> Callable[[], bool]:
    """Return a function that says whether so many seconds have passed since now."""
    until = time.monotonic() + seconds
    return lambda: time.monotonic() >= until


def wait(run: HostedRun, condition: Callable[[], bool], within_s: float, *, may_end: bool = False) -> None:
    """Wait for a condition. Raises RunFailed after `within_s`, and where the run ends although it may not."""
    deadline = time.monotonic() + within_s
    while not condition():
        run.look()
        if time.monotonic() > deadline or run.exit_code is not None and not may_end:
            raise RunFailed(f"the cluster did not go on as it should: {run.last_line}")
        time.sleep(0.1)


def _row(mode: str, predicted: Prediction, examples_per_second: float, staleness: float) -> str:
    shares = predicted.utilisation
    busiest = f"{predicted.bottleneck} {shares[predicted.bottleneck]:.0%}"
    cells = (
        f"{mode} | {predicted.workers} | {predicted.parameter_servers} | {busiest}",
        _pair(examples_per_second, predicted.examples_per_second),
        _pair(staleness, predicted.staleness_mean),
    )
    return f"| {' | '.join(cells)} |"


def _pair(measured: float, predicted: float) -> str:
    error = f"{100 * (predicted / measured - 1):+.1f} %" if measured else "–"
    return f"{measured:.2f} | {predicted:.2f} | {error}"


if __name__ == "__main__":
    main()
