"""Run a whole cluster on this machine, from the first process to the summary. Imports no TensorFlow.

The exit code is one of errors.py. A run that was drained after one Ctrl-C, SIGTERM or SIGHUP has 0; one that was stopped
at once, by a second one or because training had not begun, has that of the signal.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, assert_never

from ps_cluster.clock import AwakeClock
from ps_cluster.config import RunConfig
from ps_cluster.config.tasks import CHIEF, EVALUATOR, PS, TRAINING_TYPES, WORKER, Task
from ps_cluster.data.packed import PackedDataset, write_form, write_pointer
from ps_cluster.errors import PORT_IN_USE, RunFailed, UserError
from ps_cluster.files import locks
from ps_cluster.files.json_files import read_json
from ps_cluster.files.json_rows import RowTail
from ps_cluster.files.writing import open_append, write_json, write_whole
from ps_cluster.launch import rules, task_server, topology
from ps_cluster.launch.network_check import task_of
from ps_cluster.launch.rules import Action, Actions, Decisions, Ending, LauncherLimits
from ps_cluster.launch.topology import ClusterTopology, cores_of
from ps_cluster.process_variables import temporary_files_in
from ps_cluster.report import closing_table, summary
from ps_cluster.report.drawing import try_to_draw_results
from ps_cluster.report.progress import ProgressView
from ps_cluster.report.run_state import TaskState
from ps_cluster.report.summary import EndedRun
from ps_cluster.report.terminal import make_console, print_error, print_line
from ps_cluster.runs import checkpoints, logs
from ps_cluster.runs.logs import DISK_REFUSES, MEMORY_SHORT, Line, Notify
from ps_cluster.runs.result_rows import EvaluationRow, ProgressRow, TrainingResult, with_work
from ps_cluster.runs.rows import ClusterFile, ScalingRow
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.runs.scale_requests import ScaleDesk
from ps_cluster.runs.update_samples import RecomputedRow
from ps_cluster.system import environment, machine, tensorboard_server
from ps_cluster.system.forked_tasks import ForkServer, StopHeard
from ps_cluster.system.limits import allowance, room
from ps_cluster.system.private_network import RunNetwork, network_for
from ps_cluster.system.run_processes import life_of
from ps_cluster.system.stop_signals import StopRequests
from ps_cluster.system.supervisor import Supervisor, TaskExit, TaskProcess, TaskSpec
from ps_cluster.system.usage import Usage
from ps_cluster.training.resuming import newest_for

FORK_SERVER, LAUNCHER = Task("fork_server", 0), Task("launcher", 0)
TASK_ARGV = (sys.executable, "-m", "ps_cluster.launch.task")


def run_local(
    config: RunConfig,
    run_dir: RunDir,
    dataset: PackedDataset,
    *,
    resume: bool,
    view: ProgressView,
    began: float | None = None,
    task_argv: tuple[str, ...] = TASK_ARGV,
    limits: LauncherLimits = LauncherLimits(),
    tensorboard: bool = False,
) -> int:
    """Start the cluster, watch it until training and scoring are over, stop everything, and write the summary.

    Args:
      run_dir: the caller holds its lock (files/locks.py).
      config: complete: "auto" is replaced everywhere by the value chosen.
      began: monotonic seconds from which start-up and wall seconds count; None: from now.
      task_argv: the command that runs one task, to which the task's options are added. `python -m MODULE` is run in a
        fork of a process that has imported TensorFlow.
      limits: bounds of all waits; those for an update grow with what the leader tells of them.
      tensorboard: run TensorBoard until the end, and tell the link.
    Returns:
      The exit code of the program (see the module's docstring).
    Raises:
      UserError: a private network is required and can't be had, or a task found that the user's input was bad.
      RunFailed: the summary can't be written.
    """
    began = time.monotonic() if began is None else began
    clock = AwakeClock()  # one for all limits: each wait, wherever it is, reads the clock and so keeps it going
    isolation, data_dir = config.cluster.isolation, dataset.directory
    with (
        StopRequests() as stop_requests,
        temporary_files_in(run_dir.temporary),
        network_for(isolation, run_dir.root, data_dir, view.notice) as network,
        _fork_server_for(task_argv, network, run_dir, clock, lambda: watch.stops_at_once) as server,
        tensorboard_server.beside(tensorboard, run_dir.tensorboard, run_dir.log("tensorboard", 0), view.notice),
    ):
        write_whole(run_dir.config, config.to_yaml())
        write_pointer(run_dir.dataset, dataset)
        write_form(run_dir.examples, dataset)
        checkpoints.clear_ended(run_dir.checkpoints)  # the evaluator would take it for the end of this run
        supervisor = Supervisor(popen=server.popen if server else network.popen, clock=clock)
        cluster = LocalCluster(
            config,
            run_dir,
            supervisor,
            network,
            resume=resume,
            task_argv=task_argv,
            fork_server=server,
            notify=view.notice,
        )
        view.start(config, run_dir, dataset, task_of(config, dataset))
        if line := topology.warning(config, room()):
            view.notice(MEMORY_SHORT(line))
        watch = EventLoop(config, cluster, run_dir, view, stop_requests, limits, clock=clock)
        try:
            ending = watch.until_the_end()
        finally:
            left = cluster.stop_all(limits.grace_s)
            view.tasks(cluster.states())
            view.close()
    try:
        of_proof = write_ending(
            config,
            run_dir,
            EndedRun(
                outcome=ending.outcome,
                wall_seconds=time.monotonic() - began,
                began=began,
                life=life_of(os.getpid()),
                restarts={(task.type, task.index): count for task, count in cluster.restarts.items()},
                silences=watch.silences,
                scaled=watch.scalings,
                usage=cluster.usage.report(),
                machine=machine.describe(),
                network=network.to_json(),
            ),
            view.notice,
        )
    except RunFailed:
        _exit_code(ending, left)  # says what went wrong first
        raise
    return _exit_code(ending, left) or of_proof


@contextmanager
def _fork_server_for(
    task_argv: tuple[str, ...], network: RunNetwork, run_dir: RunDir, clock: AwakeClock, stops: Callable[[], bool]
) -> Iterator[ForkServer | None]:
    if task_argv[:2] != (sys.executable, "-m"):
        yield None
        return
    log = run_dir.log(FORK_SERVER.type, FORK_SERVER.index)
    env = environment.for_child(os.environ, os.getpid())
    with ForkServer(task_server.ARGV, network.popen, run_dir.root, log, env, clock, stops) as server:
        yield server


def training_outcome(run_dir: RunDir) -> str:
    """Return the outcome that the leader wrote; "failed" where it wrote none."""
    try:
        return read_json(run_dir.training_result, TrainingResult).outcome
    except (FileNotFoundError, UserError):
        return "failed"


def write_ending(
    config: RunConfig, run_dir: RunDir, ended: EndedRun, notify: Callable[[str], None], *, draw: bool = True
) -> int:
    """Write the summary and the results page, and print the closing table. Return the exit code that the proof asks for.

    Args:
      draw: also the page of results.
    Raises:
      RunFailed: the summary can't be written.
    """
    try:
        with locks.in_turn(run_dir.summary_lock):
            written = summary.write_summary(run_dir, ended, notify)
    except OSError as error:
        raise RunFailed(f"the summary '{run_dir.summary}' can't be written: {error.strerror}") from error
    console = make_console()
    closing_table.print_numbers(written, console)
    if not logs.chosen().is_text:
        print_line(closing_table.as_line(written))
    if draw and config.evaluation.draw_results:
        try_to_draw_results(run_dir, notify)
    closing_table.print_places(written, run_dir, console)
    if (proof := written.proof) is None or proof.holds:
        return 0
    print_error(f"the proof of this run fails: {proof.problem} (all: {run_dir.summary})")
    return 1


def _exit_code(ending: Ending, left: list[str]) -> int:
    if ending.user_error:
        raise UserError(ending.message)
    if left:
        print_error(f"could not be ended: {', '.join(left)}")
    if ending.message:
        print_error(ending.message)
    return ending.exit_code


# The processes of a run: their ports, starts and restarts, and cluster.json.


class LocalCluster:
    """All tasks of a run.

    Attributes:
      topology: the current tasks and addresses.
      restarts: how often each task was started again.
      usage: CPU time and memory of all processes.
    """

    def __init__(
        self,
        config: RunConfig,
        run_dir: RunDir,
        supervisor: Supervisor,
        network: RunNetwork,
        *,
        resume: bool,
        task_argv: tuple[str, ...],
        fork_server: ForkServer | None = None,
        notify: Notify,
    ):
        self._config = config
        self._notify = notify
        self._is_told = True  # cluster.json has the tasks of now
        self._absent = frozenset(range(config.training_workers, config.most_workers))
        self._run_dir = run_dir
        self._supervisor = supervisor
        self._network = network
        self._task_options = ("--resume",) if resume else ()
        self._task_argv = task_argv
        self._fork_server = fork_server
        self._outlived: list[TaskProcess] = []  # processes still there after SIGKILL
        self.topology = ClusterTopology({})
        self.restarts: Counter[Task] = Counter()
        self.usage = Usage()

    def start(self) -> None:
        """Pick free ports and start every task, all at once."""
        self._pick_ports()
        self._start(self.topology.tasks)

    def restart(self, task: Task) -> None:
        """Start a task that ended again, at the same address, which the other tasks know."""
        self._supervisor.stop([task], grace_s=0)  # whatever it may have left in its process group
        self.restarts[task] += 1
        self._start([task])

    def restart_training(self, *, resume: bool) -> None:
        """Start all training tasks again, on new ports, so that no earlier process reaches them.

        Args:
          resume: from the newest checkpoint or snapshot, else from the beginning.
        """
        self.stop(TRAINING_TYPES, grace_s=0)
        self._task_options = ("--resume",) if resume else ()
        self._pick_ports()
        tasks = self.tasks(TRAINING_TYPES)
        self.restarts.update(tasks)
        self._start(tasks)

    def give_up(self, task: Task) -> None:
        """Start a worker no more; or leave a ps out from the next `restart_training` on.

        The other workers keep their index, address, cores and logs. Of the parameter servers there is one fewer in
        config.yaml, and they are numbered anew: what a ps holds comes from the snapshot.
        """
        if task.type == PS:
            self._config = self._config.with_values({"cluster.parameter_servers": self.shards - 1})
            write_whole(self._run_dir.config, self._config.to_yaml())
        else:
            self.scale(stop=[task], grace_s=0)

    @property
    def shards(self) -> int:
        """The number of shards that training goes on with after the next restart."""
        return self._config.shards

    def scale(self, *, start: Sequence[Task] = (), stop: Sequence[Task] = (), grace_s: float) -> None:
        """Start workers that were absent, and stop others. This is neither a death nor a restart."""
        self.topology = self.topology.with_workers(started=start, stopped=stop)
        self._absent = self.topology.absent
        self._end(stop, grace_s)
        self._start(start)

    def _pick_ports(self) -> None:
        cluster, types = self._config.cluster, self._config.mode_kind.cluster.tasks
        self.topology = ClusterTopology.local(
            types,
            self._config.most_workers,
            cluster.parameter_servers,
            evaluator=cluster.evaluator,
            absent=self._absent,
        )

    def _start(self, tasks: Iterable[Task]) -> None:
        for task in tasks:
            self._supervisor.start(self._spec(task))
        self._is_told = False
        if why := self._tell_tasks():
            self._notify(DISK_REFUSES(f"training goes on, but cluster.json can't be written: {why}"))

    def _tell_tasks(self) -> str | None:
        """Write cluster.json. Where the disk refuses to replace it, return why: each look tries again."""
        try:
            self._write_cluster_file()
        except OSError as error:
            if not self._run_dir.cluster.exists():
                raise
            return error.strerror
        self._is_told = True
        return None

    def tasks(self, types: tuple[str, ...]) -> list[Task]:
        """Return the tasks of these types."""
        return [task for task in self.topology.tasks if task.type in types]

    @property
    def pids(self) -> dict[Task, int]:
        """Task → pid of the processes that run, as of the last `poll`."""
        return {p.task: p.pid for p in self._supervisor.processes if p.task not in self._supervisor.ended}

    def frozen(self) -> list[Task]:
        """Return the tasks whose process is stopped (SIGSTOP)."""
        return [task for task in self._supervisor.frozen() if task in self.pids]

    def poll(self) -> list[TaskExit]:
        if not self._is_told:
            self._tell_tasks()
        self._measure()  # before the poll: it reaps ended processes, whose CPU time is then gone
        return self._supervisor.poll()

    def signal(self, task: Task, number: int) -> None:
        self._supervisor.signal(task, number)

    def stop(self, types: tuple[str, ...], grace_s: float) -> None:
        """Stop the tasks of these types."""
        self._end(self.tasks(types), grace_s)

    def _end(self, tasks: Sequence[Task], grace_s: float) -> None:
        self._measure()
        self._outlived += self._supervisor.stop(tasks, grace_s)

    def stop_all(self, grace_s: float) -> list[str]:
        """Stop everything; return the names of the processes that are still there, usually none."""
        self._measure()
        left = self._supervisor.stop_all(grace_s)
        there = {process.pid: process.task for process in self._outlived if process.running}
        there |= {process.pid: process.task for process in left}
        return [f"{task} (pid {pid})" for pid, task in there.items()]

    def states(self) -> list[TaskState]:
        """Return the state of each task."""
        ended = self._supervisor.ended
        return [TaskState(one.task, one.pid, ended.get(one.task, "running")) for one in self._supervisor.processes]

    def _measure(self) -> None:
        processes = {process.pid: process.task for process in self._supervisor.processes if process.owns_pid}
        processes[os.getpid()] = LAUNCHER
        if self._fork_server is not None and (pid := self._fork_server.pid) is not None:
            processes[pid] = FORK_SERVER
        self.usage.look(processes)

    def _write_cluster_file(self) -> None:
        tasks = [
            {
                "type": process.task.type,
                "index": process.task.index,
                "pid": process.pid,
                "address": self.topology.address(process.task),
                "absent": process.task in self.topology.spare,
            }
            for process in self._supervisor.processes
        ]
        launcher = {"pid": os.getpid(), "life": life_of(os.getpid())}
        content = ClusterFile.model_validate({"launcher": launcher, "isolated": self._network.isolated, "tasks": tasks})
        write_json(self._run_dir.cluster, content.model_dump())

    def _spec(self, task: Task) -> TaskSpec:
        options = ["--run-dir", str(self._run_dir.root), "--type", task.type, "--index", str(task.index)]
        if task.type == WORKER:
            cores = sorted(os.sched_getaffinity(0))
            own = cores_of(task.index, self._config, cores, usable=allowance().threads)
            options += ["--cores", ",".join(map(str, own))]
        if task.type == CHIEF:  # for so many workers it waits before it begins
            options += ["--least-workers", str(len(self.topology.workers))]
        return TaskSpec(
            task=task,
            argv=(*self._task_argv, *options, *self._task_options),
            env=environment.for_child(os.environ, os.getpid()) | {"TF_CONFIG": self.topology.tf_config(task)},
            cwd=self._run_dir.root,
            log=self._run_dir.log(task.type, task.index),
            error=self._run_dir.error(task.type, task.index),
        )


# The launcher's event loop: look at tasks and run files, tell `Decisions` what was seen, carry out what follows.


class EventLoop:
    """The event loop. Each look polls everything once and tells `Decisions` of it, in the order of `_look`.

    Attributes:
      scalings: the changes of the number of workers.
      silences: the worker processes that were killed because they were silent.
    """

    def __init__(
        self,
        config: RunConfig,
        cluster: LocalCluster,
        run_dir: RunDir,
        view: ProgressView,
        requests: StopRequests,
        limits: LauncherLimits,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], None] = time.sleep,
    ):
        self._clock = clock
        self._sleep = sleep
        self._cluster = cluster
        self._run_dir = run_dir
        self._view = view
        self._requests = requests
        self._requests_seen = 0
        self._look_every_s = limits.look_every_s
        self._grace_s = limits.grace_s
        self._scale_desk = ScaleDesk(run_dir, self._notice)
        self.scalings: list[ScalingRow] = []
        self._workers: int | None = None  # None: the cluster has not started
        self._newest = ProgressRow(phase="starting")
        self._progress = RowTail(run_dir.progress, ProgressRow)
        self._evaluation = RowTail(run_dir.evaluation, EvaluationRow)
        self._recomputed = RowTail(run_dir.recomputed, RecomputedRow)
        self._decisions = Decisions(config, run_dir, limits, clock())
        self.silences = self._decisions.silences
        self._ending: Ending | None = None

    def until_the_end(self) -> Ending:
        """Start the cluster; return when nothing is left to wait for. The caller stops what still runs."""
        for rows_of_before in (self._progress, self._evaluation, self._recomputed):
            rows_of_before.skip()
        try:
            self._carry_out(rules.StartCluster())
            while True:
                self._look()
                if self._ending is not None:
                    break
                self._sleep(self._look_every_s)
        except StopHeard:  # processes were being started, and no look would hear of the requests
            while self._ending is None:
                self._tell(self._decisions.stop_requested, self._requests.exit_code)
        self._read_rows()
        return self._ending

    @property
    def stops_at_once(self) -> bool:
        """True if the user's requests that no look has seen yet end the run at once, without a drain."""
        return self._decisions.stops_at_once(self._requests.count - self._requests_seen)

    def _tell(self, decide: Callable[..., Actions], *facts: Any) -> None:
        """Tell a method of `Decisions` what was seen, and carry out what it decides."""
        if self._ending is not None:
            return
        for action in decide(*facts, self._clock()):
            self._carry_out(action)
            if self._ending is not None:
                return

    # Looking.

    def _look(self) -> None:
        # Read before the rows: who asks to stop because of a row finds that row read here too.
        requests = self._requests.count
        self._read_rows()
        if exits := self._cluster.poll():
            self._tell_ends(exits)
            self._show_tasks()
        if requests > self._requests_seen:
            self._requests_seen += 1
            self._tell(self._decisions.stop_requested, self._requests.exit_code)
        if (workers := self._scale_desk.asked()) is not None:
            self._tell(self._decisions.scale_requested, workers)
        states = ", ".join(f"{one.task} {one.state}" for one in self._cluster.states())
        self._tell(self._decisions.time_passed, rules.Look(self._cluster.pids, tuple(self._cluster.frozen()), states))

    def _read_rows(self) -> None:
        for row in with_work(self._run_dir.work, self._progress.new_rows()):
            self._newest = row
            self._view.progress(row)
            workers = {task.index: pid for task, pid in self._cluster.pids.items() if task.type == WORKER}
            self._tell(self._decisions.progress_seen, row, workers)
        for score in self._evaluation.new_rows():
            self._view.evaluation(score)
            self._tell(self._decisions.score_seen)
        if self._recomputed.new_rows():
            self._tell(self._decisions.score_seen)

    def _tell_ends(self, exits: list[TaskExit]) -> None:
        if taken := [task_exit for task_exit in exits if task_exit.exit_code == PORT_IN_USE]:
            self._tell(self._decisions.port_taken, taken[0])
        # The leader's end first: exits of other training tasks after it need no recovery.
        for task_exit in sorted(exits, key=lambda task_exit: not self._is_leaders_end(task_exit)):
            # Because of what was told before its task may have a new process by now.
            if self._cluster.pids.get(task_exit.task) is None:
                self._tell_end(task_exit)

    def _is_leaders_end(self, task_exit: TaskExit) -> bool:
        return task_exit.task == self._cluster.topology.leader and task_exit.exit_code == 0

    def _tell_end(self, task_exit: TaskExit) -> None:
        done = task_exit.task.type == EVALUATOR and task_exit.exit_code == 0
        if self._is_leaders_end(task_exit):
            self._tell(self._decisions.leader_done, training_outcome(self._run_dir))
        elif done and checkpoints.ended(self._run_dir.checkpoints):
            self._tell(self._decisions.evaluator_done)
        else:
            self._tell(self._decisions.task_died, task_exit)

    # Acting.

    def _carry_out(self, action: Action) -> None:
        cluster = self._cluster
        match action:
            case rules.Notice(line):
                self._notice(line)
            case rules.StartCluster():
                cluster.start()
                self._has_started()
            case rules.RestartTraining(resume):
                cluster.restart_training(resume=resume)
                self._has_started()
            case rules.RestartTask(task):
                cluster.restart(task)
                self._show_tasks()
            case rules.RestartFromSnapshot():
                self._take_back(action)
            case rules.GiveUp(task):
                cluster.give_up(task)
                self._has_started()
            case rules.Scale(start, stop):
                cluster.scale(start=start, stop=stop, grace_s=self._grace_s)
                self._has_started()
            case rules.AnswerScale(line, refused):
                self._scale_desk.answer(line, refused=refused)
            case rules.DrainLeader(leader):
                cluster.signal(leader, signal.SIGTERM)
            case rules.WriteStacks(tasks):
                for task in tasks:
                    cluster.signal(task, signal.SIGUSR1)
                self._sleep(self._look_every_s)
            case rules.Kill(task):
                if task in cluster.pids:
                    cluster.signal(task, signal.SIGKILL)
            case rules.StopTraining(grace_s):
                cluster.stop(TRAINING_TYPES, grace_s)
                self._has_stopped()
            case rules.StopAll():
                cluster.stop_all(grace_s=0)
                self._has_stopped()
            case Ending():
                self._ending = action
            case _:
                assert_never(action)

    def _has_started(self) -> None:
        before, self._workers = self._workers, len(self._cluster.topology.workers)
        if before is not None and before != self._workers:
            applied, seconds = self._newest.applied, max(0.0, self._newest.train_seconds)
            row = ScalingRow(applied=applied, train_seconds=seconds, before=before, workers=self._workers)
            self.scalings.append(row)
        self._show_tasks()
        self._tell(self._decisions.cluster_started, self._cluster.topology)

    def _has_stopped(self) -> None:
        self._show_tasks()
        self._tell(self._decisions.stopped)

    def _take_back(self, request: rules.RestartFromSnapshot) -> None:
        self._cluster.stop(TRAINING_TYPES, grace_s=0)
        self._read_rows()  # the last ones of the old leader
        problem, snapshot = "", False
        try:
            snapshot = newest_for(self._cluster.shards, self._run_dir, self._notice) is not None
            if not snapshot and checkpoints.newest_first(self._run_dir.states):
                problem = f"training can't go on from any state in '{self._run_dir.root}', and nothing is begun anew over them"
        except RunFailed as error:
            problem = str(error)
        self._tell(self._decisions.snapshot_checked, request, snapshot, problem)

    def _show_tasks(self) -> None:
        self._view.tasks(self._cluster.states())

    def _notice(self, line: Line) -> None:
        self._view.notice(line)
        with contextlib.suppress(OSError), open_append(self._run_dir.launcher_log) as log:  # the disk may be full
            text = logs.chosen().line(line, time.strftime("%Y-%m-%d %H:%M:%S "))
            log.write(f"{text}\n".encode())
