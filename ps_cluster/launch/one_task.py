"""Run one task of a cluster on several machines: check the input, claim the run, and supervise the task's process.

The process that runs TensorFlow is a child, because TensorFlow may block its whole process, even its signals, while it
waits for another machine. The process of the command never waits long: a probe takes at most 3 s for every 64 tasks,
and a request to the name service at most 3 s. So this process reacts soon to every signal and enforces every time
limit. The rules of the command are in one_task_decisions.py.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ps_cluster.config import RunConfig
from ps_cluster.config.datasets import DataSettings
from ps_cluster.config.modes import Mode
from ps_cluster.config.tasks import PS, WORKER, Resume, Task
from ps_cluster.data.packed import PackedDataset, write_description, write_pointer
from ps_cluster.errors import BAD_INPUT, FAILED_FOR_GOOD, RETRY, SUPERSEDED, UserError
from ps_cluster.files import locks
from ps_cluster.files.json_files import read_json
from ps_cluster.files.writing import set_fence, write_json, write_whole
from ps_cluster.installation import environment_with_package
from ps_cluster.launch.config_completion import complete_config, resolve_data
from ps_cluster.launch.endings import early_stopping_of, why_broken, write_ending
from ps_cluster.launch.gpu_choice import is_on_gpus, with_gpus_found
from ps_cluster.launch.network_check import check_network, described_objective
from ps_cluster.launch.one_task_decisions import RendezvousLimits, decisions_for, port_taken_message
from ps_cluster.launch.one_task_loop import TaskLoop
from ps_cluster.launch.stages import RunLimits
from ps_cluster.launch.task import TASK_ARGV
from ps_cluster.launch.task_arguments import TaskArguments
from ps_cluster.launch.topology import ClusterTopology
from ps_cluster.notices import Notify, ignore
from ps_cluster.process_variables import LAUNCHER_PID, TF_CONFIG, temporary_files_in
from ps_cluster.report.progress import ProgressView
from ps_cluster.report.run_state import TaskState
from ps_cluster.report.summary import EndedRun
from ps_cluster.report.terminal import print_error
from ps_cluster.runs import checkpoints
from ps_cluster.runs.leaders import Claim, Superseded, claim
from ps_cluster.runs.result_rows import BROKEN, EarlyStop, Outcome, ProgressRow, Summary, TrainingResult, with_work
from ps_cluster.runs.rows import ClusterFile, TaskFile, TaskRow
from ps_cluster.runs.run_dir import RUN_DIRECTORY, RunDir
from ps_cluster.system import environment, machine
from ps_cluster.system.addresses import check_is_free
from ps_cluster.system.child_process import ChildProcess
from ps_cluster.system.gpus import usable_gpus
from ps_cluster.system.port_guard import guard_port
from ps_cluster.system.run_processes import life_of
from ps_cluster.system.stop_signals import StopRequests
from ps_cluster.training.resuming import newest_checkpoint

_PORT_INTERVAL_S = 0.2


@dataclass(frozen=True)
class TaskOptions:
    """The options of the command `task` that do not belong to the configuration.

    Attributes:
      resume: the value of --resume.
      wait_s: the longest time that this task waits for the other tasks, in seconds.
      min_workers: training begins as soon as this number of workers and all other tasks are there. If it is None,
        training begins as soon as all tasks are there. If only workers are still missing, but at least one is there, it
        begins without them after a minute, unless the mode needs all workers.
    """

    resume: Resume = "auto"
    wait_s: float = 600.0
    min_workers: int | None = None


def run_one_task(
    config: RunConfig, root: Path, topology: ClusterTopology, task: Task,
    *, options: TaskOptions, view: ProgressView, notify: Notify, task_argv: tuple[str, ...] = TASK_ARGV,
    resolve: Callable[[DataSettings, Notify], PackedDataset] = resolve_data, loop: type[TaskLoop] = TaskLoop,
    port_free_within_s: float = 10.0,
) -> int:  # fmt: skip
    """Run one task of a cluster on several machines. Return the exit code of the command. Raises UserError for bad input.

    Args:
      config: the configuration, made for a cluster of the size of `topology`.
      root: the run directory. The leader and the evaluator must use the same folder. Other tasks may use other folders.
      task_argv: the command of the task's process, as for `run_local`.
      port_free_within_s: how many seconds to wait until an earlier process of the task has freed the port.
    """
    _check_cluster(config, topology)
    check_min_workers(options.min_workers, len(topology.cluster.get(WORKER, ())), config.chosen_mode)
    check_no_auto(config)
    for line in environment.not_used(os.environ):
        notify(line)
    if topology.computes_gradients(task):
        with_gpus_found(config, usable_gpus(os.environ), notify, replaces=False)
    run_dir, leads = RunDir(Path(os.path.realpath(root))), task == topology.leader
    _decide_to_resume(options.resume, run_dir, leads=leads)
    _check_port_is_free(topology, task, port_free_within_s)
    guard_port(config.cluster.isolation, topology.port(task), topology.addresses, notify)
    # Leaders share the lock: a newer leader takes over from one that is frozen or can't be reached (runs/leaders.py).
    held = root if leads else RunDir(root).workspace(task)
    try:
        with locks.sole_use(held, RUN_DIRECTORY, notify, shared=leads):
            dataset = resolve(config.data, notify).holding_out(config.evaluation.validation_examples)
            config = complete_config(config, dataset, notify)
            with StopRequests() as requests:
                one = OneTask(task, topology, config, run_dir, dataset, options, view, task_argv)
                return one.run(requests, notify, loop)
    except locks.InUse as error:
        if leads:
            raise
        notify(f"{error}; that process may just be ending: run the same command again to continue (exit code {RETRY})")
        return RETRY


@dataclass
class OneTask:
    """One task of a cluster on several machines, in a run directory that this process has locked.

    Attributes:
      config: a complete configuration, in which values have replaced every "auto".
      claim: the leader's claim of the run directory; None for the other tasks.
      resumes: whether training continues from a checkpoint or snapshot in the run directory.
    """

    task: Task
    topology: ClusterTopology
    config: RunConfig
    run_dir: RunDir
    dataset: PackedDataset
    options: TaskOptions
    view: ProgressView
    task_argv: tuple[str, ...]
    claim: Claim | None = None
    resumes: bool = False
    began_s: float = 0.0  # monotonic

    @property
    def leads(self) -> bool:
        return self.task == self.topology.leader

    def run(self, requests: StopRequests, notify: Notify, loop: type[TaskLoop]) -> int:
        """Supervise the task until it ends, and return the exit code. A leader claims the run directory first."""
        if self.leads and (failure := failed_for_good(self.run_dir)):
            print_error(failure)
            return FAILED_FOR_GOOD
        try:
            if self.leads:
                self._claim_run(notify)
            else:
                self.resumes = _decide_to_resume(self.options.resume, self.run_dir, leads=False)
            self._write_files()
            objective = described_objective(self.dataset, check_network(self.config, self.dataset))
            self.view.start(self.config, self.run_dir, self.dataset, objective)
            self.view.tasks([TaskState(self.task, os.getpid(), "running")])
            self.began_s = time.monotonic()
            decisions = decisions_for(
                self.task, self.topology, RunLimits(), rendezvous_of(self.config.chosen_mode, self.options),
                total_updates=self.config.total_updates(self.dataset.train_examples),
                early_stopping=early_stopping_of(self.run_dir, self.config),
            )  # fmt: skip
            with temporary_files_in(self.run_dir.of_task(self.task).temporary):
                code = loop(decisions, self.run_dir, self.view, requests, self).run()
            if self.claim is not None and code not in (0, BAD_INPUT):
                self.claim.check()  # an older leader must not be started again, whatever has ended it
        except Superseded as error:
            print_error(str(error))
            code = SUPERSEDED
        finally:
            set_fence(None)
            self.view.close()
        return code

    def _claim_run(self, notify: Notify) -> None:
        """Claim the run directory for this leader, and find out whether training continues from a checkpoint there.

        Raises:
          UserError: training can't continue from the checkpoints and snapshots in the run directory. Or `--resume` is
            "never" although there are some, or "always" although there are none.
        """
        # Check this before the claim: bad input must not end another leader that is at work.
        if _decide_to_resume(self.options.resume, self.run_dir, leads=True):
            newest_checkpoint(self.config, self.run_dir, self.dataset, notify)
        self.claim = claim(self.run_dir)
        set_fence(self.claim.check)
        # Decide again, because another leader may have saved a state before the claim.
        self.resumes = _decide_to_resume(self.options.resume, self.run_dir, leads=True)
        if self.resumes:  # check before config.yaml is overwritten
            begun = newest_checkpoint(self.config, self.run_dir, self.dataset, ignore)
            notify(f"run directory '{self.run_dir.root}': training continues from step {begun.step:,}")

    def _write_files(self) -> None:
        """Write the files that the task's process and the command `health` read.

        Only the leader writes the run's config.yaml and cluster.json.
        """
        run_dir, task = self.run_dir, self.task
        own = TaskFile(
            type=task.type,
            index=task.index,
            pid=os.getpid(),
            address=self.topology.address(task),
            host=socket.gethostname(),
            leads=self.leads,
            life=life_of(os.getpid()),
        )
        run_dir.make_folders()
        try:
            if self.leads:
                write_whole(run_dir.config, self.config.to_yaml())
                write_pointer(run_dir.dataset, self.dataset)
                write_description(run_dir.examples, self.dataset)
                self.write_workers({})
                if not self._is_complete():  # the evaluator would take the mark of a stopped training for its end
                    checkpoints.clear_ended(run_dir.checkpoints)
            files = run_dir.of_task(task)
            write_whole(files.config, self.config.to_yaml())
            write_pointer(files.dataset, self.dataset)
            write_json(run_dir.task_file(task), own.model_dump())
        except OSError as error:
            raise UserError(f"run directory '{run_dir.root}' can't be written: {error.strerror}") from error

    def _is_complete(self) -> bool:
        """Return whether an earlier leader has made all updates. If so, the other tasks only have to end."""
        with contextlib.suppress(UserError):  # a damaged mark
            mark = checkpoints.ended(self.run_dir.checkpoints)
            return mark is not None and mark.completes(self.config.total_updates(self.dataset.train_examples))
        return False

    # The methods that the loop calls (`TaskWork`).

    def start(self, least_workers: int | None) -> ChildProcess:
        """Start the process that runs TensorFlow. It writes to the same terminal, and ends if this process ends."""
        task = self.task
        arguments = TaskArguments(
            run_dir=self.run_dir.root,
            task=task,
            resume=self.resumes,
            least_workers=least_workers,
            alone=True,
            term=self.claim.term if self.claim else 0,
            wait_s=self.options.wait_s,
        )
        on_gpus = is_on_gpus(self.config, self.topology, task)
        env = environment.for_tensorflow(environment_with_package(os.environ), on_gpus=on_gpus)
        env |= {LAUNCHER_PID: str(os.getpid()), TF_CONFIG: self.topology.tf_config(task)}
        return ChildProcess.start((*self.task_argv, *arguments.argv()), env=env, cwd=self.run_dir.root)

    def write_workers(self, pids: Mapping[int, int]) -> None:
        """Write cluster.json, as the launcher of `run` does, with the pids of the workers that have done some work."""
        trains = self.config.chosen_mode.trainer_type
        known = {Task(trains, index): pid for index, pid in pids.items()} | {self.topology.leader: os.getpid()}
        tasks = [
            TaskRow(type=task.type, index=task.index, pid=known.get(task), address=self.topology.address(task))
            for task in self.topology.tasks
        ]
        write_json(self.run_dir.cluster, ClusterFile(tasks=tasks).model_dump())

    def write_ending(self, outcome: Outcome, early_stop: EarlyStop | None) -> int:
        """Write the summary and print the closing table, as `run` does at its end.

        Return 0, or FAILED_FOR_GOOD if the proof (the check of the ledger after training) has found an error.
        """
        # No launcher has counted the restarts, so they are counted from the processes that have done some work.
        (newest,) = with_work(self.run_dir.work, [ProgressRow(phase="starting")])
        kind, leaders = self.config.chosen_mode.trainer_type, self.claim.term if self.claim else 0
        restarts = Counter(Task(kind, process.index) for process in newest.workers)
        restarts.subtract(set(restarts))  # the first process of each worker is no restart
        restarts[self.topology.leader] = leaders - 1
        ended = EndedRun(
            outcome=outcome,
            wall_seconds=time.monotonic() - self.began_s,
            began=self.began_s,
            life=None,
            machine=machine.describe(),
            restarts=restarts,
            leaders=leaders,
            early_stop=early_stop,
        )
        code = write_ending(self.config, self.run_dir, ended, self.view.notice, draw=outcome != "failed")
        return FAILED_FOR_GOOD if code else 0


def failed_for_good(run_dir: RunDir) -> str | None:
    """Return, on one line, why the training in a run directory can never continue, or None if it may continue.

    Without this check, a leader that is started again after the end of training would first wait for the other tasks,
    which have ended. It would find only after this wait that all updates are already applied.
    """
    ended = None
    with contextlib.suppress(UserError):
        ended = checkpoints.ended(run_dir.checkpoints)
    if ended is None:
        return None
    if ended.outcome in BROKEN:
        return why_broken(ended.outcome, ended.last_step)
    for path, model in ((run_dir.summary, Summary), (run_dir.training_result, TrainingResult)):
        with contextlib.suppress(UserError, OSError):
            proof = read_json(path, model).proof
            if proof is not None and not proof.holds:
                return (
                    f"the proof of this run fails: {proof.problem}; the training of run directory '{run_dir.root}' ended at "
                    f"step {ended.last_step:,} and can't continue: keep the folder, and choose another --run-dir"
                )
    return None


def check_no_auto(config: RunConfig) -> None:
    """Raise UserError if a setting is "auto", although it must be the same on all machines."""
    for name, value in (("data.dataset", config.data.dataset), ("model.precision", config.model.precision)):
        if value == "auto":
            raise UserError(
                f"{name}: got 'auto': machines may choose different values; set one value, the same for every task"
            )


def _decide_to_resume(resume: Resume, run_dir: RunDir, *, leads: bool) -> bool:
    """Return whether training continues from a checkpoint or snapshot in the run directory.

    Raises UserError in the leader if `resume` is "never" although there is one, or "always" although there is none.
    """
    held = bool(checkpoints.newest_first(run_dir.states))
    if leads and held and resume == "never":
        raise UserError(
            f"--resume: got 'never', but run directory '{run_dir.root}' holds checkpoints or snapshots: "
            "choose another folder, or omit --resume to continue from them"
        )
    if leads and not held and resume == "always":
        raise UserError(
            f"--resume: got 'always', but run directory '{run_dir.root}' holds no checkpoint to resume from: "
            "omit --resume to begin a training there"
        )
    return resume == "always" or (held and resume == "auto")


def _check_cluster(config: RunConfig, topology: ClusterTopology) -> None:
    """Raise UserError if the mode, or the configured numbers of workers and ps, do not fit the cluster."""
    mode, origin = config.chosen_mode, topology.origin.name
    if topology.types != mode.cluster.types:
        raise UserError(
            f"mode.name: got '{mode.name}', whose cluster has {', '.join(mode.cluster.types)}, "
            f"but the cluster of {origin} has {', '.join(topology.types)}"
        )
    cluster = config.cluster
    for kind, name, given in (
        (WORKER, "workers", cluster.workers),
        (PS, "parameter_servers", cluster.parameter_servers),
    ):
        if kind in topology.cluster and given != (count := len(topology.cluster[kind])):
            raise UserError(
                f"cluster.{name}: got {given}, but the cluster of {origin} has {count}: leave this setting out"
            )


def _check_port_is_free(topology: ClusterTopology, task: Task, within_s: float) -> None:
    """Raise UserError if another program still has the task's port after `within_s` seconds.

    TensorFlow itself would take seconds to notice.
    """
    address = topology.address(task)
    if address is None or topology.port(task) is None:
        return
    until = time.monotonic() + within_s
    while True:
        try:
            return check_is_free(address)
        except OSError as error:
            if time.monotonic() >= until:
                raise UserError(port_taken_message(task, topology)) from error
        time.sleep(_PORT_INTERVAL_S)


def rendezvous_of(mode: Mode, options: TaskOptions) -> RendezvousLimits:
    """Return the limits of a task's wait for the others. A mode with a fixed number of workers needs all workers."""
    return RendezvousLimits(options.wait_s, options.min_workers, needs_all=bool(mode.cluster.why_workers_are_fixed))


def check_min_workers(min_workers: int | None, workers: int, mode: Mode) -> None:
    """Raise UserError if training can't begin with `min_workers` of the cluster's `workers`. None is always allowed."""
    if min_workers is None or min_workers == workers:
        return
    if min_workers > workers:
        raise UserError(f"--min-workers: got {min_workers}; the cluster has {workers} of type {WORKER}")
    if why := mode.why_fixed:
        raise UserError(f"--min-workers: got {min_workers}: {why}: leave this option out")
