"""Start or resume a run: make its directory, find its data, replace "auto" by values, then call the launcher."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from ps_cluster.config import RunConfig, changed, load_config, user_code
from ps_cluster.config.datasets import DATASETS, DataSettings
from ps_cluster.config.merging import resolve_resumed
from ps_cluster.config.networks import NETWORKS, check_examples
from ps_cluster.config.objectives import OBJECTIVES, SMOOTHING
from ps_cluster.config.samples import OF_FILES, OF_WORKER, ends_of_files
from ps_cluster.config.sections import flat, merged
from ps_cluster.config.setting_types import AUTO, COMPILED
from ps_cluster.data import sources
from ps_cluster.data.cache import default_cache_dir
from ps_cluster.data.packed import PackedDataset
from ps_cluster.errors import UserError
from ps_cluster.files import locks, untrusted
from ps_cluster.files.json_files import read_json
from ps_cluster.files.values import with_noun
from ps_cluster.installation import PROGRAM
from ps_cluster.launch import network_check
from ps_cluster.launch.endings import why_broken
from ps_cluster.launch.gpu_choice import with_gpus_found
from ps_cluster.launch.launcher import run_local
from ps_cluster.notices import Notify, ignore
from ps_cluster.report.byte_progress import every_tenth
from ps_cluster.report.progress import ProgressView
from ps_cluster.runs import checkpoints
from ps_cluster.runs.checkpoints import CheckpointError, EndedMark
from ps_cluster.runs.monitor import checked_monitor_mode
from ps_cluster.runs.result_rows import BROKEN, Summary, TimeLimitReached
from ps_cluster.runs.run_dir import CODE, RUN_DIRECTORY, RunDir, check_unused
from ps_cluster.system import private_network
from ps_cluster.system.environment import not_used
from ps_cluster.system.gpus import usable_gpus
from ps_cluster.system.machine import fastest_precision
from ps_cluster.system.stop_signals import StopRequests, stop_signals
from ps_cluster.training.resuming import check_journals, newest_checkpoint

EPOCHS = "training.epochs"
# A run is reported as short if it makes fewer than a third of the updates for which its epochs were chosen. With
# airbench in mode async that is fewer than about 300. Data sets of about the right size should not cause a notice.
SHORT_FACTOR = 3


def new_root(mode: str, model: str) -> Path:
    """Return a new path under runs/ for a run without --run-dir. `mode`, `model`: names, or references to code."""
    names = (Path(user_code.short_name(name)).stem for name in (mode, model))  # a saved model is a path
    return Path("runs") / "-".join((time.strftime("%Y%m%d-%H%M%S"), *names))


def start_run(
    config: RunConfig, root: Path, *, view: ProgressView, began: float | None = None, anew: bool = False,
    tensorboard: bool = False, stop_requests: StopRequests | None = None,
) -> int:  # fmt: skip
    """Run a new training in `root`. Return the exit code. Raises UserError for bad input.

    Args:
      anew: remove everything in `root` first. Otherwise only the files of a run that never trained are removed.
      stop_requests: counts the signals that ask to stop, as for `run_local`.
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
            whole = resolve_data(config.data, notify=view.notice)
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


def resolve_data(settings: DataSettings, notify: Notify) -> PackedDataset:
    """Return the packed data set. Download and pack it first if needed. Raises UserError if that fails."""
    return sources.resolve(settings, default_cache_dir(), notify=notify, progress=every_tenth(notify))


def complete_config(config: RunConfig, dataset: PackedDataset, notify: Notify = ignore) -> RunConfig:
    """Return `config` with values instead of "auto", and with an absolute data directory.

    Label smoothing becomes 0 if the objective does not use label smoothing, unless the user has set a value. The
    `optimizer.rule` "compiled" is replaced by the optimizer that the user's code has passed to Keras's compile(). A
    user's own network is built once in a separate process, which checks the network and reads this optimizer. `notify`
    gets lines that the user should read before a long training. Raises UserError if settings or network do not fit the
    examples of the data set.
    """
    if not OBJECTIVES[dataset.spec.objective].smooths_labels and SMOOTHING not in changed(config):
        config = config.with_values({SMOOTHING: 0.0})
    try:
        DATASETS[dataset.name].check_examples(config, dataset.spec)
    except ValueError as error:
        raise UserError(str(error)) from error
    config = _with_rows_of_workers(config, dataset)
    shards = config.cluster.workers if config.training.sample == OF_WORKER else 1
    if config.examples_seen(dataset.train_examples) < shards:
        raise UserError(
            f"training.sample: got '{config.training.sample}': the data set has only {dataset.train_examples} training "
            "examples: take fewer data shards, or fewer workers"
        )
    check_examples(config.model, dataset.spec)
    facts = network_check.check_network(config, dataset, notify)
    if facts.why_needs_code:
        notify(
            f"best/model.keras will need your code: {facts.why_needs_code}. Give --code to the commands predict and "
            "export too (docs/extending.md#layers-of-your-own)"
        )
    if facts.schedule and config.optimizer.rule == COMPILED and config.schedule.kind != COMPILED:
        notify(f"the schedule of compile() is not used, because schedule.kind is {config.schedule.kind}")
    config = network_check.with_rule_of_compile(config, facts)
    precision, data_dir = config.model.precision, config.data.data_dir
    return config.with_values(
        {
            "data.dataset": dataset.name,
            "data.data_dir": os.path.realpath(os.path.expanduser(data_dir)) if data_dir else None,
            "model.precision": fastest_precision() if precision == AUTO else precision,
            "evaluation.monitor_mode": checked_monitor_mode(config.evaluation, dataset.spec, facts.metrics),
        }
    )


