"""Compare modes on networks with embedding tables: test score and examples/s, with equally fast workers and with a slow one.

    python -m benchmarks.asynchrony_on_tables --folder study --seeds 8 --output RECORD
    python -m benchmarks.asynchrony_on_tables --draw RECORD

The data are generated clicks whose keys follow Zipf's law with three exponents (scored by AUC), and the ratings of MovieLens
100K (RMSE). All modes see the same examples equally often, in batches of equal size for each worker, so an update of `sync-ps`
has three batches. Each mode has the learning rate that is best on held-out training examples: a grid of three rates is widened
until its best rate is not at its edge. The rates are found with one seed and equally fast workers. The final runs train on all
training examples, and the last weights are scored. There is one parameter server, because `sync-ps` works with one only.
With rule adam, `async` predicts weights by default and `bounded` does not. `--set staleness.method=none` switches this off.

The rates are found by `benchmarks/trials.py`, and the final runs are a comparison of `ps_cluster.compare`, both below FOLDER.
The same command continues an interrupted study. `--draw` prints the table of a record, and draws its figure beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import product
from operator import sub
from pathlib import Path
from statistics import mean
from typing import Any

import click

import ps_cluster
from benchmarks import recommenders
from benchmarks.records import Column, Record, half_interval, keep, print_table
from benchmarks.trials import STEP, Arm, Difference, Study, lines_of
from ps_cluster.cli.command_line import OneLineCommand
from ps_cluster.cli.value_types import OUTPUT_FILE, OUTPUT_FOLDER, CommaList, Integer
from ps_cluster.config.user_settings import parse_assignment
from ps_cluster.errors import UserError
from ps_cluster.files.json_files import read_json
from ps_cluster.files.writing import write_whole
from ps_cluster.report.plots import Plot, grid, legend_outside, line_styles, plain_ticks, plot_style
from ps_cluster.report.terminal import print_line
from ps_cluster.tools.compare.estimates import SeededValues, ratio
from ps_cluster.tools.compare.records import Record as RunRecord
from ps_cluster.tools.compare.records import read_record

MODES = ("single", "sync-ps", "bounded", "async")
BASELINE, NO_STRAGGLER = "single", "none"
GRID = (1 / STEP, 1.0, STEP)  # factors of the middle learning rate of the data
RUN_S, SLOW_RUN_S = 30.0, 60.0  # about how long a run takes on two cores; the same with a slow worker
CLUSTER = {"cluster.workers": 3, "cluster.parameter_servers": 1}
SHARED = {**recommenders.SHARED, "evaluation.recompute_updates": False}
COLUMNS = {
    "data": Column(heading="data"),
    "metric": Column(heading="metric"),
    "mode": Column(heading="mode"),
    "rate": Column(heading="learning rate", digits=5),
    "staleness": Column(heading="mean staleness", digits=2, spread="interval"),
    "score": Column(heading="test score", digits=4, spread="interval"),
    "difference": Column(heading=f"minus that of {BASELINE}", digits=4, spread="interval"),
    "slow_score": Column(heading="with a slow worker", digits=4, spread="interval"),
    "speed": Column(heading="examples/s", spread="interval"),
    "slow_speed": Column(heading="with a slow worker", spread="interval"),
}


@dataclass(frozen=True)
class Work:
    """The network and the data on which the modes are compared.

    Attributes:
      data: the name of a data set; "" for the ratings of MovieLens, whose path is known once they have been downloaded.
      metric: the metric by which rates are chosen and modes are compared.
      rate: the middle of the grid of learning rates.
      held_out: the number of training examples that are held out to choose the rate.
      settings: further settings of every run.
    """

    network: str
    data: str
    metric: str
    rate: float
    held_out: int
    settings: Mapping[str, Any]


# An epoch of clicks has 781 updates, or 260 in sync-ps, and each of the 520,000 rows is looked up ten times on average.
CLICKS = {"data.train_examples": 200_000, "training.epochs": 1.0}
WORKS = {
    f"clicks {exponent}": Work("dlrm", "clicks", "auc", 0.005, 20_000, {**CLICKS, "data.zipf_exponent": exponent})
    for exponent in (0.8, 1.0, 1.2)
} | {"movielens": Work("two_tower", "", "rmse", 0.001, 8_000, {"training.epochs": 5.0})}


def data_of(work: Work) -> str:
    """Return the name of the data set of `work`; for MovieLens, the path of its file after it has been downloaded."""
    return work.data or str(recommenders.data_of(recommenders.PROGRAMS["movielens"]))


def trained(
    work: Work, folder: Path, rates: Mapping[str, float], assignments: Mapping[str, Any], seeds: int, straggler: str
) -> list[RunRecord]:
    """Return the runs of a comparison in `folder`, after training those that are missing there.

    `rates`: mode → learning rate. `assignments`: settings of all runs. `straggler`: the slow worker, e.g. 2:5x.
    """
    arms = [{"mode": mode, "set": {"optimizer.learning_rate": rate}} for mode, rate in rates.items()]
    settings = {**SHARED, **CLUSTER, "evaluation.monitor": work.metric, **work.settings, **assignments}
    compared = ps_cluster.compare(
        arms, work.network, data_of(work), output=folder, settings=settings, batches=["same_per_worker"],
        score_every_epochs=float(settings["training.epochs"]), seeds=seeds, stragglers=[NO_STRAGGLER, straggler],
    )  # fmt: skip
    return [read_record(run.run_dir) for run in compared.runs]


def tuned(name: str, folder: Path, assignments: Mapping[str, Any]) -> dict[str, float]:
    """Return the learning rate that is best on held-out examples, by mode.

    `name`: the data, a key of WORKS. `assignments`: settings of all runs.
    """
    arms = {mode: tuned_arm(name, mode, assignments) for mode in MODES}
    folder.mkdir(parents=True, exist_ok=True)
    study = Study(folder / "tuning.json", list(arms.values()))
    study.train(0, at_a_time=1)  # a mode needs both cores
    return {mode: arm.best(study.tried(arm)).rate for mode, arm in arms.items()}


def tuned_arm(name: str, mode: str, assignments: Mapping[str, Any]) -> Arm:
    """Return the arm of a study that finds the learning rate of a mode. `name`: the data, a key of WORKS."""
    work = WORKS[name]
    settings = {
        **SHARED, **({} if mode == BASELINE else CLUSTER), "evaluation.monitor": work.metric, **work.settings,
        "data.dataset": data_of(work), "model.name": work.network, "mode.name": mode,
        "checkpoints.every_epochs": work.settings["training.epochs"], **assignments,
    }  # fmt: skip
    scale = -1.0 if work.metric == "rmse" else 1.0
    return Arm(f"{name}: {mode}", settings, tuple(work.rate * factor for factor in GRID), work.held_out, scale)


def rows_of(name: str, metric: str, runs: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """Return a row for each mode. A run that diverged is left out, so its row has a smaller n."""
    scored = [(run, run.final) for run in sorted(runs, key=lambda run: run.seed) if run.final is not None]
    base = {run.seed: score for run, score in scored if run.config.mode.name == BASELINE}
    rows = []
    for mode in MODES:
        of_mode = [(run, score) for run, score in scored if run.config.mode.name == mode]
        mine = [(run, score) for run, score in of_mode if run.straggler == NO_STRAGGLER]
        slow = [(run, score) for run, score in of_mode if run.straggler != NO_STRAGGLER]
        if mine:
            rows.append({
                "data": name, "metric": metric, "mode": mode,
                "rate": mine[0][0].config.optimizer.learning_rate,
                "staleness": [run.summary.staleness.mean or 0.0 for run, _ in mine],
                "score": [score for _, score in mine],
                "difference": [score - base[run.seed] for run, score in mine if run.seed in base],
                "slow_score": [score for _, score in slow] or None,
                "speed": [run.examples_per_second for run, _ in mine],
                "slow_speed": [run.examples_per_second for run, _ in slow] or None,
            })  # fmt: skip
    return rows


def figure(record: Record) -> Plot:
    """Return the figure of a record: a panel for each data set, with the score of each mode over its examples/s."""
    names, styles = list(dict.fromkeys(row["data"] for row in record.rows)), line_styles(MODES)
    with plot_style():
        drawn, lines = grid(-(-len(names) // 2), min(2, len(names)), 3.0)
        panels = [panel for line in lines for panel in line]
        for name, panel in zip(names, panels):
            rows = [row for row in record.rows if row["data"] == name]
            for row, prefix in product(rows, ("", "slow_")):
                x, y, (color, _, marker) = row[f"{prefix}speed"], row[f"{prefix}score"], astuple(styles[row["mode"]])
                if x:  # mode single has no slow worker
                    panel.errorbar(
                        mean(x), mean(y), half_interval(y), half_interval(x), marker=marker, color=color,
                        linestyle="none", capsize=2, markerfacecolor="white" if prefix else color,
                        label=row["mode"] + ", a slow worker" * bool(prefix),
                    )  # fmt: skip
            metric = rows[0]["metric"]
            panel.set(
                title=name, xlabel="examples/s", ylabel=f"test {metric}" + ", smaller is better" * (metric == "rmse")
            )
            plain_ticks(panel)
        for unused in panels[len(names) :]:
            unused.remove()
        legend_outside(drawn, panels[: len(names)])
    return Plot("asynchrony_on_tables", "", "", drawn)


def compared_with(record: Record) -> list[str]:
    """Return lines that compare async with other modes, seed by seed, by differences of scores and ratios of speeds."""
    rows = {(row["data"], row["mode"]): row for row in record.rows}
    names = dict.fromkeys(data for data, _ in rows)
    measured = [values for row in record.rows for values in row.values() if isinstance(values, list)]
    if len(rows) < len(names) * len(MODES) or len({len(values) for values in measured}) > 1:
        return ["a run diverged, so the seeds of the modes do not match, and async is not compared with the others"]
    differences = [
        Difference(
            f"{data}: async minus {other}", tuple(map(sub, rows[data, "async"]["score"], rows[data, other]["score"]))
        )
        for data, other in product(names, (BASELINE, "sync-ps"))
    ]
    ratios = []
    for data, (key, other) in product(names, (("speed", BASELINE), ("speed", "sync-ps"), ("slow_speed", "sync-ps"))):
        speeds = (rows[data, mode][key] for mode in ("async", other))
        found = ratio(*(SeededValues(tuple(range(len(one))), tuple(one)) for one in speeds))
        slow = ", a slow worker" * (key == "slow_speed")
        spread = f"{found.mean:.2f} ({found.low:.2f} to {found.high:.2f})"
        ratios.append(f"{data}{slow}: examples/s of async ÷ {other} {spread}")
    return [*lines_of(differences, 4), *ratios]


def draw(path: Path) -> None:
    """Print the table of a record and how async compares with other modes, and draw the figure beside the record."""
    record, picture = read_json(path, Record), path.with_suffix(".png")
    write_whole(picture, figure(record).png)
    print_table(record)
    for line in (*compared_with(record), f"figure {picture}"):
        print_line(line)


@click.command(cls=OneLineCommand)
@click.option(
    "--folder",
    type=OUTPUT_FOLDER,
    help="Folder of the runs. Runs that an interrupted study left in it are not trained again.",
)
@click.option(
    "--data",
    "names",
    type=CommaList(click.Choice(list(WORKS))),
    default=",".join(WORKS),
    help="Compare on these data sets only.",
)
@click.option(
    "--seeds",
    type=Integer(2, 100),
    default=8,
    help="Number of final runs of each mode, with and without a slow worker.",
)
@click.option("--straggler", default="2:5x", help="The slow worker, e.g. 2:5x.")
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="A setting of all runs.")
@click.option("--output", type=OUTPUT_FILE, help="Write the record to this JSON file, and draw it.")
@click.option("--draw", "drawn", type=click.Path(exists=True, path_type=Path), help="Train nothing; draw this record.")
def main(
    folder: Path | None, names: tuple[str, ...], seeds: int, straggler: str, assignments: tuple[str, ...],
    output: Path | None, drawn: Path | None,
) -> None:  # fmt: skip
    """Compare modes on networks with embedding tables, or draw the record of such a comparison."""
    if drawn:
        return draw(drawn)
    if folder is None or output is None:
        raise UserError("--folder, --output: give both, or --draw")
    settings: dict[str, Any] = dict(map(parse_assignment, assignments))
    runs, slow = len(names) * len(MODES) * (len(GRID) + seeds), len(names) * (len(MODES) - 1) * seeds
    print_line(
        f"{runs + slow} runs, and some more if a grid is widened: about {(runs * RUN_S + slow * SLOW_RUN_S) / 3600:.1f} h; "
        f"finished runs in '{folder}' are used again"
    )
    rows: list[dict[str, Any]] = []
    commits: set[str] = set()
    for name in names:
        work, place = WORKS[name], folder / name.replace(" ", "-")
        final = trained(work, place / "final", tuned(name, place, settings), settings, seeds, straggler)
        rows += rows_of(name, work.metric, final)
        commits |= {machine.commit for run in final if (machine := run.summary.machine) and machine.commit}
        keep(output, rows, COLUMNS, commit=", ".join(sorted(commits)))
        draw(output)


if __name__ == "__main__":
    main()
