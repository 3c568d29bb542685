"""Options of several commands for those who watch a run: the format of its lines, its metrics."""

from __future__ import annotations

import os

import click

from ps_cluster.command_line import Body, option
from ps_cluster.parameter_types import OneOf, Whole
from ps_cluster.run.log_formats import FORMATS, LOG_FORMAT, TEXT

LARGEST_PORT, LOOPBACK = 65_535, "127.0.0.1"
METRICS_OPTIONS = ("metrics_port", "metrics_host")


def log_format_option(command: Body) -> Body:
    """Add --log-format to a command. It counts from here on, also for the processes that the command starts."""

    def choose(context: click.Context, parameter: click.Parameter, name: str) -> None:
        os.environ[LOG_FORMAT] = name

    text = "How lines are written: json is one object a line, for programs; also in logs/."
    kind = OneOf(tuple(FORMATS))
    return option(
        "--log-format", type=kind, default=TEXT.name, is_eager=True, expose_value=False, callback=choose, help=text
    )(command)


def metrics_options(command: Body) -> Body:
    """Add --metrics-port and --metrics-host to a command, for `metrics_server.beside`."""
    where = "The address for --metrics-port. Whoever reaches it can read the metrics."
    add = option("--metrics-host", default=LOOPBACK, help=where)
    text = "Serve metrics for Prometheus at this port; 0: any that is free."
    return option("--metrics-port", type=Whole(0, LARGEST_PORT), help=text)(add(command))
