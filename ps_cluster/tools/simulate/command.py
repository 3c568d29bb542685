"""The command `ps-cluster simulate`."""

from __future__ import annotations

from pathlib import Path

import click

from ps_cluster.cli.command_line import command, examples, option, write_json_to
from ps_cluster.cli.options import refuse_others, trusted_code
from ps_cluster.cli.value_types import INPUT_PATH, OUTPUT_FILE, PRINTED_FILE, STDOUT, CommaList, Integer, Number, OneOf
from ps_cluster.config.modes import MODES
from ps_cluster.report.terminal import make_console
from ps_cluster.tools.simulate.costs import can_simulate


@command(
    epilog=examples(
        "simulate --workers 1,4,16 --ps 1,4",
        "simulate --mode sync-ps --backup-workers 2 --straggler random:gamma",
        "simulate --from runs/one_worker --save-costs costs.yaml",
        "simulate --costs costs.yaml --workers 100 --ps 16",
    )
)
@trusted_code
@option(
    "--workers",
    type=CommaList(Integer(1, 10_000)),
    default="10,100,1000,10000",
    help="Numbers of workers to predict for, separated by commas.",
)
@option(
    "--ps",
    "parameter_servers",
    type=CommaList(Integer(1, 256)),
    default="1,4,16,64,256",
    help="Numbers of parameter servers to predict for, separated by commas.",
)
@option(
    "--mode",
    type=OneOf([mode.name for mode in MODES if can_simulate(mode)]),
    default="async",
    help="Mode of the training; sync is a ring all-reduce.",
)
@option(
    "--local-steps",
    type=Integer(1, 1000),
    help="In modes with local steps: how many steps a worker takes between two exchanges; default: the default of the mode.",
)
@option(
    "--backup-workers",
    type=Integer(0, 9_999),
    default=0,
    help="In mode sync-ps: how many late gradients an update does not wait for.",
)
@option(
    "--straggler",
    default="none",
    help="Slow workers: 2:5x makes worker 2 five times slower, 1:+0.2s adds 0.2 s to each step of worker 1, and ';' "
    "separates several workers. random:gamma slows all workers down at random.",
)
@option(
    "--costs",
    "costs_file",
    type=INPUT_PATH,
    metavar="FILE",
    help="Use the costs in this file, which --save-costs has written; default: the costs of tutorial_cnn.",
)
@option(
    "--from",
    "calibrate_from",
    type=INPUT_PATH,
    metavar="RUN_DIR",
    help="Measure the costs in this finished run. A run with --workers 1 is best. The costs that a run can't show are "
    "taken from --costs.",
)
@option(
    "--check",
    "check_run",
    type=INPUT_PATH,
    metavar="RUN_DIR",
    help="Predict this finished run, and compare the prediction with its measured figures.",
)
@option(
    "--link-gbps", type=Number(1e-6, 1e6), default=10.0, help="Bandwidth of each machine in each direction, in Gbit/s."
)
@option("--latency-us", type=Number(0, 1e9), default=50.0, help="Latency in one direction, in microseconds.")
@option("--one-machine", is_flag=True, help="Simulate one machine: all processes share its cores and use no network.")
@option(
    "--cores",
    type=Integer(1, 1024),
    help="Number of cores, with --one-machine or --check; default: those of this machine.",
)
@option(
    "--seed",
    type=Integer(0, 2**31 - 1),
    default=0,
    help="Seed of the simulation. The same seed gives the same numbers.",
)
@option(
    "--json",
    "json_file",
    type=PRINTED_FILE,
    metavar="FILE",
    help="Write all figures to this file as JSON; -: print them as JSON.",
)
@option("--save-costs", type=OUTPUT_FILE, metavar="FILE", help="Write the costs to this YAML file, for --costs.")
@click.pass_context
def simulate(
    context: click.Context, /, workers: tuple[int, ...], parameter_servers: tuple[int, ...], mode: str,
    local_steps: int | None, backup_workers: int, straggler: str, costs_file: Path | None, calibrate_from: Path | None,
    check_run: Path | None, link_gbps: float, latency_us: float, one_machine: bool, cores: int | None, seed: int,
    json_file: Path | None, save_costs: Path | None,
) -> None:  # fmt: skip
    """Predict throughput and staleness of a cluster before you build it."""
    from ps_cluster.tools.simulate.simulation_run import SimulationSettings, run_simulation

    if check_run:
        kept = ("check_run", "calibrate_from", "costs_file", "cores", "json_file", "save_costs")
        refuse_others(context, *kept, because="--check takes these settings from the run")
    console = make_console()
    console.quiet |= json_file == STDOUT
    settings = SimulationSettings(
        workers=workers, parameter_servers=parameter_servers, mode=mode, local_steps=local_steps,
        backup_workers=backup_workers, straggler=straggler, costs_file=costs_file, calibrate_from=calibrate_from,
        check_run=check_run, link_gbps=link_gbps, latency_us=latency_us, one_machine=one_machine, cores=cores,
        seed=seed, save_costs=save_costs,
    )  # fmt: skip
    found = run_simulation(settings, console)
    if json_file:
        write_json_to(json_file, found)
