"""Run one task of a cluster on several machines: wait for the others, keep its process, and say at its terminal what happens.

The process that runs TensorFlow is a child, because TensorFlow may hold up its whole process, signals included, while
it waits for another machine. This one never waits for long, so it hears every signal and keeps every limit.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ps_cluster.clock import AwakeClock
from ps_cluster.config import RunConfig
from ps_cluster.config.modes import Mode
from ps_cluster.config.tasks import PS, WORKER, Task
from ps_cluster.data.packed import PackedDataset, write_form, write_pointer
from ps_cluster.errors import BAD_INPUT, FAILED, FAILED_FOR_GOOD, PORT_IN_USE, RETRY, SUPERSEDED, UserError
from ps_cluster.files import locks, writing
from ps_cluster.files.json_files import read_json
from ps_cluster.files.json_rows import RowTail
from ps_cluster.files.values import one_line
from ps_cluster.files.writing import set_fence, write_json, write_whole
from ps_cluster.installation import finding_this_package
from ps_cluster.launch.launcher import TASK_ARGV, write_ending
from ps_cluster.launch.local_run import WHAT, Notify, complete_config, resolve_data
from ps_cluster.launch.network_check import task_of
from ps_cluster.launch.rules import BEGUN, STAGES, LauncherLimits, RunStage, broken_line
from ps_cluster.launch.task import leave
from ps_cluster.launch.topology import ClusterTopology
from ps_cluster.process_variables import LAUNCHER_PID, temporary_files_in
from ps_cluster.report.progress import ProgressView
from ps_cluster.report.run_state import TaskState
from ps_cluster.report.summary import EndedRun
from ps_cluster.report.terminal import print_error
from ps_cluster.runs import checkpoints
from ps_cluster.runs.leaders import Claim, Superseded, claim
from ps_cluster.runs.logs import CONNECTED, DISK_REFUSES, DRAINING, TASK_ENDED, TASK_GIVES_UP, WAITING, Line
from ps_cluster.runs.result_rows import BROKEN, SAVING, EvaluationRow, ProgressRow, Summary, TrainingResult, with_work
from ps_cluster.runs.rows import ClusterFile, TaskFile
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.system import environment, machine
from ps_cluster.system.addresses import check_is_free, unknown_hosts
from ps_cluster.system.port_guard import guard_port
from ps_cluster.system.probes import working
from ps_cluster.system.run_processes import life_of
from ps_cluster.system.stop_signals import StopRequests
from ps_cluster.system.supervisor import is_stopped, signal_name
from ps_cluster.training.resuming import newest_checkpoint

AUTO, NEVER, ALWAYS = "auto", "never", "always"  # values of --resume
PORT_FREE_WITHIN_S = 10.0  # seconds in which an earlier process of the task may still end
LOOK_EVERY_S = 0.2
PROBE_EVERY_S = 2.0  # for the leader, by the others
GATHER_EVERY_S = 1.0  # a look for the others, by the leader
SAY_EVERY_S = 10.0
REST_S = 60.0  # how long to wait for the other workers once everything else is there
STACKS_S = 0.5  # for the stacks of a process to be written before it is killed
_NAMED = 3

Reach = Callable[[Mapping[Task, str]], set[Task]]


@dataclass(frozen=True)
class RendezvousLimits:
    """Bounds of the wait for other tasks: its length, and the number of workers that are enough.

    Attributes:
      wait_s: for the tasks that are needed.
      least_workers: begin as soon as so many are there; None: all, or those that came within `REST_S`.
      needs_all: the mode can't do with fewer workers than all.
    """

    wait_s: float
    least_workers: int | None = None
    needs_all: bool = False


def run_one_task(
    config: RunConfig, root: Path, topology: ClusterTopology, task: Task,
    *, resume: str, wait_s: float, min_workers: int | None, view: ProgressView, notify: Notify,
    task_argv: tuple[str, ...] = TASK_ARGV,
) -> None:  # fmt: skip
    """Run one task of a cluster on several machines, then end the process. Raises UserError for bad input.

    Args:
      config: made for a cluster of the size of `topology`.
      root: the run directory. The leader and the evaluator must share it; the others may have their own.
      resume: "auto" (go on from a checkpoint or snapshot if there is one), "never" or "always".
      wait_s: how long at most this task waits for the others.
      min_workers: how many workers are enough to begin; None: all, or those that came within a minute.
      view: shows the training. notify: gets lines from before it begins.
      task_argv: as for `run_local`.
    """
    _check_cluster(config, topology)
    check_min_workers(min_workers, len(topology.cluster.get(WORKER, ())), config.mode_kind)
    check_named(config)
    for line in environment.not_used(os.environ):
        notify(line)
    run_dir, leads = RunDir(Path(os.path.realpath(root))), task == topology.leader
    _goes_on(resume, run_dir, leads=leads)
    _check_port_is_free(topology, task)
    guard_port(config.cluster.isolation, topology.port(task), topology.addresses, notify)
    patience = RendezvousLimits(
        wait_s, min_workers, needs_all=not config.mode_kind.cluster.on_death[WORKER].dispensable
    )
    # Leaders share: a newer one takes over from one that is frozen or can't be reached (runs/leaders.py).
    held = root if leads else RunDir(root).workspace(task.type, task.index)
    try:
        with locks.sole_use(held, WHAT, notify, shared=leads):
            dataset = resolve_data(config.data, notify=notify).holding_out(config.evaluation.validation_examples)
            config = complete_config(config, dataset, notify)
            with StopRequests() as requests:
                code = _lead_or_follow(
                    config, run_dir, dataset, topology, task,
                    resume=resume, patience=patience, requests=requests, view=view, notify=notify,
                    task_argv=task_argv,
                )  # fmt: skip
    except locks.InUse as error:
        if leads:
            raise
        notify(f"{error}; it may just be ending: the same command goes on (exit code {RETRY})")
        code = RETRY
    leave(code)


def _lead_or_follow(
    config: RunConfig, run_dir: RunDir, dataset: PackedDataset, topology: ClusterTopology, task: Task,
    *, resume: str, patience: RendezvousLimits, requests: StopRequests, view: ProgressView, notify: Notify,
    task_argv: tuple[str, ...],
) -> int:  # fmt: skip
    """Keep the task until it ends; return the exit code. A leader claims the run directory first."""
    leads = task == topology.leader
    if leads and (failure := failed_for_good(run_dir)):
        print_error(failure)
        return FAILED_FOR_GOOD
    if leads and _goes_on(resume, run_dir, leads=leads):  # bad input must not end a leader that is at work
        newest_checkpoint(config, run_dir, dataset, notify)
    try:
        claimed = claim(run_dir) if leads else None
        if claimed is not None:
            set_fence(claimed.check)
        goes_on = _goes_on(resume, run_dir, leads=leads)  # asked again: until the claim another leader may have saved
        if leads and goes_on:  # check before config.yaml is overwritten
            begun = newest_checkpoint(config, run_dir, dataset, lambda line: None)
            notify(f"run directory '{run_dir.root}': training goes on from step {begun.step:,}")
        _write(config, run_dir, dataset, topology, task)
        child = functools.partial(
            _start, run_dir, topology, task,
            resume=goes_on, claimed=claimed, wait_s=patience.wait_s, task_argv=task_argv,
        )  # fmt: skip
        view.start(config, run_dir, dataset, task_of(config, dataset))
        view.tasks([TaskState(task, os.getpid(), "running")])
        total = config.total_updates(dataset.train_examples)
        began, term = time.monotonic(), claimed.term if claimed else 0
        with temporary_files_in(run_dir.temporary_of(task.type, task.index)):
            code = TaskSupervisor(
                task, topology, run_dir, view, requests, child, LauncherLimits(), patience, total=total,
                conclude=lambda outcome: _conclude(outcome, config, run_dir, topology, term, began, view.notice),
                note_workers=lambda pids: _write_cluster(run_dir, topology, config.mode_kind.trainer_type, pids),
            ).run()  # fmt: skip
        if claimed is not None and code not in (0, BAD_INPUT):
            claimed.check()  # an older leader must not be started again, whatever has ended it
    except Superseded as error:
        print_error(str(error))
        code = SUPERSEDED
    finally:
        set_fence(None)
        view.close()
    return code


def _conclude(
    outcome: str,
    config: RunConfig,
    run_dir: RunDir,
    topology: ClusterTopology,
    leaders: int,
    began: float,
    notify: Notify,
) -> int:
    """Write and print what `run` does at its end. Return 0, or FAILED_FOR_GOOD if the proof does not hold.

    Each task is started again by whoever has started it, so what it is now is known of its work alone.
    """
    (newest,) = with_work(run_dir.work, [ProgressRow(phase="starting")])  # of each worker all processes
    kind = config.mode_kind.trainer_type
    restarts = Counter((kind, worker.index) for worker in newest.workers)
    restarts.subtract(set(restarts))  # the first process of each is no restart
    restarts[topology.leader.type, topology.leader.index] = leaders - 1
    ended = EndedRun(
        outcome=outcome,
        wall_seconds=time.monotonic() - began,
        began=began,
        life=None,
        machine=machine.describe(),
        restarts=restarts,
        leaders=leaders,
    )
    code = write_ending(config, run_dir, ended, notify, draw=outcome != "failed")
    return FAILED_FOR_GOOD if code else 0


def failed_for_good(run_dir: RunDir) -> str | None:
    """Return why the training of a run directory has failed however often it is started, on one line; None if it has not.

    A leader that a scheduler starts again would wait for tasks that have ended with the training, and then find that all
    updates are there.
    """
    ended = None
    with contextlib.suppress(UserError):
        ended = checkpoints.ended(run_dir.checkpoints)
    if ended is None:
        return None
    if ended.outcome in BROKEN:
        return broken_line(ended.outcome, ended.last_step)
    for path, model in ((run_dir.summary, Summary), (run_dir.training_result, TrainingResult)):
        with contextlib.suppress(UserError, OSError):
            proof = read_json(path, model).proof
            if proof is not None and not proof.holds:
                return (
                    f"the proof of this run fails: {proof.problem}; the training of run directory '{run_dir.root}' ended at "
                    f"step {ended.last_step:,} and does not go on: keep the folder, and choose another --run-dir"
                )
    return None


def check_named(config: RunConfig) -> None:
    """Raise UserError where the configuration leaves to each machine what has to be the same for all."""
    for name, value in (("data.dataset", config.data.dataset), ("model.precision", config.model.precision)):
        if value == "auto":
            raise UserError(
                f"{name}: got 'auto': machines may come to different ones; name one, the same for every task"
            )


def _write(config: RunConfig, run_dir: RunDir, dataset: PackedDataset, topology: ClusterTopology, task: Task) -> None:
    """Write what the task's process and `health` read. The run's own config.yaml and cluster.json are the leader's."""
    leads, life = task == topology.leader, life_of(os.getpid())
    who = {"type": task.type, "index": task.index, "pid": os.getpid(), "address": topology.address(task)}
    own = TaskFile.model_validate(who | {"host": socket.gethostname(), "leads": leads, "life": life})
    run_dir.make_folders()
    try:
        if leads:
            write_whole(run_dir.config, config.to_yaml())
            write_pointer(run_dir.dataset, dataset)
            write_form(run_dir.examples, dataset)
            _write_cluster(run_dir, topology, config.mode_kind.trainer_type, {})
        write_whole(run_dir.config_of(task.type, task.index), config.to_yaml())
        write_pointer(run_dir.dataset_of(task.type, task.index), dataset)
        write_json(run_dir.task_file(task.type, task.index), own.model_dump())
    except OSError as error:
        raise UserError(f"run directory '{run_dir.root}' can't be written: {error.strerror}") from error


