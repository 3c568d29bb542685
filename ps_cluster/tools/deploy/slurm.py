"""A script for `sbatch`: one allocation, a step of Slurm for every task, and TF_CONFIG with the nodes of the job."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ps_cluster.config import RunConfig
from ps_cluster.errors import NEVER_RETRY
from ps_cluster.tools.deploy.roles import Role

# These ports are below those that Linux gives to programs that ask for any free port.
_FIRST_PORT, _BEHIND_PORTS = 10_000, 32_768
STEADY_S = 3600
_BODY = Path(__file__).with_name("templates") / "slurm_body.sh"


@dataclass(frozen=True)
class SlurmJob:
    """What you ask for.

    Attributes:
      run_dir: the run directory, on a file system that all nodes share.
      program: the command `ps-cluster`, as the nodes find it.
      time: the time limit, as `sbatch` takes it; None for the limit of the partition.
      cpus: the CPUs of each task.
      memory_per_cpu: the memory of each CPU.
      tasks_per_node: the largest number of tasks on a node; None for as many as fit, which takes the fewest nodes.
      restarts: how often each task may be restarted in a row.
      steady_s: once a task has run for this time, its restarts are counted from 0 again.
      first_port: the port of the first task; the other tasks have the next ones. None: the ports follow from the number of
        the job, so other jobs on its nodes seldom have them. A task whose port is taken ends the job with code 2.
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
    first_port: int | None
    task_options: tuple[str, ...] = ()
    more: tuple[str, ...] = ()

    @property
    def ports(self) -> str:
        """The ports of the tasks, in words."""
        if self.first_port is not None:
            return f"the job's ports {self.first_port} to {self.first_port + self._count - 1}"
        return f"the job's {self._count} ports (of {_FIRST_PORT} to {_BEHIND_PORTS - 1}, by its number)"

    def script(self) -> str:
        """Return the script for `sbatch`."""
        return "\n".join(["#!/bin/bash", *self._directives(), "", *self._variables(), _BODY.read_text("utf-8")])

    def _directives(self) -> Iterator[str]:
        (leader,) = [role for role in self.roles if role.leads]
        options = {
            "job-name": self.name,
            **self._size(self._count),
            "cpus-per-task": self.cpus,
            # Memory is asked for by CPU, not by node: a step would take all memory of its node.
            "mem-per-cpu": self.memory_per_cpu,
            "time": self.time,
            # The signal goes to this script only (B), so that the leader stops first.
            "signal": f"B:TERM@{leader.grace_s}",
            "open-mode": "append",
        }
        yield from (f"#SBATCH --{name}={value}" for name, value in options.items() if value is not None)
        yield "#SBATCH --requeue"
        if self.tasks_per_node is None:
            yield "#SBATCH --use-min-nodes"
        yield from (f"#SBATCH {one}" for one in self.more)

    @property
    def _count(self) -> int:
        return sum(role.count for role in self.roles)

    def _size(self, count: int) -> dict[str, object]:
        if self.tasks_per_node is None:
            return {"ntasks": count, "nodes": f"1-{count}"}
        nodes = -(-count // self.tasks_per_node)
        return {"ntasks": count, "nodes": nodes, "ntasks-per-node": min(count, self.tasks_per_node)}

    def _variables(self) -> Iterator[str]:
        options = map(shlex.quote, self.task_options)
        command = (shlex.quote(self.program), 'task --run-dir "$run_dir" --config "$config"', *options)
        yield "set -euo pipefail"
        yield f"roles=({' '.join(f'{role.type}:{role.count}' for role in self.roles)})"
        yield f"run_dir={shlex.quote(str(self.run_dir))}"
        yield "config=$run_dir.yaml logs=$run_dir.slurm"
        yield f"command=({' '.join(command)})"
        span = _BEHIND_PORTS - _FIRST_PORT - self._count
        by_job = f"$(({_FIRST_PORT} + SLURM_JOB_ID * {self._count} % {span}))"
        yield f"first_port={self.first_port or by_job} restarts={self.restarts} steady_s={self.steady_s}"
        yield f"never_retry=({' '.join(map(str, NEVER_RETRY))})"
        yield 'mkdir -p -- "$logs"'
        # The file is written beside and renamed, so a full disk never leaves half a configuration for a task to begin with.
        yield '{ cat > "$config.part" && mv -- "$config.part" "$config"; } <<\'CONFIG\' || { rm -f -- "$config.part"; exit 1; }'
        yield f"{self.config.to_yaml().rstrip()}\nCONFIG\n"
