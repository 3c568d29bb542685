"""The command `ps-cluster task`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from ps_cluster.command_line import OUTPUT_FOLDER, config_layers, config_options, layered_config, option
from ps_cluster.reporting.terminal import print_line


@click.command()
@option(
    "--run-dir", type=OUTPUT_FOLDER, required=True, help="The run directory; the chief and the evaluator must share it."
)
@option("--resume", is_flag=True, help="Continue from the newest checkpoint in the run directory.")
@config_options(
    "--mode", "--dataset", "--data-dir", "--model", "--epochs", "--steps", "--batch-size", "--precision", "--seed"
)  # fmt: skip
@config_layers
def task(run_dir: Path, resume: bool, file: Path | None, assignments: tuple[str, ...], **options: Any) -> None:
    """Run one task of a cluster on several machines, described by TF_CONFIG. Give every task the same options."""
    from ps_cluster.cluster import one_task
    from ps_cluster.cluster.topology import from_tf_config

    topology, own = from_tf_config(os.environ.get("TF_CONFIG"))
    config = layered_config(file, assignments, options, topology.size)
    one_task.run_one_task(config, run_dir, topology, own, resume=resume, notify=print_line)
