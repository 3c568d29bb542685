"""Compare modes that train for the same time, with equally fast workers and with one that is five times slower.

    python -m benchmarks.equal_time --data-dir DATA --folder FOLDER
    python -m benchmarks.equal_time --draw

First the constant learning rate of each mode is chosen on held-out examples, with one seed, by the mean of the last three
scores: the grid is widened until the best rate is not at its edge. In these trials one worker or process computes what the
mode computes, so that two trials can share the cores: the staleness of three workers is emulated, and an update of `sync` or
`sync-ps` becomes an update of `single` with the batches of all workers whose gradients it averages.

Then three real workers and a parameter server train for 240 s in each mode and with each seed, one run after the other.
All processes share the cores of this machine, so a worker that waits leaves its core to the others. The figure also
predicts what they would reach if each task had its own machine. From the costs of a run with one worker, `simulate`
computes the examples/s of such a cluster. The predicted accuracy is the one that the measured runs reached after the
same number of examples.

An interrupted study continues with the same command, and more `--seeds` extend it. `--draw` prints the table and the
differences of the record with Holm's correction, and draws the figure beside the record. It needs no training.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import product
from operator import sub
from pathlib import Path
from statistics import mean
from typing import Any

import click
import numpy as np

import ps_cluster
from benchmarks.records import RECORDS, Column, Record, half_interval, keep, print_table
from benchmarks.staleness_chart import ONE_WORKER, SHARED
from benchmarks.training import train
from benchmarks.trials import AT_A_TIME, DATA_DIR, Arm, Difference, Study, lines_of
from ps_cluster.cli.command_line import OneLineCommand
from ps_cluster.cli.value_types import OUTPUT_FILE, OUTPUT_FOLDER, Integer
from ps_cluster.config.stragglers import parse_stragglers
from ps_cluster.errors import UserError
from ps_cluster.files.json_files import read_json
from ps_cluster.files.writing import write_whole
from ps_cluster.report.plots import Plot, grid, legend_outside, line_styles, plot_style
from ps_cluster.report.terminal import print_line
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.tools.compare.records import Record as RunRecord
from ps_cluster.tools.compare.records import read_record
from ps_cluster.tools.simulate.calibration import calibrate, read_run
from ps_cluster.tools.simulate.costs import SHIPPED_COSTS, Costs, Links, SimulatedCluster, read_costs
from ps_cluster.tools.simulate.prediction import predict

NETWORK, WORKERS, BATCH = "tutorial_cnn", 3, 128
NO_STRAGGLER, SLOW = "none", "2:5x"
TITLES = {NO_STRAGGLER: "equally fast workers", SLOW: "one worker five times slower"}
SECONDS, COMPARED_AFTER = 240, (60, 120, 240)
DRAWN_AFTER = range(40, SECONDS + 1, 20)
COST_STEPS = 3000  # of the run that measures the costs of a step
LINKS = Links(link_bytes_per_second=10e9 / 8, latency_seconds=50e-6)
DATASET = {"model.name": NETWORK, "data.dataset": "cifar10"}
# Three workers train on ten epochs in about 110 s.
TRIED = {
    **SHARED, **DATASET, "training.epochs": 10.0, "checkpoints.every_epochs": 1.0, "schedule.kind": "constant",
    "schedule.warmup_fraction": 0.0,
}  # fmt: skip
RATES = (0.005, 0.01, 0.02, 0.04)
COLUMNS = {
    "straggler": Column(heading="workers"),
    "mode": Column(heading="mode"),
    "rate": Column(heading="learning rate", digits=3),
    "staleness": Column(heading="mean staleness", digits=2, spread="interval"),
    "speed": Column(heading="images/s", spread="interval"),
    **{
        f"{seconds}": Column(heading=f"after {seconds} s [%]", digits=1, spread="interval")
        for seconds in COMPARED_AFTER
    },
    "own_speed": Column(heading="images/s, own machines"),
    "own 60": Column(heading="after 60 s, own machines [%]", digits=1, spread="interval"),
}


@dataclass(frozen=True)
class ComparedMode:
    """A mode of the comparison.

    Attributes:
      trial: the settings of the trials that choose its learning rate.
      backup_workers: how many late gradients an update does not wait for.
      simulated: whether `simulate` can predict its speed.
    """

    mode: str
    trial: Mapping[str, Any]
    backup_workers: int = 0
    simulated: bool = True

    @property
    def name(self) -> str:
        return self.mode + f", {self.backup_workers} backup worker" * bool(self.backup_workers)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the mode in the comparison, besides its name."""
        return {"mode.backup_workers": self.backup_workers} if self.backup_workers else {}

    @property
    def choice(self) -> Arm:
        """The arm of the study that chooses the learning rate of the mode."""
        return Arm(self.name, {**TRIED, **self.trial}, RATES, held_out=5_000, scale=100.0, averaged=3)

    def own_speed(self, costs: Costs, straggler: str) -> float | None:
        """Return the predicted examples/s if each task has its own machine; None if the mode is not simulated."""
        if not self.simulated:
            return None
        cluster = SimulatedCluster(
            WORKERS, 1, LINKS, self.mode, self.backup_workers, stragglers=parse_stragglers(straggler)
        )
        return predict(costs, cluster).examples_per_second


