"""Test a claim: a delay of exactly one update makes Adam worse, but not Muon (arXiv:2606.30634).

    python -m benchmarks.delay_of_one
    python -m benchmarks.delay_of_one --draw

The network is byte_lm, trained for a short time. With one worker that emulates two, every gradient has a staleness of
1. In mode `single` no gradient is stale. The learning rate of each rule, with and without the delay, is the best on
held-out examples with one seed, at momentum 0.9. Then each rule is trained with fresh seeds, and the last weights are
scored on 1,000 evenly spread test examples. As in the paper, Muon updates the matrices of the hidden layers, and Adam
all other weights (rule `muon_adam`). Neither has weight decay. An interrupted study continues with the same command.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import click

from benchmarks.records import RECORDS, Column, keep, print_table
from benchmarks.staleness_chart import ADAM, MUON_ADAM, arm
from benchmarks.trials import AT_A_TIME, Difference, Study, lines_of
from ps_cluster.cli.command_line import OneLineCommand
from ps_cluster.cli.value_types import OUTPUT_FILE, Integer
from ps_cluster.errors import UserError
from ps_cluster.report.terminal import print_line

NETWORK, DELAYS = "byte_lm", (0, 1)
RULES = (
    replace(ADAM, momenta=(0.9,)),
    replace(MUON_ADAM, momenta=(0.9,)),
)
ARMS = {(rule.name, delay): arm(NETWORK, rule, delay) for rule, delay in product(RULES, DELAYS)}
COLUMNS = {
    "rule": Column(heading="rule"),
    **{f"rate {delay}": Column(heading=f"rate at delay {delay}", digits=4) for delay in DELAYS},
    **{f"{delay}": Column(heading=f"bits per byte at delay {delay}", digits=3, spread="interval") for delay in DELAYS},
    "cost": Column(heading="cost of the delay", digits=3, spread="interval"),
}


def costs(study: Study) -> dict[str, list[float]]:
    """Return how many bits per byte the delay costs with each seed, by the name of the rule.

    The seeds are those that have a score for each rule and delay, in ascending order.

    Raises:
      UserError: fewer than two seeds have a score in all arms.
    """
    scores = {key: study.scores(one) for key, one in ARMS.items()}
    seeds = sorted(set.intersection(*map(set, scores.values())))
    if len(seeds) < 2:
        raise UserError(
            "--draw: fewer than two seeds have a score for each rule and delay: run the study without --draw first"
        )
    return {rule.name: [scores[rule.name, 1][seed] - scores[rule.name, 0][seed] for seed in seeds] for rule in RULES}


def draw(record: Path) -> None:
    """Print the table of the trials in a record, and the costs of the delay with Holm's correction over all of them."""
    study = Study(record, list(ARMS.values()))
    found = costs(study)
    rows: list[dict[str, Any]] = []
    for rule in RULES:
        row: dict[str, Any] = {"rule": rule.name, "cost": found[rule.name]}
        for delay in DELAYS:
            one = ARMS[rule.name, delay]
            row |= {f"rate {delay}": one.best(study.tried(one)).rate, f"{delay}": list(study.scores(one).values())}
        rows.append(row)
    print_table(keep(record.with_name("delay_of_one.json"), rows, COLUMNS))
    adam, muon = found.values()
    named = [Difference(f"cost of the delay, {rule}", tuple(cost)) for rule, cost in found.items()]
    named.append(
        Difference("cost with adam minus cost with muon_adam", tuple(a - m for a, m in zip(adam, muon, strict=True)))
    )
    for line in lines_of(named, digits=3):
        print_line(line)


@click.command(cls=OneLineCommand)
@click.option("--seeds", type=Integer(2, 100), default=8, help="Number of final runs of each rule and delay.")
@click.option("--record", type=OUTPUT_FILE, default=RECORDS / "delay_trials.json", help="Where all trials are kept.")
@AT_A_TIME
@click.option("--draw", "only_draw", is_flag=True, help="Train nothing; only print the results of the record.")
def main(seeds: int, record: Path, at_a_time: int, only_draw: bool) -> None:
    """Measure what a delay of one update costs Adam and Muon, or print the results of a record."""
    if not only_draw:
        Study(record, list(ARMS.values())).train(seeds, at_a_time)
    draw(record)


if __name__ == "__main__":
    main()
