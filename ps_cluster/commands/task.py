"""The command `ps-cluster task`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from ps_cluster.command_line import OUTPUT_FOLDER, config_layers, config_options, layered_config, option
from ps_cluster.reporting.terminal import print_line


@click.command()
@option("--run-dir", type=OUTPUT_FOLDER, required=True, help="Shared by the chief and the evaluator.")
@option("--resume", is_flag=True, help="The chief goes on from the newest checkpoint in the run directory.")
@config_options(
    "--mode", "--dataset", "--data-dir", "--model", "--epochs", "--steps", "--batch-size", "--precision", "--seed"
)  # fmt: skip
@config_layers
def task(run_dir: Path, resume: bool, file: Path | None, assignments: tuple[str, ...], **options: Any) -> None:
    """Be one task of the cluster that TF_CONFIG describes; give every task the same options (docs/operations.md)."""
    from ps_cluster.cluster import one_task
    from ps_cluster.cluster.topology import from_tf_config

    topology, own = from_tf_config(os.environ.get("TF_CONFIG"))
    config = layered_config(file, assignments, options, topology.size)
    one_task.run_one_task(config, run_dir, topology, own, resume=resume, notify=print_line)
