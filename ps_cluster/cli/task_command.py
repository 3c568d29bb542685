"""The command `ps-cluster task`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from ps_cluster.cli.command_line import command, examples, option
from ps_cluster.cli.options import (
    GivenSettings,
    config_and_set_options,
    config_options,
    log_format_option,
    metrics_options,
    parameter_of,
    waiting_options,
)
from ps_cluster.cli.value_types import OUTPUT_FOLDER, Integer, OneOf
from ps_cluster.config.sections import ISOLATION_KEY
from ps_cluster.config.tasks import EVALUATOR, TRAINING_TYPES, Resume, Task
from ps_cluster.errors import RunFailed, UserError
from ps_cluster.process_variables import TF_CONFIG, set_log_task
from ps_cluster.report.terminal import print_line

if TYPE_CHECKING:
    from ps_cluster.launch.topology import ClusterTopology


@command(
    epilog=examples(
        "task --run-dir shared/run --dataset cifar10 --data-dir data --precision bfloat16",
        "task --run-dir shared/run --cluster cluster.yaml --type worker --index 1 --dataset mnist --precision float32",
        "task --run-dir shared/run --mode sync --dataset mnist --precision float32 --resume never",
        "task --run-dir shared/run --dataset mnist --precision float32 --isolation interface=wg0",
    ),
)
@option(
    "--run-dir",
    type=OUTPUT_FOLDER,
    required=True,
    help="The run directory; the leader and the evaluator must share it.",
)
@option(
    "--cluster",
    "cluster_file",
    type=click.Path(path_type=Path),
    help="A YAML file with the addresses of each type of task, e.g. chief: [a:2222]. It replaces TF_CONFIG.",
)
@option("--type", "kind", type=OneOf((*TRAINING_TYPES, EVALUATOR)), help="With --cluster: the type of this task.")
@option("--index", type=Integer(0), help="With --cluster: the index of this task among those of its type, from 0.")
@option(
    "--resume",
    type=OneOf(get_args(Resume)),
    is_flag=False,
    flag_value="always",
    default="auto",
    help="Continue from the newest checkpoint or snapshot in the run directory. auto: if there is one. "
    "--resume without a value means always.",
)
@waiting_options(600.0)
@config_options(
    "--mode", "--dataset", "--data-dir", "--model", "--epochs", "--steps", "--batch-size", "--precision", "--seed"
)  # fmt: skip
@option(
    "--isolation",
    parameter_of(ISOLATION_KEY),
    metavar="interface=NAME",
    help="Accept connections to this task's port only through the network interface NAME, or from this machine. This is a "
    "firewall rule that is removed when the task ends.",
)
@config_and_set_options
@metrics_options
@log_format_option
def task(
    given: GivenSettings,
    run_dir: Path,
    cluster_file: Path | None,
    kind: str | None,
    index: int | None,
    resume: Resume,
    wait_seconds: float,
    min_workers: int | None,
    metrics_port: int | None,
    metrics_host: str,
) -> int:
    """Run one task of a cluster that spans several machines and is described by TF_CONFIG or --cluster.

    Give every task the same options, except --type and --index. Run the same command again to continue.
    """
    from ps_cluster.launch import one_task
    from ps_cluster.launch.task_failures import temporary_failure
    from ps_cluster.report.metrics_server import with_metrics
    from ps_cluster.report.progress import make_lines

    try:
        topology, own = _given_cluster(cluster_file, kind, index)
        set_log_task(str(own))
        config = given.resolved(topology.size).config
        with with_metrics(make_lines(), metrics_port, metrics_host, str(own)) as view:
            options_of_task = one_task.TaskOptions(resume, wait_seconds, min_workers)
            return one_task.run_one_task(
                config, run_dir, topology, own, options=options_of_task, view=view, notify=print_line
            )
    except (UserError, RunFailed, OSError) as error:
        if (temporary := temporary_failure(error)) is None:
            raise
        raise temporary from error


def _given_cluster(file: Path | None, kind: str | None, index: int | None) -> tuple[ClusterTopology, Task]:
    """Return the cluster that the options or TF_CONFIG describe, and the task of this process."""
    from ps_cluster.launch import cluster_files

    tf_config = os.environ.get(TF_CONFIG)
    if file is None:
        for name, value in (("--type", kind), ("--index", index)):
            if value is not None:
                raise UserError(
                    f"{name}: got {value}, but no --cluster: give --cluster too, or let TF_CONFIG name the task"
                )
        return cluster_files.from_tf_config(tf_config, print_line)
    if kind is None or index is None:
        raise UserError("--cluster: give --type and --index too: they say which task of the cluster this is")
    found = cluster_files.from_file(file, Task(kind, index), print_line)
    if tf_config:
        print_line("TF_CONFIG is not used: --cluster replaces it")
    return found
