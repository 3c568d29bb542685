"""Compare modes on networks with embedding tables: test score and examples/s, with equally fast workers and with a slow one.

    python -m benchmarks.asynchrony_on_tables --folder study --seeds 8 --output RECORD
    python -m benchmarks.asynchrony_on_tables --draw RECORD

The data are generated clicks whose keys follow Zipf's law with three exponents (scored by AUC), and the ratings of MovieLens
100K (RMSE). All modes see the same examples equally often, in batches of equal size for each worker, so an update of `sync-ps`
has three batches. Each mode has the learning rate that is best on held-out training examples: a grid of three rates is widened
until its best rate is not at its edge. The rates are found with one seed and equally fast workers. The final runs train on all
training examples, and the last weights are scored. There is one parameter server, because `sync-ps` works with one only.

Both parts are comparisons of `ps_cluster.compare` below FOLDER; the same command continues an interrupted study. `--draw`
prints the table of a record, and draws its figure beside it as a PNG file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import click

import ps_cluster
from benchmarks import recommenders
from benchmarks.records import Column, Record, keep, table
from ps_cluster.cli.command_line import OUTPUT_FILE, OUTPUT_FOLDER, CommaList, OneLineCommand, Whole
from ps_cluster.config.user_layers import parse_assignment
from ps_cluster.errors import UserError
from ps_cluster.files.json_files import read_json
from ps_cluster.files.writing import write_whole
from ps_cluster.report.plots import Plot, grid, legend_outside, looks, plain_ticks, plot_style
from ps_cluster.report.terminal import print_line
from ps_cluster.tools.compare.estimates import estimate
from ps_cluster.tools.compare.records import Record as RunRecord
from ps_cluster.tools.compare.records import read_record

MODES = ("single", "sync-ps", "bounded", "async")
BASELINE, NO_STRAGGLER = "single", "none"
GRID = (0.5, 1.0, 2.0)  # times the middle rate of the data
STEP = 2.0  # from one rate to the next
WIDENED = 1 / 3  # about how many rates more each mode needs, as a share of the grid
RUN_S = 30.0  # a run with its start and score on two cores; with a slow worker, sync-ps takes longer
SHARED = {
    **recommenders.SHARED, "cluster.workers": 3, "cluster.parameter_servers": 1, "evaluation.recompute_updates": False,
}  # fmt: skip
COLUMNS = {
    "data": Column(heading="data"),
    "metric": Column(heading="metric"),
    "mode": Column(heading="mode"),
    "straggler": Column(heading="slow worker"),
    "rate": Column(heading="learning rate", digits=5),
    "score": Column(heading="test score", digits=4, spread="interval"),
    "difference": Column(heading=f"difference to {BASELINE}", digits=4, spread="interval"),
    "speed": Column(heading="examples/s", spread="interval"),
    "staleness": Column(heading="mean staleness", digits=2, spread="interval"),
}


@dataclass(frozen=True)
class Work:
    """What all modes train. `rate`: the middle of the grid. `held_out`: the training examples that judge the rates."""

    network: str
    data: str
    metric: str
    rate: float
    held_out: int
    settings: Mapping[str, Any]


# An epoch of clicks has 781 updates, or 260 of sync-ps, and as many rows (520,000) as an epoch looks up ten times.
WORKS = {
    **{
        f"clicks {exponent}": Work(
            "dlrm", "clicks", "auc", 0.005, 20_000,
            {"data.zipf_exponent": exponent, "data.train_examples": 200_000, "training.epochs": 1.0},
        )
        for exponent in (0.8, 1.0, 1.2)
    },
    "movielens": Work("two_tower", "", "rmse", 0.001, 8_000, {"training.epochs": 5.0}),
}  # fmt: skip


def next_rate(merits: Mapping[float, float]) -> float | None:
    """Return the rate by which a grid is widened, or None if its best rate is not at its edge.

    Args:
      merits: learning rate → its merit, where larger is better.
    """
    best = max(merits, key=lambda rate: merits[rate])
    if best == max(merits):
        return best * STEP
    return best / STEP if best == min(merits) else None


def trained(
    work: Work, folder: Path, rates: Mapping[str, Sequence[float]], assignments: Mapping[str, Any], **options: Any
) -> list[RunRecord]:
    """Return the runs of a comparison in `folder`, after training those that are missing there.

    Args:
      rates: mode → the rates with which it is trained.
      assignments: settings of all runs, which replace those of the work.
      options: those of `ps_cluster.compare`.
    """
    arms = [{"mode": mode, "set": {"optimizer.learning_rate": rate}} for mode, some in rates.items() for rate in some]
    settings = {**SHARED, "evaluation.monitor": work.metric, **work.settings, **assignments}
    data = work.data or str(recommenders.data_of(recommenders.PROGRAMS["movielens"]))
    compared = ps_cluster.compare(
        arms, work.network, data, output=folder, settings=settings, batches=["same_per_worker"], baseline=None,
        score_every_epochs=float(settings["training.epochs"]), **options,
    )  # fmt: skip
    return [read_record(run.run_dir) for run in compared.runs]


def tuned(work: Work, folder: Path, assignments: Mapping[str, Any]) -> dict[str, float]:
    """Return the learning rate of each mode that is best on held-out examples."""
    merits: dict[str, dict[float, float]] = {mode: {} for mode in MODES}
    missing = {mode: [work.rate * factor for factor in GRID] for mode in MODES}
    held_out = {**assignments, "evaluation.validation_examples": work.held_out}
    for round_number in count(1):
        for run in trained(work, folder / f"tuning-{round_number}", missing, held_out, seeds=1):
            sign = 1 if run.metric.larger_is_better else -1
            merit = float("-inf") if run.final is None else sign * run.final
            merits[run.config.mode.name][float(run.config.optimizer.learning_rate or 0)] = merit
        found = {mode: next_rate(of_mode) for mode, of_mode in merits.items()}
        missing = {mode: [rate] for mode, rate in found.items() if rate is not None}
        if not missing:
            return {mode: max(of_mode, key=of_mode.__getitem__) for mode, of_mode in merits.items()}
    raise AssertionError


def rows_of(name: str, metric: str, runs: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """Return a row for each mode and slow worker. A run that diverged has no score."""
    by_place = {(run.config.mode.name, run.straggler, run.seed): run for run in runs}
    rows = []
    for mode, straggler in dict.fromkeys(place[:2] for place in sorted(by_place, key=_order)):
        mine = [run for place, run in by_place.items() if place[:2] == (mode, straggler) and run.final is not None]
        mine.sort(key=lambda run: run.seed)
        base = {seed: run.final for (other, _, seed), run in by_place.items() if other == BASELINE}
        rows.append({
            "data": name, "metric": metric, "mode": mode, "straggler": straggler,
            "rate": mine[0].config.optimizer.learning_rate if mine else None,
            "score": [run.final for run in mine],
            "difference": [run.final - at for run in mine if run.final is not None and (at := base[run.seed]) is not None],
            "speed": [run.examples_per_second for run in mine],
            "staleness": [run.summary.staleness.mean or 0.0 for run in mine],
        })  # fmt: skip
    return rows


def _order(place: tuple[str, str, int]) -> tuple[bool, int]:
    mode, straggler, _ = place
    return straggler != NO_STRAGGLER, MODES.index(mode)


def figure(record: Record) -> Plot:
    """Return the figure of a record: a panel for each data set, with the score of each mode over its examples/s."""
    names = list(dict.fromkeys(row["data"] for row in record.rows))
    look = looks(MODES)
    with plot_style():
        drawn, panels = grid(-(-len(names) // 2), 2, 2.6)
        flat = [panel for line in panels for panel in line]
        for panel in flat[len(names) :]:
            panel.set_visible(False)
        for name, panel in zip(names, flat):
            rows = [row for row in record.rows if row["data"] == name and row["score"]]
            for row in rows:
                slow, of_mode = row["straggler"] != NO_STRAGGLER, look[row["mode"]]
                (x, x_error), (y, y_error) = _point(row["speed"]), _point(row["score"])
                panel.errorbar(
                    x, y, y_error, x_error, marker=of_mode.marker, color=of_mode.color, linestyle="none",
                    markerfacecolor="white" if slow else of_mode.color, capsize=2,
                    label=row["mode"] + ", a slow worker" * slow,
                )  # fmt: skip
            better = "larger" if rows and rows[0]["metric"] == "auc" else "smaller"
            panel.set(title=name, xlabel="examples/s", ylabel=f"test {rows[0]['metric']} ({better} is better)")
            plain_ticks(panel)
        legend_outside(drawn, flat)
    return Plot("asynchrony_on_tables", "", "", drawn)


def _point(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean of values, and half of its 95 % interval; None for a single value."""
    found = estimate(values)
    assert found is not None
    return found.mean, None if found.low is None else found.mean - found.low


