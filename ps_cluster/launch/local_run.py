"""Start or resume a run: make its directory, find its data, complete its configuration, then call the launcher."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from ps_cluster.config import RunConfig, load_config, user_code
from ps_cluster.config.datasets import DataSettings
from ps_cluster.config.merging import resolve_resumed
from ps_cluster.data import sources
from ps_cluster.data.cache import default_cache_dir
from ps_cluster.data.packed import PackedDataset
from ps_cluster.errors import UserError
from ps_cluster.files import locks, untrusted
from ps_cluster.files.json_files import read_json
from ps_cluster.launch.config_completion import complete_config, few_updates_notice, float32_notice, resolve_data
from ps_cluster.launch.endings import why_broken
from ps_cluster.launch.gpu_choice import with_gpus_found
from ps_cluster.launch.launcher import run_local
from ps_cluster.notices import Notify
from ps_cluster.report.byte_progress import every_tenth
from ps_cluster.report.progress import ProgressView
from ps_cluster.runs import checkpoints
from ps_cluster.runs.checkpoints import CheckpointError, EndedMark
from ps_cluster.runs.result_rows import BROKEN, Summary, TimeLimitReached
from ps_cluster.runs.run_dir import CODE, RUN_DIRECTORY, RunDir, check_unused
from ps_cluster.system import private_network
from ps_cluster.system.environment import not_used
from ps_cluster.system.gpus import usable_gpus
from ps_cluster.system.stop_signals import StopRequests, stop_signals
from ps_cluster.training.resuming import check_journals, newest_checkpoint


def new_root(mode: str, model: str) -> Path:
    """Return a new path under runs/ for a run without --run-dir. `mode`, `model`: names, or references to code."""
    names = (Path(user_code.short_name(name)).stem for name in (mode, model))  # a saved model is a path
    return Path("runs") / "-".join((time.strftime("%Y%m%d-%H%M%S"), *names))


def start_run(
    config: RunConfig, root: Path, *, view: ProgressView, began: float | None = None, anew: bool = False,
    tensorboard: bool = False, stop_requests: StopRequests | None = None,
    resolve: Callable[[DataSettings, Notify], PackedDataset] = resolve_data,
) -> int:  # fmt: skip
    """Run a new training in `root`. Return the exit code. Raises UserError for bad input.

    Args:
      anew: remove everything in `root` first. Otherwise only the files of a run that never trained are removed.
      stop_requests: counts the signals that ask to stop, as for `run_local`.
      resolve: returns the packed data set, as `resolve_data` does.
    """
    config.check_fits_one_machine()
    with locks.sole_use(root, RUN_DIRECTORY, view.notice):
        if not anew:
            check_unused(root)
        before = RunDir(Path(os.path.realpath(root)))
        if not locks.is_empty(root, besides=CODE):
            locks.wait_for_sharers(before.alive, f"run directory '{root}'")
            before.clear()
        with _new_run_dir(root) as run_dir:
            private_network.check_isolation(config.cluster.isolation, run_dir.root)
            for line in not_used(os.environ):
                view.notice(line)
            whole = resolve(config.data, view.notice)
            dataset = whole.holding_out(config.evaluation.validation_examples)
            complete = complete_config(config, dataset, view.notice)
            if notice := float32_notice(config, complete, dataset):
                view.notice(notice)
            if notice := few_updates_notice(config, complete, dataset):
                view.notice(notice)
            complete = with_gpus_found(complete, usable_gpus(os.environ), view.notice)
        return run_local(
            complete, run_dir, dataset,
            resume=False, view=view, began=began, tensorboard=tensorboard, stop_requests=stop_requests,
        )  # fmt: skip


def resume_run(
    root: Path, more: Mapping[str, Any] | None = None, *, view: ProgressView, began: float | None = None,
    tensorboard: bool = False,
) -> int:  # fmt: skip
    """Resume the run in `root`. Return the exit code. Raises UserError if the run can't be resumed.

    `more`: the settings to change, or None. Only these may change: the length of the whole run (`training.epochs` or
    `training.steps`), its time limit (`training.max_seconds`), the number of `cluster.parameter_servers`,
    `cluster.isolation`, and what TensorBoard shows.
    """
    run_dir = RunDir.open(root)
    with locks.sole_use(root, RUN_DIRECTORY, view.notice):
        untrusted.refuse_foreign(run_dir.config)
        run_dir.make_folders()
        run_dir.callbacks.unlink(missing_ok=True)  # callbacks never follow a resumed run
        before = load_config(run_dir.config)
        config = resolve_resumed(run_dir.config, dict(more or {}), os.environ).config
        config.check_fits_one_machine()
        private_network.check_isolation(config.cluster.isolation, run_dir.root)
        for line in not_used(os.environ):
            view.notice(line)
        locks.wait_for_sharers(run_dir.alive, f"run directory '{root}'")
        cache, progress = default_cache_dir(), every_tenth(view.notice)
        whole = sources.resolve_for_run(run_dir.dataset, config.data, cache, notify=view.notice, progress=progress)
        dataset = whole.holding_out(config.evaluation.validation_examples)
        ended = _end_of_training(run_dir, view.notice)
        if ended and ended.outcome in BROKEN:
            raise UserError(f"run '{root}' can't be resumed: {why_broken(ended.outcome, ended.last_step)}")
        updates, updates_before = (one.total_updates(dataset.train_examples) for one in (config, before))
        if not _has_work_left(run_dir, ended, config, dataset, view.notice, is_new_length=updates != updates_before):
            view.notice(
                f"run '{root}' is complete, nothing is left to do: see {run_dir.summary}; add --epochs or --steps to "
                "--resume to train longer"
            )
            return 0
        if updates != updates_before:
            view.notice(
                f"the whole run has {updates:,} updates now ({updates_before:,} before); "
                "the learning rate continues as in a run of that length"
            )
        complete = complete_config(config, dataset, view.notice)
        complete = with_gpus_found(complete, usable_gpus(os.environ), view.notice)
        _remove_damaged_summary(run_dir, view.notice)
        return run_local(complete, run_dir, dataset, resume=True, view=view, began=began, tensorboard=tensorboard)


def _end_of_training(run_dir: RunDir, notify: Notify) -> EndedMark | None:
    """Return the content of the file that marks the end of training, or None if there is none.

    A damaged file counts as missing, because it will be written again.
    """
    try:
        return checkpoints.ended(run_dir.checkpoints)
    except CheckpointError as error:
        notify(f"the file that marks the end of training can't be used, and will be replaced: {error}")
        return None


def _remove_damaged_summary(run_dir: RunDir, notify: Notify) -> None:
    """Remove a summary that can't be read, because the evaluator of the resumed run would fail to update it."""
    try:
        read_json(run_dir.summary, Summary)
    except FileNotFoundError:
        pass
    except UserError as error:
        notify(f"the summary can't be used, and will be replaced: {error}")
        run_dir.summary.unlink(missing_ok=True)


