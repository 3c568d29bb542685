"""Draw what the workers of two runs did in the same short time: an asynchronous run above, a synchronous one below.

    python cli.py run --dataset synthetic --model tutorial_cnn --steps 200 --run-dir runs/async
    python cli.py run --mode sync-ps --dataset synthetic --model tutorial_cnn --steps 40 --run-dir runs/sync
    python -m benchmarks.time_lines runs/async runs/sync --output docs/images/time-lines.png

Everything in the picture is from the ledgers of the runs, metrics/updates.csv.
"""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from ps_cluster.cli.command_line import OneLineCommand
from ps_cluster.cli.value_types import INPUT_PATH, OUTPUT_FILE, Integer
from ps_cluster.files.writing import write_whole
from ps_cluster.report.colours import PALETTE
from ps_cluster.report.plots import Plot, grid, plot_style
from ps_cluster.runs.ledger_csv import read_csv
from ps_cluster.runs.phases import PHASES, phase_times
from ps_cluster.runs.run_dir import RunDir

COLOURS = {
    "waits": "#ffffff", "pulls": PALETTE[5], "computes": PALETTE[0], "slow on purpose": "#b9c0c7",
    "pushes": PALETTE[4], "applies": PALETTE[1],
}  # fmt: skip
assert set(COLOURS) == set(PHASES)
LETTERS = 0.025  # the width of the name of a version, as a share of the width of the picture


@click.command(cls=OneLineCommand)
@click.argument("asynchronous", type=INPUT_PATH)
@click.argument("synchronous", type=INPUT_PATH)
@click.option("--output", type=OUTPUT_FILE, default="time-lines.png", help="The PNG file to write.")
@click.option(
    "--steps",
    type=Integer(1, 100),
    default=12,
    help="Number of steps of the asynchronous run in the picture. They begin at the middle of the run.",
)
def main(asynchronous: Path, synchronous: Path, output: Path, steps: int) -> None:
    """Draw the time lines of two runs, for the same number of seconds."""
    runs = [read_csv(RunDir(root).updates) for root in (asynchronous, synchronous)]
    begins = [float(np.sort(rows["asked_time"])[len(rows) // 2]) for rows in runs]
    seconds = float(np.sort(runs[0]["applied_time"])[len(runs[0]) // 2 + steps] - begins[0])
    with plot_style():
        figure, ((above,), (below,)) = grid(2, 1, 2.4)
        draw(above, runs[0], begins[0], seconds)
        draw(below, runs[1], begins[1], seconds)
        above.set_title("async: each gradient makes a new version as it arrives", loc="left")
        below.set_title("sync-ps: the gradients of all workers make a new version together", loc="left")
        above.set_xlabel("time [s]   (the number in a step is the version from which its gradient is computed)")
        below.set_xlabel("time [s]")
        durations = np.concatenate([np.diff(phase_times(rows), axis=0) for rows in runs], axis=1).max(axis=1)
        drawn = [name for name, longest in zip(PHASES, durations.tolist()) if longest > 1e-3 * seconds]
        handles = [Patch(facecolor=COLOURS[name], edgecolor="#5b6570", label=name) for name in drawn]
        figure.legend(handles=handles, loc="outside upper left", ncols=len(handles))
    write_whole(output, Plot("time-lines", "", "", figure).png)


def draw(panel: Axes, rows: np.ndarray, begins: float, seconds: float) -> None:
    """Draw a lane for each worker, and one for the versions that the parameter server makes.

    The number in a step is the version from which its gradient is computed. Versions are numbered from the
    first version in the picture.

    Args:
      rows: the ledger, a structured array [steps] of `runs.ledger.ROW`.
      begins: the unix time at which the picture begins. `seconds`: the time that it shows.
    """
    times = phase_times(rows) - begins
    inside = (times[-1] > 0) & (times[0] < seconds)
    shown, times = rows[inside], times[:, inside]
    workers = np.unique(rows["worker"])
    pulled = shown["version"] - 1 - shown["staleness"]
    for row, from_version, edges in zip(shown, pulled - pulled.min(), times.T):
        lane = len(workers) - float(row["worker"])
        for name, left, right in zip(PHASES, edges, edges[1:]):
            colour = COLOURS[name]
            panel.barh(lane, right - left, 0.7, left, color=colour, edgecolor="#5b6570", linewidth=0.4)
        left, right = np.clip(edges[2:4], 0, seconds)
        if right - left > LETTERS * seconds:
            panel.text(
                (left + right) / 2, lane, f"v{from_version:.0f}", color="white", ha="center", va="center", fontsize=8
            )
    labelled = -seconds
    for version in np.unique(shown["version"]).tolist():
        at = float(times[-1][shown["version"] == version].max())
        if not 0 < at < seconds:
            continue
        panel.plot([at, at], [-0.3, 0.1], color=PALETTE[1], linewidth=1.5)
        if at - labelled > LETTERS * seconds:
            panel.text(at, 0.15, f"v{version - pulled.min():.0f}", ha="center", va="bottom", fontsize=7)
            labelled = at
    panel.set(xlim=(0, seconds), ylim=(-0.5, len(workers) + 0.5))
    panel.set_yticks([0, *range(1, len(workers) + 1)], ["new version", *(f"worker {w:.0f}" for w in workers[::-1])])
    panel.grid(visible=False)


if __name__ == "__main__":
    main()
