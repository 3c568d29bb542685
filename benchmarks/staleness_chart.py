"""Measure what staleness costs: the test scores of six rules at a mean staleness of 0, 2 and 8.

    python -m benchmarks.staleness_chart --network tutorial_cnn --data-dir DATA
    python -m benchmarks.staleness_chart --draw

Staleness 0 is mode `single`. Other values are emulated by one worker that gets the weights of earlier versions, so the
scores do not depend on the speed of the machine, and two trainings can share two cores. The learning rate of each
point, and the momentum of a rule that has one, are the best on held-out examples with one seed
(`benchmarks/trials.py`); the grid is widened until the best rate is not at its edge. Then each point is trained with
fresh seeds on all training examples, and the last weights are scored on the test examples (for byte_lm on 1,000 of
them, spread evenly). An interrupted study continues with the same command. With byte_lm, `muon` is rule `muon_adam`.

`--draw` prints the table and the differences that the pages name, with Holm's correction over all of them, and writes the
figure beside the record. It needs no training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import click

from benchmarks.records import RECORDS, Column, half_interval, keep, print_table
from benchmarks.trials import AT_A_TIME, DATA_DIR, Arm, Difference, Study, lines_of
from ps_cluster.cli.command_line import OneLineCommand
from ps_cluster.cli.value_types import OUTPUT_FILE, Integer
from ps_cluster.errors import UserError
from ps_cluster.files.writing import write_whole
from ps_cluster.report.plots import Plot, grid, legend_outside, line_styles, plot_style
from ps_cluster.report.terminal import print_line

STALENESS = (0, 2, 8)
MOMENTUM, ORDERED = "optimizer.momentum", "staleness.momentum"
COLUMNS = {
    "network": Column(heading="network"),
    "rule": Column(heading="rule"),
    **{f"chosen {staleness}": Column(heading=f"rate, momentum at {staleness}") for staleness in STALENESS},
    **{
        f"{staleness}": Column(heading=f"staleness {staleness}", digits=2, spread="interval") for staleness in STALENESS
    },
}


@dataclass(frozen=True)
class Rule:
    """An update rule with its staleness method.

    Attributes:
      method: the name of the staleness method; "" for no method.
      momentum_key: the name of the setting that holds the momentum.
      settings: further settings of the rule.
      momenta: the momenta to choose from. A rule without momentum has ().
      alone: the name of the rule that this rule equals if no gradient is stale; "" if there is no such rule. Both
        rules then share a point of the chart, which is trained once.
    """

    name: str
    rule: str
    method: str = ""
    momentum_key: str = MOMENTUM
    alone: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    momenta: tuple[float, ...] = (0.9, 0.5)


ADAM = Rule("adam", "adam")
PREDICT = Rule("adam, predict", "adam", "predict", alone="adam")
MUON = Rule("muon", "muon")
RULES = (
    Rule("sgd", "sgd", momenta=()),
    Rule("momentum", "momentum"),
    Rule("sgd, ordered_momentum", "sgd", "ordered_momentum", ORDERED, alone="momentum"),
    ADAM,
    PREDICT,
    MUON,
)
# As in language models: the matrices of the hidden layers follow Muon, and all other weights Adam.
MUON_ADAM = Rule("muon_adam", "muon_adam", settings={"optimizer.matrices": ["block*kernel"]})


@dataclass(frozen=True)
class Work:
    """A network with its data, and how long it trains.

    Attributes:
      metric: the name of the score on the figure, with its unit.
      scale: the factor that turns a score into the unit of `metric`. It is negative if a smaller score is better.
      held_out: the number of training examples that are held out to choose the rate and the momentum.
      rates: the first learning rates of each rule. They are the same for each staleness.
      batch: the number of examples in a batch of a worker.
      adam: further settings of rule adam.
      instead: name of a rule → the rule that stands for it with this network.
    """

    settings: Mapping[str, Any]
    metric: str
    scale: float
    held_out: int
    rates: Mapping[str, tuple[float, ...]]
    batch: int = 128
    adam: Mapping[str, Any] = field(default_factory=dict)
    instead: Mapping[str, Rule] = field(default_factory=dict)


SHARED = {"model.precision": "float32", "evaluation.draw_results": False, "evaluation.recompute_updates": False}
ONE_WORKER = {"mode.name": "async", "cluster.workers": 1, "cluster.parameter_servers": 1}
WORKS = {
    "tutorial_cnn": Work(
        settings={"data.dataset": "cifar10", "training.epochs": 3.0, "checkpoints.every_epochs": 3.0},
        metric="test accuracy [%]",
        scale=100.0,
        held_out=5_000,
        rates={
            "sgd": (0.05, 0.1, 0.2, 0.4), "momentum": (0.005, 0.01, 0.02, 0.04), "adam": (0.0005, 0.001, 0.002, 0.004),
            "muon": (0.005, 0.01, 0.02, 0.04),
        },
        # The values of the recipe for several workers. They were chosen on held-out examples, at a staleness of 0 and of 2.
        adam={"optimizer.beta_2": 0.9, "optimizer.global_clip_norm": 0.5},
    ),
    "byte_lm": Work(
        # Scoring all test examples would take as long as the training.
        settings={
            "data.dataset": "python_source", "training.epochs": 0.055, "checkpoints.every_epochs": 0.055,
            "evaluation.scored_examples": 1_000,
        },
        metric="test bits per byte",
        scale=-1.0,
        held_out=500,
        rates={
            "sgd": (0.1, 0.2, 0.4, 0.8), "momentum": (0.02, 0.04, 0.08, 0.16), "adam": (0.0005, 0.001, 0.002, 0.004),
            "muon_adam": (0.005, 0.01, 0.02, 0.04),
        },
        batch=16,
        instead={"muon": MUON_ADAM},
    ),
}  # fmt: skip


def arm(network: str, rule: Rule, staleness: int) -> Arm:
    """Return the arm of the study that trains a point of the chart: a network with a rule at a mean staleness."""
    if rule.alone and not staleness:
        return arm(network, next(other for other in RULES if other.name == rule.alone), 0)
    return arm_of(WORKS[network], network, rule, staleness)


def arm_of(work: Work, network: str, rule: Rule, staleness: int) -> Arm:
    """Return the arm that trains a network as `work` describes, by a rule and at a mean staleness.

    `network`: the beginning of the arm's name, and the network to train, unless `work` names another one.
    """
    rule = work.instead.get(rule.name, rule)
    settings: dict[str, Any] = {
        **SHARED,
        "model.name": network,
        "training.batch_size_per_worker": work.batch,
        **work.settings,
        "optimizer.rule": rule.rule,
        **rule.settings,
    }
    if rule.rule == "adam":
        settings |= work.adam
    if staleness:
        method = rule.method or "none"
        settings |= {**ONE_WORKER, "mode.simulate_workers": staleness + 1, "staleness.method": method}
    else:
        settings |= {"mode.name": "single"}
    rates = work.rates["momentum" if rule.method == "ordered_momentum" else rule.rule]
    name = f"{network}: {rule.name}, staleness {staleness}"
    return Arm(name, settings, rates, work.held_out, work.scale, rule.momentum_key, rule.momenta)


def arms_of(network: str) -> list[Arm]:
    """Return all arms of a network, each once."""
    return list({one.name: one for one in (arm(network, *point) for point in product(RULES, STALENESS))}.values())


def study_of(network: str, record: Path) -> Study:
    """Return the study of a network. Trials of `benchmarks/delay_of_one.py` are some of its points, and are used again."""
    return Study(record, arms_of(network), used_again=[RECORDS / "delay_trials.json"])


def differences(study: Study, network: str) -> list[Difference]:
    """Return the differences that the pages name.

    These are what staleness costs each rule, what each method gains, by how much Muon is better than each other rule, and
    how much more or less it loses by staleness.
    """
    found = []
    for rule, staleness in product(RULES, STALENESS[1:]):
        name = f"{network}, {rule.name}: staleness {staleness} against 0"
        found.append(study.difference(name, arm(network, rule, staleness), arm(network, rule, 0)))
        for plain in RULES:
            if rule.alone == plain.name:
                name = f"{network}, staleness {staleness}: {rule.name} against {plain.name}"
                found.append(study.difference(name, arm(network, rule, staleness), arm(network, plain, staleness)))
    for rule, staleness in product([rule for rule in RULES if rule is not MUON], STALENESS):
        if rule.alone and not staleness:
            continue  # the same trainings as those of the rule `alone`
        name = f"{network}, staleness {staleness}: muon against {rule.name}"
        muon, other = arm(network, MUON, staleness), arm(network, rule, staleness)
        found.append(study.difference(name, muon, other))
        if staleness:
            name = f"{network}, staleness {staleness} against 0: muon against {rule.name}"
            found.append(study.contrast(name, [muon, arm(network, rule, 0)], [arm(network, MUON, 0), other]))
    return [one for one in found if len(one.values) > 1]


def rows_of(study: Study, network: str) -> list[dict[str, Any]]:
    """Return a row of the table for each rule: the best rate and momentum and the final scores at each staleness."""
    rows = []
    for rule in RULES:
        row: dict[str, Any] = {"network": network, "rule": rule.name}
        for staleness in STALENESS:
            point = arm(network, rule, staleness)
            if tried := study.tried(point):
                row[f"chosen {staleness}"] = point.best(tried).text
            if scores := study.scores(point):
                row[f"{staleness}"] = [abs(point.scale) * score for score in scores.values()]
        rows.append(row)
    return rows


def figure(study: Study, networks: Sequence[str]) -> Plot:
    """Return the chart: a panel for each network, a line for each rule, with 95 % intervals."""
    styles = line_styles([rule.name for rule in RULES])
    with plot_style():
        drawn, [panels] = grid(1, len(networks), 3.4)
        for network, panel in zip(networks, panels):
            for number, rule in enumerate(RULES):
                points = [
                    (staleness, list(study.scores(arm(network, rule, staleness)).values())) for staleness in STALENESS
                ]
                shown = [(staleness, [abs(WORKS[network].scale) * one for one in of]) for staleness, of in points if of]
                if shown:
                    color, line, marker = astuple(styles[rule.name])
                    panel.errorbar(
                        [staleness + 0.08 * (number - 2.5) for staleness, _ in shown],  # side by side, so that all are seen
                        [mean(of) for _, of in shown], [half_interval(of) for _, of in shown], color=color,
                        linestyle=line, marker=marker, capsize=2, label=rule.name,
                    )  # fmt: skip
            panel.set(title=network, xlabel="mean staleness [updates]", ylabel=WORKS[network].metric, xticks=STALENESS)
        legend_outside(drawn, panels)
    return Plot("staleness_chart", "", "", drawn)


def draw(record: Path) -> None:
    """Print the table and the differences of the trials in a record, and draw the chart beside it.

    A network is shown if each of its points has a final trial.
    """
    studies = {network: study_of(network, record) for network in WORKS}
    networks = [network for network, study in studies.items() if all(study.finals(one) for one in arms_of(network))]
    if not networks:
        raise UserError(
            f"--record: '{record}' does not have a final trial of each point of a network yet: run the study without --draw "
            "first"
        )
    rows = [row for network in networks for row in rows_of(studies[network], network)]
    commits = set[str]().union(*(studies[network].commits(on_held_out=False) for network in networks))
    print_table(keep(record.with_name("staleness_chart.json"), rows, COLUMNS, commit=", ".join(sorted(commits))))
    found = [one for network in networks for one in differences(studies[network], network)]
    for line in lines_of(found, digits=2):
        print_line(line)
    write_whole(picture := record.with_name("staleness_chart.png"), figure(studies[networks[0]], networks).png)
    print_line(f"figure {picture}")


@click.command(cls=OneLineCommand)
@click.option("--network", type=click.Choice(list(WORKS)), help="The network to train.")
@DATA_DIR
@click.option("--seeds", type=Integer(2, 100), default=8, help="Number of final runs of each point of the chart.")
@click.option(
    "--record", type=OUTPUT_FILE, default=RECORDS / "staleness_trials.json", help="Where all trials are kept."
)
@AT_A_TIME
@click.option("--draw", "only_draw", is_flag=True, help="Train nothing; only draw the trials of the record.")
def main(
    network: str | None, data_dir: Path | None, seeds: int, record: Path, at_a_time: int, only_draw: bool
) -> None:  # fmt: skip
    """Measure what staleness costs each rule, or draw the trials of a record."""
    if only_draw:
        return draw(record)
    if network is None:
        raise UserError("--network: give one, or --draw")
    data = {"data.data_dir": f"{data_dir}"} if data_dir else {}
    study_of(network, record).train(seeds, at_a_time, data)


if __name__ == "__main__":
    main()