def _has_work_left(
    run_dir: RunDir,
    ended: EndedMark | None,
    config: RunConfig,
    dataset: PackedDataset,
    notify: Notify,
    *,
    is_new_length: bool,
) -> bool:
    """Return whether a run that is to be resumed has work left.

    A run with work left continues from its newest checkpoint. This checkpoint is therefore checked here, before
    config.yaml is overwritten and before anything starts. Raises UserError if the run can't continue.

    `is_new_length`: whether the user has changed the length of the run. The checkpoint is then checked even if the run
    is complete, because the new length must not be less than the number of updates that have begun.
    """
    if not is_new_length and _is_complete(run_dir, ended, config, dataset):
        return False
    _refuse_if_time_is_over(run_dir, config)
    newest = newest_checkpoint(config, run_dir, dataset, notify)
    if is_new_length and _is_complete(run_dir, ended, config, dataset):
        return False
    check_journals(newest, run_dir, config.shards)
    return True


def _refuse_if_time_is_over(run_dir: RunDir, config: RunConfig) -> None:
    """Raise UserError if the run has already ended because of its time limit.

    A run that was interrupted while it was drained or scored is not refused: it continues the drain or the scoring.
    """
    limit_s = config.training.max_seconds
    try:
        ended_by = read_json(run_dir.summary, Summary).early_stop
    except (FileNotFoundError, UserError):  # interrupted, or damaged and written again later
        return
    if limit_s is not None and isinstance(ended_by, TimeLimitReached) and ended_by.max_seconds >= limit_s:
        raise UserError(
            f"training.max_seconds: got {limit_s:g}: run '{run_dir.root}' has already ended, after "
            f"{ended_by.max_seconds:g} s of training; give a larger --max-seconds"
        )


def _is_complete(run_dir: RunDir, ended: EndedMark | None, config: RunConfig, dataset: PackedDataset) -> bool:
    """Return whether training, scoring (if wanted) and summary are complete."""
    try:
        written = read_json(run_dir.summary, Summary)
    except (FileNotFoundError, UserError):  # interrupted, or damaged and written again later
        return False
    last_step = ended.last_step if ended else 0
    trained = written.outcome == "completed" and last_step >= config.total_updates(dataset.train_examples)
    return trained and (written.evaluation.step == last_step or not config.cluster.evaluator)


@contextlib.contextmanager
def _new_run_dir(root: Path) -> Iterator[RunDir]:
    """Yield a new run directory. Its content is removed if the block fails or is ended by SIGTERM or SIGHUP."""
    run_dir = RunDir.create(root)
    before = {number: signal.signal(number, _leave) for number in stop_signals() if number != signal.SIGINT}
    try:
        yield run_dir
    except BaseException:
        run_dir.clear()
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
