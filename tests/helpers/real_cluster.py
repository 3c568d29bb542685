"""Start the program as a user does, on the embedded data set, and read the files of the run."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import psutil

from tests.helpers.processes import assert_none_left, wait_until

PROJECT = Path(__file__).resolve().parents[2]
SMALL = {"--dataset": "synthetic", "--model": "mlp", "--batch-size": "32", "--precision": "float32"}
LIMIT_S = 270  # less than pytest's limit for a test, so that the test itself says what it waited for
# Adam divides by the gradient's size, which amplifies rounding errors. With momentum they stay small for a few updates.
MOMENTUM = ("--set", "optimizer.rule=momentum", "--set", "optimizer.learning_rate=0.02")
# A save waits for the steps under way, and the next save follows after 20 times its duration.
SNAPSHOTS = ("--set", "checkpoints.snapshot_every_seconds=0.5", "--set", "cluster.steps_per_dispatch=1")
ELASTIC = ("--set", "optimizer.rule=sgd", "--set", "optimizer.learning_rate=0.05")


def small(*options, draws=False):
    """Return the options of a small training: `options`, and the options of SMALL that `options` lacks.

    `draws`: whether the results are drawn as a picture, which takes a second.
    """
    usual = (part for name, value in SMALL.items() if name not in options for part in (name, value))
    return (*usual, *options, *(() if draws else ("--set", "evaluation.draw_results=false")))


# A company's machines may have such variables. No program listens at this port, and no connection between tasks may
# need it.
BEHIND_A_PROXY = dict.fromkeys(("http_proxy", "https_proxy", "grpc_proxy"), "http://127.0.0.1:9")

# A small batch, for tests that do not depend on how much a step computes.
FEW_EXAMPLES = ("--batch-size", 8)


def unhurried(workers=3, seconds=0.1):
    """Return options for a long training that needs little CPU time: each worker waits `seconds` in each step."""
    slow = ";".join(f"{worker}:+{seconds}s" for worker in range(workers))
    return *FEW_EXAMPLES, "--set", f"cluster.straggler={slow}"


STARTED: list[subprocess.Popen] = []  # by the current test; a fixture of tests/conftest.py ends them


def start_in_session(argv, **options):
    """Start a program in a new session, as a terminal does. The program ends with the test at the latest."""
    options = {"stdout": subprocess.PIPE} | options
    process = subprocess.Popen(list(map(str, argv)), text=True, start_new_session=True, **options)
    STARTED.append(process)
    return process


def start(*arguments, env=None):
    """Start `python cli.py …`."""
    argv = (sys.executable, "cli.py", *arguments)
    return start_in_session(argv, cwd=PROJECT, env=os.environ | (env or {}), stderr=subprocess.PIPE)


def end_started():
    """Kill the programs that the test has started and not ended, with all processes of their sessions."""
    while STARTED:
        with STARTED.pop() as process, contextlib.suppress(ProcessLookupError):  # closes its pipes
            # After its end another program may have got its pid, and then the session is that one's.
            if process.poll() is None or not psutil.pid_exists(process.pid):
                os.killpg(process.pid, signal.SIGKILL)


def start_run(run_dir, *options, resume=False, env=None):
    """Start a small training in `run_dir`, or resume the run that is there."""
    return (
        start("run", "--resume", run_dir) if resume else start("run", "--run-dir", run_dir, *small(*options), env=env)
    )


def pasted(commands: str, folder: Path, environment: Mapping[str, str] = MappingProxyType({})) -> str:
    """Run shell commands in a folder that has cli.py. Return what they print."""
    if not (folder / "cli.py").is_symlink():
        (folder / "cli.py").symlink_to(PROJECT / "cli.py")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, **environment}
    process = start_in_session(["bash", "-ec", commands], cwd=folder, env=environment, stderr=subprocess.STDOUT)
    output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, output[-3000:]
    assert_none_left(folder)
    return output


def finish(process, expected=0):
    """Wait for the end of a process. Return its standard output."""
    output, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == expected, f"exit code {process.returncode}\n{output[-3000:]}\n{errors[-3000:]}"
    return output


def run(run_dir, *options):
    """Run a small training from start to end. Return its summary."""
    finish(start_run(run_dir, *options))
    assert_none_left(run_dir)
    return summary_of(run_dir)


def rows(run_dir):
    """Return the complete rows of metrics/progress.jsonl so far. The newest also has the work of each process."""
    path, work = (run_dir / "metrics" / name for name in ("progress.jsonl", "work.json"))
    if not path.exists():
        return []
    found = [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return [*found[:-1], *(row | json.loads(work.read_text()) for row in found[-1:])]


def wait_for_training(run_dir, updates=1, within_s=LIMIT_S):
    """Wait until `updates` updates are applied."""
    wait_until(lambda: any(row["applied"] >= updates for row in rows(run_dir)[-1:]), within_s=within_s, every_s=0.1)


def tasks(run_dir):
    """Return (type, index) → the task in cluster.json, with its newest process."""
    return {(t["type"], t["index"]): t for t in json.loads((run_dir / "cluster.json").read_text())["tasks"]}


def summary_of(run_dir):
    return json.loads((run_dir / "summary.json").read_text())


def stop(process):
    """End the training early. Return the standard output."""
    process.send_signal(signal.SIGINT)
    return finish(process)


def wait_for_snapshots(run_dir, number=1):
    """Wait until there are `number` snapshots. If there are two, a test can damage one."""
    found = run_dir / "snapshots"
    wait_until(lambda: len(list(found.glob("step-*.safetensors"))) >= number, within_s=LIMIT_S, every_s=0.1)


def wait_until_it_trains_without(run_dir, pids):
    """Wait until these processes have been replaced and training continues."""
    wait_until(lambda: not pids & {task["pid"] for task in tasks(run_dir).values()}, every_s=0.1)
    seen = len(rows(run_dir))

    def trains():
        new = [row["applied"] for row in rows(run_dir)[seen:] if row["phase"] == "training"]
        return new and new[-1] > new[0]

    wait_until(trains, every_s=0.1)


def worked_since(run_dir, index, old_pids):
    """Return the number of updates by this worker's processes, without those of `old_pids`."""
    workers = rows(run_dir)[-1]["workers"]
    return sum(w["updates"] for w in workers if w["index"] == index and w["pid"] not in old_pids)
