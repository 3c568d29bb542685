"""The command `ps-cluster bench`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path

import click

from ps_cluster.cli.command_line import (
    INPUT_PATH,
    LIST,
    OUTPUT_FILE,
    CommaList,
    NameOf,
    Whole,
    command,
    examples,
    option,
)
from ps_cluster.cli.options import GivenSettings, config_options, parameter_of, refuse_others
from ps_cluster.config import build_config
from ps_cluster.config.networks import NETWORKS
from ps_cluster.report.terminal import make_console, print_line
from ps_cluster.tools.bench import arms


@command(
    epilog=examples(
        "bench --models tutorial_cnn --rounds 1",
        "bench --arms cluster,single --models airbench --output bench.json",
        "bench --dataset synthetic --straggler 2:5x",
        "bench --arms empty",
        "bench --arms tables --set data.rows=100000 --set model.row_width=16",
    )
)
@option(
    "--arms",
    "names",
    type=LIST,
    default=",".join(arm.name for arm in arms.DEFAULT),
    help="What to measure, separated by commas; also sync_cores, ddp, ddp_cores, ddp_compiled, torch_single. Two are "
    "measured alone: empty (steps/s without computation), and tables (large embeddings in dlrm).",
)
@option(
    "--models",
    "--model",
    type=CommaList(NameOf(NETWORKS)),
    default="tutorial_cnn,cifar_tf_cnn,airbench",
    help="Networks, separated by commas. For a network of unknown speed, a short run finds how many examples take "
    "about 10 s.",
)
@option("--precisions", type=LIST, default="float32,bfloat16", help="Precisions, separated by commas.")
@option("--rounds", type=Whole(1, 100), default=3, help="How often each arm is measured; the median is shown.")
@option("--straggler", help="Also measure the arms cluster and sync with slow workers, e.g. 2:5x.")
@option(
    "--ddp-python",
    type=INPUT_PATH,
    help="The Python with PyTorch that runs the arms ddp, ddp_cores, ddp_compiled and torch_single, and those of tables.",
)
@option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="A setting of all arms; repeatable.")
@option("--output", type=OUTPUT_FILE, help="Also write all figures to this JSON file.")
@config_options("--dataset", "--data-dir")
@click.pass_context
def bench(
    context: click.Context, given: GivenSettings, /, names: tuple[str, ...], models: tuple[str, ...],
    precisions: tuple[str, ...], rounds: int, straggler: str | None, ddp_python: Path | None, output: Path | None,
) -> None:  # fmt: skip
    """Measure images/s (examples/s) of a cluster, one process, all-reduce, per-variable servers, PyTorch and bare cores."""
    from ps_cluster.launch.local_run import resolve_data
    from ps_cluster.system.environment import prepare_for_tensorflow
    from ps_cluster.tools.bench import cases, empty, table_speed, throughput

    prepare_for_tensorflow()
    values = given.overrides()
    jobs: Iterable[throughput.Job]
    measured: Sequence[arms.BenchArm]
    columns: Sequence[throughput.Column]
    figures_of: throughput.FiguresOf = throughput.figures
    alone = ("names", "rounds", "assignments", "output")  # the options of benchmarks that stand by themselves
    if names == (empty.NAME,):
        used = (*alone, parameter_of("data.dataset"), parameter_of("data.data_dir"))
        refuse_others(context, *used, because=f"--arms {empty.NAME} measures clusters of its own")
        cases.refuse_chosen(empty.NAME, empty.CHOSEN, values)
        packed, unit = resolve_data(build_config(None, values).data, notify=print_line), "steps"
        jobs = of_sizes = empty.jobs(packed, values)
        measured, columns = of_sizes[0].arms, throughput.columns_of(of_sizes[0].arms, unit)
    elif names == (table_speed.NAME,):
        refuse_others(
            context, *alone, "ddp_python", because=f"--arms {table_speed.NAME} measures one network on data of its own"
        )
        cases.refuse_chosen(table_speed.NAME, table_speed.CHOSEN, values)
        packed, unit = resolve_data(build_config(None, table_speed.FIXED | values).data, notify=print_line), "examples"
        measured, columns, figures_of = table_speed.measured_arms(ddp_python), table_speed.COLUMNS, table_speed.figures
        jobs = table_speed.jobs(packed, values, measured, notify=print_line)
    else:
        config = build_config(None, values)
        chosen = arms.choose(names, ddp_python)
        if straggler:
            chosen = arms.with_straggler(chosen, straggler, config.cluster.workers)
        packed = resolve_data(config.data, notify=print_line)
        for arm, model in product(chosen, models):
            arm.check(model, packed.spec)
        first, unit = throughput.first_of(chosen), packed.spec.unit
        jobs = [
            throughput.Job(
                {"model": case.model.name, "precision": case.model.precision},
                cases.with_length(case, first, packed, print_line),
                chosen,
            )
            for case in cases.cases(models, precisions, packed, values)
        ]
        measured, columns = chosen, throughput.columns_of(chosen, unit)
    results = throughput.measure(jobs, packed, rounds, output, unit=unit, notify=print_line, figures_of=figures_of)
    throughput.print_table(measured, results, columns, make_console())
