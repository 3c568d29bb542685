"""Draw the number of workers over time below the throughput, of a run in which it changed."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from ps_cluster.reporting.curves import Curves
from ps_cluster.reporting.plot import Plot
from ps_cluster.reporting.plot_style import PALETTE, grid, plot_style
from ps_cluster.reporting.results.reliability import NARROW_IN
from ps_cluster.run.rows.summary import Summary

_PANEL_IN = 1.5

_CAPTION = (
    "The number changes when workers are told to start or to stop, or when one is given up. One that starts takes part "
    "some seconds later."
)


def worker_changes(curves: Curves, summary: Summary) -> list[Plot]:
    """Return the plot of images/s and workers over time; none where their number never changed."""
    if not summary.scaled:
        return []
    with plot_style():
        figure, [[speed], [workers]] = grid(2, 1, _PANEL_IN, width_in=NARROW_IN)
        workers.sharex(speed)
        speed.tick_params(labelbottom=False)
        _draw_speed(speed, curves)
        _draw_workers(workers, summary)
        workers.set_xlabel(curves.label("train_seconds"))
    title = f"Workers and {curves.unit}/s over time"
    return [Plot("workers-over-time", title, _CAPTION, figure)]


def _draw_speed(panel: Axes, curves: Curves) -> None:
    rows = [(row.train_seconds, row.examples_per_second) for row in curves.trained]
    known = [(time, speed) for time, speed in rows if speed is not None]
    panel.plot([time for time, _ in known], [speed for _, speed in known], color=PALETTE[5])
    panel.set_ylabel(f"{curves.unit}/s")
    panel.set_ylim(bottom=0)


def _draw_workers(panel: Axes, summary: Summary) -> None:
    times, counts = steps(summary)
    panel.plot(times, counts, color=PALETTE[0], drawstyle="steps-post")
    panel.set_ylabel("workers")
    panel.set_ylim(0, 1.15 * max(counts))
    panel.yaxis.set_major_locator(MaxNLocator(integer=True))


def steps(summary: Summary) -> tuple[list[float], list[int]]:
    """Return seconds of training, and the number of workers from each of them on.

    They begin with the newest start of the launcher: earlier changes are not known.
    """
    changes, end = summary.scaled, summary.train_seconds
    begin = 0.0 if summary.session_train_seconds is None else end - summary.session_train_seconds
    times = [begin, *(min(max(begin, row.train_seconds), end) for row in changes), end]
    return times, [changes[0].before, *(row.workers for row in changes), changes[-1].workers]
