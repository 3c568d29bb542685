"""Choose the rule, the learning rate and the momentum of a network's recipe on held-out examples, for each kind of mode.

    python -m benchmarks.default_rates --network cifar_tf_cnn --data-dir DATA
    python -m benchmarks.default_rates --draw

Three kinds of training stand for the modes of three workers. Mode `single` stands for itself. One worker that emulates
a staleness of 2 stands for `async` and `bounded`. Mode `single` with batches of three workers computes what `sync` and
`sync-ps` do. Each rule gets the best rate and momentum on held-out examples, with one seed and a short training; the
grid is widened until the best rate is not at its edge (`benchmarks/trials.py`). An interrupted search continues with
the same command. `--draw` prints the best of each rule, and trains nothing.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import click

from benchmarks.records import RECORDS, Column, keep, print_table
from benchmarks.staleness_chart import ADAM, MUON, MUON_ADAM, PREDICT, WORKS, Rule, Work, arm_of
from benchmarks.trials import AT_A_TIME, DATA_DIR, Arm, Study
from ps_cluster.cli.command_line import OneLineCommand
from ps_cluster.cli.value_types import OUTPUT_FILE
from ps_cluster.errors import UserError
from ps_cluster.quiet_import import import_tensorflow

WORKERS = 3
KINDS = {"single": "single", "stale": "async, bounded", "sync": "sync, sync-ps"}
"""The kinds of training → the modes for which they stand."""
NESTEROV = Rule("nesterov", "nesterov")
MUON_WITHOUT_DECAY = replace(MUON, settings={"optimizer.weight_decay": 0.0})
# Adam for the first and the last weights, such as embeddings of categories, as in language models.
MUON_OF_DENSE = replace(MUON_ADAM, settings={"optimizer.matrices": ["dense_*kernel"]})
RATES = {
    "adam": (0.0005, 0.001, 0.002, 0.004), "nesterov": (0.05, 0.1, 0.2, 0.4), "muon": (0.005, 0.01, 0.02, 0.04),
    "muon_adam": (0.005, 0.01, 0.02, 0.04),
}  # fmt: skip


def _on_images(epochs: float) -> Work:
    settings = {
        "data.dataset": "cifar10", "model.precision": "bfloat16", "training.epochs": epochs, "checkpoints.every_epochs": epochs
    }  # fmt: skip
    return Work(settings, "accuracy [%]", 100.0, held_out=5_000, rates=RATES)


ON_A_TABLE = Work(
    {"model.name": "mlp", "model.precision": "float32", "training.epochs": 4.0, "checkpoints.every_epochs": 4.0},
    "accuracy [%]", 100.0, held_out=5_000, rates=RATES,
)  # fmt: skip
"""People, with numbers and categories (data set Adult, from `benchmarks/recommenders.py`)."""
SEARCHED: dict[str, tuple[Work, tuple[Rule, ...]]] = {
    "byte_lm": (WORKS["byte_lm"], (ADAM, PREDICT, MUON_ADAM)),
    "cifar_tf_cnn": (_on_images(2.0), (ADAM, PREDICT, MUON_WITHOUT_DECAY)),
    "resnet_small": (_on_images(2.0), (NESTEROV, MUON_WITHOUT_DECAY)),
    "mlp": (_on_images(4.0), (ADAM, PREDICT, MUON_WITHOUT_DECAY, MUON_OF_DENSE)),
    "mlp on a table": (ON_A_TABLE, (ADAM, PREDICT, MUON_OF_DENSE)),
}
"""Name of a network, or of a network on other data → how long it trains, and the rules that are compared."""
COLUMNS = {
    "network": Column(heading="network"),
    "modes": Column(heading="modes"),
    **{rule.name: Column(heading=rule.name) for _, rules in SEARCHED.values() for rule in rules},
}


def arm(search: str, rule: Rule, kind: str) -> Arm:
    """Return the arm of a study that finds the learning rate and the momentum of a rule. `kind`: a key of KINDS."""
    work, _ = SEARCHED[search]
    one = arm_of(work, search, rule, staleness=WORKERS - 1 if kind == "stale" else 0)
    if kind != "sync":
        return one
    batch = WORKERS * work.batch
    return replace(
        one,
        name=f"{search}: {rule.name}, batches of {batch}",
        settings={**one.settings, "training.batch_size_per_worker": batch},
    )


def arms_of(search: str) -> dict[tuple[str, str], Arm]:
    """Return the arms of a search, by the kind of training (a key of KINDS) and the name of the rule.

    A rule with a staleness method is searched for stale gradients only.
    """
    _, rules = SEARCHED[search]
    return {
        (kind, rule.name): arm(search, rule, kind)
        for kind, rule in product(KINDS, rules)
        if kind == "stale" or not rule.method
    }


def study_of(search: str, record: Path) -> Study:
    """Return the study of a search (a key of SEARCHED).

    It also uses the trials of `benchmarks/staleness_chart.py` and `benchmarks/delay_of_one.py`.
    """
    others = [RECORDS / "staleness_trials.json", RECORDS / "delay_trials.json"]
    return Study(record, list(arms_of(search).values()), used_again=others)


def rows_of(search: str, record: Path) -> list[dict[str, Any]]:
    """Return a row for each kind of training: for each rule whose search is complete, its best score, rate and momentum."""
    study = study_of(search, record)
    rows = {kind: {"network": search, "modes": modes} for kind, modes in KINDS.items()}
    for (kind, rule), one in arms_of(search).items():
        tried = study.tried(one)
        if one.missing(tried):
            continue
        best = one.best(tried)
        score = tried[best]
        rows[kind][rule] = "diverged" if score is None else f"{abs(one.scale) * score:.2f} ({best.text})"
    return [row for row in rows.values() if len(row) > 2]


def draw(record: Path) -> None:
    """Print a table of the best rates and momenta by the trials in a record, and write the table beside the record."""
    rows = [row for search in SEARCHED for row in rows_of(search, record)]
    commits = set[str]().union(*(study_of(search, record).commits(on_held_out=True) for search in SEARCHED))
    print_table(keep(record.with_name("default_rates.json"), rows, COLUMNS, commit=", ".join(sorted(commits))))


@click.command(cls=OneLineCommand)
@click.option("--network", "search", type=click.Choice(list(SEARCHED)), help="The network to train.")
@DATA_DIR
@click.option("--record", type=OUTPUT_FILE, default=RECORDS / "rate_trials.json", help="Where all trials are kept.")
@AT_A_TIME
@click.option("--draw", "only_draw", is_flag=True, help="Train nothing; only print the choices of the record.")
def main(search: str | None, data_dir: Path | None, record: Path, at_a_time: int, only_draw: bool) -> None:
    """Choose the rates of a network's recipe on held-out examples, or print the choices of a record."""
    if only_draw:
        return draw(record)
    if search is None:
        raise UserError("--network: give one, or --draw")
    data = {"data.data_dir": f"{data_dir}"} if data_dir else {}
    if SEARCHED[search][0] is ON_A_TABLE:
        import_tensorflow()
        from benchmarks.recommenders import PROGRAMS, data_of  # imports Keras, which nothing else here needs

        data = {"data.dataset": f"{data_of(PROGRAMS['adult'])}", "data.target": "income"}
    study_of(search, record).train(0, at_a_time, data)


if __name__ == "__main__":
    main()
