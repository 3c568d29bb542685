"""The command `ps-cluster chaos`."""

from __future__ import annotations

from pathlib import Path

import click

from ps_cluster.cli.command_line import command, examples, is_given, option
from ps_cluster.cli.value_types import OUTPUT_FOLDER, CommaList, Integer, NameOf, Number, OneOf
from ps_cluster.config import MOST_PARAMETER_SERVERS, MOST_WORKERS
from ps_cluster.config.datasets import DATASETS
from ps_cluster.config.modes import MODES
from ps_cluster.config.networks import NETWORKS
from ps_cluster.config.tasks import WORKER
from ps_cluster.errors import UserError
from ps_cluster.tools.chaos.hosts import MOST_HOSTS
from ps_cluster.tools.chaos.kinds import FAULTS
from ps_cluster.tools.chaos.settings import ChaosSettings
from ps_cluster.tools.chaos.verdict import LEAST_UNDISTURBED


@command(
    epilog=examples(
        "chaos --faults 3",
        'chaos --kinds "kill worker,kill ps" --faults 4 --mode bounded',
        "chaos --minutes 10 --workers 2 --seed 1",
        "chaos --dataset clicks --model dlrm --ps 2",
        "chaos --undisturbed-runs 5",
        "chaos --hosts 3 --faults 8",
    )
)
@option("--faults", type=Integer(1, 10_000), default=ChaosSettings.faults, help="Number of faults in the run.")
@option(
    "--minutes",
    type=Number(0, 100_000, min_open=True),
    help="Inject as many faults as fit into this time, counted from the first update, instead of --faults.",
)
@option("--seed", type=Integer(0, 2**31 - 1), default=0, help="Seed of the faults and of the training.")
@option(
    "--kinds",
    type=CommaList(NameOf(FAULTS)),
    default=ChaosSettings.kinds,
    metavar="KIND,...",
    show_default=False,
    help="Kinds of faults, separated by commas; default: all kinds that the system and the run allow. Choose from "
    f"{', '.join(FAULTS.names)}, or give your own kind as FILE.py:NAME.",
)
@option(
    "--mode",
    type=OneOf([mode.name for mode in MODES if WORKER in mode.cluster.types and mode.own_rule is None]),
    default="async",
    help="Mode of the training.",
)
@option(
    "--dataset",
    type=OneOf([dataset.name for dataset in DATASETS if dataset.generated]),
    default=ChaosSettings.dataset,
    help="The generated data set. clicks is for --model dlrm, a network with embedding tables.",
)
@option("--model", type=OneOf(NETWORKS.names), default="tutorial_cnn", help="The network.")
@option("--workers", type=Integer(1, MOST_WORKERS), default=3, help="Number of workers.")
@option(
    "--ps",
    "parameter_servers",
    type=Integer(1, MOST_PARAMETER_SERVERS),
    default=1,
    help="Number of parameter servers.",
)
@option(
    "--hosts",
    type=Integer(2, MOST_HOSTS),
    default=ChaosSettings.hosts,
    show_default=False,
    help="Run the tasks on this number of hosts, which are network namespaces of this machine. Each task "
    "runs as the command `task`, and is restarted when it ends. With --hosts there are no undisturbed runs.",
)
@option(
    "--undisturbed-runs",
    type=Integer(1, 100),
    default=ChaosSettings.undisturbed_runs,
    help="Number of undisturbed runs of the same work. Accuracies differ by chance, so the accuracy of the disturbed "
    f"run is judged only with at least {LEAST_UNDISTURBED} undisturbed runs.",
)
@option(
    "--run-dir", "root", type=OUTPUT_FOLDER, help="Folder of all runs and chaos.json; default: a new folder in runs/."
)
@click.pass_context
def chaos(
    context: click.Context, /, root: Path | None, faults: int, minutes: float | None, seed: int, kinds: tuple[str, ...],
    mode: str, dataset: str, model: str, workers: int, parameter_servers: int, hosts: int | None, undisturbed_runs: int,
) -> int:  # fmt: skip
    """Inject faults into a run, from killed tasks to a full disk, and compare it with undisturbed runs of the same work."""
    if hosts and is_given(context, "undisturbed_runs"):
        raise UserError(
            "--hosts and --undisturbed-runs: runs on hosts are not compared with undisturbed runs: leave one out"
        )
    if minutes and is_given(context, "faults"):
        raise UserError("--faults and --minutes both set the length of the run: give only one of them")
    from ps_cluster.tools.chaos.chaos_run import run_chaos

    settings = ChaosSettings(
        seed=seed, faults=faults, minutes=minutes, kinds=kinds, hosts=hosts, mode=mode, dataset=dataset, model=model,
        workers=workers, parameter_servers=parameter_servers, undisturbed_runs=undisturbed_runs,
    )  # fmt: skip
    return run_chaos(settings, root)
