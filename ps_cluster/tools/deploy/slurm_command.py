"""The command `ps-cluster slurm render`."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import click

from ps_cluster.cli.command_line import PRINTED_FILE, Matching, OneLineErrors, Whole, examples, option, write_text_to
from ps_cluster.cli.options import (
    OPTIONS_OF_TASKS,
    config_layers,
    config_options,
    layered_config,
    waiting_options,
    waiting_words,
)
from ps_cluster.config import RunConfig
from ps_cluster.config.tasks import EVALUATOR
from ps_cluster.errors import UserError
from ps_cluster.report.terminal import print_note
from ps_cluster.tools.deploy.kubernetes import Role, check_for_tasks, roles_of

_NAME = Matching(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", "letters, digits, ., _ and -, at most 100")
_PATH = Matching(r"/[^\n\r]{0,999}", "a whole path")
# srun puts a node's name, a number, … in the place of % and a letter in the path of an output.
_RUN_DIR = Matching(r"/[^\n\r%\\]{0,999}", "a whole path without % and \\")
_TIME = Matching(r"[0-9]{1,6}(:[0-9]{2}){0,2}|[0-9]{1,4}-[0-9]{1,2}(:[0-9]{2}){0,2}", "a time: 90, 12:00:00 or 2-0")
_MEMORY = Matching(r"[1-9][0-9]{0,8}[KMGT]?", "an amount of memory: 2G or 500M")
_OPTION = Matching(r"--[a-z][a-z-]*(=[^\n\r]{1,300})?", "an option of sbatch: --partition=long")
_LAST_PORT = 65_535

_EXAMPLES = (
    "slurm render --run-dir /shared/runs/one --dataset synthetic --precision float32",
    "slurm render --workers 8 --ps 2 --run-dir /shared/runs/two "
    "--program /shared/venv/bin/ps-cluster --dataset cifar10 --data-dir /shared/data "
    "--precision bfloat16 --time 12:00:00 --output train.sbatch",
    "slurm render --tasks-per-node 4 --cpus 8 --mem-per-cpu 1G --sbatch --partition=long "
    "--sbatch --account=me --run-dir /shared/runs/three --dataset synthetic --precision float32",
)


@click.group(cls=OneLineErrors, epilog=examples(*_EXAMPLES))
def slurm() -> None:
    """Write a script for Slurm."""


@slurm.command(epilog=examples(*_EXAMPLES))
@option("--name", type=_NAME, default="ps-cluster", help="The name of the job.")
@option("--run-dir", type=_RUN_DIR, required=True, help="The run directory, on a file system that all nodes share.")
@option("--program", type=_PATH, help="Where the nodes find ps-cluster; default: on their PATH.")
@option("--time", type=_TIME, help="The limit of time; a job that reaches it goes on in the queue.")
@option("--cpus", type=Whole(1, 1024), default=2, help="CPUs of each task.")
@option("--mem-per-cpu", type=_MEMORY, default="2G", help="Memory of each CPU.")
@option("--tasks-per-node", type=Whole(1, 1024), help="Most tasks on one node; default: as many as fit.")
@option(
    "--restarts",
    type=Whole(0, 10_000),
    default=20,
    help="Most restarts of each task in a row; one that ran for an hour begins a new row.",
)
@option(
    "--port", type=Whole(1024, _LAST_PORT),
    help="Port of the first task; the next have the next. Default: by the number of the job.",
)  # fmt: skip
@option("--sbatch", "more", type=_OPTION, multiple=True, metavar="OPTION", help="Any other of sbatch; repeatable.")
@option("--output", type=PRINTED_FILE, metavar="FILE", default="-", help="Where to write; -: print it.")
@waiting_options()
@config_options(*OPTIONS_OF_TASKS)
@config_layers
def render(
    output: Path, file: Path | None, assignments: tuple[str, ...], name: str, run_dir: str, program: str | None,
    time: str | None, cpus: int, mem_per_cpu: str, tasks_per_node: int | None, restarts: int, port: int | None,
    more: tuple[str, ...], wait_seconds: float | None, min_workers: int | None, **options: Any,
) -> None:  # fmt: skip
    """Print a script for sbatch that trains on several nodes.

    Options and files of settings are those of `run`; --wait-seconds and --min-workers are those of `task`.
    """
    from ps_cluster.system.port_guard import check_can_guard, who_reaches

    config = layered_config(file, assignments, options)
    check_for_tasks(config, min_workers)
    roles = roles_of(config)
    count = sum(role.count for role in roles)
    if listens := sum(role.count for role in roles if role.type != EVALUATOR) > 1:
        check_can_guard(config.cluster.isolation)
    if port is not None and port + count - 1 > _LAST_PORT:
        raise UserError(f"--port: got {port}: the last of {count} tasks would have a port over {_LAST_PORT}")
    job = SlurmJob(
        name=name,
        run_dir=PurePosixPath(run_dir),
        program=program or "ps-cluster",
        config=config,
        roles=roles,
        time=time,
        cpus=cpus,
        memory_per_cpu=mem_per_cpu,
        tasks_per_node=tasks_per_node,
        restarts=restarts,
        steady_s=max(_STEADY_S, 2 * math.ceil(wait_seconds or 0)),  # a wait in vain is no steady work
        first_port=port,
        task_options=waiting_words(wait_seconds, min_workers),
        more=more,
    )
    write_text_to(output, job.script())
    if listens:
        print_note(who_reaches(job.ports, config.cluster.isolation))


# A script for `sbatch`: one allocation, a step of Slurm for every task, and TF_CONFIG made of the nodes that were given.

# Ports below those that Linux gives to programs that ask for any.
_FIRST_PORT, _BEHIND_PORTS = 10_000, 32_768
_STEADY_S = 3600
_BODY = Path(__file__).with_name("templates") / "slurm_body.sh"


@dataclass(frozen=True)
class SlurmJob:
    """The request.

    Attributes:
      run_dir: on a file system that all nodes share.
      program: the command `ps-cluster`, as the nodes find it.
      time: the limit, as `sbatch` takes it; None: that of the partition.
      cpus, memory_per_cpu: of every task.
      tasks_per_node: at most; None: as many as fit on a node, and so as few nodes as possible.
      restarts: of each task, in a row.
      steady_s: a task that has run for so long begins a new row of restarts.
      first_port: the next tasks have the next ports; None: by the number of the job. Another job on its nodes seldom has one
        of them; a task whose port is taken ends the job with code 2.
      task_options: more words for the command `task`.
      more: other options of `sbatch`.
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
        """The ports of its tasks, in words."""
        if self.first_port is not None:
            return f"the job's ports {self.first_port} to {self.first_port + self._count - 1}"
        return f"the job's {self._count} ports (of {_FIRST_PORT} to {_BEHIND_PORTS - 1}, by its number)"

    def script(self) -> str:
        """Return the script."""
        return "\n".join(["#!/bin/bash", *self._directives(), "", *self._variables(), _BODY.read_text("utf-8")])

    def _directives(self) -> Iterator[str]:
        (leader,) = [role for role in self.roles if role.leads]
        options = {
            "job-name": self.name,
            **self._size(self._count),
            "cpus-per-task": self.cpus,
            # Of each CPU, not of a node: a step would take all of its node's for itself.
            "mem-per-cpu": self.memory_per_cpu,
            "time": self.time,
            # To this script only (B), so that the leader is the first that stops.
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
        yield 'mkdir -p -- "$logs"'
        # Beside and renamed: a disk that is full leaves no half of a configuration, and no task begins with one.
        yield '{ cat > "$config.part" && mv -- "$config.part" "$config"; } <<\'CONFIG\' || { rm -f -- "$config.part"; exit 1; }'
        yield f"{self.config.to_yaml().rstrip()}\nCONFIG\n"
