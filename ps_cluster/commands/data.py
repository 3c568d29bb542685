"""The command `ps-cluster data`."""

from __future__ import annotations

from typing import Any

import click

from ps_cluster.command_line import config_options, layered_config
from ps_cluster.reporting.terminal import print_line


@click.command()
@config_options("--dataset", "--data-dir")
def data(**options: Any) -> None:
    """Find or download a data set, pack it, and print where it is."""
    from ps_cluster.cluster.local_run import resolve_data

    dataset = resolve_data(layered_config(None, (), options).data, notify=print_line)
    examples = f"{dataset.train_examples} + {dataset.test_examples} examples"
    origin = f", packed from {dataset.source}" if dataset.source else ""
    print_line(f"{dataset.name} ({dataset.kind}), {examples}: {dataset.directory}{origin}")
