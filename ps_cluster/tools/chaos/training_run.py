"""Run `ps-cluster run` as a separate process and observe it from outside."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from ps_cluster.config.layers import without_variables
from ps_cluster.config.modes import Task
from ps_cluster.files.json_files import RowTail, read_json
from ps_cluster.files.writing import open_append
from ps_cluster.installation import finding_this_package
from ps_cluster.launch.silence import Limits
from ps_cluster.launch.topology import ClusterTopology
from ps_cluster.runs.result_rows import ProgressRow, Summary, with_work
from ps_cluster.runs.rows import ClusterFile
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.system.environment import die_with_parent
from ps_cluster.system.isolation import RunNetwork
from ps_cluster.system.usage import belongs, state_of
from ps_cluster.tools.chaos.kind import ChaosFailed, Fault, Injection, NotAllowed, Row, Run, Scene

STOP_S = 20.0  # seconds from the second SIGINT to SIGKILL
GONE_S = 10.0  # seconds from the end of a launcher to that of its last process

_LOOK_EVERY_S = 0.1


class TrainingRun:
    """A run in a session of its own: a Ctrl-C of the terminal reaches it only through this program.

    It ends when this program ends, for whatever reason.

    Attributes:
      files: those of the run.
      tools: folder of what faults need.
      resumes: number of resumes. restarts: of each task, by launchers that have ended.
    """

    def __init__(
        self,
        root: Path,
        output: Path,
        options: Sequence[str] | None,
        *,
        tools: Path,
        environment: Mapping[str, str] | None = None,
    ):
        """Start the run; if `options` is None, resume the existing one. `environment`: extra variables."""
        self.root = Path(os.path.realpath(root))
        self.files = RunDir(self.root)
        self.tools = tools
        self.resumes = 0
        self.restarts: Counter[str] = Counter()
        self._output = output
        self._environment = finding_this_package(without_variables(os.environ) | dict(environment or {}))
        self._progress = RowTail(self.files.progress, ProgressRow)
        root_text = str(self.root)
        self._start(*(("--resume", root_text) if options is None else ("--run-dir", root_text, *options)))

    def _start(self, *options: str) -> None:
        with open_append(self._output) as file:
            self._popen = subprocess.Popen(
                # -P: don't import a package of this name from the current folder
                [sys.executable, "-m", "ps_cluster", "run", *options],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
                preexec_fn=_as_part_of_chaos,
            )

    def resume(self) -> None:
        """Resume the run after its launcher has ended."""
        self.restarts.update(self.summary()["restarts"])
        self.resumes += 1
        self._start("--resume", str(self.root))

    @property
    def pid(self) -> int:
        """Process id of the launcher."""
        return self._popen.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code of the launcher; None while it runs."""
        return self._popen.poll()

    @property
    def last_line(self) -> str:
        """Last line that the run printed."""
        return last_line_of(self._output)

    def new_rows(self) -> list[dict[str, Any]]:
        """Return the rows of progress since the last call."""
        return [row.model_dump() for row in with_work(self.files.work, self._progress.new_rows())]

    def running(self) -> dict[Task, int]:
        """Return the pids of its running tasks: neither dead nor frozen."""
        return {task: pid for task, pid in self._tasks().items() if self._runs(pid)}

    @property
    def leader_log(self) -> Path:
        """Log of the task that writes checkpoints and rows."""
        leader = ClusterTopology({task.type: [] for task in self._tasks()}).leader
        return self.files.log(leader.type, leader.index)

    def _tasks(self) -> dict[Task, int]:
        try:
            tasks = read_json(self.files.cluster, ClusterFile).tasks
        except FileNotFoundError:
            return {}
        return {Task(task.type, task.index): task.pid for task in tasks if task.pid}

    def summary(self) -> dict[str, Any]:
        return read_json(self.files.summary, Summary).model_dump()

    def interrupt(self) -> None:
        """Send SIGINT, as Ctrl-C does."""
        self._signal(signal.SIGINT)

    def hang_up(self) -> None:
        """Send SIGHUP, as a closing terminal does."""
        self._signal(signal.SIGHUP)

    def _signal(self, number: int) -> None:
        if self.exit_code is None:
            self._popen.send_signal(number)

    def stop(self) -> None:
        """End the run at once, in bounded time."""
        for _ in range(2):
            self.interrupt()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(1.0)
        try:
            self._popen.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait(STOP_S)

    def left_behind(self) -> list[str]:
        """Return the processes of an ended run that still exist GONE_S seconds later."""
        deadline = time.monotonic() + GONE_S
        while (left := self._processes()) and time.monotonic() < deadline:
            time.sleep(_LOOK_EVERY_S)
        return [f"pid {process.pid}" for process in left]

    def _processes(self) -> list[psutil.Process]:
        return [
            process for process in psutil.process_iter() if process.pid != os.getpid() and belongs(process, self.root)
        ]

    def _runs(self, pid: int) -> bool:
        return state_of(pid, self.root) == "running"


