"""A training whose tasks run on hosts, each started by `ps-cluster task` and restarted when it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ps_cluster.config.layers import without_variables
from ps_cluster.config.modes import EVALUATOR, WORKER, Task
from ps_cluster.files.json_files import RowTail, last_row, read_json
from ps_cluster.files.writing import open_append
from ps_cluster.installation import finding_this_package
from ps_cluster.launch.topology import ClusterTopology
from ps_cluster.runs import checkpoints
from ps_cluster.runs.proof import read_csv
from ps_cluster.runs.result_rows import ProgressRow, TrainingResult, with_work
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.system.environment import CALLER_PID
from ps_cluster.system.supervisor import is_stopped
from ps_cluster.tools.chaos.kind import ChaosFailed, Fault, allowed_here
from ps_cluster.tools.chaos.settings import ChaosSettings, constant_rate
from ps_cluster.tools.chaos.training_run import Bounds, Injected, Runner, last_line_of
from ps_cluster.tools.chaos.verdict import complaints_of_hosted, make_report
from ps_cluster.tools.hosts.host import Host, HostFailed, NoHosts, hosts

FIRST_PORT = 2222


def placed(topology: ClusterTopology, machines: Sequence[Host]) -> dict[Task, Host]:
    """Return the host of each task. The first has the run directory, and so the leader, and what all depend on.

    The other workers share the other hosts.
    """
    others = machines[1:] or machines
    apart = [task for task in topology.tasks if task.type == WORKER and task != topology.leader]
    places = {task: others[number % len(others)] for number, task in enumerate(apart)}
    return {task: places.get(task, machines[0]) for task in topology.tasks}


class HostedRun:
    """The tasks of one training on their hosts. `look` has to be called often: it restarts what has ended.

    Attributes:
      files: of the run, as the leader sees them.
      tools: folder of what faults need.
      unsaved: at each unexpected end of a leader, the seconds of which no state held the updates (`unsaved_seconds`).
      rolled_back: updates that rows have shown as applied and that a later leader had to apply again.
    """

    def __init__(self, root: Path, output: Path, options: Sequence[str], places: Mapping[Task, Host], tools: Path):
        """Start the run.

        Args:
          output: folder of what the tasks print.
          options: of `task`, for all tasks.
        """
        self.files = RunDir(Path(os.path.realpath(root)))
        self.tools = tools
        self.unsaved: list[float] = []
        self.rolled_back = 0
        self._applied = 0
        self._output = output
        self._options = tuple(options)
        self._places = dict(places)
        self._cluster = _addresses(places)
        self._leader = ClusterTopology(self._cluster).leader
        self._progress = RowTail(self.files.progress, ProgressRow)
        self._restarter = Restarter(places, self._start)
        self._ends_seen = 0
        self._began = time.monotonic()

    def look(self) -> None:
        """Restart the tasks that have ended."""
        self._restarter.poll()
        for ended in self._restarter.ends[self._ends_seen :]:
            if ended.task == self._leader and ended.exit_code:
                self.unsaved.append(unsaved_seconds(self.files, self._began, time.monotonic()))
        self._ends_seen = len(self._restarter.ends)

    @property
    def pid(self) -> int:
        """Process id of the leader; that of this program while there is none."""
        return self.running().get(self._leader, os.getpid())

    @property
    def exit_code(self) -> int | None:
        """Exit code of a task that is not started again: of the leader, or of one that failed. None while there is none."""
        final = self._restarter.final
        failed = [code for code in final.values() if code]
        return failed[0] if failed else final.get(self._leader)

    @property
    def last_line(self) -> str:
        """Last line that a task with this exit code printed."""
        task = next((task for task, code in self._restarter.final.items() if code), self._leader)
        return f"{task}: {last_line_of(self.output_of(task))}"

    @property
    def leader_log(self) -> Path:
        return self.output_of(self._leader)

    @property
    def ends(self) -> Sequence[Ended]:
        """Every end of a process so far."""
        return tuple(self._restarter.ends)

    @property
    def restarts(self) -> dict[str, int]:
        return {str(task): count for task, count in sorted(self._restarter.restarts.items())}

    def output_of(self, task: Task) -> Path:
        """Return the file of what a task printed."""
        return self._output / f"{task}.out"

    def new_rows(self) -> list[dict[str, Any]]:
        """Return the rows of progress since the last call."""
        rows = list(with_work(self.files.work, self._progress.new_rows()))
        for row in rows:
            self.rolled_back += max(0, self._applied - row.applied)
            self._applied = row.applied
        return [row.model_dump() for row in rows]

    def running(self) -> dict[Task, int]:
        """Return the pids of the running tasks: neither ended nor frozen."""
        return {task: process.pid for task, process in self._restarter.running.items() if not is_stopped(process.pid)}

    def host_of(self, task: Task) -> Host:
        return self._places[task]

    def tasks_on(self, host: Host) -> list[Task]:
        return [task for task, place in self._places.items() if place is host]

    def hold(self, tasks: Sequence[Task]) -> None:
        """Restart these tasks no more until `release`: there is no host for them."""
        self._restarter.hold(tasks)

    def release(self, tasks: Sequence[Task]) -> None:
        self._restarter.release(tasks)

    def interrupt(self) -> None:
        """Send SIGINT to the leader: it drains the training."""
        self._signal(signal.SIGINT)

    def hang_up(self) -> None:
        """Send SIGHUP to the leader."""
        self._signal(signal.SIGHUP)

    def resume(self) -> None:
        """Start the tasks that have ended again."""
        self._restarter.start_anew()

    def result(self) -> TrainingResult:
        """Return what the leader says of the training, and what was rolled back, which only the rows know."""
        self.new_rows()
        said = read_json(self.files.training_result, TrainingResult)
        return said.model_copy(update={"updates": said.updates.model_copy(update={"rolled_back": self.rolled_back})})

    def still_running(self, within_s: float) -> list[str]:
        """Return the tasks that have not ended after some seconds; usually none."""
        deadline = time.monotonic() + within_s
        while (left := self._restarter.running) and time.monotonic() < deadline:
            time.sleep(0.1)
            self.look()
        return [str(task) for task in left]

    def _signal(self, number: int) -> None:
        if process := self._restarter.running.get(self._leader):
            os.kill(process.pid, number)

    def _start(self, task: Task) -> subprocess.Popen[bytes]:
        config = {"cluster": self._cluster, "task": {"type": task.type, "index": task.index}}
        own = {"TF_CONFIG": json.dumps(config), CALLER_PID: str(os.getpid())}
        with open_append(self.output_of(task)) as file:
            return self._places[task].popen(
                # -P: don't import a package of this name from the current folder
                [sys.executable, "-m", "ps_cluster", "task", "--run-dir", str(self.files.root), *self._options],
                env=finding_this_package(without_variables(os.environ)) | own,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )


def unsaved_seconds(files: RunDir, began: float, now: float) -> float:
    """Return the seconds since the last update that the newest state holds; since `began` where there is no state.

    That update may be much older than its file: a leader goes on saving while nothing is applied. The time to the next
    update is lost with it, so the age of the file would be too little.

    Args:
      began: of the run. now: monotonic s too.
    """
    state = checkpoints.load_newest_good(files.states, lambda damaged: None)
    row = last_row(files.progress, ProgressRow)
    if state is None or state.meta.times is None or row is None:
        return now - began
    return now - row.monotonic + row.times.seconds - (state.meta.times.last_update or 0.0)


def _addresses(places: Mapping[Task, Host]) -> dict[str, list[str]]:
    """Return type → "host:port" of each member, with another port for each task."""
    cluster: dict[str, list[str]] = {}
    for number, (task, host) in enumerate(places.items()):
        if task.type != EVALUATOR:
            cluster.setdefault(task.type, []).append(f"{host.name}:{FIRST_PORT + number}")
    return cluster


# Start commands, and start each again when it ends, as the schedulers of clusters do.


class Process(Protocol):
    """The part of a `subprocess.Popen` that is used here."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...


