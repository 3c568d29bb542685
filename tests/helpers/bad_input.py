"""Give the command line bad input, in a process with limited memory and time, and check the error message.

One process runs all commands in turn, because starting Python takes longer than most commands.
"""

from __future__ import annotations

import json
import os
import resource
import select
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from ps_cluster.data.sets import synthetic
from ps_cluster.errors import UserError

PROJECT = Path(__file__).parents[2]
MOST_MEMORY = 400 * 2**20  # bytes that a command may take in addition
MOST_CPU_S = 10.0  # CPU seconds; on a busy machine a command takes more of them
HANGS_S = 100.0
MOST_CHARACTERS = 2000


@dataclass(frozen=True)
class CommandResult:
    """The result of a command."""

    exit_code: int
    stdout: str
    stderr: str
    traceback: str  # of an unexpected exception; "" if there was none
    cpu_s: float
    memory: int  # additional bytes at the peak


@dataclass(frozen=True)
class Row:
    """Bad input: a command, and the parts that its error must have.

    `files`: name → content of files that are written in addition to the files of `make_folder`.
    """

    command: str | Sequence[str]
    says: Sequence[str] = ()
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def arguments(self) -> list[str]:
        return self.command.split() if isinstance(self.command, str) else list(self.command)

    def __str__(self) -> str:
        text = " ".join([*self.arguments, *map(repr, self.files.values()), *map(repr, self.environment.values())])
        return text[:100].encode("ascii", "backslashreplace").decode()


def make_folder(folder: Path) -> Path:
    """Make a working directory with all kinds of bad files and folders in it."""
    (folder / "empty").mkdir(parents=True)
    (folder / "used").mkdir()
    for name in ("pipe", "pipe.csv", "pipe.parquet"):
        os.mkfifo(folder / name)  # never a device: a test that fails would replace it
    (folder / "loop").symlink_to("loop")
    (folder / "used/notes.txt").write_text("mine")
    (folder / "file").write_text("a file")
    (folder / "not.yaml").write_text("cluster: [1, 2\n  workers: {")
    (folder / "list.yaml").write_text("- 1\n- 2\n")
    (folder / "unknown.yaml").write_text("cluster: {wrokers: 2}\n")
    (folder / "type.yaml").write_text("cluster: {workers: many}\n")
    (folder / "section.yaml").write_text("cluster: 3\n")
    (folder / "target.yaml").write_text("target: .nan\n")
    (folder / "settings.yaml").write_text("settings: [1, 2]\n")
    (folder / "training.yaml").write_text("settings: {training: }\n")
    (folder / "fine.yaml").write_text("cluster: {workers: 2}\n")
    (folder / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    (folder / "text").mkdir()
    (folder / "text/cifar-10-python.tar.gz").write_bytes(b"no archive")
    return folder


class Commands:
    """The process that runs commands. It is started at the first command, and again after a command that hung.

    It has a separate cache, because its generated data set is small.
    """

    def __init__(self, cache: Path) -> None:
        self._environment = os.environ | {"PS_CLUSTER_CACHE": str(cache)}
        self._process: subprocess.Popen | None = None

    def run(self, folder: Path, arguments: Sequence[str], environment: Mapping[str, str]) -> CommandResult:
        if self._process is None:
            argv = [sys.executable, "-m", "tests.helpers.bad_input"]
            self._process = subprocess.Popen(
                argv, cwd=PROJECT, env=self._environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        request = {"folder": str(folder), "arguments": list(arguments), "environment": dict(environment)}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        if not select.select([self._process.stdout], [], [], HANGS_S)[0]:
            self.close()
            raise AssertionError(f"{arguments} had not ended after {HANGS_S:g} s")
        answer = self._process.stdout.readline()
        if not answer:
            self.close()
            raise AssertionError(f"{arguments} ended the process that ran it")
        assert not psutil.Process(self._process.pid).children(), "a process is left behind"
        return CommandResult(**json.loads(answer))

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _files(folder: Path) -> set[Path]:
    """Return everything in a folder, except the files that Python writes when it imports a module."""
    return {path for path in folder.rglob("*") if "__pycache__" not in path.parts}


def assert_told(row: Row, folder: Path, commands: Commands) -> None:
    """Assert exit code 2, one short line that names the mistake, bounded memory and time, and no files left."""
    for name, content in row.files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    before = _files(folder)
    result = commands.run(folder, row.arguments, row.environment)
    assert_one_line(result.exit_code, result.stderr, row.says)
    assert not result.traceback, result.traceback
    assert all(character == "\n" or character.isprintable() for character in result.stdout + result.stderr), result
    assert result.memory < MOST_MEMORY and result.cpu_s < MOST_CPU_S, result
    assert _files(folder) == before


def assert_one_line(exit_code: int, stderr: str, says: Sequence[str]) -> None:
    assert exit_code == 2, stderr
    assert stderr.startswith("Error: ") and stderr.endswith("\n") and stderr.count("\n") == 1, stderr
    assert len(stderr) < MOST_CHARACTERS and "Traceback" not in stderr
    for part in says:
        assert part in stderr, stderr


def refusal(call: Callable[..., object], *arguments: Any, **options: Any) -> str:
    """Return the message of the UserError that a call has to raise. The message must be one line."""
    try:
        call(*arguments, **options)
    except UserError as error:
        assert "\n" not in str(error)
        return str(error)
    raise AssertionError("no UserError was raised")


def serve() -> None:
    """Run the commands on standard input, one JSON object per line, and write the result of each."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    synthetic.generate = partial(synthetic.generate, 200, 50)  # the whole data set takes five seconds
    for line in sys.stdin:
        request = json.loads(line)
        answers.write(json.dumps(asdict(_run(**request))) + "\n")
        answers.flush()


def _run(folder: str, arguments: list[str], environment: dict[str, str]) -> CommandResult:
    from click.testing import CliRunner

    from ps_cluster.cli.main import main

    if arguments[:1] == ["evaluate"]:
        import ps_cluster.evaluation.evaluator  # noqa: F401  # so that TensorFlow's memory is not counted

    os.chdir(folder)
    with peak_of() as peak:
        result = CliRunner().invoke(main, arguments, env={"TF_CONFIG": None, "KERAS_HOME": folder} | environment)
    clean = isinstance(result.exception, SystemExit | None)
    return CommandResult(
        exit_code=result.exit_code,
        stdout=result.stdout,
        stderr=result.stderr,
        traceback="" if clean else "".join(traceback.format_exception(result.exception)),
        cpu_s=peak.cpu_s,
        memory=peak.memory,
    )


@dataclass
class Peak:
    """The cost of a block of code: additional bytes at the peak, and CPU seconds."""

    memory: int = 0
    cpu_s: float = 0.0


@contextmanager
def peak_of() -> Iterator[Peak]:
    """Yield the cost of the block. A MemoryError ends the block before it takes too much of the machine's memory."""
    usual, began, peak = _memory("VmRSS"), time.process_time(), Peak()
    Path("/proc/self/clear_refs").write_text("5")  # resets the kernel's peak
    resource.setrlimit(resource.RLIMIT_AS, (_memory("VmSize") + 2 * MOST_MEMORY, resource.RLIM_INFINITY))
    try:
        yield peak
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        peak.memory, peak.cpu_s = _memory("VmHWM") - usual, time.process_time() - began


def _memory(name: str) -> int:
    """Return a memory size of /proc/self/status in bytes."""
    fields: dict[str, Any] = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(fields[name].split()[0])


if __name__ == "__main__":
    serve()
