"""A task without TensorFlow: `scripted_task.py '{"chief": "completes"}' --run-dir … --type … --index …`.

Each behaviour below is a function; the JSON says which one each task type shows. Tests start hundreds of these
processes. So this file does not import the package, which takes ten times as long as Python itself.
"""

import argparse
import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path

# The names of LAUNCHER_PID and LIFE in process_variables.py.
LAUNCHER_PID, LIFE = "PS_CLUSTER_LAUNCHER_PID", "PS_CLUSTER_LIFE"
PR_SET_PDEATHSIG = 1
USUAL = {"chief": "completes", "ps": "serves", "worker": "serves", "evaluator": "scores"}


def completes(run, task):
    for applied in range(3):
        run.row("training", applied)
        time.sleep(0.05)
    run.end(completed=True)


def completes_with_a_mistake(run, task):
    run.row("training", 3)
    problems = ["shard 0: 3 gradients were accepted, but there are 2 rows", "and another"]
    run.end(completed=True, proof={"holds": False, "problems": problems, "shards": []})


def trains_until_drained(run, task):
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    while not stopped:
        run.row("training", 1)
        time.sleep(0.02)
    run.end(completed=False)


def ignores_sigterm(run, task):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        run.row("training", 1)
        time.sleep(0.02)


def serves(run, task):
    time.sleep(60)


def killed_once(run, task):
    if task.index == 0 and run.first_time(task):
        killed_while_training(run, task)
    (run.root / f"{task.type}-{task.index}-serves").touch()
    serves(run, task)


def completes_after_restart_of_a_worker(run, task):
    while not (run.root / "worker-0-serves").exists():
        run.row("training", 0)
        time.sleep(0.02)
    completes(run, task)


def connects_second_time(run, task):
    if run.first_time(task):
        serves(run, task)
    completes(run, task)


def completes_second_time(run, task):
    if run.first_time(task):
        ignores_sigterm(run, task)
    completes(run, task)


def killed_while_training(run, task):
    run.wait_for(run.root / "metrics/progress.jsonl")
    print("the last words", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def finds_bad_input(run, task):
    error = {"time": time.time(), "message": "no checkpoint to resume from", "user_error": True}
    (run.root / f"errors/{task.type}-{task.index}.json").write_text(json.dumps(error))
    sys.exit(2)


def finds_its_port_taken_once(run, task):
    if run.first_time(task):
        run.wait_for(run.root / "chief-0-was-here")
        sys.exit(98)
    serves(run, task)


def scores(run, task):
    run.wait_for(run.root / "checkpoints/ended.json")
    with (run.root / "metrics/evaluation.jsonl").open("a") as file:
        file.write(json.dumps({"time": 0, "step": 1, "test_accuracy": 0.5, "test_loss": 1.0}) + "\n")


class Run:
    def __init__(self, root: Path):
        self.root = root
        self.began = time.monotonic()

    def row(self, phase, applied):
        row = {"time": time.time(), "monotonic": time.monotonic(), "life": os.environ.get(LIFE), "phase": phase}
        row |= {"times": self.times(applied), "applied": applied, "scheduled": applied, "total": 3}
        with (self.root / "metrics/progress.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")

    def times(self, applied):
        """Return the times of a run whose `applied` updates were all applied at its start."""
        at = 0.0 if applied else None
        seconds = time.monotonic() - self.began
        stood = [[at, at]] if applied else []
        return {"seconds": seconds, "first_update": at, "last_update": at, "resumed_update": at, "stood": stood}

    def end(self, completed, proof=None):
        updates = dict.fromkeys(("scheduled", "applied"), 3) | dict.fromkeys(("duplicated", "lost", "rolled_back"), 0)
        result = {"outcome": "completed" if completed else "stopped", "updates": updates}
        result |= {"proof": proof or {"holds": True, "problems": [], "shards": []}}
        (self.root / "metrics/training.json").write_text(json.dumps(result))
        mark = self.root / "checkpoints/ended.json"
        mark.with_suffix(".tmp").write_text('{"last_step": 3, "outcome": "completed"}')
        mark.with_suffix(".tmp").rename(mark)

    def wait_for(self, path):
        while not path.exists():
            time.sleep(0.02)

    def first_time(self, task):
        marker = self.root / f"{task.type}-{task.index}-was-here"
        first = not marker.exists()
        marker.touch()
        return first


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(os.environ[LAUNCHER_PID]):
        os._exit(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("behaviours", type=json.loads)
    parser.add_argument("--run-dir", type=Path)
    parser.add_argument("--type")
    parser.add_argument("--index", type=int)
    options, _ = parser.parse_known_args()
    globals()[(USUAL | options.behaviours)[options.type]](Run(options.run_dir), options)