@dataclass(frozen=True)
class RestartPolicy:
    """After which exit codes a command is started again. Below 0 is the signal that ended it, as `Popen` says it.

    Attributes:
      final: not after these.
      limited: exit code → how often at most; after any other code, without end.
      delay_s: seconds from the end to the next start.
    """

    final: frozenset[int] = frozenset({0, 2, 3})
    limited: Mapping[int, int] = field(default_factory=lambda: {1: 3})
    delay_s: float = 1.0

    def is_final(self, exit_code: int, times: int) -> bool:
        """Return whether a command that ended with this code, now for the `times`-th time, stays ended."""
        return exit_code in self.final or times > self.limited.get(exit_code, times)


@dataclass(frozen=True)
class Ended:
    """One end of one process of a task."""

    task: Task
    pid: int
    exit_code: int
    time: float  # monotonic s


class Restarter:
    """The processes of tasks. Nothing happens by itself: `poll` looks and starts.

    Attributes:
      ends: every end of a process, in order.
      final: exit codes of the tasks that are not started again.
    """

    def __init__(
        self,
        tasks: Iterable[Task],
        start: Callable[[Task], Process],
        policy: RestartPolicy = RestartPolicy(),
        clock: Callable[[], float] = time.monotonic,
    ):
        self.ends: list[Ended] = []
        self.final: dict[Task, int] = {}
        self._start = start
        self._policy = policy
        self._clock = clock
        self._due = dict.fromkeys(tasks, clock())
        self._running: dict[Task, Process] = {}
        self._held: set[Task] = set()

    @property
    def running(self) -> dict[Task, Process]:
        """The newest process of each task that had not ended at the last `poll`."""
        return dict(self._running)

    @property
    def restarts(self) -> Counter[Task]:
        """The number of restarts, by task."""
        started = Counter(ended.task for ended in self.ends)
        return Counter({task: count - (task not in self._running) for task, count in started.items()})

    def poll(self) -> None:
        """Note the ends since the last call, and start what is due."""
        for task, process in self.running.items():
            if (code := process.poll()) is not None:
                self._note(task, process.pid, code)
        now = self._clock()
        for task in [task for task, due in self._due.items() if due <= now and task not in self._held]:
            del self._due[task]
            self._running[task] = self._start(task)

    def hold(self, tasks: Iterable[Task]) -> None:
        """Start these tasks no more until `release`."""
        self._held.update(tasks)

    def release(self, tasks: Iterable[Task]) -> None:
        """Start these tasks again from the next `poll` on."""
        self._held.difference_update(tasks)

    def start_anew(self) -> None:
        """Start the tasks that have ended for good, at the next `poll`."""
        self._due |= dict.fromkeys(self.final, self._clock())
        self.final.clear()

    def _note(self, task: Task, pid: int, code: int) -> None:
        del self._running[task]
        now = self._clock()
        self.ends.append(Ended(task, pid, code, now))
        times = sum(ended.task == task and ended.exit_code == code for ended in self.ends)
        if self._policy.is_final(code, times):
            self.final[task] = code
        else:
            self._due[task] = now + self._policy.delay_s