def _alone(gradients: int) -> dict[str, Any]:
    return {"mode.name": "single", "training.batch_size_per_worker": gradients * BATCH}


MODES = (
    ComparedMode("async", {**ONE_WORKER, "mode.simulate_workers": WORKERS}),
    ComparedMode("sync", _alone(WORKERS)),
    ComparedMode("sync-ps", _alone(WORKERS - 1), backup_workers=1),
    ComparedMode("single", _alone(1), simulated=False),
)


def chosen_rates(record: Path, at_a_time: int, data: Mapping[str, Any]) -> dict[str, float]:
    """Return the best learning rate of each mode, by its name. First train the trials that the record lacks."""
    study = Study(record, [one.choice for one in MODES])
    study.train(0, at_a_time, data)
    return {one.name: one.choice.best(study.tried(one.choice)).rate for one in MODES}


def measured_costs(root: Path, data: Mapping[str, Any]) -> Costs:
    """Return the costs of a step of one worker that has the machine for itself, from the run in `root`.

    If this run has not ended yet, it is trained first.
    """
    if not RunDir(root).summary.exists():
        shutil.rmtree(root, ignore_errors=True)  # a run that was interrupted
        steps = {"training.steps": COST_STEPS, "cluster.evaluator": False}
        train(root, {**SHARED, **DATASET, **ONE_WORKER, **data, **steps})
    return calibrate(read_run(root), read_costs(SHIPPED_COSTS))


def trained(folder: Path, rates: Mapping[str, float], seeds: int, data: Mapping[str, Any]) -> list[RunRecord]:
    """Return the runs of the comparison, after training those that are missing in its folder."""
    arms = [{"mode": one.mode, "set": {**one.settings, "optimizer.learning_rate": rates[one.name]}} for one in MODES]
    compared = ps_cluster.compare(
        arms, NETWORK, "cifar10", output=folder, settings={**SHARED, **data}, workers=WORKERS, batch_size=BATCH,
        seeds=seeds, stragglers=[NO_STRAGGLER, SLOW], batches=["same_per_worker"], seconds=SECONDS,
    )  # fmt: skip
    return [read_record(run.run_dir) for run in compared.runs]


def after_examples(run: RunRecord, examples: float) -> float | None:
    """Return the accuracy after a number of examples; None if the run was not scored so early, or had fewer."""
    counts, scores = zip(*((score.examples, value) for score, value in run.track))
    return float(np.interp(examples, counts, scores)) if counts[0] <= examples <= counts[-1] else None


def rows_of(runs: Sequence[RunRecord], costs: Costs) -> list[dict[str, Any]]:
    """Return a row for each mode, with equally fast workers and with a slow one. Accuracies are in percent."""
    rows = []
    for straggler, one in product(TITLES, MODES):
        mine = sorted(
            (run for run in runs if run.config.mode.name == one.mode and run.straggler == straggler),
            key=lambda run: run.seed,
        )
        if not mine:
            continue  # a single process has no slow worker
        own_speed = one.own_speed(costs, straggler)
        row: dict[str, Any] = {
            "straggler": TITLES[straggler], "mode": one.name, "rate": mine[0].config.optimizer.learning_rate,
            "staleness": [run.summary.staleness.mean or 0.0 for run in mine],
            "speed": [run.examples_per_second for run in mine], "own_speed": own_speed,
        }  # fmt: skip
        for seconds in DRAWN_AFTER:
            row[f"{seconds}"] = _percents([run.after(seconds) for run in mine])
            if own_speed:
                row[f"own {seconds}"] = _percents([after_examples(run, seconds * own_speed) for run in mine])
        rows.append(row)
    return rows


