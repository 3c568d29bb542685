"""The command `ps-cluster data`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ps_cluster.command_line import config_layers, config_options, layered_config
from ps_cluster.reporting.terminal import print_line


@click.command()
@config_options("--dataset", "--data-dir")
@config_layers
def data(file: Path | None, assignments: tuple[str, ...], **options: Any) -> None:
    """Find or download a data set, pack it, and print where it is."""
    from ps_cluster.cluster.local_run import resolve_data

    dataset = resolve_data(layered_config(file, assignments, options).data, notify=print_line)
    examples = f"{dataset.train_examples} + {dataset.test_examples} examples"
    origin = f", packed from {dataset.source}" if dataset.source else ""
    print_line(f"{dataset.name} ({dataset.kind}), {examples}: {dataset.directory}{origin}")
