"""A stand-in for `ps-cluster run`, which writes the files of a run as the launcher would, and trains nothing.

Its first argument names what happens. Started with `python fake_launcher.py WHAT run --config FILE --run-dir FOLDER`.
"""

import json
import signal
import sys
import time
from pathlib import Path

WHAT = sys.argv[1]
FOLDER = Path(sys.argv[sys.argv.index("--resume") + 1] if "--resume" in sys.argv else sys.argv[-1])
asked = []


def say(line):
    print(line, flush=True)


def add(name, **row):
    with (FOLDER / "metrics" / name).open("a") as file:
        file.write(json.dumps(row | {"time": time.time()}) + "\n")


def progress(applied):
    add("progress.jsonl", phase="training", applied=applied)


def score(step):
    add("evaluation.jsonl", step=step, test_accuracy=0.5)


def end(outcome):
    score = {"step": 20, "test_accuracy": 0.5, "history": [{"step": 10}, {"step": 20}]}
    (FOLDER / "summary.json").write_text(json.dumps({"schema": 1, "outcome": outcome, "evaluation": score}))


def until_stopped():
    say("trains")
    for number in range(1, 2000):
        progress(number)
        time.sleep(0.01)
        if asked:
            say("drains")
            progress(number + 1)
            end("stopped")
            sys.exit(0)
    sys.exit(9)


def completed():
    say("begins")
    progress(0)
    for step in (10, 20):
        progress(step)
        score(step)
    sys.stdout.write("the last line has no end")
    end("completed")


def resumed():
    (FOLDER / "arguments.txt").write_text("\n".join(sys.argv[2:]))
    score(30)
    end("completed")


def failed():
    print(f"Error: worker-1 ended with exit code 1: no luck (log: {FOLDER}/logs/worker-1.log)", file=sys.stderr)
    sys.exit(1)


def refused():
    (FOLDER / "config.yaml").unlink()
    print("Error: training.epochs: got -1", file=sys.stderr)
    sys.exit(2)


def killed():
    signal.raise_signal(signal.SIGKILL)


signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
if WHAT != "resumed":
    (FOLDER / "metrics").mkdir(parents=True)
    (FOLDER / "config.yaml").write_text("# of a fake run\n")
globals()[WHAT]()
