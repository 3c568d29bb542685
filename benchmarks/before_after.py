"""Compare the speed of two kinds of training, in turns: two checkouts of the code, or two settings.

    python -m benchmarks.before_after --before OTHER_CHECKOUT --before-data PACKED --data-dir DATA
    python -m benchmarks.before_after --set cluster.evaluator=true --set-before evaluation.recompute_updates=false \
        --models tutorial_cnn --set training.steps=5000 --data-dir DATA

Both train as the arm `cluster` of `bench`. PACKED is the folder of the data set in the other checkout's packed format, which
that checkout's command `data` prints. Leave it out if both formats are the same. The second command measures what it costs
to compute a sample of the updates again for the proof. The evaluator starts TensorFlow for this, which takes some seconds of
a core, so the training has to be long.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import click

from benchmarks.records import Column, keep, table
from ps_cluster.cli.command_line import OUTPUT_FILE, CommaList, NameOf, OneLineCommand, Whole
from ps_cluster.config import RunConfig, build_config
from ps_cluster.config.datasets import DATASETS
from ps_cluster.config.networks import NETWORKS
from ps_cluster.config.sections import CHOSEN, flat, nested
from ps_cluster.config.user_layers import parse_assignment
from ps_cluster.errors import UserError
from ps_cluster.files.yaml_files import read_yaml
from ps_cluster.installation import IMPORT_FOLDER
from ps_cluster.launch.local_run import resolve_data
from ps_cluster.report.terminal import print_line
from ps_cluster.system.environment import prepare_for_tensorflow
from ps_cluster.tools.bench.arms import CLUSTER
from ps_cluster.tools.bench.cases import case, with_length
from ps_cluster.tools.bench.running import run_arm

FOLDER = click.Path(exists=True, file_okay=False, path_type=Path, resolve_path=True)
COLUMNS = {
    "network": Column(heading="network"),
    "precision": Column(heading="precision"),
    "before": Column(heading="before [examples/s]"),
    "now": Column(heading="now [examples/s]"),
    "ratio": Column(heading="now ÷ before", digits=3),
}


@click.command(cls=OneLineCommand)
@click.option(
    "--before",
    type=FOLDER,
    default=IMPORT_FOLDER,
    help="The checkout with which this one is compared; default: this one itself, to compare settings.",
)
@click.option(
    "--before-data",
    type=FOLDER,
    help="The packed data set for that checkout, if it reads another format than this one.",
)
@click.option("--set", "both", multiple=True, metavar="KEY=VALUE", help="A setting of both checkouts; repeatable.")
@click.option(
    "--set-before",
    "earlier",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of the checkout --before only; repeatable.",
)
@click.option(
    "--models",
    type=CommaList(NameOf(NETWORKS)),
    default="tutorial_cnn,cifar_tf_cnn,airbench",
    help="Networks to measure, separated by commas.",
)
@click.option(
    "--precisions", type=CommaList(), default="float32,bfloat16", help="Precisions to measure, separated by commas."
)
@click.option("--rounds", type=Whole(1, 100), default=3, help="How often each network is measured in each precision.")
@click.option("--dataset", type=NameOf(DATASETS), default="auto")
@click.option("--data-dir", type=click.Path(path_type=Path), help="Where the data set is.")
@click.option("--output", type=OUTPUT_FILE, help="Also write every figure to this JSON file, as a record.")
def main(
    before: Path, before_data: Path | None, both: tuple[str, ...], earlier: tuple[str, ...], models: tuple[str, ...],
    precisions: tuple[str, ...], rounds: int, dataset: str, data_dir: Path | None, output: Path | None,
) -> None:  # fmt: skip
    """Compare the examples/s of two checkouts, or of two settings, in turns."""
    prepare_for_tensorflow()
    packed = resolve_data(DATASETS[dataset].Settings(dataset=dataset, data_dir=data_dir), notify=print_line)
    packed_before = replace(packed, directory=before_data or packed.directory)
    values, values_before = (dict(map(parse_assignment, words)) for words in (both, earlier))
    rows: list[dict[str, Any]] = [
        {"network": model, "precision": precision, **{name: [] for name in ("before", "now", "ratio")}}
        for model, precision in product(models, precisions)
    ]
    cases = [case(row["network"], row["precision"], packed, values) for row in rows]
    configs = [CLUSTER.config(with_length(one, CLUSTER, packed, print_line)) for one in cases]
    for number, (row, config) in product(range(rounds), list(zip(rows, configs, strict=True))):
        print_line(f"round {number + 1}/{rounds}: {row['network']}, {row['precision']}")
        settings_before = known_to(before, config.with_values(values_before))
        measure = {
            "before": partial(run_arm, CLUSTER, settings_before, packed_before, project=before),
            "now": partial(run_arm, CLUSTER, config.model_dump(mode="json"), packed),
        }
        # Every second round measures `now` first, so that neither is always the first.
        for name in sorted(measure, reverse=bool(number % 2)):
            rate = measure[name]().examples_per_second
            if rate is None:
                raise UserError("--set training.steps: a run was over before it had a rate: give more steps")
            row[name].append(rate)
        row["ratio"].append(row["now"][-1] / row["before"][-1])
        record = keep(output, [row for row in rows if row["now"]], COLUMNS)
    for line in table([record]).splitlines():
        print_line(line)


def known_to(project: Path, config: RunConfig) -> Mapping[str, object]:
    """Return `config` as settings of a checkout, without default values and values that the checkout does not know."""
    given = config.model_dump(mode="json")
    if project == IMPORT_FOLDER:
        return given
    chosen = {f"{section}.{key}": given[section][key] for section, (key, _) in CHOSEN.items()}
    defaults = flat(build_config().with_values(chosen).model_dump(mode="json"))
    found = flat(read_yaml(project / "configs" / "default.yaml"))
    # Settings that the checkout lacks are kept if they differ from their defaults, so that the checkout refuses them.
    wanted = {key: value for key, value in flat(given).items() if key in found or value != defaults.get(key)}
    return nested({**found, **{key: value for key, value in wanted.items() if value is not None}})


if __name__ == "__main__":
    main()
