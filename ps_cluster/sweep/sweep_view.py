"""Show a sweep while it goes on: a live table on a terminal, lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.live import Live
from rich.table import Table
from rich.text import Text

from ps_cluster.reporting.dashboard import clock
from ps_cluster.reporting.terminal import SafeConsole
from ps_cluster.run.rows.scores import told
from ps_cluster.sweep.space import Values
from ps_cluster.sweep.trial_book import State, Trial

if TYPE_CHECKING:
    from ps_cluster.sweep.sweep_run import Running

BEST_SHOWN = 8
_COLOURS = {"running": "cyan", "completed": "green", "pruned": "dim", "failed": "red"}
_WORDS = {"running": "under way", "completed": "done", "pruned": "stopped early", "failed": "failed"}


class SweepView:
    """Prints what happens. On a terminal, a table of the trials under way and the best ones stands below it."""

    def __init__(self, console: SafeConsole, keys: Sequence[str], *, is_accuracy: bool):
        self._console = console
        self._keys = keys
        self._is_accuracy = is_accuracy
        self._live: Live | None = None
        self._began_s = time.monotonic()

    def notice(self, line: str) -> None:
        """Print a line that stays."""
        self._console.print(Text(f"[{clock(time.monotonic() - self._began_s):>5}] {line}"), soft_wrap=True)

    def started(self, trial: Trial) -> None:
        self.notice(f"trial {trial.number} begins: {listed(trial.values)}")

    def ended(self, trial: Trial, state: State, why: str = "", score: float | None = None) -> None:
        """Print how a trial ended."""
        held_out = "" if score is None else f", {self.score(score)} on held-out examples"
        self.notice(f"trial {trial.number} is {_WORDS[state]}{held_out}{f': {why}' if why else ''}")

    def score(self, value: float | None) -> str:
        """Return a score in words."""
        return (told(value, None) if self._is_accuracy else told(None, value)) or "–"

    def show(self, ranked: Sequence[Trial], running: Mapping[int, Running], count: int) -> None:
        """Draw the table anew, on a terminal."""
        if not self._console.can_redraw:
            return
        table = self.table(
            ranked, running, f"{sum(trial.state != 'running' for trial in ranked)} of {count} trials over"
        )
        if self._live is None:
            self._live = Live(table, console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        self._live.update(table, refresh=True)

    def table(self, ranked: Sequence[Trial], running: Mapping[int, Running], title: str) -> Table:
        """Return the trials under way, and the best of those that are over."""
        table = Table(title=title, title_justify="left", title_style="bold")
        for heading in ("trial", "state", "held-out score", "trained", *self._keys):
            table.add_column(heading.rpartition(".")[2], justify="left" if heading == "state" else "right")
        for one in running.values():
            self._row(table, one.trial, one.score, f"{one.trained:.0%}")
        over = [trial for trial in ranked if trial.number not in running]
        for trial in over[:BEST_SHOWN]:
            self._row(table, trial, trial.score, "")
        return table

    def _row(self, table: Table, trial: Trial, score: float | None, trained: str) -> None:
        values = (text(trial.values[key]) for key in self._keys)
        state = Text(_WORDS[trial.state], _COLOURS[trial.state])
        table.add_row(str(trial.number), state, self.score(score), trained, *values)

    def close(self) -> None:
        """Remove the table, so that what follows is printed below the lines."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def listed(values: Values) -> str:
    """Return values as text, e.g. "optimizer.learning_rate=0.05, training.batch_size_per_worker=64"."""
    return ", ".join(f"{key}={text(value)}" for key, value in values.items())


def text(value: Any) -> str:
    """Return a value short enough to read; numbers with four digits."""
    return f"{value:.4g}" if isinstance(value, float) else f"{value}"
