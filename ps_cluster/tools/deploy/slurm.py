"""Write a script for `sbatch`: one allocation, a step of Slurm for every task, and TF_CONFIG with the nodes of the job."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

from ps_cluster.config import RunConfig
from ps_cluster.errors import NEVER_RETRY
from ps_cluster.tools.deploy.rendering import TEMPLATES, render
from ps_cluster.tools.deploy.roles import Role

# These ports are below those that Linux gives to programs that ask for any free port.
_FIRST_PORT, _BEHIND_PORTS = 10_000, 32_768
STEADY_S = 3600


@dataclass(frozen=True)
class SlurmJob:
    """The settings of a job for Slurm.

    Attributes:
      run_dir: the run directory, on a file system that all nodes share.
      program: the command `ps-cluster`, as the nodes find it.
      time: the time limit, as `sbatch` takes it; None for the limit of the partition.
      cpus: the CPUs of each task.
      tasks_per_node: the largest number of tasks on a node; None for as many as fit, which takes the fewest nodes.
      restarts: how often each task may be restarted in a row.
      steady_s: once a task has run for this number of seconds, its restarts are counted from 0 again.
      first_port: the port of the first task. The other tasks have the next ports. If it is None, the ports are computed
        from the job's number.
      task_options: further options of the command `task`.
      more: further options of `sbatch`.
    """

    name: str
    run_dir: PurePosixPath
    program: str
    config: RunConfig
    roles: tuple[Role, ...]
    time: str | None
    cpus: int
    memory_per_cpu: str
    tasks_per_node: int | None
    restarts: int
    steady_s: int
    # Jobs on the same nodes seldom have the same ports if these are computed from the job's number. A task whose port
    # is taken ends the job with code 2.
    first_port: int | None
    task_options: tuple[str, ...] = ()
    more: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """The number of tasks."""
        return sum(role.count for role in self.roles)

    @property
    def ports(self) -> str:
        """The ports of the tasks, in words."""
        if self.first_port is not None:
            return f"the job's ports {self.first_port} to {self.first_port + self.count - 1}"
        return f"the job's {self.count} ports (the job's number selects them from {_FIRST_PORT} to {_BEHIND_PORTS - 1})"

    @property
    def first_port_in_shell(self) -> str:
        """The first port, or a shell expression that computes it from the job's number."""
        span = _BEHIND_PORTS - _FIRST_PORT - self.count
        return str(self.first_port or f"$(({_FIRST_PORT} + SLURM_JOB_ID * {self.count} % {span}))")

    def script(self) -> str:
        """Return the script for `sbatch`."""
        head = render("slurm_head.sh", job=self, never_retry=NEVER_RETRY)
        return head + (TEMPLATES / "slurm_body.sh").read_text("utf-8")
