"""The command `ps-cluster bench`."""

from __future__ import annotations

from pathlib import Path

import click

from ps_cluster.cli.command_line import command, examples, option
from ps_cluster.cli.options import GivenSettings, config_options, parameter_of, refuse_others
from ps_cluster.cli.value_types import INPUT_PATH, LIST, OUTPUT_FILE, CommaList, Integer, NameOf
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
    help="Arms to measure, separated by commas. Besides the default arms there are sync_cores, ddp, ddp_cores, "
    "ddp_compiled and torch_single. Two arms can only be measured alone: empty (steps/s without computation) and tables "
    "(large embeddings in dlrm).",
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
@option("--rounds", type=Integer(1, 100), default=3, help="How often each arm is measured; the median is shown.")
@option(
    "--straggler",
    help="Measure the arms 'cluster' and 'sync' also with slow workers. With 2:5x, worker 2 is five times slower.",
)
@option(
    "--ddp-python",
    type=INPUT_PATH,
    help="The Python with PyTorch that runs ddp, ddp_cores, ddp_compiled and torch_single. With it, --arms tables "
    "also measures PyTorch.",
)
@option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="A setting of all arms; repeatable.")
@option("--output", type=OUTPUT_FILE, help="Also write all results to this JSON file.")
@config_options("--dataset", "--data-dir")
@click.pass_context
def bench(
    context: click.Context, given: GivenSettings, /, names: tuple[str, ...], models: tuple[str, ...],
    precisions: tuple[str, ...], rounds: int, straggler: str | None, ddp_python: Path | None, output: Path | None,
) -> None:  # fmt: skip
    """Measure the images/s or examples/s of several ways to train, which are called arms.

    The arms are this project's parameter servers, this project's all-reduce, training in one process, parameter servers
    that exchange each variable separately, PyTorch, and the limit of the machine. This limit is measured with one
    process per core, which computes gradients and sends nothing.
    """
    from ps_cluster.system.environment import prepare_for_tensorflow
    from ps_cluster.tools.bench import cases, empty, table_speed, throughput

    prepare_for_tensorflow()
    values = given.overrides()
    alone = ("names", "rounds", "assignments", "output")  # the options of the arms that are measured alone
    if names == (empty.NAME,):
        used = (*alone, parameter_of("data.dataset"), parameter_of("data.data_dir"))
        refuse_others(context, *used, because=f"--arms {empty.NAME} chooses the sizes of its clusters itself")
        benchmark = empty.benchmark(values)
    elif names == (table_speed.NAME,):
        refuse_others(
            context, *alone, "ddp_python", because=f"--arms {table_speed.NAME} chooses its network and data itself"
        )
        benchmark = table_speed.benchmark(values, ddp_python)
    else:
        benchmark = cases.benchmark(names, models, precisions, straggler, ddp_python, values)
    throughput.report(benchmark, rounds, output, make_console(), notify=print_line)
