"""Write one page of all runs in a folder, and write it again while one of them trains.

This module imports no TensorFlow, and runs no code of a run. The page needs no other file. It forbids the browser to
load anything, and to run any script except this package's own script. So text from the files of a run is only shown,
and never run as code.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from ps_cluster.files import locks
from ps_cluster.files.json_files import Json
from ps_cluster.files.values import number_text, one_line
from ps_cluster.files.writing import remove_leftovers, write_whole
from ps_cluster.notices import Line, Notify
from ps_cluster.report.colours import PALETTE
from ps_cluster.report.pages import rendered
from ps_cluster.report.points import Point
from ps_cluster.report.run_list import RUNNING, age, read_each, run_dirs, short_name, state_text
from ps_cluster.report.run_state import clock_text
from ps_cluster.report.shown_runs import ShownRun, read_shown
from ps_cluster.runs.result_rows import Measure
from ps_cluster.runs.run_dir import RunDir

MOST_RUNS = 1000  # the most runs that a browser shows well
MOST_SETTINGS = 300  # the most differing settings on the page; a config.yaml may have any number of unknown keys
MOST_PROBLEMS = 5  # the most problems that the page lists
REWRITE_S, LONGEST_S = 5.0, 60.0
BUSY_SHARE = 0.1  # the largest share of the time spent on reading, because reading takes a core from the training
IDLE_POLLS = 3  # more than one, because a comparison or a sweep starts a run some seconds after the end of the last run

FILTERS = ("outcome", "mode", "data", "network")


class TableCell(NamedTuple):
    """A cell of the table of runs. `order`: the value by which its column is sorted; None comes last."""

    text: str
    order: float | str | None


class RunsPage:
    """The page of the runs in a folder. Only runs that have changed are read again."""

    def __init__(self, folder: Path, output: Path, notify: Notify, most_runs: int = MOST_RUNS):
        self._folder, self._output, self._notify, self._most_runs = folder, output.absolute(), notify, most_runs
        self._known: dict[Path, tuple[object, ShownRun]] = {}
        self._problems: list[str] = []  # the problems that the last `poll` has found
        self._notified: set[str] = set()
        self._left_out = 0

    def poll(self) -> list[ShownRun]:
        """Read the runs in the folder, and return the newest `most_runs` of them, newest first.

        Raises:
          UserError: the folder can't be read, or is itself a run directory.
        """
        found = sorted(run_dirs(self._folder), key=_began, reverse=True)
        self._left_out, self._problems = len(found[self._most_runs :]), []
        shown = read_each(found[: self._most_runs], self._read, self._notify_once)
        self._known = {run.listed.root: self._known[run.listed.root] for run in shown}
        return sorted(shown, key=lambda run: -run.listed.began_at)

    @staticmethod
    def is_live(runs: Sequence[ShownRun]) -> bool:
        """Return whether one of the runs trains."""
        return any(run.listed.state == RUNNING for run in runs)

    def write(self, runs: Sequence[ShownRun], refresh_s: float | None) -> None:
        """Write the page. `refresh_s`: the seconds after which a browser loads the page again; None for never."""
        settings = differing_settings(runs)
        page = rendered(
            __package__,
            "runs.html",
            script="runs.js",
            folder=one_line(str(self._folder.absolute())),
            refresh_s=refresh_s,
            colours=PALETTE,
            headings=HEADINGS,
            runs=[(run, self._link(run), cells(run, time.time())) for run in runs],
            filters=_filters(runs),
            data={"runs": [_embedded(run) for run in runs], "settings": settings[:MOST_SETTINGS]},
            has_generated=any(run.is_generated for run in runs),
            left_out=self._left_out,
            settings_left_out=max(0, len(settings) - MOST_SETTINGS),
            problems=len(self._problems),
            first_problems=self._problems[:MOST_PROBLEMS],
            states=Counter(run.listed.state for run in runs),
        )
        remove_leftovers(self._output.parent, self._output.name)
        write_whole(self._output, page, lasting=refresh_s is None)

    def _read(self, run_dir: RunDir) -> ShownRun:
        signature = _signature(run_dir)
        before, shown = self._known.get(run_dir.root, (None, None))
        if shown is None or before != signature:
            shown = read_shown(run_dir)
        self._known[run_dir.root] = signature, shown
        return shown

    def _notify_once(self, line: Line) -> None:
        self._problems.append(str(line))
        if str(line) not in self._notified:
            self._notify(line)
            self._notified.add(str(line))

    def _link(self, run: ShownRun) -> str | None:
        """Return the address of the page of a run, relative to the folder of this page."""
        if run.page is None:
            return None
        return quote(f"./{os.path.relpath(run.page, os.path.realpath(self._output.parent))}")


def keep_writing(page: RunsPage, wait: Callable[[float], bool]) -> None:
    """Rewrite the page repeatedly, until `IDLE_POLLS` calls of `poll` in a row have found no run that trains.

    At the end, the page is written one last time, so that browsers no longer reload it.

    Args:
      wait: waits for some seconds, and returns False to end the rewriting early.
    """
    idle, continues, pause_s = 0, True, REWRITE_S
    while continues and idle < IDLE_POLLS:
        began = time.monotonic()
        runs = page.poll()
        page.write(runs, pause_s)
        idle = 0 if page.is_live(runs) else idle + 1
        pause_s = min(LONGEST_S, max(REWRITE_S, (time.monotonic() - began) / BUSY_SHARE))
        continues = wait(pause_s)
    page.write(page.poll(), None)


def differing_settings(runs: Sequence[ShownRun]) -> list[Json]:
    """Return the settings that are not the same in all runs.

    Each entry is {"key": the setting, "values": its distinct values, "of": for each run, the index of its value, or -1
    if the run does not have the setting}.
    """
    found: list[Json] = []
    for key in dict.fromkeys(key for run in runs for key in run.settings):
        of_runs = [run.settings.get(key) for run in runs]
        values = list(dict.fromkeys(value for value in of_runs if value is not None))
        if len(values) > 1 or None in of_runs:
            places: dict[str | None, int] = {None: -1} | {value: place for place, value in enumerate(values)}
            found.append({"key": key, "values": values, "of": [places[value] for value in of_runs]})
    return found


HEADINGS = (
    "run", "outcome", "age", "mode", "data", "network", "test metric", "test loss", "updates", "training time",
    "examples/s", "mean staleness", "staleness p95",
)  # fmt: skip


def cells(run: ShownRun, now: float) -> list[TableCell]:
    """Return the cells of a run in the columns of `HEADINGS`, without the first cell, which has the run's name."""
    one = run.listed
    names = (short_name(one.mode), _data(run), short_name(one.model))
    merit = one.test_accuracy if one.test_accuracy is not None else None if one.test_error is None else -one.test_error
    return [
        TableCell(state_text(one), one.state),
        TableCell(age(now - one.began_at), now - one.began_at),
        *(TableCell(name, name.lower()) for name in names),
        TableCell(one.score, merit),
        _number(one.test_loss, number_text),
        _number(one.updates, "{:,}".format),
        _number(one.train_seconds, clock_text),
        _number(one.examples_per_second, "{:,.0f}".format),
        _number(one.staleness_mean, "{:.2f}".format),
        _number(one.staleness_p95, "{:,}".format),
    ]


