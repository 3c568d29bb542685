"""The option --try of the command `run`: train a few updates, score, export, and keep nothing.

Everything that a long training does at its beginning and at its end happens here within half a minute. So mistakes in a
network, in data or on a machine are found before hours of training are lost.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ps_cluster.api.program import COMMAND, run_program, words_of_run
from ps_cluster.config import RunConfig
from ps_cluster.errors import RunFailed
from ps_cluster.files.json_files import read_json
from ps_cluster.files.json_rows import RowTail
from ps_cluster.notices import Line
from ps_cluster.report.closing_table import points_to_files
from ps_cluster.report.terminal import print_line
from ps_cluster.runs.result_rows import ProgressRow, Summary, with_work
from ps_cluster.runs.run_dir import RunDir

UPDATES_OF_WORKER = 2
_MOST_UPDATES = 50  # per worker, because one worker may be so slow that the others would train without end
_QUICKLY = {  # the run scores its checkpoint once; everything else that is not training is switched off
    "evaluation.draw_results": "false",
    "evaluation.after_training": "false",
    "evaluation.augment_last": "false",
    "evaluation.recompute_updates": "false",
    "evaluation.scored_examples": "200",
}


def try_run(words: Sequence[str], config: RunConfig) -> int:
    """Train until each worker has made two updates, then score, export, and remove all files. Return the exit code.

    Args:
      words: the words after `run` on the command line.
      config: the settings of the run.
    """
    began = time.monotonic()
    workers = config.training_workers
    with tempfile.TemporaryDirectory(prefix="ps-cluster-try-") as folder:
        run = RunDir(Path(os.path.realpath(folder), "run"))
        settings = {"training.steps": workers * _MOST_UPDATES, **_QUICKLY}
        rows = RowTail(run.progress, ProgressRow)

        def enough() -> bool:
            """Return whether each worker has made two updates."""
            made: Counter[int] = Counter()
            for row in with_work(run.work, rows.new_rows())[-1:]:
                for worker in row.workers:
                    made[worker.index] += worker.updates
            return len(made) >= workers and min(made.values()) >= UPDATES_OF_WORKER

        argv = words_of_run(words, run, settings, without=("--epochs", "--steps"), flags=("--try",))
        run_program(argv, run.launcher_log, enough, notify=_notify, environment=os.environ)
        summary = read_json(run.summary, Summary)
        print_line("try: trained, wrote a checkpoint and scored it; exporting it now")
        if config.cluster.evaluator:
            target = Path(folder, "exported")
            argv = [*COMMAND, "export", "--run", str(run.root), "--to", "savedmodel", "--check-examples", "100"]
            run_program([*argv, "--output", str(target)], run.launcher_log, notify=_notify, environment=os.environ)
    idle = [str(worker.index) for worker in summary.workers if worker.updates < UPDATES_OF_WORKER]
    if idle:
        raise RunFailed(
            f"try: worker {', '.join(idle)} made fewer than {UPDATES_OF_WORKER} updates while the others made "
            f"{workers * _MOST_UPDATES:,}: start a longer run with --profile to see which task is slow"
        )
    print_line(
        f"try: everything worked in {time.monotonic() - began:.0f} s, with {summary.updates.applied} updates. Nothing was "
        "kept. Leave out --try to train"
    )
    return 0


def _notify(line: Line) -> None:
    """Print a line, unless it names files that are going to be removed."""
    if not points_to_files(str(line)):
        print_line(line)
