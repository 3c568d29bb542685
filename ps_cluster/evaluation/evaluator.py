"""Follow a directory of checkpoints, score them on the test set, and keep the best model."""

from __future__ import annotations

import math
import os
import time
from contextlib import closing
from pathlib import Path

from ps_cluster.clock import AwakeClock
from ps_cluster.config import distinguishing_settings, load_config
from ps_cluster.config.lazy import tf
from ps_cluster.errors import RunFailed, UserError
from ps_cluster.evaluation.checkpoint_folder import CheckpointFolder
from ps_cluster.evaluation.insight import Insight
from ps_cluster.evaluation.recomputation import Recomputation
from ps_cluster.evaluation.scorer import Scorer, dataset_of
from ps_cluster.files import locks
from ps_cluster.notices import Notify
from ps_cluster.quiet_import import import_tensorflow
from ps_cluster.report.summary import refresh_evaluation
from ps_cluster.runs import checkpoints
from ps_cluster.runs.checkpoints import Checkpoint, CheckpointError, CheckpointGone, CheckpointUnreadable, EndedMark
from ps_cluster.runs.logs import CHECKPOINT_PASSED_OVER, DISK_REFUSES, SCORE, UPDATE_DISAGREES, WAITING
from ps_cluster.runs.monitor import Monitor
from ps_cluster.runs.result_rows import EvaluationRow, named_values
from ps_cluster.runs.scores import Records
from ps_cluster.runs.update_samples import waiting_samples
from ps_cluster.training.tensorboard_files import EvaluationWriter

POLL_S = 0.5
NICE = 10
PATIENCE_S = 600.0
# The number of attempts, `POLL_S` apart, to read a missing or unreadable checkpoint; one attempt if it is damaged.
ATTEMPTS = 5


class OutOfPatience(UserError):
    """Raised when an evaluator has waited too long for a sign of life of the training, such as a new checkpoint."""


def evaluate(
    checkpoint_dir: Path,
    *,
    once: bool = False,
    data_dir: Path | None = None,
    patience_s: float = PATIENCE_S,
    notify: Notify,
    nice: bool = False,
) -> list[EvaluationRow]:
    """Score each new checkpoint of a run until training has ended and the last checkpoint is scored.

    If there are several new checkpoints, only the newest is scored, unless `checkpoints.every_epochs` or
    `evaluation.after_training` is set: then all are scored. A checkpoint whose step is already in
    metrics/evaluation.jsonl is not scored again (except with `once`).

    Args:
      checkpoint_dir: a run directory or its checkpoints/ folder; it need not exist yet.
      once: score the newest readable checkpoint, and return.
      data_dir: the folder of the data set; None: use the copy that the run used.
      patience_s: the longest time without a sign of life of the training, such as a new checkpoint. Time in which this
        process was stopped does not count.
      nice: use one thread and a low priority, to leave the processor to the training.
    Returns:
      A row for each score that this call has computed, in order.
    Raises:
      UserError: there is no data set, or a checkpoint belongs to another network. With `once`: there is no checkpoint.
        Without `once`: the training has not ended, and has shown no sign of life for `patience_s` seconds.
      RunFailed: training has ended, but its last checkpoint could not be scored.
    """
    if nice:
        os.nice(NICE)
        import_tensorflow()
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    with closing(_Evaluator(Path(os.path.realpath(checkpoint_dir)), data_dir, notify)) as evaluator:
        return evaluator.once() if once else evaluator.follow(patience_s)