def float32_notice(asked: RunConfig, complete: RunConfig, dataset: PackedDataset) -> str | None:
    """Return a line that says how long the training takes in float32, if this processor lacks bfloat16 instructions.

    Return None if the processor has these instructions, if the user has chosen the precision, or if no duration in
    float32 is known for this network and data set.
    `asked`: the user's settings. `complete`: what `complete_config` returned for them.
    """
    if asked.model.precision != AUTO or complete.model.precision != "float32":
        return None
    network = NETWORKS[complete.model.name]
    usual = network.usual_scores.get(dataset.name)
    if usual is None or not usual.minutes_in_float32:
        return None
    examples = complete.total_updates(dataset.train_examples) * complete.examples_per_update
    return (
        f"this processor has no bfloat16 instructions: {network.name} trains in float32, which takes about "
        f"{usual.minutes_in_float32 * examples / usual.examples:.0f} minutes on two cores; a smaller network trains in about "
        f"three minutes: {PROGRAM} run --workers 3 --model tutorial_cnn --epochs 3"
    )


def few_updates_notice(asked: RunConfig, complete: RunConfig, dataset: PackedDataset) -> str | None:
    """Return a line that suggests more epochs, if the network's default number makes few updates on a small data set.

    Return None if the data set is large enough, if its examples are generated, or if the length of the training comes
    from the user's settings or from the data set's default settings. `asked`, `complete`: as for `float32_notice`.
    """
    network, data_set = NETWORKS[complete.model.name], DATASETS[asked.data.dataset]
    of_data_set = merged(data_set.recipe, data_set.recipes.get(network.name, {}))
    is_chosen = bool({EPOCHS, "training.steps"} & changed(asked).keys()) or EPOCHS in flat(of_data_set)
    if network.tuned_on is None or is_chosen or dataset.kind == "synthetic":
        return None
    examples = complete.examples_seen(dataset.train_examples)
    if SHORT_FACTOR * examples >= network.tuned_on:
        return None
    name = Path(user_code.short_name(dataset.name)).name  # the user's data may be named by a path
    updates, epochs = complete.total_updates(dataset.train_examples), complete.training.epochs
    tuned_updates = round(epochs * network.tuned_on / complete.examples_per_update)
    enough = math.ceil(epochs * network.tuned_on / examples)
    return (
        f"this run makes only {with_noun(updates, 'update')}, because an epoch of {name} has {examples:,} training examples; "
        f"the default of {epochs:g} epochs for {network.name} was chosen for {network.tuned_on:,} examples, with "
        f"which a run makes {tuned_updates:,} updates: give --epochs {enough} to make as many here"
    )


def _with_rows_of_workers(config: RunConfig, dataset: PackedDataset) -> RunConfig:
    """Return `config` with "rows:…" instead of "files:worker" in `training.sample`.

    "files:worker" gives each worker some of the data set's files. "rows:…" lists the rows at which the workers' parts
    end. Other values of `training.sample` stay as they are. Raises UserError if the value does not fit the data.
    """
    text = config.training.sample
    if text == OF_FILES:
        if not dataset.file_rows:
            raise UserError(
                f"training.sample: got '{text}': data set '{dataset.name}' is not a table in several files: use {OF_WORKER}"
            )
        try:
            ends = ends_of_files(dataset.file_rows_to_train_on, config.cluster.workers)
        except ValueError as error:
            raise UserError(f"training.sample: got '{text}': {error}: take fewer workers, or {OF_WORKER}") from error
        return config.with_values({"training.sample": f"rows:{','.join(map(str, ends))}"})
    if config.examples_seen(dataset.train_examples) > dataset.train_examples:
        raise UserError(
            f"training.sample: got '{text:.80}': there are only {dataset.train_examples:,} training examples"
        )
    return config


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
