"""What can be wrong with a file, and what a command has to make of it."""

import contextlib
import json
import os
import time
import unicodedata
from pathlib import Path

import pytest
from click.testing import CliRunner

from ps_cluster.cli.main import main

MOST_BYTES, MOST_SECONDS, MOST_CHARACTERS = 400 * 2**20, 15.0, 2000
GIB = 2**30

RESUME, EVALUATE = "run --resume RUN", "evaluate --once --checkpoint-dir RUN"
COMPARE, CALIBRATE, CHECK = "compare RUN --output out", "simulate --workers 1 --ps 1 --from RUN", "simulate --check RUN"
DATA = "data fetch cifar10 --data-dir DATA"
LOCKS = (".lock", ".alive", ".summary.lock", "evaluation.lock")  # they stay, and hold nobody up


def text(name, content):
    """That file holds `content`."""
    return lambda run: (run / name).write_text(content)


def changed(name, /, **values):
    """Keys of a JSON file are other ones; None takes them away."""

    def change(run):
        content = json.loads((run / name).read_text()) | values
        (run / name).write_text(json.dumps({key: value for key, value in content.items() if value is not None}))

    return change


def summary(**values):
    return changed("summary.json", **values)


def huge(name, size=10 * GIB):
    """The file is as large as that, without taking any room."""

    def change(run):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        with (run / name).open("wb") as file:
            file.truncate(size)

    return change


def pipe(name):
    def change(run):
        (run / name).unlink(missing_ok=True)
        os.mkfifo(run / name)

    return change


def folder(name):
    def change(run):
        (run / name).unlink()
        (run / name).mkdir()

    return change


def gone(name):
    return lambda run: (run / name).unlink()


def invoke(command: str, place: Path):
    words = command.replace("RUN", str(place / "run")).replace("DATA", str(place / "run/cifar")).split()
    return CliRunner().invoke(main, words)


def parametrized(cases):
    """`cases`: (what is wrong, command, damage, what is said of it)."""
    names = [f"{command.split()[0]}: {what}" for what, command, *_ in cases]
    return pytest.mark.parametrize(("command", "damage", "says"), [case[1:] for case in cases], ids=names)


def assert_told_in_one_line(place: Path, command: str, says: str) -> None:
    """`command` ends with exit code 2, in bounded memory and time, and leaves nothing behind."""
    before, began = set(place.rglob("*")), time.process_time()  # however many others want the processor
    with peak_of_memory() as peak:
        result = invoke(command, place)
    assert time.process_time() - began < MOST_SECONDS
    assert peak() < MOST_BYTES, f"{peak() / 2**20:.0f} MB more than before"
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("Error: ") and result.stderr.count("\n") == 1, result.stderr
    assert says in result.output, result.output
    for line in result.output.splitlines():
        assert len(line) < MOST_CHARACTERS
        assert not any(unicodedata.category(character) == "Cc" for character in line), repr(line)
    left = {path for path in set(place.rglob("*")) - before if path.name not in LOCKS}
    assert not left, left


@contextlib.contextmanager
def peak_of_memory():
    """How many bytes this process had at most beyond those it has now; asked after the block."""
    Path("/proc/self/clear_refs").write_text("5")
    before, found = _status("VmRSS"), []
    yield lambda: found[0]
    found.append(_status("VmHWM") - before)


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