class _Evaluator:
    def __init__(self, directory: Path, data_dir: Path | None, notify: Notify):
        self._directory = directory
        self._data_dir = data_dir
        self._notify = notify
        self._folder = CheckpointFolder.of(directory)
        self._records = Records(self._folder.run_dir, notify)
        self._scorer: Scorer | None = None
        self._recomputation: Recomputation | None = None
        self._recomputation_off = False  # True after the disk has refused a write
        self._tensorboard: EvaluationWriter | None = None
        self._insight: Insight | None = None
        # For each checkpoint that can't be read: the reason. A leader writes a file of the same name only once.
        self._unreadable: dict[Path, str] = {}
        self._skipped: set[int] = set()  # steps that are not scored because a newer checkpoint is scored
        self._rows: list[EvaluationRow] = []

    def close(self) -> None:
        self._records.close()
        if self._tensorboard:
            self._tensorboard.close()

    def once(self) -> list[EvaluationRow]:
        ended = checkpoints.ended(self._folder.checkpoints)
        checkpoint = None
        while (step := self._newest_step()) is not None and (checkpoint := self._load(step)) is None:
            pass
        if step is None or checkpoint is None:
            raise UserError(
                f"{self._folder.describe_lack()}: train first, or name another folder with --checkpoint-dir"
            )
        self._report_skipped(step, self._records.steps())
        self._score(checkpoint, augmented=self._folder.config(checkpoint).evaluation.augment_last)
        while self._recompute_one():
            pass
        self._refresh_summary()
        if ended and step < ended.last_step:
            raise self._not_scored_error(ended.last_step)
        return self._rows

    def follow(self, patience_s: float) -> list[EvaluationRow]:
        scored = self._records.steps()
        clock = AwakeClock()
        life, since = None, clock()
        self._report_waiting(patience_s)
        while True:
            if self._scorer is None and self._folder_has_changed():
                scored = self._records.steps()
            # Read the mark before looking for checkpoints, so that no checkpoint written before the end is missed.
            ended = checkpoints.ended(self._folder.checkpoints)
            if ended and ended.is_continued:
                ended = None
            step = self._next_step_to_score(scored, bool(ended))
            if step is not None:
                if (checkpoint := self._load(step)) is not None:
                    self._report_skipped(step, scored)
                    self._score(checkpoint)
                    scored.add(step)
                continue
            if self._recompute_one():
                continue
            if ended:
                return self._finish(ended, scored)
            life, life_before = self._signs_of_life(), life
            if life != life_before:
                since = clock()
            elif clock() - since > patience_s:
                raise self._out_of_patience(patience_s)
            time.sleep(min(POLL_S, patience_s))

    def _recompute_one(self) -> bool:
        """Compute again one sampled update, if any is waiting, and compare the result with what the cluster did.

        Return whether an update was computed again.
        """
        run_dir = self._folder.run_dir
        if self._recomputation_off or not waiting_samples(run_dir.samples) or not self._records.acquire():
            return False
        if self._recomputation is None:
            config = load_config(run_dir.config)
            self._recomputation = Recomputation(
                run_dir, config, lambda: dataset_of(run_dir, config, self._data_dir, self._notify)
            )
        try:
            row = self._recomputation.next()
        except OSError as error:
            self._notify(
                DISK_REFUSES(
                    f"sampled updates are no longer checked, so the proof will not cover the remaining ones: {error}"
                )
            )
            self._recomputation_off = True
            return False
        for problem in row.problems if row else ():
            self._notify(
                UPDATE_DISAGREES(f"an update was computed again, and the result disagrees with the run: {problem}")
            )
        return row is not None

    def _folder_has_changed(self) -> bool:
        """Look for the run directory and its folder of checkpoints again. Return whether their paths have changed."""
        folder = CheckpointFolder.of(self._directory)
        if folder == self._folder:
            return False
        self._folder, self._records = folder, Records(folder.run_dir, self._notify)
        return True

    def _report_waiting(self, patience_s: float) -> None:
        folder = self._folder.checkpoints
        if checkpoints.steps(folder) or checkpoints.ended(folder):
            return
        bound = (
            ""
            if math.isinf(patience_s)
            else f" (--wait-seconds {patience_s:g}, counted from the last sign of life of the training)"
        )
        self._notify(WAITING(f"waiting for a checkpoint: {self._folder.describe_lack()}{bound}"))

    def _next_step_to_score(self, scored: set[int], has_ended: bool) -> int | None:
        """Return the step to score next, if any: the newest, or the oldest unscored one if all have to be scored."""
        config = self._folder.run_config()
        if config and config.evaluation.after_training and not has_ended:
            return None
        if self._folder.scores_all():
            return min((step for step in self._readable_steps() if step not in scored), default=None)
        newest = self._newest_step()
        return None if newest in scored else newest

    def _report_skipped(self, step: int, scored: set[int]) -> None:
        """Report, once, the readable checkpoints that are not scored because the checkpoint of `step` is newer."""
        if self._folder.scores_all():
            return
        older = sorted({one for one in self._readable_steps() if one < step} - scored - self._skipped)
        self._skipped.update(older)
        if older:
            named = ", ".join(f"{one:,}" for one in older)
            self._notify(
                f"the checkpoint{'s' * (len(older) > 1)} of step{'s' * (len(older) > 1)} {named} will not be scored, because "
                f"the checkpoint of step {step:,} is newer"
            )

    def _newest_step(self) -> int | None:
        return max(self._readable_steps(), default=None)

    def _readable_steps(self) -> list[int]:
        """Return the steps of all checkpoints, except those that were given up as unreadable."""
        present = checkpoints.by_step(self._folder.checkpoints)
        return [step for step, path in present.items() if path not in self._unreadable]

    def _load(self, step: int) -> Checkpoint | None:
        """Return the checkpoint, after several attempts if necessary; None if it was deleted or is unreadable."""
        for attempts_left in reversed(range(ATTEMPTS)):
            path = checkpoints.path_of(self._folder.checkpoints, step)
            try:
                return checkpoints.load(path)
            except CheckpointError as error:
                if step not in checkpoints.steps(self._folder.checkpoints):
                    return None
                may_come = isinstance(error, (CheckpointGone, CheckpointUnreadable))
                if not may_come or not attempts_left:
                    self._unreadable[path] = str(error)
                    self._notify(CHECKPOINT_PASSED_OVER(f"passed over: {error}", step=step))
                    return None
            time.sleep(POLL_S)
        return None

    def _score(self, checkpoint: Checkpoint, *, augmented: bool = False) -> None:
        if self._scorer is None:
            config = self._folder.config(checkpoint)
            self._scorer = Scorer(config, dataset_of(self._folder.run_dir, config, self._data_dir, self._notify))
        started = time.monotonic()
        score = self._scorer.score(checkpoint, augmented=augmented)
        test, held_out = score.test, score.validation
        is_accuracy = self._scorer.objective.has_accuracy
        row = EvaluationRow(
            time=time.time(),
            step=checkpoint.step,
            test_accuracy=test.metric if is_accuracy else None,
            test_error=None if is_accuracy else test.metric,
            validation_accuracy=held_out.metric if is_accuracy else None,
            validation_error=None if is_accuracy else held_out.metric,
            augmented_test_accuracy=score.augmented_metric,
            test_loss=test.loss,
            validation_loss=held_out.loss,
            metrics=dict(test.further),
            validation_metrics=dict(held_out.further),
            compiled=dict(test.compiled),
            validation_compiled=dict(held_out.compiled),
            train_seconds=checkpoint.meta.train_seconds,
            examples=checkpoint.meta.examples,
            seconds=time.monotonic() - started,
        )
        monitor = Monitor.of(self._folder.config(checkpoint).evaluation)
        row = row.model_copy(update={"best": self._records.is_best(row, monitor)})
        self._rows.append(row)
        line = _score_line(row, self._scorer, checkpoint.meta.dataset_kind, monitor)
        self._notify(SCORE(line, **row.fields))
        if self._records.acquire():
            if augmented or row.step not in self._records.steps():
                self._record(self._scorer, checkpoint, row)
            if score.predictions:
                self._records.keep_predictions(score.predictions)

    def _record(self, scorer: Scorer, checkpoint: Checkpoint, row: EvaluationRow) -> None:
        if row.best:
            self._records.keep_best(checkpoint, row, scorer.save_model)
        self._records.add(row)
        if self._tensorboard is None or self._insight is None:
            self._tensorboard = EvaluationWriter(self._folder.run_dir)
            config = self._folder.config(checkpoint)
            self._tensorboard.write_hyper_parameters(self._folder.run_dir.root.name, distinguishing_settings(config))
            self._insight = Insight(self._tensorboard, scorer)
        self._tensorboard.write(row)
        self._insight.write(checkpoint)

    def _finish(self, ended: EndedMark, scored: set[int]) -> list[EvaluationRow]:
        last = ended.last_step
        if last in scored:
            self._score_views(last)
            if not self._rows:
                self._notify(f"training has ended and its last checkpoint, of step {last}, is scored already")
        self._refresh_summary()
        if last not in scored:
            raise self._not_scored_error(last)
        return self._rows

    def _not_scored_error(self, last: int) -> RunFailed:
        why = self._unreadable.get(checkpoints.path_of(self._folder.checkpoints, last), "it is not there")
        return RunFailed(f"the last checkpoint, of step {last}, is not scored: {why}")

    def _score_views(self, step: int) -> None:
        """Score the last checkpoint again, now also over augmented views, and replace its earlier scores.

        Do nothing if `evaluation.augment_last` is not set, or if these scores exist already. `step`: the step of the
        checkpoint.
        """
        is_done = any(row.step == step and row.augmented_test_accuracy is not None for row in self._records.rows())
        checkpoint = None if is_done else self._load(step)
        if checkpoint is not None and self._folder.config(checkpoint).evaluation.augment_last:
            self._score(checkpoint, augmented=True)

    def _refresh_summary(self) -> None:
        """Update the summary of a finished run after a manual evaluation."""
        if self._folder.run_dir.summary.is_file() and self._records.acquire():
            with locks.briefly_locked(self._folder.run_dir.summary_lock):
                refresh_evaluation(self._folder.run_dir, self._notify)

    def _signs_of_life(self) -> tuple[tuple[int, ...], int]:
        """Return a value that changes when the training writes a checkpoint or a progress row."""
        progress, steps = self._folder.run_dir.progress, checkpoints.steps(self._folder.checkpoints)
        return tuple(steps), progress.stat().st_mtime_ns if progress.exists() else 0

    def _out_of_patience(self, patience_s: float) -> OutOfPatience:
        if not checkpoints.steps(self._folder.checkpoints):
            return OutOfPatience(f"{self._folder.describe_lack()} after {patience_s:g} s of waiting")
        return OutOfPatience(
            f"training has not ended, but nothing new has appeared in '{self._directory}' for {patience_s:g} s: "
            "continue the run with run --resume, then evaluate again"
        )


def _score_line(row: EvaluationRow, scorer: Scorer, dataset_kind: str | None, monitor: Monitor) -> str:
    """Format a score as a line. The score that decides which model is best comes first."""
    unit = f"{'GENERATED ' * (dataset_kind == 'synthetic')}{scorer.unit}"
    views = f", over six views {row.augmented_test_accuracy:.2%}" if row.augmented_test_accuracy else ""
    on_test = [f"test {row.test}{views}", f"loss {_loss_text(row.test_loss)}"]
    on_test += named_values(row.compiled | row.metrics)
    parts = [f"{', '.join(on_test)} ({scorer.test_examples:,} {unit}, {row.seconds:.1f} s)"]
    if row.validation is not None:
        held_out = [f"validation {row.validation}", f"loss {_loss_text(row.validation_loss)}"]
        held_out += named_values(row.validation_compiled | row.validation_metrics)
        parts.insert(0, f"{', '.join(held_out)} ({scorer.validation_examples:,} {unit} held out)")
    parts[0] += monitor.best_so_far(row) * row.best
    return f"step {row.step:,}: {' · '.join(parts)}"


def _loss_text(value: float | None) -> str:
    return "not a finite number" if value is None else f"{value:.4f}"
