"""Manage the processes of a run on this machine: their ports, starts and restarts, and cluster.json."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence

from ps_cluster.config import RunConfig
from ps_cluster.config.tasks import CHIEF, PS, TRAINING_TYPES, WORKER, Task
from ps_cluster.errors import FAILED
from ps_cluster.files.values import one_line
from ps_cluster.files.writing import write_json, write_whole
from ps_cluster.launch.gpu_choice import is_on_gpus
from ps_cluster.launch.pinning import cores_of
from ps_cluster.launch.task_arguments import TaskArguments
from ps_cluster.launch.topology import ClusterTopology
from ps_cluster.notices import Notify
from ps_cluster.process_variables import TF_CONFIG
from ps_cluster.report.run_state import TaskState
from ps_cluster.runs.logs import DISK_REFUSES
from ps_cluster.runs.rows import ClusterFile, Launcher, TaskRow
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.system import environment
from ps_cluster.system.forked_tasks import ForkServer
from ps_cluster.system.gpus import VISIBLE_GPUS, gpu_of_worker, usable_gpus
from ps_cluster.system.limits import allowance
from ps_cluster.system.private_network import RunNetwork
from ps_cluster.system.run_processes import life_of
from ps_cluster.system.supervisor import Supervisor, TaskExit, TaskProcess, TaskSpec
from ps_cluster.system.usage import Usage

# Processes of a run that are not in its cluster. Their log and their usage are named like those of a task.
FORK_SERVER, LAUNCHER, TENSORBOARD = Task("fork_server", 0), Task("launcher", 0), Task("tensorboard", 0)


class LocalCluster:
    """Starts, restarts and stops all tasks of a run on this machine, and writes cluster.json.

    `Decisions` decides which tasks start and stop. `Supervisor` manages their processes.
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
        self._is_written = True  # whether cluster.json has the current tasks
        self._run_dir = run_dir
        self._supervisor = supervisor
        self._network = network
        self._resume = resume  # whether tasks that start from now on continue a training
        self._task_argv = task_argv
        self._can_fork = task_argv[:2] == (sys.executable, "-m")  # a fork runs a module
        self._fork_server = fork_server
        self._outlived: list[TaskProcess] = []  # processes still there after SIGKILL
        self.topology = ClusterTopology({}, absent=frozenset(range(config.training_workers, config.most_workers)))
        self.restarts: Counter[Task] = Counter()  # how often each task was started again
        self.usage = Usage()

    def start(self) -> None:
        """Pick free ports, and start all tasks at once. Raises OSError if the machine refuses to start one."""
        self._pick_ports()
        for task in self.topology.tasks:
            self._supervisor.start(self._spec(task))
        self._record_started()

    def restart(self, task: Task) -> list[TaskExit]:
        """Start a task again after it has ended, at the same address, which the other tasks know.

        Return the task's `TaskExit` if the machine refuses to start it, else an empty list.
        """
        self._supervisor.stop([task], grace_s=0)  # the ended process may have left other processes in its group
        self.restarts[task] += 1
        return self._start([task])

    def restart_training(self, *, resume: bool) -> list[TaskExit]:
        """Start all training tasks again, on new ports, so that no earlier process reaches them.

        With `resume` they continue from the newest checkpoint or snapshot. Otherwise they start from the first step.
        Return the tasks that the machine refuses to start.
        """
        self.stop(TRAINING_TYPES, grace_s=0)
        self._resume = resume
        self._pick_ports()
        tasks = self.topology.of_types(TRAINING_TYPES)
        self.restarts.update(tasks)
        return self._start(tasks)

    def give_up(self, task: Task) -> None:
        """Give up a task.

        If a worker is given up, it is stopped now, and the other workers keep their index, address, cores and logs. If
        a ps is given up, config.yaml gets one ps fewer. The next `restart_training` then starts the other ps with new
        indices, and each of them gets its shard from the snapshot.
        """
        if task.type == PS:
            self._config = self._config.with_values({"cluster.parameter_servers": self.shards - 1})
            write_whole(self._run_dir.config, self._config.to_yaml())
        else:
            self.scale(stop=[task], grace_s=0)

    @property
    def shards(self) -> int:
        """The number of shards with which training continues after the next restart of all training tasks."""
        return self._config.shards

    def scale(self, *, start: Sequence[Task] = (), stop: Sequence[Task] = (), grace_s: float) -> list[TaskExit]:
        """Start absent workers, and stop other workers. This counts neither as a death nor as a restart.

        Return the workers that the machine refuses to start.
        """
        self.topology = self.topology.with_workers(started=start, stopped=stop)
        self._end(stop, grace_s)
        return self._start(start)

    def _pick_ports(self) -> None:
        cluster, types, most = self._config.cluster, self._config.chosen_mode.cluster.types, self._config.most_workers
        self.topology = ClusterTopology.local(
            types, most, cluster.parameter_servers, evaluator=cluster.evaluator, absent=self.topology.absent
        )

    def _start(self, tasks: Iterable[Task]) -> list[TaskExit]:
        """Start tasks of a run that is under way. Return a `TaskExit` for each task that the machine refuses to start.

        The refusal is treated like a death, because the machine may refuse only for a moment, for example because it
        has too many processes just now.
        """
        refused = []
        for task in tasks:
            spec = self._spec(task)
            try:
                self._supervisor.start(spec)
            except OSError as error:
                refused.append(TaskExit(task, None, FAILED, spec.log, one_line(str(error))))
        self._record_started()
        return refused

    def _record_started(self) -> None:
        self._is_written = False
        if why := self._write_cluster_file():
            self._notify(DISK_REFUSES(f"training continues, but cluster.json can't be written: {why}"))

    @property
    def pids(self) -> dict[Task, int]:
        """The pids, by task, of the processes that were running at the last `poll`."""
        return {p.task: p.pid for p in self._supervisor.processes if p.task not in self._supervisor.ended}

    def frozen(self) -> list[Task]:
        return [task for task in self._supervisor.frozen() if task in self.pids]

    def poll(self) -> list[TaskExit]:
        """Return the tasks that have ended by themselves since the last call, earliest failure first."""
        if not self._is_written:
            self._write_cluster_file()
        self._measure()  # before the poll: it reaps ended processes, whose CPU time is then gone
        return self._supervisor.poll()

    def signal(self, task: Task, number: int) -> None:
        self._supervisor.signal(task, number)

    def stop(self, types: tuple[str, ...], grace_s: float) -> None:
        self._end(self.topology.of_types(types), grace_s)

    def _end(self, tasks: Sequence[Task], grace_s: float) -> None:
        self._measure()
        self._outlived += self._supervisor.stop(tasks, grace_s)

    def stop_all(self, grace_s: float) -> list[str]:
        """Stop all tasks. Return the names of the processes that could not be ended, usually none."""
        self._measure()
        left = self._supervisor.stop_all(grace_s)
        there = {process.pid: process.task for process in self._outlived if process.child.running}
        there |= {process.pid: process.task for process in left}
        return [f"{task} (pid {pid})" for pid, task in there.items()]

    def states(self) -> list[TaskState]:
        ended = self._supervisor.ended
        return [
            TaskState(one.task, one.pid, ended.get(one.task, "running"), self.restarts[one.task])
            for one in self._supervisor.processes
        ]

    def _measure(self) -> None:
        processes = {process.pid: process.task for process in self._supervisor.processes if process.child.owns_pid}
        processes[os.getpid()] = LAUNCHER
        if self._fork_server is not None and (pid := self._fork_server.pid) is not None:
            processes[pid] = FORK_SERVER
        self.usage.poll(processes)

    def _write_cluster_file(self) -> str | None:
        """Write cluster.json. If the system refuses to replace the file, return why. `poll` then tries again."""
        tasks = [
            TaskRow(
                type=process.task.type,
                index=process.task.index,
                pid=process.pid,
                address=self.topology.address(process.task),
                absent=process.task in self.topology.absent_workers,
            )
            for process in self._supervisor.processes
        ]
        launcher = Launcher(pid=os.getpid(), life=life_of(os.getpid()))
        content = ClusterFile(launcher=launcher, isolated=self._network.isolated, tasks=tasks)
        try:
            write_json(self._run_dir.cluster, content.model_dump())
        except OSError as error:
            if not self._run_dir.cluster.exists():
                raise
            return error.strerror
        self._is_written = True
        return None

    def _spec(self, task: Task) -> TaskSpec:
        """Return the command, environment and files of a task's process."""
        cores: tuple[int, ...] = ()
        if task.type == WORKER:
            available = sorted(os.sched_getaffinity(0))
            cores = tuple(cores_of(task.index, self._config, available, usable=allowance().threads))
        arguments = TaskArguments(
            run_dir=self._run_dir.root,
            task=task,
            cores=cores,
            resume=self._resume,
            # The chief waits for these workers before it begins.
            least_workers=len(self.topology.workers) if task.type == CHIEF else None,
        )
        on_gpus = is_on_gpus(self._config, self.topology, task)
        return TaskSpec(
            task=task,
            argv=(*self._task_argv, *arguments.argv()),
            env=self._environment(task, on_gpus=on_gpus) | {TF_CONFIG: self.topology.tf_config(task)},
            cwd=self._run_dir.root,
            log=self._run_dir.log(task),
            error=self._run_dir.error(task),
            # CUDA does not work in a fork of a process that has initialised CUDA, as importing TensorFlow might do.
            forks=self._can_fork and not on_gpus,
        )

    def _environment(self, task: Task, *, on_gpus: bool) -> dict[str, str]:
        if not on_gpus:
            return environment.for_child(os.environ)
        own = {VISIBLE_GPUS: gpu_of_worker(task.index, usable_gpus(os.environ))}
        return environment.for_child(os.environ | own, on_gpus=True)
