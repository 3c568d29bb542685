"""The command `ps-cluster slurm render`."""

from __future__ import annotations

import math
from pathlib import Path, PurePosixPath

import click

from ps_cluster.cli.command_line import OneLineErrors, examples, option, write_text_to
from ps_cluster.cli.options import (
    LARGEST_PORT,
    OPTIONS_OF_TASKS,
    GivenSettings,
    config_and_set_options,
    config_options,
    waiting_options,
    waiting_words,
)
from ps_cluster.cli.value_types import PRINTED_FILE, Integer, Matching
from ps_cluster.errors import UserError
from ps_cluster.report.terminal import print_note
from ps_cluster.tools.deploy.roles import check_for_tasks, roles_of
from ps_cluster.tools.deploy.slurm import STEADY_S, SlurmJob

_NAME = Matching(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", "letters, digits, ., _ and -, at most 100")
_PATH = Matching(r"/[^\n\r]{0,999}", "an absolute path")
# In the path of an output, srun replaces % and a letter by a node's name, a number and the like.
_RUN_DIR = Matching(r"/[^\n\r%\\]{0,999}", "an absolute path without % and \\")
_TIME = Matching(r"[0-9]{1,6}(:[0-9]{2}){0,2}|[0-9]{1,4}-[0-9]{1,2}(:[0-9]{2}){0,2}", "a time: 90, 12:00:00 or 2-0")
_MEMORY = Matching(r"[1-9][0-9]{0,8}[KMGT]?", "an amount of memory: 2G or 500M")
_OPTION = Matching(r"--[a-z][a-z-]*(=[^\n\r]{1,300})?", "an option of sbatch: --partition=long")

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
@option("--time", type=_TIME, help="Time limit; a job that reaches it is queued again and continues.")
@option("--cpus", type=Integer(1, 1024), default=2, help="CPUs of each task.")
@option("--mem-per-cpu", type=_MEMORY, default="2G", help="Memory of each CPU.")
@option(
    "--tasks-per-node", type=Integer(1, 1024), help="Put at most this many tasks on one node; default: as many as fit."
)
@option(
    "--restarts",
    type=Integer(0, 10_000),
    default=20,
    help="How often each task may be restarted in a row. When a task has run for an hour, its count begins again.",
)
@option(
    "--port", type=Integer(1024, LARGEST_PORT),
    help="Port of the first task; the other tasks have the next ones. Default: computed from the number of the job.",
)  # fmt: skip
@option("--sbatch", "more", type=_OPTION, multiple=True, metavar="OPTION", help="Another option of sbatch; repeatable.")
@option("--output", type=PRINTED_FILE, metavar="FILE", default="-", help="The file to write; -: print the script.")
@waiting_options()
@config_options(*OPTIONS_OF_TASKS)
@config_and_set_options
def render(
    given: GivenSettings, output: Path, name: str, run_dir: str, program: str | None,
    time: str | None, cpus: int, mem_per_cpu: str, tasks_per_node: int | None, restarts: int, port: int | None,
    more: tuple[str, ...], wait_seconds: float | None, min_workers: int | None,
) -> None:  # fmt: skip
    """Print a script for sbatch that trains on several nodes.

    It takes the settings of `run`, as options or in files, and the options --wait-seconds and --min-workers of `task`.
    """
    from ps_cluster.system.port_guard import check_can_guard, who_reaches

    config = given.resolved().config
    check_for_tasks(config, min_workers)
    roles = roles_of(config)
    count = sum(role.count for role in roles)
    opens_ports = sum(role.count for role in roles if role.listens) > 1
    if opens_ports:
        check_can_guard(config.cluster.isolation)
    if port is not None and port + count - 1 > LARGEST_PORT:
        raise UserError(f"--port: got {port}: the last of {count} tasks would have a port over {LARGEST_PORT}")
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
        steady_s=max(STEADY_S, 2 * math.ceil(wait_seconds or 0)),  # a task that only waited did not run steadily
        first_port=port,
        task_options=waiting_words(wait_seconds, min_workers),
        more=more,
    )
    write_text_to(output, job.script())
    if opens_ports:
        print_note(who_reaches(job.ports, config.cluster.isolation))
