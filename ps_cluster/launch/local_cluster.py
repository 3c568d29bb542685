"""The processes of one run on this machine: their ports, starts and restarts, and cluster.json."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence

from ps_cluster.config import RunConfig
from ps_cluster.config.modes import CHIEF, PS, TRAINING_TYPES, WORKER, Task
from ps_cluster.files.writing import write_json, write_whole
from ps_cluster.launch.topology import ClusterTopology
from ps_cluster.runs.rows import ClusterFile
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.system import environment
from ps_cluster.system.fork_server import ForkServer
from ps_cluster.system.machine import Usage, allowance
from ps_cluster.system.network import RunNetwork
from ps_cluster.system.supervisor import Supervisor, TaskExit, TaskProcess, TaskSpec

FORK_SERVER, LAUNCHER = Task("fork_server", 0), Task("launcher", 0)
TASK_ARGV = (sys.executable, "-m", "ps_cluster.launch.task")


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
    ):
        self._config = config
        self._absent = frozenset(range(config.training_workers, config.most_workers))
        self._run_dir = run_dir
        self._supervisor = supervisor
        self._network = network
        self._task_options = ("--resume",) if resume else ()
        self._task_argv = task_argv
        self._fork_server = fork_server
        self._ended: dict[Task, str] = {}
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
            self._config = self._config.with_values({"cluster.parameter_servers": self.slices - 1})
            write_whole(self._run_dir.config, self._config.to_yaml())
        else:
            self.scale(stop=[task], grace_s=0)

    @property
    def slices(self) -> int:
        """The number of slices that training goes on with after the next restart."""
        return self._config.slices

    def scale(self, *, start: Sequence[Task] = (), stop: Sequence[Task] = (), grace_s: float) -> None:
        """Start workers that were absent, and stop others. This is neither a death nor a restart."""
        self.topology = self.topology.with_workers(started=start, stopped=stop)
        self._absent = self.topology.absent
        self._end(stop, grace_s)
        self._start(start)

    def _pick_ports(self) -> None:
        cluster, types = self._config.cluster, self._config.mode_kind.tasks
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
            self._ended.pop(task, None)
        self._write_cluster_file()

    def tasks(self, types: tuple[str, ...]) -> list[Task]:
        """Return the tasks of these types."""
        return [task for task in self.topology.tasks if task.type in types]

    @property
    def pids(self) -> dict[Task, int]:
        """Task → pid of the processes that run, as of the last `poll`."""
        return {p.task: p.pid for p in self._supervisor.processes if p.task not in self._ended}

    def frozen(self) -> list[Task]:
        """Return the tasks whose process is stopped (SIGSTOP)."""
        return [task for task in self._supervisor.frozen() if task in self.pids]

    def poll(self) -> list[TaskExit]:
        self._measure()  # before the poll: it reaps ended processes, whose CPU time is then gone
        exits = self._supervisor.poll()
        self._ended.update({task_exit.task: task_exit.how for task_exit in exits})
        return exits

    def signal(self, task: Task, number: int) -> None:
        self._supervisor.signal(task, number)

    def stop(self, types: tuple[str, ...], grace_s: float) -> None:
        """Stop the tasks of these types."""
        self._end(self.tasks(types), grace_s)

    def _end(self, tasks: Sequence[Task], grace_s: float) -> None:
        self._measure()
        self._outlived += self._supervisor.stop(tasks, grace_s)
        self._ended.update({task: "stopped" for task in tasks if task not in self._ended})

    def stop_all(self, grace_s: float) -> list[str]:
        """Stop everything; return the names of the processes that are still there, usually none."""
        self._measure()
        left = self._supervisor.stop_all(grace_s)
        for process in self._supervisor.processes:
            self._ended.setdefault(process.task, "stopped")
        there = {process.pid: process.task for process in self._outlived if process.running}
        there |= {process.pid: process.task for process in left}
        return [f"{task} (pid {pid})" for pid, task in there.items()]

    def states(self) -> list[dict[str, object]]:
        """Return a row for each task: type, index, pid, state ("running" or how it ended)."""
        return [
            {
                "type": process.task.type,
                "index": process.task.index,
                "pid": process.pid,
                "state": self._ended.get(process.task, "running"),
            }
            for process in self._supervisor.processes
        ]

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
        launcher = {"pid": os.getpid(), "life": environment.life_of(os.getpid())}
        content = ClusterFile.model_validate({"launcher": launcher, "isolated": self._network.isolated, "tasks": tasks})
        write_json(self._run_dir.cluster, content.model_dump())

    def _cores(self, task: Task) -> tuple[str, ...]:
        if task.type != WORKER:
            return ()
        cores = sorted(os.sched_getaffinity(0))
        own = cores_of(task.index, self._config, cores, usable=allowance().threads)
        return "--cores", ",".join(map(str, own))

    def _awaited(self, task: Task) -> tuple[str, ...]:
        """Return the options that tell the chief for how many workers to wait before it begins."""
        return ("--least-workers", str(len(self.topology.workers))) if task.type == CHIEF else ()

    def _spec(self, task: Task) -> TaskSpec:
        named = ("--run-dir", str(self._run_dir.root), "--type", task.type, "--index", str(task.index))
        return TaskSpec(
            task=task,
            argv=(*self._task_argv, *named, *self._cores(task), *self._awaited(task), *self._task_options),
            env=environment.for_child(os.environ, os.getpid()) | {"TF_CONFIG": self.topology.tf_config(task)},
            cwd=self._run_dir.root,
            log=self._run_dir.log(task.type, task.index),
            error=self._run_dir.error(task.type, task.index),
        )


# Choose the cores of this machine that each worker is pinned to.
#
# A worker that moves between cores loses its caches, and workers on the same core evict each other's data. In modes
# without waiting, workers need not be equally fast, so each can keep its core. Nobody is pinned under a quota (a
# container with `--cpus`) below the number of visible processors: only the system then knows which of them are free.


def cores_of(worker: int, config: RunConfig, cores: Sequence[int], *, usable: int) -> Sequence[int]:
    """Return the cores that a worker may use: its own part where workers are pinned, else all.

    "auto" does not pin in modes where fast workers wait for slow ones: three workers on two cores are not equally fast.

    Args:
      usable: how many of `cores` may be busy at the same time.
    """
    if usable < len(cores) or not keeps_to_cores(config):
        return cores
    return own_cores(worker, config.most_workers, cores)


def keeps_to_cores(config: RunConfig) -> bool:
    """Return whether each worker is pinned to a part of the cores."""
    chosen = config.cluster.pin_workers
    return config.mode_kind.pins_workers if chosen == "auto" else chosen


def own_cores(worker: int, workers: int, cores: Sequence[int]) -> Sequence[int]:
    """Return the worker's equal share of `cores`; a single core where there are more workers than cores."""
    if workers > len(cores):
        return [cores[worker % len(cores)]]
    each = len(cores) // workers
    return cores[worker * each : (worker + 1) * each]