def draw(path: Path) -> None:
    """Print the table of a record, and draw its figure beside it."""
    record = read_json(path, Record)
    write_whole(path.with_suffix(".png"), figure(record).png)
    print_line(table([record]))
    print_line(f"figure {path.with_suffix('.png')}")


@click.command(cls=OneLineCommand)
@click.option("--folder", type=OUTPUT_FOLDER, help="Where the runs are, also those of an interrupted study.")
@click.option("--data", "names", type=CommaList(), default=",".join(WORKS), help="Only these, with commas between.")
@click.option("--seeds", type=Whole(1, 100), default=8, help="Final runs of each mode, with and without a slow worker.")
@click.option("--straggler", default="2:5x", help="The slow worker, e.g. 2:5x.")
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="A setting of all runs.")
@click.option("--output", type=OUTPUT_FILE, help="Write the record to this JSON file, and draw it.")
@click.option("--draw", "drawn", type=click.Path(exists=True, path_type=Path), help="Only draw this record.")
def main(
    folder: Path | None, names: tuple[str, ...], seeds: int, straggler: str, assignments: tuple[str, ...],
    output: Path | None, drawn: Path | None,
) -> None:  # fmt: skip
    """Compare modes on networks with embedding tables, or draw the record of such a comparison."""
    if drawn:
        return draw(drawn)
    if folder is None or output is None:
        raise UserError("--folder, --output: give both, or --draw")
    if unknown := [name for name in names if name not in WORKS]:
        raise UserError(f"--data: got '{unknown[0]}': choose of {', '.join(WORKS)}")
    settings: dict[str, Any] = dict(map(parse_assignment, assignments))
    tuning = round(len(names) * len(MODES) * len(GRID) * (1 + WIDENED))
    final = len(names) * seeds * (2 * len(MODES) - 1)
    print_line(
        f"about {tuning} runs find the rates, and {final} compare the modes: about {(tuning + final) * RUN_S / 3600:.1f} h at "
        f"{RUN_S:.0f} s a run; runs that are in '{folder}' already take no time"
    )
    rows: list[dict[str, Any]] = []
    for name in names:
        work, place = WORKS[name], folder / name.replace(" ", "-")
        rates = {mode: [rate] for mode, rate in tuned(work, place, settings).items()}
        runs = trained(work, place / "final", rates, settings, seeds=seeds, stragglers=[NO_STRAGGLER, straggler])
        rows += rows_of(name, work.metric, runs)
        keep(output, rows, COLUMNS)
    draw(output)


if __name__ == "__main__":
    main()
