"""Draw records of `benchmarks.far_apart`: seconds and megabytes to the loss, over the rate of the links.

    python -m benchmarks.far_apart_picture docs/images/far-apart.png far_apart far_apart_1000

An arm that came to the loss in no round of a link has no point there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

import click
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullLocator

from benchmarks.records import Record, read
from ps_cluster.cli.command_line import OUTPUT_FILE, OneLineCommand
from ps_cluster.files.writing import write_whole
from ps_cluster.report.plots import Plot, grid, legend_outside, logarithmic, looks, plot_style

HEIGHT_IN = 3.4


@click.command(cls=OneLineCommand)
@click.argument("output", type=OUTPUT_FILE)
@click.argument("records", nargs=-1, required=True)
def main(output: Path, records: tuple[str, ...]) -> None:
    """Draw the records of these names into a PNG: the lowest, median and highest of all rounds."""
    write_whole(output, drawn([read(record) for record in records]).png)


def drawn(records: Sequence[Record]) -> Plot:
    """Return the picture of records: two panels, one line for each arm."""
    all_rows, columns = [row for record in records for row in record.rows], records[0].columns
    arms = list(dict.fromkeys(row["arm"] for row in all_rows))
    with plot_style():
        figure, [panels] = grid(1, 2, HEIGHT_IN)
        for panel, key in zip(panels, ("seconds", "megabytes"), strict=True):
            for arm, look in looks(arms).items():
                rows = [row for row in all_rows if row["arm"] == arm and isinstance(row[key], list)]
                links, values = [float(row["link"]) for row in rows], [row[key] for row in rows]
                middle = [median(some) for some in values]
                away = [
                    [at - min(some) for at, some in zip(middle, values)],
                    [max(some) - at for at, some in zip(middle, values)],
                ]
                panel.errorbar(
                    links, middle, away, label=arm, color=look.color, linestyle=look.line, marker=look.marker, capsize=2
                )
            panel.set_xlabel(columns["link"].heading)
            panel.set_ylabel(columns[key].heading)
        _over_links(panels, sorted({float(row["link"]) for row in all_rows}))
        legend_outside(figure, panels)
    return Plot("far-apart", "", "", figure)


def _over_links(panels: list[Axes], links: list[float]) -> None:
    logarithmic(panels)
    for panel in panels:
        panel.set_xscale("log")
        panel.set_xticks(links)
        panel.xaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:g}"))
        panel.xaxis.set_minor_locator(NullLocator())


if __name__ == "__main__":
    main()