def _percents(shares: Sequence[float | None]) -> list[float] | None:
    """Return the accuracies of some runs in percent; None if one of them is None."""
    known = [100 * share for share in shares if share is not None]
    return known if len(known) == len(shares) else None


def figure(record: Record) -> Plot:
    """Return the figure of a record: the accuracy over time, measured above and predicted below.

    The panels on the left show equally fast workers, those on the right one slow worker.
    """
    styles = line_styles([one.name for one in MODES])
    with plot_style():
        drawn, lines = grid(2, 2, 2.6)
        places = product((("", "measured, all on two cores"), ("own ", "predicted, own machines")), TITLES.values())
        panels = [panel for line in lines for panel in line]
        for panel in panels[1:]:
            panel.sharey(panels[0])
        for ((prefix, place), title), panel in zip(places, panels):
            for row in record.rows:
                # A single process has no slow worker, so it is drawn in both measured panels.
                here = row["straggler"] == title or (row["mode"] == "single" and not prefix)
                points = [(at, row[f"{prefix}{at}"]) for at in DRAWN_AFTER if row.get(f"{prefix}{at}")]
                if here and points:
                    color, line, marker = astuple(styles[row["mode"]])
                    panel.errorbar(
                        [at for at, _ in points], [mean(of) for _, of in points], [half_interval(of) for _, of in points],
                        color=color, linestyle=line, marker=marker, markersize=4, capsize=2, label=row["mode"],
                    )  # fmt: skip
            panel.set(title=f"{title}\n{place}", xlabel="training time [s]", ylabel="test accuracy [%]")
            panel.set_xlim(0, SECONDS * 1.03)
        legend_outside(drawn, panels)
    return Plot("equal_time", "", "", drawn)


def differences(record: Record) -> list[Difference]:
    """Return by how much async is better than each other mode, in points, seed by seed."""
    rows = {(row["straggler"], row["mode"]): row for row in record.rows}
    found = []
    for title, seconds, other in product(TITLES.values(), COMPARED_AFTER, MODES[1:]):
        # A single process has no slow worker, so the same runs stand for both.
        theirs = rows.get((title, other.name)) or rows[TITLES[NO_STRAGGLER], other.name]
        of, against = rows[title, MODES[0].name][f"{seconds}"], theirs[f"{seconds}"]
        if of and against and len(of) == len(against) > 1:
            name = f"{title}, after {seconds} s: {MODES[0].name} minus {other.name}"
            found.append(Difference(name, tuple(map(sub, of, against))))
    return found


def draw(output: Path) -> None:
    """Print the table of a record and how async compares with the other modes, and draw the figure beside the record."""
    record, picture = read_json(output, Record), output.with_suffix(".png")
    print_table(record)
    for line in lines_of(differences(record), digits=2):
        print_line(line)
    write_whole(picture, figure(record).png)
    print_line(f"figure {picture}")


@click.command(cls=OneLineCommand)
@DATA_DIR
@click.option("--folder", type=OUTPUT_FOLDER, help="Folder of the runs, which a continued study uses again.")
@click.option(
    "--seeds", type=Integer(2, 100), default=5, help="Number of runs of each mode, with and without a slow worker."
)
@click.option("--output", type=OUTPUT_FILE, default=RECORDS / "equal_time.json", help="The record of the comparison.")
@click.option(
    "--trials", type=OUTPUT_FILE, default=RECORDS / "equal_time_trials.json", help="The record of the trials."
)
@AT_A_TIME
@click.option("--draw", "only_draw", is_flag=True, help="Train nothing; only draw the record.")
def main(
    data_dir: Path | None, folder: Path | None, seeds: int, output: Path, trials: Path, at_a_time: int, only_draw: bool
) -> None:  # fmt: skip
    """Compare modes that train for the same time, or draw the record of such a comparison."""
    if not only_draw:
        if folder is None:
            raise UserError("--folder: give one, or --draw")
        data = {"data.data_dir": f"{data_dir}"} if data_dir else {}
        rates = chosen_rates(trials, at_a_time, data)
        costs = measured_costs(folder / "one_worker", data)
        runs = trained(folder / "comparison", rates, seeds, data)
        commits = {run.summary.machine.commit for run in runs if run.summary.machine and run.summary.machine.commit}
        keep(output, rows_of(runs, costs), COLUMNS, commit=", ".join(sorted(commits)))
    draw(output)


if __name__ == "__main__":
    main()
