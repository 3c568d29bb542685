"""Draw the results of a run that has ended, if there is anything to draw. Only then is matplotlib imported."""

from __future__ import annotations

import shlex

from ps_cluster.errors import UserError
from ps_cluster.files import untrusted
from ps_cluster.files.json_files import read_json
from ps_cluster.files.json_rows import last_row
from ps_cluster.files.values import one_line
from ps_cluster.installation import PROGRAM
from ps_cluster.notices import Notify
from ps_cluster.runs.result_rows import ProgressRow, Summary
from ps_cluster.runs.run_dir import RunDir

NOT_SCORED = "no results: no checkpoint was scored"


def try_to_draw_results(run_dir: RunDir, notify: Notify) -> None:
    """Draw the results at the end of a run.

    If drawing fails for any reason, `notify` is called with the reason, and the run does not fail.
    """
    try:
        draw_results(run_dir, notify)
    except (Exception, KeyboardInterrupt) as error:
        why = one_line(str(error), 300) or type(error).__name__
        notify(
            f"the results can't be drawn ({why}); to try again: "
            f"{PROGRAM} runs show {shlex.quote(str(run_dir.root))} --page"
        )


def draw_results(run_dir: RunDir, notify: Notify) -> None:
    """Write the folder results/ of a run that has ended, or notify that there are no results.

    Raises:
      UserError: there is no summary, it is damaged, or the folder belongs to another user.
      OSError: the files can't be written.
    """
    untrusted.refuse_foreign(run_dir.root)
    untrusted.refuse_foreign_symlinks(run_dir.results, "folder of the run")
    try:
        summary = read_json(run_dir.summary, Summary)
    except FileNotFoundError as error:
        raise UserError(f"'{run_dir.summary}' is not there: results are drawn when the run has ended") from error
    # A run that did not complete has at least the curves of its training.
    last = last_row(run_dir.progress, ProgressRow)
    has_curves = summary.outcome != "completed" and last is not None and last.applied > 0
    if not summary.evaluation.history and not has_curves:
        notify(NOT_SCORED)
        return
    from ps_cluster.report.results import write_results  # matplotlib takes half a second to import

    write_results(run_dir, summary, notify)