def last_line_of(output: Path) -> str:
    """Return the last line that is not empty of a file."""
    lines = output.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "no output")


def _as_part_of_chaos() -> None:
    die_with_parent()
    take_mounts_of_its_own()


# Run programs in the namespaces of a run's processes, and give a run mounts that only it sees.

NETWORK, MOUNTS = "net", "mnt"

_CLONE_NEWNS, _MS_REC, _MS_PRIVATE = 0x20000, 0x4000, 0x40000
_TIMEOUT_S = 30.0


@contextmanager
def inside(pid: int, kind: str) -> Iterator[Callable[..., None]]:
    """Yield a function that runs a program in the NETWORK or MOUNTS of process `pid`, even after the process has ended.

    The function raises NotAllowed with a failing program's last line.

    Raises:
      NotAllowed: the process has no such namespace of its own, or it can't be entered.
    """
    if not is_its_own(pid, kind):
        raise NotAllowed("the run has none of its own")
    kinds = ["user", kind] if is_its_own(pid, "user") else [kind]
    try:
        descriptors = [os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in kinds]
    except OSError as error:
        raise NotAllowed(f"it can't be entered: {error.strerror}") from error
    try:
        yield lambda *argv: _run(argv, tuple(descriptors))
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def is_its_own(pid: int, kind: str) -> bool:
    """Return whether process `pid` is in another namespace of this kind than this process."""
    try:
        return os.readlink(f"/proc/{pid}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}")
    except OSError:
        return False


