"""Measure how long and how many bytes training takes to a loss, over links as they are between sites.

    python -m benchmarks.far_apart --data-dir DATA --rates 10,100 --arms async,diloco,diloco:int8 --rounds 3
    python -m benchmarks.far_apart --data-dir DATA --arms sync-diloco,torchft --torch-python ENV/bin/python

Each task is on a host of its own: a network namespace of this machine. All links are slow before training begins. The hosts
share this machine's cores, so the times of the computation are not those of as many machines. The arms take turns. Each has
the rate that its mode has in the network's recipe, from the first step to the last. The loss is the mean training loss of the
last `WINDOW` examples, with local steps that of each worker's own weights, known when the period's exchange is done. Time
begins when all workers have the first weights. Bytes are those that all hosts send for an example, headers included, times
the examples to the loss. ENV has benchmarks/requirements-ddp.txt and requirements-torchft.txt.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from benchmarks.records import Column, keep, print_table
from benchmarks.simulated_hosts import ENDED_WITHIN_S, STARTED_WITHIN_S, after, training_on_hosts, wait
from ps_cluster.cli.command_line import OUTPUT_FILE, CommaList, Number, OneLineCommand, Whole
from ps_cluster.config import build_config
from ps_cluster.config.modes import MODES
from ps_cluster.config.schema import parse_stragglers
from ps_cluster.config.tasks import CHIEF, PS, WORKER
from ps_cluster.data.packed import write_pointer
from ps_cluster.errors import RunFailed, UserError
from ps_cluster.installation import IMPORT_FOLDER
from ps_cluster.launch.local_run import complete_config, resolve_data
from ps_cluster.report.terminal import print_line
from ps_cluster.runs.proof import read_csv
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.tools.bench.throughput import scratch
from ps_cluster.tools.chaos.hosts import Host, hosts, program

NETWORK, MOST_STEPS, WINDOW, BELOW = "tutorial_cnn", 1_000_000, 8_000, 0.15
ARMS = "async,async:int8,sync,diloco,diloco:int8,sync-diloco,sync-diloco:int8"
TORCHFT, AS_TORCHFT = "torchft", "sync-diloco"  # an arm, and the mode that is the same
LIGHTHOUSE_PORT = 29510


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


@dataclass(frozen=True)
class Setting:
    """Hold the options that all arms share."""

    data_dir: Path
    delay_ms: float
    workers: int
    straggler: str
    local_steps: int
    loss: float
    seconds: float
    torch_python: Path | None

    def values(self, arm: str, seed: int) -> dict[str, Any]:
        """Return the settings of an arm, by dotted key."""
        mode, _, wire = arm.partition(":")
        mode = AS_TORCHFT if arm == TORCHFT else mode
        local = (
            {"mode.local_steps": self.local_steps} if mode in MODES and MODES[mode].promise.takes_local_steps else {}
        )
        return local | {
            "mode.name": mode, "cluster.wire": wire or "float32", "cluster.workers": self.workers,
            "cluster.straggler": self.straggler, "model.name": NETWORK, "model.precision": "float32",
            "data.dataset": "cifar10", "data.data_dir": str(self.data_dir), "training.seed": seed,
            "training.steps": MOST_STEPS, "schedule.kind": "constant", "schedule.warmup_fraction": 0.0,
        }  # fmt: skip


@click.command(cls=OneLineCommand)
@click.option("--data-dir", type=click.Path(path_type=Path, exists=True), required=True, help="CIFAR-10.")
@click.option("--arms", type=CommaList(), default=ARMS, help="Modes, with :WIRE where it is not float32; or torchft.")
@click.option("--rates", type=CommaList(Number(1, 100_000)), default="10,100,1000", help="Of each link, in Mbit/s.")
@click.option("--delay-ms", type=Number(0, 1000), default=12.5, help="Of each link, one way; two links make a path.")
@click.option("--workers", type=Whole(1, 20), default=3)
@click.option("--straggler", default="none", help="E.g. 0:4x.")
@click.option("--local-steps", type=Whole(1, 1000), default=16, help="Of modes that take some.")
@click.option("--loss", type=Number(0, 10), default=1.6)
@click.option("--seconds", type=Number(5, 3600), default=120.0, help="Of each measurement, at most.")
@click.option("--rounds", type=Whole(1, 20), default=3)
@click.option("--torch-python", type=click.Path(path_type=Path), help="Python of the arm torchft.")
@click.option("--output", type=OUTPUT_FILE, help="Keep the figures as a record in this JSON file.")
def main(arms: Sequence[str], rates: Sequence[float], rounds: int, output: Path | None, **options: Any) -> None:
    """Print a table of arms and links: time to a loss and megabytes for it, as median (lowest to highest)."""
    setting = Setting(**options)
    for arm in arms:
        try:
            build_config(overrides=setting.values(arm, seed=0))
        except UserError as error:
            raise UserError(f"--arms: got '{arm}': {error}") from error
        if arm == TORCHFT and not (setting.torch_python and setting.torch_python.is_file()):
            raise UserError(
                f"--torch-python: got '{setting.torch_python}': give a Python that has torchft for the arm {arm}"
            )
        slow = parse_stragglers(setting.straggler)
        if arm == TORCHFT and (slow.gamma or any(one.extra_s for one in slow.slow)):
            raise UserError(f"--straggler: got '{setting.straggler}': the arm {arm} knows only factors, as in 0:4x")
    found: dict[tuple[float, str], list[Measured]] = {}
    columns = {
        "link": Column(heading="link [Mbit/s]"),
        "arm": Column(heading="arm"),
        "seconds": Column(heading=f"seconds to a loss of {setting.loss:g}", digits=1),
        "megabytes": Column(heading="MB to it", digits=1),
        "rate": Column(heading="examples/s"),
        "reached": Column(heading="reached"),
    }
    with scratch() as folder:
        for number, rate, arm in product(range(rounds), rates, arms):
            place = folder / f"{number}-{rate:g}-{arm.replace(':', '-')}"
            measure = _measure_torchft if arm == TORCHFT else _measure
            measured = measure(place, arm, number, rate, setting)
            found.setdefault((rate, arm), []).append(measured)
            print_line(f"round {number}, {rate:g} Mbit/s, {arm}: {measured}")
            record = keep(output, [_row(*which, all_rounds) for which, all_rounds in found.items()], columns)
    print_table(record)


def _row(rate: float, arm: str, rounds: Sequence[Measured]) -> dict[str, Any]:
    there = [one for one in rounds if one.seconds is not None]
    return {
        "link": f"{rate:g}",
        "arm": arm,
        "seconds": [one.seconds for one in there] or "–",
        "megabytes": [one.examples * one.bytes_per_example / 1e6 for one in there] or "–",
        "rate": [one.examples_per_second for one in rounds],
        "reached": f"{len(there)} of {len(rounds)}",
    }


def _measure(folder: Path, arm: str, seed: int, rate_mbit: float, setting: Setting) -> Measured:
    """Train on hosts until the loss is reached or the time is over."""
    values = setting.values(arm, seed)
    options = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    types = [kind for kind in (CHIEF, PS, WORKER) if kind in MODES[values["mode.name"]].cluster.tasks]
    slow = _slowed(rate_mbit, setting)
    with training_on_hosts(folder, types, setting.workers, 1, options, slow) as (run, machines):
        rows: list[dict[str, Any]] = []

        def begun() -> bool:
            rows.extend(run.new_rows())
            return bool(rows) and rows[-1]["applied"] > 0

        wait(run, begun, STARTED_WITHIN_S)
        before, is_over = _sent(machines), after(setting.seconds)
        # A row has the mean loss of the newest updates, which comes to the loss before the mean of more examples does.
        wait(
            run,
            lambda: begun() and (is_over() or (rows[-1]["loss"] or setting.loss) < setting.loss - BELOW),
            setting.seconds + 1,
        )
        sent = _sent(machines)
        run.interrupt()
        wait(run, lambda: run.exit_code is not None, ENDED_WITHIN_S, may_end=True)
    updates = read_csv(run.files.updates)
    began = max(updates["pulled_time"][updates["worker"] == worker].min() for worker in set(updates["worker"]))
    return _read(began, updates["applied_time"], updates["examples"], updates["loss"], before, sent, setting.loss)


def _slowed(rate_mbit: float, setting: Setting) -> Callable[[Host], None]:
    return lambda machine: machine.slow(f"{rate_mbit:g}mbit", setting.delay_ms)


# The arm torchft: a lighthouse on the first host, a program of its own on each other.


def _measure_torchft(folder: Path, arm: str, seed: int, rate_mbit: float, setting: Setting) -> Measured:
    """Train with torchft's DiLoCo on hosts until the loss is reached or the time is over."""
    with _torchft_on_hosts(folder, arm, seed, _slowed(rate_mbit, setting), setting) as (outputs, alive, machines):
        rows = np.zeros((0, 3))

        def has_begun() -> bool:
            return all(len(_lines(output)) > setting.local_steps for output in outputs)

        def is_there() -> bool:
            nonlocal rows
            rows = np.concatenate([_lines(output)[1:] for output in outputs])
            newest = rows[np.argsort(rows[:, 0])][-WINDOW // 128 :, 2]
            return bool(newest.mean() < setting.loss - BELOW)

        _until(has_begun, STARTED_WITHIN_S, alive)
        before, is_over = _sent(machines), after(setting.seconds)
        _until(lambda: is_there() or is_over(), setting.seconds + 10, alive)
        sent = _sent(machines)
        lines = [_lines(output) for output in outputs]
    began = max(float(one[0, 0]) for one in lines)
    times, examples, losses = np.concatenate([_periods(one[1:], setting.local_steps) for one in lines]).T
    return _read(began, times, examples, losses, before, sent, setting.loss)


def _periods(steps: np.ndarray, length: int) -> np.ndarray:
    """Return a row for each whole period, as a ledger has it: when it was exchanged, its examples, its mean loss."""
    whole = steps[: len(steps) // length * length].reshape(-1, length, 3)
    return np.stack([whole[:, -1, 0], whole[:, :, 1].sum(axis=1), whole[:, :, 2].mean(axis=1)], axis=1)


@contextmanager
def _torchft_on_hosts(
    folder: Path, arm: str, seed: int, prepare: Callable[[Host], None], setting: Setting
) -> Iterator[tuple[list[Path], list[subprocess.Popen[bytes]], list[Host]]]:
    """Start the programs; yield the files that they write, the processes and the hosts. All end after the block."""
    config = build_config(overrides=setting.values(arm, seed))
    packed = resolve_data(config.data, notify=print_line)
    run_dir = RunDir.create(folder)
    run_dir.config.write_text(complete_config(config, packed).model_dump_json(), encoding="utf-8")
    write_pointer(run_dir.dataset, packed)
    python = str(setting.torch_python)
    slower = {slow.worker: slow.factor for slow in parse_stragglers(setting.straggler).slow}
    with hosts(setting.workers + 1) as machines:
        for machine in machines:
            prepare(machine)

        def start(machine: Host, words: Sequence[str], output: Path) -> subprocess.Popen[bytes]:
            own = {"GLOO_SOCKET_IFNAME": "eth0", "PYTHONPATH": str(IMPORT_FOLDER)}
            with output.open("wb") as file:
                return machine.popen(words, env=os.environ | own, stdin=subprocess.DEVNULL, stdout=file, stderr=file)

        first, *others = machines
        lighthouse = Path(python).with_name("torchft_lighthouse")
        many = ("--min_replicas", str(setting.workers), "--bind", f"[::]:{LIGHTHOUSE_PORT}")
        processes = [start(first, [str(lighthouse), *many], folder / "lighthouse.out")]
        outputs = []
        for rank, machine in enumerate(others):
            outputs.append(folder / f"steps-{rank}.csv")
            outputs[-1].touch()
            arguments = {
                "run_dir": str(folder),
                "rank": rank,
                "workers": setting.workers,
                "lighthouse": f"http://{first.address}:{LIGHTHOUSE_PORT}",
                "address": machine.address,
                "slower": slower.get(rank, 1.0),
                "output": str(outputs[-1]),
            }
            words = [python, "-m", "benchmarks.torchft_diloco", json.dumps(arguments)]
            processes.append(start(machine, words, folder / f"worker-{rank}.out"))
        yield outputs, processes, machines


def _lines(output: Path) -> np.ndarray:
    """Return the whole lines of a file, float64 [k, 3]: unix seconds, examples, loss; the first is of the beginning."""
    whole = output.read_text(encoding="utf-8").split("\n")[:-1]
    return np.array([[float(value) for value in line.split(",")] for line in whole]).reshape(-1, 3)


def _until(condition: Callable[[], bool], within_s: float, processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """Wait for a condition. Raises RunFailed after `within_s`, and where one of the processes has ended."""
    is_over, alive = after(within_s), list(processes)
    while not condition():
        ended = [process.returncode for process in alive if process.poll() is not None]
        if ended or is_over():
            raise RunFailed(f"torchft's training did not go on as it should; exit codes of its programs: {ended}")
        time.sleep(0.2)


class Sent(NamedTuple):
    """Hold how many bytes all hosts have sent, and when that was read, in unix seconds."""

    bytes: int
    time: float


def _read(
    began: float, times: np.ndarray, examples: np.ndarray, losses: np.ndarray, before: Sent, sent: Sent, loss: float
) -> Measured:
    """Return the figures of a training.

    Args:
      began: when all workers had the first weights.
      times, examples, losses: of each update, in any order. Updates after `sent`, of a training that ends, do not count.
      before, sent: read early and late in the training. All updates are taken to be of as many bytes as those between.
    """
    times, examples, losses = (values[np.argsort(times, kind="stable")] for values in (times, examples, losses))
    counts = times <= sent.time
    times, examples, losses = times[counts], examples[counts], losses[counts]
    between = float(examples[times > before.time].sum())
    times, total = times - began, np.cumsum(examples)
    sums = np.concatenate([[0.0], np.cumsum(losses * examples)])
    first = np.searchsorted(total, total - WINDOW, side="right")
    means = (sums[1:] - sums[first]) / (total - np.concatenate([[0.0], total])[first])
    reached = np.flatnonzero((means <= loss) & (total >= WINDOW))
    place = reached[0] if reached.size else -1
    return Measured(
        float(times[place]) if reached.size else None,
        int(total[place]),
        float(total[-1] / max(times[-1], 1e-9)),
        (sent.bytes - before.bytes) / between if between else float("nan"),
        float(means[-1]),
    )


def _sent(machines: Iterable[Host]) -> Sent:
    """Read the bytes that the hosts have sent so far."""
    total = 0
    for machine in machines:
        process = machine.popen([program("cat"), "/proc/self/net/dev"], stdout=subprocess.PIPE)
        lines = process.communicate()[0].decode().splitlines()
        total += sum(int(line.split()[9]) for line in lines if line.strip().startswith("eth0:"))
    return Sent(total, time.time())


if __name__ == "__main__":
    main()