def _start(
    run_dir: RunDir, topology: ClusterTopology, task: Task, least_workers: int | None,
    *, resume: bool, claimed: Claim | None, wait_s: float, task_argv: tuple[str, ...],
) -> subprocess.Popen[bytes]:  # fmt: skip
    """Start the process that runs TensorFlow. It writes to this terminal, and ends with this process."""
    named = ("--run-dir", str(run_dir.root), "--type", task.type, "--index", str(task.index), "--alone")
    waiting = ("--wait-seconds", str(wait_s))
    leading = ("--term", str(claimed.term)) if claimed else ()
    least = () if least_workers is None else ("--least-workers", str(least_workers))
    env = environment.for_tensorflow(finding_this_package(os.environ))
    env |= {LAUNCHER_PID: str(os.getpid()), "TF_CONFIG": topology.tf_config(task)}
    return subprocess.Popen(
        [*task_argv, *named, *waiting, *leading, *least, *(("--resume",) if resume else ())],
        env=env, cwd=run_dir.root, stdin=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip


def _goes_on(resume: str, run_dir: RunDir, *, leads: bool) -> bool:
    """Return whether training goes on from what the run directory holds. Raises UserError where the leader can't."""
    held = bool(checkpoints.newest_first(run_dir.states))
    if leads and held and resume == NEVER:
        raise UserError(
            f"--resume: got 'never', but run directory '{run_dir.root}' holds checkpoints or snapshots: "
            "choose another, or leave --resume out to go on from them"
        )
    if leads and not held and resume == ALWAYS:
        raise UserError(
            f"--resume: got 'always', but run directory '{run_dir.root}' holds no checkpoint to resume from: "
            "leave --resume out to begin there"
        )
    return resume == ALWAYS or (held and resume == AUTO)


def _write_cluster(run_dir: RunDir, topology: ClusterTopology, trains: str, pids: Mapping[int, int]) -> None:
    """Write cluster.json, as the launcher of `run` does. `pids`: of the workers that are known by their work.

    Args:
      trains: the type of the tasks that train.
    """
    known = {Task(trains, index): pid for index, pid in pids.items()} | {topology.leader: os.getpid()}
    tasks = [
        {"type": task.type, "index": task.index, "pid": known.get(task), "address": topology.address(task)}
        for task in topology.tasks
    ]
    write_json(run_dir.cluster, ClusterFile.model_validate({"tasks": tasks}).model_dump())


def _check_cluster(config: RunConfig, topology: ClusterTopology) -> None:
    """Raise UserError where mode or configuration are for other tasks than the cluster has."""
    mode, origin = config.mode_kind, topology.origin.name
    if topology.types != mode.cluster.tasks:
        raise UserError(
            f"mode.name: got '{mode.name}', whose cluster has {', '.join(mode.cluster.tasks)}, "
            f"but that of {origin} has {', '.join(topology.types)}"
        )
    for kind, name in ((WORKER, "workers"), (PS, "parameter_servers")):
        given = getattr(config.cluster, name)
        if kind in topology.cluster and given != (count := len(topology.cluster[kind])):
            raise UserError(f"cluster.{name}: got {given}, but the cluster of {origin} has {count}: leave it out")


def _check_port_is_free(topology: ClusterTopology, task: Task) -> None:
    """Raise UserError where another program listens at the task's address; TensorFlow needs seconds to find out."""
    address = topology.address(task)
    if address is None or topology.port(task) is None:
        return
    until = time.monotonic() + PORT_FREE_WITHIN_S
    while True:
        try:
            return check_is_free(address)
        except OSError as error:
            if time.monotonic() >= until:
                raise UserError(taken(task, topology)) from error
        time.sleep(LOOK_EVERY_S)


def check_min_workers(min_workers: int | None, workers: int, mode: Mode) -> None:
    """Raise UserError where training can't begin with so many of the workers of the cluster. None is always fine."""
    if min_workers is None or min_workers == workers:
        return
    if min_workers > workers:
        raise UserError(f"--min-workers: got {min_workers}; the cluster has {workers} of type {WORKER}")
    if mode.cluster.fixed_workers:
        raise UserError(f"--min-workers: got {min_workers}: {mode.cannot_scale}: leave it out")


# Keep the process of a task.


class TaskSupervisor:
    """Keeps one task. `run` returns the exit code of the command."""

    def __init__(
        self, task: Task, topology: ClusterTopology, run_dir: RunDir, view: ProgressView, requests: StopRequests,
        start: Callable[[int | None], subprocess.Popen[bytes]], limits: LauncherLimits, patience: RendezvousLimits,
        *, conclude: Callable[[str], int] = lambda outcome: 0, total: int | None = None,
        note_workers: Callable[[Mapping[int, int]], None] = lambda pids: None,
        reach: Reach = working, unknown: Callable[[Iterable[str]], list[str]] = unknown_hosts,
        clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
    ):  # fmt: skip
        """Prepare.

        Args:
          start: starts the task's process; the leader's gets the number of workers that are enough.
          conclude: called by the leader once, with the outcome of its training; returns the exit code of the proof.
          note_workers: called by the leader with index → pid of the workers, whenever they have changed.
          unknown: returns the hosts of some addresses whose names can't be resolved.
        """
        self._task = task
        self._topology = topology
        self._run_dir = run_dir
        self._view = view
        self._requests = requests
        self._heard = 0
        self._start = start
        self._limits = limits
        self._patience = patience
        self._conclude, self._concluded = conclude, False
        self._note_workers, self._workers = note_workers, dict[int, int]()
        self._total = total
        self._reach, self._unknown = reach, unknown
        self._clock = clock
        self._awake = AwakeClock(clock)  # for the limits of the process: both may be frozen together
        self._sleep = sleep
        self._leads = task == topology.leader
        self._progress = RowTail(run_dir.progress, ProgressRow)
        self._scores = RowTail(run_dir.evaluation, EvaluationRow)
        self._begun = False
        self._counts: tuple[int, int] = (0, 0)
        self._longest_wait_s = 0.0  # for an update, as the leader's process tells
        self._moved_s = self._awake()  # when the last update was seen, or the process was started
        self._frozen_s: float | None = None
        self._drains = False
        self._next_probe_s = 0.0
        self._leader_s: float | None = None  # when the leader was last reached; None: not yet
        self._said_of: object = None
        self._say_again_s = 0.0

    def run(self) -> int:
        """Wait for the others where that is necessary, keep the task's process, and return the exit code."""
        address = self._topology.address(self._task)
        self._view.notice(f"{self._task}{f' at {address}' if address else ''}")
        for rows_of_before in (self._progress, self._scores):
            rows_of_before.skip()
        least: int | None = None
        if self._leads and len(self._topology.tasks) > 1:
            least = self.gather()
            if least is None:
                return self._not_begun()
        code = self._keep(self._start(least))
        if self._leads and not self._concluded and code not in (BAD_INPUT, SUPERSEDED):
            self._conclude("stopped" if self._requests.count else "failed")
        return code

    def _keep(self, child: subprocess.Popen[bytes]) -> int:
        """Look after the process until the task ends; return the exit code."""
        self._moved_s, began_s = self._awake(), self._clock()
        while True:
            ended = child.poll()
            self._read_rows()
            if ended is not None:
                return self._after(ended)
            code = self._heed(child)
            if code is None:
                code = self._lead(child) if self._leads else self._follow(child, began_s)
            if code is not None:
                self._read_rows()
                return code
            self._sleep(LOOK_EVERY_S)

    # Keeping the process.

    def _heed(self, child: subprocess.Popen[bytes]) -> int | None:
        """Do what a signal, or a frozen process, asks for; return the exit code if the task ends by it."""
        if self._requests.count > self._heard:
            first, self._heard = self._heard == 0, self._requests.count
            if self._leads and self._begun and first:
                self._drains, self._moved_s = True, self._awake()
                line = "stopping: no new steps; a last checkpoint is written when those under way have ended"
                self._view.notice(DRAINING(line))
                child.send_signal(self._requests.last_signal)
                return None
            _end(child)
            return self._say_stopped()
        if not is_stopped(child.pid):
            self._frozen_s = None
        elif self._frozen_s is None:
            self._frozen_s = self._awake()
        elif self._awake() - self._frozen_s >= self._limits.frozen_s:
            return self._kill(child, f"its process was frozen for {self._limits.frozen_s:g} s")
        return None

    def _not_begun(self) -> int:
        if self._requests.count:
            return self._say_stopped()
        if self._has_ended(self._total):  # it ended before it could say so
            return self._say_completed()
        self._view.notice(TASK_GIVES_UP(f"{self._task} ends; {_AGAIN}"))
        return RETRY

    def _say_completed(self) -> int:
        self._view.notice(TASK_ENDED(f"{self._task} has ended: training is completed"))
        return 0

    def _say_stopped(self) -> int:
        name = signal.Signals(self._requests.last_signal).name
        self._view.notice(TASK_ENDED(f"{self._task} was stopped by {name}"))
        return self._requests.exit_code

    def _kill(self, child: subprocess.Popen[bytes], why: str) -> int:
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(signal.SIGUSR1)  # its stacks tell where it hangs
        self._sleep(STACKS_S)
        _end(child)
        self._view.notice(TASK_GIVES_UP(f"{self._task} ends: {why}; {_AGAIN}"))
        return RETRY

    def _lead(self, child: subprocess.Popen[bytes]) -> int | None:
        """Keep the limits of the leader: a start, an update, and an end all come in time; no newer leader is there."""
        try:
            with contextlib.suppress(OSError):  # a shared folder that can't be read just now
                writing.check()
        except Superseded:  # the process itself may hang: what it made on the servers is the older leader's
            _end(child)
            raise
        still_s, limits = self._awake() - self._moved_s, self._limits.for_waits_of(self._longest_wait_s)
        stage = RunStage.DRAINING if self._drains else RunStage.TRAINING if self._begun else RunStage.STARTING
        limit_s, what = STAGES[stage].seconds(limits), STAGES[stage].message.format(leader=self._task)
        if stage is RunStage.STARTING and self._task.type == WORKER:
            limit_s += self._patience.wait_s  # without a chief its process waits for the other workers
        if still_s <= limit_s:
            return None
        if self._has_ended(self._total):  # only its last words to the others take long
            _end(child)
            return self._after_its_end()
        return self._kill(child, f"{what} for {limit_s:.0f} s")

    def _follow(self, child: subprocess.Popen[bytes], began_s: float) -> int | None:
        """Look for the leader; end where it is away for too long."""
        address = self._topology.address(self._topology.leader)
        now_s = self._clock()
        if address is None or self._task.type not in self._topology.types or now_s < self._next_probe_s:
            return None
        self._next_probe_s = now_s + PROBE_EVERY_S
        leader = self._topology.leader
        if self._reach({leader: address}):
            self._leader_s = now_s
            self._say(CONNECTED(f"{leader} ({address}) answers"), about="there", once=True)
            return None
        away_s = now_s - (self._leader_s or began_s)
        in_vain = away_s >= self._patience.wait_s
        was_there = self._leader_s is not None and away_s > SAY_EVERY_S
        if (in_vain or was_there) and self._has_ended():
            _end(child)
            return self._say_completed()
        why = self._why_silent([address])
        if in_vain:
            if not why:
                return self._kill(child, f"{leader} ({address}) did not answer for {self._patience.wait_s:g} s")
            _end(child)  # it does not hang, so its stacks would tell nothing
            self._view.notice(TASK_GIVES_UP(f"{self._task} ends: {leader} ({address}) can't be reached{why}; {_AGAIN}"))
            return RETRY
        line = f"waiting for {leader} ({address}) ({away_s:.0f} of {self._patience.wait_s:g} s){why}"
        self._say(WAITING(line), about="away")
        return None

    def _has_ended(self, total: int | None = None) -> bool:
        """Return whether the run directory, if this task shares the leader's, says that training is complete.

        Args:
          total: with as many updates; None: whatever their number.
        """
        with contextlib.suppress(UserError):
            ended = checkpoints.ended(self._run_dir.checkpoints)
            return ended is not None and ended.outcome == "completed" and total in (None, ended.last_step)
        return False

    def _after(self, code: int) -> int:
        """Return the exit code of the command after that of the process."""
        if code == 0:
            return self._after_its_end()
        if code == PORT_IN_USE:
            raise UserError(taken(self._task, self._topology))
        if code in (FAILED, BAD_INPUT, SUPERSEDED, RETRY):  # the process has said why
            return code
        number = -code if code < 0 else code - 128
        self._view.notice(TASK_GIVES_UP(f"{self._task} was ended by {signal_name(number)}; {_GOES_ON}"))
        return 128 + number

    def _after_its_end(self) -> int:
        if not self._leads:
            self._view.notice(TASK_ENDED(f"{self._task} has ended"))
            return 0
        ended = checkpoints.ended(self._run_dir.checkpoints)
        if ended is None:
            self._view.notice(TASK_GIVES_UP(f"{self._task} has ended without a result"))
            return FAILED
        line = f"{self._task} has ended: training is {ended.outcome} at step {ended.last_step:,}"
        self._view.notice(TASK_ENDED(line, outcome=ended.outcome, step=ended.last_step))
        code, self._concluded = self._conclude(ended.outcome), True
        if ended.outcome in BROKEN:
            self._view.notice(TASK_GIVES_UP(broken_line(ended.outcome, ended.last_step)))
            return FAILED_FOR_GOOD
        preempted = ended.outcome != "completed" and self._requests.last_signal not in (0, signal.SIGINT)
        return code or (RETRY if preempted else 0)

    # The wait of a chief for the servers of all other tasks.

    def gather(self) -> int | None:
        """Return how many workers are there, once all that is needed is; None when told to stop, or in vain."""
        leader, patience = self._topology.leader, self._patience
        addresses = {task: address for task, address in self._topology.addresses.items() if task != leader}
        began_s, rest_s = self._clock(), None
        while self._requests.count == 0:
            with contextlib.suppress(OSError):  # a shared folder that can't be read just now
                writing.check()  # a newer leader may have begun meanwhile
            there, now_s = self._reach(addresses), self._clock()
            missing = [task for task in addresses if task not in there]
            workers = sum(task.type == WORKER for task in there)
            only_workers = all(task.type == WORKER for task in missing)
            may_begin = only_workers and not patience.needs_all and workers >= (patience.least_workers or 1)
            rest_s = (rest_s or now_s) if may_begin else None
            if not missing:
                self._view.notice(CONNECTED("all other tasks answer"))
                return workers
            names = _names(missing, addresses)
            if rest_s is not None and (patience.least_workers is not None or now_s - rest_s >= REST_S):
                line = f"beginning with {workers} of {workers + len(missing)} workers; {names} may come later"
                self._view.notice(line)
                return workers
            waited_s, why = now_s - began_s, self._why_silent(addresses[task] for task in missing)
            if waited_s >= patience.wait_s:
                self._view.notice(f"{names} did not answer for {patience.wait_s:g} s{why}")
                return None
            self._say(WAITING(f"waiting for {names} ({waited_s:.0f} of {patience.wait_s:g} s){why}"), missing)
            until_s = self._clock() + GATHER_EVERY_S
            while self._clock() < until_s and self._requests.count == 0:
                self._sleep(LOOK_EVERY_S)
        return None

    def _why_silent(self, addresses: Iterable[str]) -> str:
        """Return the end of a line about tasks that do not answer: the names of hosts that can't be resolved, or ""."""
        if not (hosts := self._unknown(addresses)):
            return ""
        named = ", ".join(f"'{one_line(host, 100)}'" for host in hosts)
        return f": this machine can't resolve the name {named}; correct the address, or wait until the name service knows it"

    # Saying.

    def _say(self, line: Line, about: object, *, once: bool = False) -> None:
        """Say a line. `about`: what it is about; equal things are said again only after 10 s, or never (`once`)."""
        now_s = self._clock()
        if about != self._said_of or (now_s >= self._say_again_s and not once):
            self._said_of, self._say_again_s = about, now_s + SAY_EVERY_S
            self._view.notice(line)

    def _read_rows(self) -> None:
        if not self._leads:
            return
        for row in with_work(self._run_dir.work, self._progress.new_rows()):
            self._view.progress(row)
            self._begun |= row.phase in BEGUN
            self._longest_wait_s = row.longest_wait_seconds
            if (workers := {worker.index: worker.pid for worker in row.workers}) != self._workers:
                try:
                    self._note_workers(workers)
                    self._workers = workers
                except OSError as error:  # the next row tries again
                    line = f"training goes on, but cluster.json can't be written: {error.strerror}"
                    self._say(DISK_REFUSES(line), error.errno)
            if self._begun and ((row.applied, row.written) != self._counts or row.phase == SAVING):
                self._counts, self._moved_s = (row.applied, row.written), self._awake()
        for score in self._scores.new_rows():
            self._view.evaluation(score)


_GOES_ON = "the same command goes on"
_AGAIN = f"{_GOES_ON} (exit code {RETRY})"


def taken(task: Task, topology: ClusterTopology) -> str:
    """Return a line on a port that another program has."""
    return (
        f"{topology.origin.field(task.type)}: '{topology.address(task)}': {task} can't listen there; usually "
        "another program does: stop that one, or name another port, the same for every task"
    )


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill a process with its group, and wait until it is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(5.0)


def _names(tasks: Sequence[Task], addresses: Mapping[Task, str]) -> str:
    more = f" and {len(tasks) - _NAMED} more" if len(tasks) > _NAMED else ""
    return ", ".join(f"{task} ({addresses[task]})" for task in tasks[:_NAMED]) + more