def _run(argv: tuple[str, ...], descriptors: tuple[int, ...]) -> None:
    try:
        ended = subprocess.run(
            RunNetwork(descriptors).inside(argv),
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise NotAllowed(str(error)) from error
    if ended.returncode:
        said = ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"]
        raise NotAllowed(said[-1])


def take_mounts_of_its_own() -> None:
    """Give a process that is about to start its own mounts: only it and its children see what is mounted later.

    Do nothing where the user may not mount.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) == 0 and libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None):
        os._exit(1)  # mounts made here would be seen by all processes


# Inject faults into a run, one after the other, and measure the time of each recovery.


class Interrupted(Exception):
    """The user asked to stop."""


@dataclass(frozen=True)
class Bounds:
    """Time limits, and the least time between faults (s)."""

    look_every_s: float = 0.1
    training_s: float = Limits.startup_s + 30
    recovery_s: float = 60.0
    # The launcher gives up on a cluster that dies a few times in a row, each time without having got further.
    whole_cluster_spacing_s: float = 10.0
    end_s: float = Limits.drain_s + Limits.scoring_s + 60


@dataclass(frozen=True)
class Injected:
    """An injected fault and the seconds until the run had recovered; None if it did not."""

    kind: str
    victims: tuple[str, ...]
    time: float  # monotonic s, as in rows of progress
    whole_cluster: bool
    recovery_s: float | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Runner:
    """Disturbs one run. `injected`: the faults so far."""

    def __init__(
        self,
        run: Run,
        *,
        bounds: Bounds = Bounds(),
        stop_requested: Callable[[], bool] = lambda: False,
        notify: Callable[[str], None] = print,
        kill: Callable[[int, int], None] = os.kill,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ):
        self.injected: list[Injected] = []
        self._run = run
        self._bounds = bounds
        self._stop_requested = stop_requested
        self._notify = notify
        self._kill = kill
        self._clock = clock
        self._sleep = sleep
        self._last_row: Row = {}

    def wait_for_training(self) -> None:
        """Wait for the first update."""
        self._wait_for(self._new_rows_train, self._bounds.training_s, "no update was applied")

    def disturb(self, faults: Iterable[Fault], until: float | None = None) -> None:
        """Inject `faults` into a training run, each when it has recovered from the last.

        Args:
          until: monotonic s after which no further fault is injected.
        Raises:
          ChaosFailed: the run ended by itself, or did not recover in time.
          Interrupted: see `stop_requested`.
        """
        for fault in faults:
            self._pause(fault)
            if until is not None and self._clock() >= until:
                return
            self._inject(fault)

    def drain(self) -> None:
        """Interrupt the run once: the steps under way end, the last checkpoint is scored, the summary is written."""
        self._run.interrupt()
        self.wait_for_end(self._bounds.end_s)

    def wait_for_end(self, limit_s: float, exit_code: int = 0) -> None:
        """Wait until the run has ended. Raises ChaosFailed for another exit code."""
        deadline = self._clock() + limit_s
        while self._run.exit_code is None:
            self._look_out(deadline, "the run did not end", limit_s)
        if self._run.exit_code != exit_code:
            other = "failed with" if exit_code == 0 else f"was to end with exit code {exit_code} and had"
            raise ChaosFailed(f"the run {other} exit code {self._run.exit_code}: {self._run.last_line}")

    def _inject(self, fault: Fault) -> None:
        names = " and ".join(map(str, fault.victims)) or "the run"
        self._wait_for(lambda: self._all_run(fault.victims), self._bounds.recovery_s, f"{names} did not run")
        self._new_rows()
        began = self._clock()
        self._injected(fault, began, None)
        try:
            injection = fault.kind.inject(self._scene(fault))
        except NotAllowed as reason:
            raise ChaosFailed(f"{fault.kind.name} could not be injected: {reason}") from reason
        self._wait_for_signs(injection)
        injection.then()
        self.injected.pop()
        recovered_at = max(sign.seen_at for sign in injection.signs if sign.seen_at is not None)
        recovery_s = max(0.0, recovered_at - injection.time)
        self._injected(fault, began, recovery_s)
        self._notify(
            f"{len(self.injected):4d}  {fault.kind.name} ({names}): recovered in {recovery_s:.1f} s, "
            f"at update {self._last_row['applied']:,}"
        )

    def _scene(self, fault: Fault) -> Scene:
        running = self._run.running()
        return Scene(
            run=self._run,
            victims={victim: running[victim] for victim in fault.victims},
            whole_cluster=fault.whole_cluster,
            last_row=self._last_row,
            now=self._clock,
            kill=self._kill,
            wait_for=self._wait_for,
            wait_for_end=lambda exit_code: self.wait_for_end(self._bounds.end_s, exit_code),
        )

    def _wait_for_signs(self, injection: Injection) -> None:
        def recovered() -> bool:
            rows, now_running = self._new_rows(), self._run.running()
            for sign in injection.signs:
                sign.look(rows, now_running, self._clock())
            return all(sign.seen_at is not None for sign in injection.signs)

        def missing() -> str:
            return ", ".join(sign.missing for sign in injection.signs if sign.seen_at is None)

        self._wait_for(recovered, self._bounds.recovery_s, missing)

    def _injected(self, fault: Fault, time_s: float, recovery_s: float | None) -> None:
        victims = tuple(map(str, fault.victims))
        self.injected.append(Injected(fault.kind.name, victims, time_s, fault.whole_cluster, recovery_s))

    def _pause(self, fault: Fault) -> None:
        """Leave the run alone before `fault`."""
        until = self._clock() + fault.pause_s
        if fault.whole_cluster:
            before = [injected.time for injected in self.injected if injected.whole_cluster]
            until = max([until, *(time_s + self._bounds.whole_cluster_spacing_s for time_s in before)])
        while self._clock() < until:
            self._goes_on()
            self._sleep(self._bounds.look_every_s)

    def _all_run(self, tasks: Sequence[Task]) -> bool:
        running = self._run.running()
        return all(task in running for task in tasks)

    def _new_rows(self) -> Sequence[Row]:
        rows = self._run.new_rows()
        self._last_row = rows[-1] if rows else self._last_row
        return rows

    def _new_rows_train(self) -> bool:
        return any(row["phase"] == "training" and row["applied"] > 0 for row in self._new_rows())

    def _wait_for(self, condition: Callable[[], bool], limit_s: float, problem: str | Callable[[], str]) -> None:
        """Wait for the condition. Raises ChaosFailed with the problem after `limit_s`, or when the run ends first."""
        deadline = self._clock() + limit_s
        while not condition():
            self._goes_on()
            self._look_out(deadline, problem, limit_s)

    def _goes_on(self) -> None:
        if self._stop_requested():
            raise Interrupted
        if self._run.exit_code is not None:
            done = f"after {len(self.injected)} faults (exit code {self._run.exit_code})"
            raise ChaosFailed(f"the run ended by itself {done}: {self._run.last_line}")

    def _look_out(self, deadline: float, problem: str | Callable[[], str], limit_s: float) -> None:
        if self._stop_requested():
            raise Interrupted
        if self._clock() > deadline:
            told = problem if isinstance(problem, str) else problem()
            after = f" after {self.injected[-1].kind}" if self.injected else ""
            raise ChaosFailed(f"{told} within {limit_s:.0f} s{after}")
        self._sleep(self._bounds.look_every_s)