# Disturb a training on hosts, and see that nothing was lost: `ps-cluster chaos --hosts`.

ALL_END_WITHIN_S = 30.0  # after the leader has ended

_PRECISION = ("--precision", "float32")  # machines may come to different ones, so `task` wants it named


class HostedExperiment:
    """One run on hosts and what is known of it so far, so that there is a report however chaos ends."""

    def __init__(
        self,
        settings: ChaosSettings,
        root: Path,
        bounds: Bounds,
        notify: Callable[[str], None],
        stop_requested: Callable[[], bool],
    ):
        self._settings = settings
        self._root = root
        self._bounds = bounds
        self._notify = notify
        self._stop_requested = stop_requested
        self._injected: list[Injected] = []
        self._seconds = 0.0
        self._skipped: dict[str, str] = {}
        self._places: dict[str, str] = {}
        self._restarts: dict[str, int] = {}
        self._unsaved: list[float] = []
        self._result: TrainingResult | None = None

    def carry_out(self, faults: Sequence[Fault] | None) -> list[str]:
        """Do all of it; return the problems. Leaves no process.

        Args:
          faults: those of the plan where None.
        Raises:
          ChaosFailed: the run did not behave.
          Interrupted: the user asked to stop.
        """
        folder = self._root / "run"
        for path in (folder, self._root / "output", self._root / "faults"):
            path.mkdir()
        assert self._settings.hosts
        try:
            with hosts(self._settings.hosts, run_dir=folder, shared=False) as machines:
                places = placed(self._settings.topology, machines)
                self._places = {str(task): host.name for task, host in places.items()}
                lost = {"cluster.lost_after_seconds": self._settings.lost_after_seconds}
                options = self._settings.task_options(constant_rate(self._settings.most_steps()) | lost)
                output, tools = self._root / "output", self._root / "faults"
                run = HostedRun(folder, output, (*_PRECISION, *options), places, tools)
                still_there = self._disturbed(run, faults)
        except (NoHosts, HostFailed) as reason:
            raise ChaosFailed(str(reason)) from reason
        self._result = run.result()
        steps = read_csv(run.files.updates)["step"].astype(int).tolist()
        return complaints_of_hosted(self._result.model_dump(), steps, sum(self._unsaved), still_there)

    def _disturbed(self, run: HostedRun, faults: Sequence[Fault] | None) -> list[str]:
        """Inject the faults and drain the run. Return the tasks that did not end with it."""
        settings, began = self._settings, time.monotonic()
        what = f"{settings.faults} faults" if settings.minutes is None else f"faults for {settings.minutes:g} min"
        self._notify(f"run on {settings.hosts} hosts: {what}, seed {settings.seed}; files in {self._root}")

        def look_on(seconds: float) -> None:
            run.look()
            time.sleep(seconds)

        runner = Runner(
            run, bounds=self._bounds, stop_requested=self._stop_requested, notify=self._notify, sleep=look_on
        )
        self._injected, self._unsaved = runner.injected, run.unsaved
        kinds = settings.wanted() if faults is None else dict.fromkeys(fault.kind for fault in faults)
        until = None if settings.minutes is None else began + 60 * settings.minutes
        try:
            runner.wait_for_training()
            allowed, self._skipped = allowed_here(kinds, run, self._notify)
            given = None if faults is None else [fault for fault in faults if fault.kind in allowed]
            runner.disturb(settings.plan(allowed) if given is None else given, until)
            runner.drain()
        finally:
            self._seconds, self._restarts = time.monotonic() - began, run.restarts
        return run.still_running(ALL_END_WITHIN_S)

    def report(self, problems: Sequence[str]) -> dict[str, Any]:
        """Return the content of chaos.json."""
        result = None if self._result is None else self._result.model_dump()
        return make_report(
            settings=asdict(self._settings),
            injected=self._injected,
            seconds=self._seconds,
            skipped=self._skipped,
            resumes=0,
            restarts=self._restarts,
            leader=str(self._settings.topology.leader),
            disturbed=result,
            undisturbed=None,
            test_examples=None,
            problems=problems,
            hosted=result
            and {
                "places": self._places,
                "rolled_back_seconds": result["rolled_back_seconds"],
                "unsaved_seconds": sum(self._unsaved),
            },
        )
