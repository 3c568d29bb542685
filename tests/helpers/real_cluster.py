"""Starts the program as a user does, on the embedded set, and reads what the run writes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.helpers.processes import assert_none_left, wait_until

PROJECT = Path(__file__).resolve().parents[2]
SMALL = ("--dataset", "synthetic", "--model", "tutorial_cnn", "--batch-size", "32", "--precision", "float32")
LIMIT_S = 180
# Adam divides by the gradient's size and so enlarges its rounding; that of plain momentum stays small for a few updates.
MOMENTUM = ("--set", "optimizer.rule=momentum", "--set", "optimizer.learning_rate=0.02")
# A save waits for the steps that are handed out, and the next one follows after 20 times as long as it took.
SNAPSHOTS = ("--set", "checkpoints.snapshot_every_seconds=0.5", "--set", "cluster.steps_per_dispatch=1")
TWO_AT_ONCE = ("--set", "cluster.steps_per_dispatch=2")
ELASTIC = ("--set", "optimizer.rule=sgd", "--set", "optimizer.learning_rate=0.05")


def unhurried(workers=3, seconds=0.05):
    """Options of a training that lasts and costs little of the processor: every worker waits that long in each step."""
    return (
        "--batch-size",
        8,
        "--set",
        "cluster.straggler=" + ";".join(f"{worker}:+{seconds}s" for worker in range(workers)),
    )


def start(*arguments, env=None):
    """`python cli.py …` in a session of its own, as a terminal would give it."""
    return subprocess.Popen(
        [sys.executable, "cli.py", *map(str, arguments)], cwd=PROJECT, text=True, env=os.environ | (env or {}),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def start_run(run_dir, *options, resume=False, env=None):
    """A small training in `run_dir`, or the one that is there again."""
    return (
        start("run", "--resume", run_dir) if resume else start("run", *SMALL, "--run-dir", run_dir, *options, env=env)
    )


def finish(process, expected=0):
    """Waits for the end; returns the standard output."""
    output, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == expected, f"exit code {process.returncode}\n{output[-3000:]}\n{errors[-3000:]}"
    return output


def run(run_dir, *options):
    """A small training from start to end; returns its summary."""
    finish(start_run(run_dir, *options))
    assert_none_left(run_dir)
    return summary_of(run_dir)


def rows(run_dir):
    """The complete rows of metrics/progress.jsonl so far."""
    path = run_dir / "metrics" / "progress.jsonl"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def wait_for_training(run_dir, updates=1):
    """Until so many updates are applied."""
    wait_until(lambda: any(row["applied"] >= updates for row in rows(run_dir)[-1:]), within_s=90)


def tasks(run_dir):
    """(type, index) → the newest process's row of cluster.json."""
    return {(t["type"], t["index"]): t for t in json.loads((run_dir / "cluster.json").read_text())["tasks"]}


def summary_of(run_dir):
    return json.loads((run_dir / "summary.json").read_text())


def stop(process):
    """Ends the training early; returns the standard output."""
    process.send_signal(signal.SIGINT)
    return finish(process)


def wait_for_snapshots(run_dir, number=1):
    """Until there are so many: with two, one may be damaged."""
    wait_until(lambda: len(list((run_dir / "snapshots").glob("step-*.npz"))) >= number, within_s=90)


def wait_until_it_trains_without(run_dir, pids):
    """Until these processes have successors and training goes on."""
    wait_until(lambda: not pids & {task["pid"] for task in tasks(run_dir).values()}, within_s=60)
    seen = len(rows(run_dir))

    def trains():
        new = [row["applied"] for row in rows(run_dir)[seen:] if row["phase"] == "training"]
        return new and new[-1] > new[0]

    wait_until(trains, within_s=60)


def worked_since(run_dir, index, old_pids):
    """Updates of processes of this worker that are none of those."""
    workers = rows(run_dir)[-1]["workers"]
    return sum(w["updates"] for w in workers if w["index"] == index and w["pid"] not in old_pids)