def values_of_filters(run: ShownRun) -> dict[str, str]:
    """Return the values by which the filters of the page select a run, by the name of the filter (see FILTERS)."""
    one = run.listed
    return dict(zip(FILTERS, (one.state, short_name(one.mode), _data(run), short_name(one.model))))


def _filters(runs: Sequence[ShownRun]) -> dict[str, dict[str, int]]:
    """Return the values of each filter, by the filter's name, with the number of runs that have each value."""
    found = [values_of_filters(run) for run in runs]
    return {name: dict(sorted(Counter(values[name] for values in found).items())) for name in FILTERS}


def _data(run: ShownRun) -> str:
    return short_name(run.listed.dataset) + (" (generated)" if run.is_generated else "")


def _number(value: float | None, text: Callable[[float], str]) -> TableCell:
    return TableCell("–" if value is None else text(value), value)


def _embedded(run: ShownRun) -> Json:
    """Return the data of a run from which the script of the page draws the curves of the run."""

    def digits(value: float | None) -> float | None:
        return None if value is None else float(f"{value:.5g}")

    def points(curves: Mapping[Measure, list[Point]]) -> Json:
        return {
            measure: [[digits(one.train_seconds), one.examples, digits(one.value)] for one in curve]
            for measure, curve in curves.items()
        }

    return {
        "name": run.listed.root.name,
        "unit": run.listed.unit,
        "filters": values_of_filters(run),
        "tested": points(run.tested),
        "trained": points(run.trained),
        "staleness": [[staleness, digits(share)] for staleness, share in run.staleness_shares],
    }


def _began(run_dir: RunDir) -> float:
    try:
        return run_dir.config.stat().st_mtime
    except OSError:  # it was removed meanwhile
        return 0.0


def _signature(run_dir: RunDir) -> object:
    """Return a value that changes when a command starts or ends in a run directory, or writes one of its files."""
    found: list[object] = [locks.is_held(run_dir.root)]
    for path in (run_dir.config, run_dir.summary, run_dir.evaluation, run_dir.progress, run_dir.results_page):
        try:
            stat = path.stat()
            found.append((stat.st_mtime_ns, stat.st_size))
        except OSError:
            found.append((0, -1))
    return found
