"""The command line: `python cli.py run --workers 3 --ps 1`; every command has --help."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import click

from benchmarks import arms, throughput
from ps_cluster.catalogue.modes import MODES
from ps_cluster.catalogue.networks import NETWORKS
from ps_cluster.catalogue.task_types import WORKER
from ps_cluster.chaos import start as chaos_start
from ps_cluster.cluster import environment, one_task, start
from ps_cluster.cluster.topology import from_tf_config
from ps_cluster.cluster.usage import age_seconds
from ps_cluster.command_line import (
    OUTPUT_FILE,
    OUTPUT_FOLDER,
    CommaList,
    Number,
    OneLineErrors,
    Whole,
    config_layers,
    config_options,
    layered_config,
    overrides,
)
from ps_cluster.comparison import plan, runner
from ps_cluster.config import LONGEST_SECONDS, MOST_PARAMETER_SERVERS, MOST_WORKERS
from ps_cluster.errors import UserError
from ps_cluster.files import locks
from ps_cluster.reporting import trace
from ps_cluster.reporting.progress import make_view
from ps_cluster.reporting.terminal import make_console, print_error, print_line
from ps_cluster.run_dir import RunDir
from ps_cluster.simulation import start as simulation_start
from ps_cluster.simulation.costs import known_costs

_FOLDER = click.Path(path_type=Path)
_LIST = CommaList()


@click.group(cls=OneLineErrors, context_settings={"max_content_width": 120, "show_default": True})
def cli() -> None:
    """Asynchronous parameter-server training that you can run, break and measure on one machine."""
    os.umask(os.umask(0o022) | 0o022)  # whatever else it was: nobody but the user writes into what a command leaves


@cli.command()
@config_options()
@config_layers
@click.option("--run-dir", type=_FOLDER, help="Where all files of the run go; default: a new folder under runs/.")
@click.option("--resume", type=_FOLDER, metavar="RUN_DIR", help="Go on with an earlier run; --epochs, --steps: longer.")
@click.option("--profile", is_flag=True, help="Write a trace of every step, and print where the time went.")
@click.pass_context
def run(
    context: click.Context,
    file: Path | None,
    assignments: tuple[str, ...],
    run_dir: Path | None,
    resume: Path | None,
    profile: bool,
    **options: Any,
) -> int:
    """Train on a cluster of processes on this machine."""
    began = time.monotonic() - age_seconds(os.getpid())
    if resume:
        allowed = ("resume", "profile", "training__epochs", "training__steps")
        _refuse_others(context, *allowed, because="--resume goes on with")
        more = overrides((), options)
        root, code = resume, start.resume_run(resume, more, view=make_view(), began=began)
    else:
        config = layered_config(file, assignments, options)
        root = run_dir or start.new_root(config)
        code = start.start_run(config, root, view=make_view(), began=began)
    if profile and code == 0:
        with locks.sole_use(root, start.WHAT, notify=lambda line: None):  # it was said when the run began
            trace.write_trace(RunDir(root.resolve()))
        trace.print_shares(RunDir(root.resolve()), make_console())
    return code


@cli.command()
@click.option("--checkpoint-dir", type=_FOLDER, required=True, help="A run directory, or its checkpoints/ folder.")
@click.option("--once", is_flag=True, help="Score the newest checkpoint and return.")
@click.option(
    "--wait-seconds", type=Number(0, LONGEST_SECONDS), help="Longest wait without a sign of life; default: 600."
)
@click.option("--data-dir", type=_FOLDER, help="Where CIFAR-10 is; default: the data set that the run used.")
def evaluate(checkpoint_dir: Path, once: bool, wait_seconds: float | None, data_dir: Path | None) -> None:
    """Score each new checkpoint until training has ended."""
    if once and wait_seconds is not None:
        raise UserError("--wait-seconds: --once waits for nothing: leave one of them out")
    os.environ.update(environment.for_tensorflow(os.environ))
    from ps_cluster.evaluation.evaluator import PATIENCE_S, evaluate

    patience_s = PATIENCE_S if wait_seconds is None else wait_seconds
    evaluate(checkpoint_dir, once=once, data_dir=data_dir, patience_s=patience_s, notify=print_line)


@cli.command()
@click.option("--run-dir", type=OUTPUT_FOLDER, required=True, help="Shared by the chief and the evaluator.")
@click.option("--resume", is_flag=True, help="The chief goes on from the newest checkpoint in the run directory.")
@config_options(
    "--mode", "--dataset", "--data-dir", "--model", "--epochs", "--steps", "--batch-size", "--precision", "--seed"
)  # fmt: skip
@config_layers
def task(run_dir: Path, resume: bool, file: Path | None, assignments: tuple[str, ...], **options: Any) -> None:
    """Be one task of the cluster that TF_CONFIG describes; give every task the same options (docs/operations.md)."""
    topology, own = from_tf_config(os.environ.get("TF_CONFIG"))
    config = layered_config(file, assignments, options, topology.size)
    one_task.run_one_task(config, run_dir, topology, own, resume=resume, notify=print_line)


@cli.command()
@click.argument("runs", nargs=-1, type=_FOLDER, metavar="[RUN_DIR]...")
@click.option("--modes", type=_LIST, help="Comma between them; default: all but elastic.")
@click.option("--seeds", type=Whole(1, 100), help="How many: 0, 1, 2, …; default 3.")
@click.option("--straggler", "stragglers", type=_LIST, help="Comma between settings, e.g. none,2:5x; default none.")
@click.option("--batches", type=_LIST, help="same_per_update, same_per_worker; default both.")
@click.option("--target-accuracy", type=Number(0, 1, min_open=True), help="For the time and images to it.")
@click.option("--baseline", help="The arm that the others are held against; default: sync, else the first.")
@click.option(
    "--output", type=OUTPUT_FOLDER, default=Path("comparison"), help="Where runs and report go; goes on in it."
)
@click.option("--force", is_flag=True, help="Compare runs that differ in what must be equal, and say so on top.")
@config_options(
    "--workers", "--ps", "--dataset", "--data-dir", "--model", "--epochs", "--steps", "--batch-size", "--precision"
)  # fmt: skip
@config_layers
def compare(
    runs: tuple[Path, ...],
    modes: list[str] | None,
    seeds: int | None,
    stragglers: list[str] | None,
    batches: list[str] | None,
    target_accuracy: float | None,
    baseline: str | None,
    output: Path,
    force: bool,
    file: Path | None,
    assignments: tuple[str, ...],
    **options: Any,
) -> int:
    """Train several modes on the same work, or take the finished runs RUN_DIR, and write the report."""
    values = overrides(assignments, options)
    changes = {
        "arms": [{"mode": mode} for mode in modes] if modes else None,
        "seeds": seeds,
        "stragglers": stragglers,
        "batches": batches,
        "target_accuracy": target_accuracy,
    }
    given = {name: value for name, value in changes.items() if value is not None}
    if runs and (values or file or given.keys() - {"target_accuracy"}):
        raise UserError("with finished runs only --output, --target-accuracy, --baseline and --force can be given")
    roots, code, own = list(runs), 0, frozenset()
    with locks.sole_use(output, "--output:", notify=print_line):
        if not runs:
            comparison = plan.read_comparison(file, given, values)
            target_accuracy, own = comparison.target_accuracy, comparison.own
            roots, code = runner.train_all(comparison, output)
        if code:
            print_error(f"stopped before all runs were trained; the same command goes on: {output}")
            return code
        from ps_cluster.comparison import report  # matplotlib takes half a second to import

        written = report.write_report(
            roots, output, target_accuracy=target_accuracy, baseline=baseline, force=force, own=own
        )
        report.print_report(written, make_console())
    return 0


@cli.command()
@config_options("--dataset", "--data-dir")
def data(**options: Any) -> None:
    """Fetch and pack a data set, and say where it is."""
    wanted = layered_config(None, (), options).data
    dataset = start.resolve_data(wanted.dataset, wanted.data_dir, notify=print_line)
    images = f"{dataset.train_examples} + {dataset.test_examples} images"
    origin = f", packed from {dataset.source}" if dataset.source else ""
    print_line(f"{dataset.name} ({dataset.kind}), {images}: {dataset.directory}{origin}")


@cli.command()
@click.option("--faults", type=Whole(1, 10_000), default=chaos_start.Settings.faults, help="How many in one run.")
@click.option("--minutes", type=Number(0, 100_000, min_open=True), help="Soak: as many faults as fit into this time.")
@click.option("--seed", type=Whole(0, 2**31 - 1), default=0, help="Of the faults, and of the training.")
@click.option(
    "--kinds",
    type=CommaList(click.Choice(chaos_start.Settings.kinds)),
    default=chaos_start.Settings.kinds,
    metavar="KIND,...",
    show_default=False,
    help=f"Of fault; default: all that the system allows. There are: {', '.join(chaos_start.Settings.kinds)}.",
)
@click.option(
    "--mode",
    type=click.Choice([mode.name for mode in MODES if WORKER in mode.tasks]),
    default="async",
    help="Of the training.",
)
@click.option("--model", type=click.Choice(NETWORKS.names), default="tutorial_cnn", help="The network.")
@click.option("--workers", type=Whole(1, MOST_WORKERS), default=3, help="Worker processes.")
@click.option(
    "--ps",
    "parameter_servers",
    type=Whole(1, MOST_PARAMETER_SERVERS),
    default=1,
    help="Parameter server processes.",
)
@click.option(
    "--run-dir", "root", type=OUTPUT_FOLDER, help="Where the runs and chaos.json go; default: a new folder in runs/."
)
@click.pass_context
def chaos(context: click.Context, root: Path | None, **settings: Any) -> int:
    """Inject faults into a run, from tasks killed to a full disk, and compare it with an undisturbed one."""
    given = click.core.ParameterSource.COMMANDLINE
    if settings["minutes"] and context.get_parameter_source("faults") == given:
        raise UserError("--faults and --minutes both say how long: give one of them")
    return chaos_start.run_chaos(chaos_start.Settings(**settings), root, notify=print_line)


@cli.command()
@click.option(
    "--arms", "names", type=_LIST, default=",".join(arm.name for arm in arms.DEFAULT), help="Also ddp, torch_single."
)
@click.option("--models", type=_LIST, default="tutorial_cnn,cifar_tf_cnn,airbench", help="Networks.")
@click.option("--precisions", type=_LIST, default="float32,bfloat16", help="Precisions.")
@click.option("--rounds", type=Whole(1, 100), default=3, help="Measurements of each arm; medians are shown.")
@click.option("--straggler", help="Also measure cluster and sync with slow workers, e.g. 2:5x, and what they keep.")
@click.option("--ddp-python", type=_FOLDER, help="For the arms ddp and torch_single: a Python that has PyTorch.")
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="A setting of all arms; repeatable.")
@click.option("--output", type=OUTPUT_FILE, help="Also write every figure to this JSON file.")
@config_options("--dataset", "--data-dir")
def bench(
    names: list[str],
    models: list[str],
    precisions: list[str],
    rounds: int,
    straggler: str | None,
    ddp_python: Path | None,
    assignments: tuple[str, ...],
    output: Path | None,
    **options: Any,
) -> None:
    """Measure images/s of this cluster beside one process, all-reduce, per-variable parameter servers, and PyTorch."""
    os.environ.update(environment.for_tensorflow(os.environ))
    wanted = layered_config(None, assignments, options)
    chosen = arms.choose(names, ddp_python)
    if straggler:
        chosen = arms.with_straggler(chosen, straggler, wanted.cluster.workers)
    dataset = start.resolve_data(wanted.data.dataset, wanted.data.data_dir, notify=print_line)
    cases = throughput.cases(models, precisions, dataset, overrides(assignments, options))
    throughput.print_table(
        chosen, throughput.measure(chosen, cases, dataset, rounds, output, notify=print_line), make_console()
    )


@cli.command()
@click.option(
    "--workers",
    type=CommaList(Whole(1, 10_000)),
    default="10,100,1000,10000",
    help="Numbers, comma between them.",
)
@click.option("--ps", "parameter_servers", type=CommaList(Whole(1, 256)), default="1,4,16,64,256", help="The same.")
@click.option(
    "--mode",
    type=click.Choice([mode.name for mode in MODES if mode.is_simulated]),
    default="async",
    help="sync: ring all-reduce.",
)
@click.option("--backup-workers", type=Whole(0, 9_999), default=0, help="Mode sync-ps: so many may come late.")
@click.option("--straggler", default="none", help="As of run: 2:5x, 1:+0.2s, several with ';', random:gamma.")
@click.option("--network", type=click.Choice(known_costs()), help="Its costs; default: those of the run's network.")
@click.option("--from", "calibrate_from", type=_FOLDER, metavar="RUN_DIR", help="Costs of a run with --workers 1.")
@click.option("--check", "check_run", type=_FOLDER, metavar="RUN_DIR", help="Predict this finished run, and compare.")
@click.option("--link-gbps", type=Number(1e-6, 1e6), default=10.0, help="Of each machine, each way.")
@click.option("--latency-us", type=Number(0, 1e9), default=50.0, help="One way, in microseconds.")
@click.option("--one-machine", is_flag=True, help="All processes share its cores, and there is no network.")
@click.option("--cores", type=Whole(1, 1024), help="Of the one machine; default: those of this one.")
@click.option("--steps-per-dispatch", type=Whole(1, 1000), help="Other than the costs were measured with.")
@click.option("--seed", type=Whole(0, 2**31 - 1), default=0, help="The same seed gives the same numbers.")
@click.option("--json", "json_file", type=OUTPUT_FILE, metavar="FILE", help="Also write every figure to this file.")
@click.option("--save-costs", type=OUTPUT_FILE, metavar="FILE", help="Write the costs as YAML.")
@click.pass_context
def simulate(context: click.Context, **settings: Any) -> None:
    """Predict throughput and staleness of clusters that are not there, to plan one."""
    if settings["check_run"]:
        kept = ("check_run", "calibrate_from", "network", "cores", "json_file", "save_costs")
        _refuse_others(context, *kept, because="--check predicts")
    simulation_start.run_simulation(simulation_start.Settings(**settings), make_console())


def _refuse_others(context: click.Context, *allowed: str, because: str) -> None:
    """For options that say what stands in a run's directory already."""
    given = click.core.ParameterSource.COMMANDLINE
    for parameter in context.command.params:
        if parameter.name not in allowed and context.get_parameter_source(parameter.name) == given:
            raise UserError(f"{because} the run as it was: leave {parameter.opts[0]} out")


if __name__ == "__main__":
    cli()
