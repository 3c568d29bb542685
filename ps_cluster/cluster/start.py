"""From what the user asked for to a run: its directory, its data, what "auto" means here, and then the launcher."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from ps_cluster.cluster import isolation
from ps_cluster.cluster.launcher import run_local
from ps_cluster.cluster.machine import fastest_precision
from ps_cluster.cluster.narrator import Narrator
from ps_cluster.cluster.task import end_with, is_taken_port, run_task
from ps_cluster.cluster.topology import PS, TYPES_OF_MODE, WORKER, ClusterTopology, Task, from_tf_config
from ps_cluster.config import RunConfig, load_config
from ps_cluster.data import sources
from ps_cluster.data.packed import PackedDataset
from ps_cluster.errors import UserError
from ps_cluster.reporting.progress import PlainView, ProgressView
from ps_cluster.reporting.terminal import Output
from ps_cluster.run_dir import RunDir, write_whole
from ps_cluster.training import checkpoints
from ps_cluster.training.resume import newest_checkpoint

Notify = Callable[[str], None]


def new_root(config: RunConfig) -> Path:
    """A folder under runs/ for a run that was given none."""
    return Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{config.training.mode}-{config.model.name}"


def start_run(config: RunConfig, root: Path, *, view: ProgressView, began: float | None = None) -> int:
    """A new run in `root`. Returns the exit code; raises UserError for bad input. `began` as for `run_local`."""
    config.check_fits_one_machine()
    with _new_run_dir(root) as run_dir:
        isolation.check(config.cluster.isolation, run_dir.root)
        dataset = resolve_data(config.data.dataset, config.data.data_dir, notify=view.notice)
    return run_local(complete_config(config, dataset), run_dir, dataset, resume=False, view=view, began=began)


def resume_run(
    root: Path, more: Mapping[str, Any] | None = None, *, view: ProgressView, began: float | None = None
) -> int:
    """Goes on with the run in `root`. Returns the exit code; raises UserError where it can't. `began` likewise.

    Args:
      more: another length of the whole run, `training.epochs` or `training.steps`; None: as it was.
    """
    run_dir = RunDir.open(root)
    before = load_config(run_dir.config)
    config = before.with_values(more or {})
    name, data_dir, cache = config.data.dataset, config.data.data_dir, sources.default_cache_dir()
    dataset = sources.of_run(
        run_dir.dataset, name, data_dir, cache, notify=view.notice, progress=_every_tenth(view.notice)
    )
    updates, updates_before = (one.total_updates(dataset.train_examples) for one in (config, before))
    if updates != updates_before:
        newest_checkpoint(config, run_dir, dataset.train_examples, view.notice)  # before what the run was is overwritten
    if _is_complete(run_dir, config, dataset):
        view.notice(
            f"run '{root}' is complete, nothing is left to do: see {run_dir.summary}; --epochs or --steps beside "
            "--resume give it more"
        )
        return 0
    if updates != updates_before:
        view.notice(
            f"the whole run has {updates:,} updates now ({updates_before:,} before); "
            "the learning rate goes on as in a run of that length"
        )
    return run_local(config, run_dir, dataset, resume=True, view=view, began=began)


def _is_complete(run_dir: RunDir, config: RunConfig, dataset: PackedDataset) -> bool:
    """Whether all is trained, scored where it is to be scored, and summed up."""
    ended = checkpoints.ended(run_dir.checkpoints) or {}
    try:
        written = json.loads(run_dir.summary.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    last_step, scored = ended.get("last_step", 0), (written.get("evaluation") or {}).get("step")
    trained = written["outcome"] == "completed" and last_step >= config.total_updates(dataset.train_examples)
    return trained and (scored == last_step or not config.cluster.evaluator)


def run_one_task(config: RunConfig, root: Path, tf_config: str | None, *, resume: bool, notify: Notify) -> None:
    """One task of a cluster on several machines; ends the process. Raises UserError for bad input.

    Args:
      config: `cluster.workers` and `cluster.parameter_servers` are replaced by what TF_CONFIG says of them.
      root: the run directory. The leader and the evaluator must share it, and all workers of mode sync when they
        resume; the others may have their own.
    """
    topology, task = from_tf_config(tf_config)
    config = _with_size_of(topology, config)
    for name, value in (("data.dataset", config.data.dataset), ("model.precision", config.model.precision)):
        if value == "auto":
            raise UserError(
                f"{name}: got 'auto': machines may come to different ones; name one, the same for every task"
            )
    run_dir = RunDir(root.resolve())
    if task == topology.leader and not resume and checkpoints.steps(run_dir.checkpoints):
        raise UserError(f"run directory '{root}' holds checkpoints: choose another, or go on with --resume")
    _check_port_is_free(topology, task)
    dataset = resolve_data(config.data.dataset, config.data.data_dir, notify=notify)
    config = complete_config(config, dataset)
    if task == topology.leader and resume:  # before what the run was is overwritten
        newest_checkpoint(config, run_dir, dataset.train_examples, notify)
    try:
        for folder in (run_dir.metrics, run_dir.checkpoints, run_dir.logs, run_dir.errors):
            folder.mkdir(parents=True, exist_ok=True)
        write_whole(run_dir.config, config.to_yaml())
    except OSError as error:
        raise UserError(f"run directory '{root}' can't be written: {error.strerror}") from error
    end_with(_narrated(config, run_dir, dataset, topology, task, resume=resume), run_dir, task)


def _narrated(
    config: RunConfig, run_dir: RunDir, dataset: PackedDataset, topology: ClusterTopology, task: Task, *, resume: bool
) -> Callable[[], None]:
    """Return the work of a task that says at its terminal what it does."""
    view = PlainView(Output(sys.stdout), time.monotonic)
    view.start(config, run_dir, dataset)
    narrator = Narrator(task, topology, run_dir, view)

    def stopped(number: int) -> NoReturn:
        view.notice(f"{task} was stopped by {signal.Signals(number).name}")
        os._exit(128 + number)

    def body() -> None:
        narrator.start()
        try:
            run_task(config, run_dir, dataset, topology, task, resume=resume, stopped=stopped)
        except Exception as error:
            if is_taken_port(error):
                raise _taken(task, topology) from error
            raise
        finally:
            narrator.end()
        view.notice(_ended(run_dir, task, topology))

    return body


def _check_port_is_free(topology: ClusterTopology, task: Task) -> None:
    """Raises UserError where another program listens at the address of `task`: TensorFlow needs seconds to find out."""
    address = topology.address(task)
    if address is None or len(topology.tasks) == 1:  # who is alone listens nowhere
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as TensorFlow: connections of before are no matter
        try:
            probe.bind(("", int(address.rpartition(":")[2])))
        except OSError as error:
            raise _taken(task, topology) from error


def _taken(task: Task, topology: ClusterTopology) -> UserError:
    return UserError(
        f"TF_CONFIG: cluster.{task.type}: '{topology.address(task)}': {task} can't listen there, as a rule because another "
        "program does: stop that one, or give every task a TF_CONFIG with another port"
    )


def _ended(run_dir: RunDir, task: Task, topology: ClusterTopology) -> str:
    """Say how it ended; the leader knows what training came to."""
    ended = checkpoints.ended(run_dir.checkpoints) if task == topology.leader else None
    if ended is None:
        return f"{task} has ended"
    score = f"score it with: python cli.py evaluate --checkpoint-dir {shlex.quote(str(run_dir.root))}"
    goes_on = "" if ended["outcome"] == "completed" else "; the commands of all tasks with --resume go on"
    return f"{task} has ended: training is {ended['outcome']} at step {ended['last_step']:,}{goes_on}; {score}"


def resolve_data(dataset: str, data_dir: Path | None, *, notify: Notify) -> PackedDataset:
    """The packed data set, made or downloaded first where needed. Raises UserError where it can't be had."""
    return sources.resolve(dataset, data_dir, sources.default_cache_dir(), notify=notify, progress=_every_tenth(notify))


def complete_config(config: RunConfig, dataset: PackedDataset) -> RunConfig:
    """`config` with what "auto" has come to, and a data directory that is found from any working directory."""
    precision, data_dir = config.model.precision, config.data.data_dir
    return config.with_values(
        {
            "data.dataset": dataset.name,
            "data.data_dir": str(data_dir.expanduser().resolve()) if data_dir else None,
            "model.precision": fastest_precision() if precision == "auto" else precision,
        }
    )


def _with_size_of(topology: ClusterTopology, config: RunConfig) -> RunConfig:
    """`config` with as many workers and parameter servers; raises UserError where its mode has another kind of cluster."""
    mode, types = config.training.mode, topology.types
    if types != TYPES_OF_MODE[mode]:
        raise UserError(
            f"training.mode: got '{mode}', whose cluster has {', '.join(TYPES_OF_MODE[mode])}, "
            f"but that of TF_CONFIG has {', '.join(types)}"
        )
    keys = {WORKER: "cluster.workers", PS: "cluster.parameter_servers"}
    return config.with_values({key: len(topology.cluster[kind]) for kind, key in keys.items() if kind in types})


@contextlib.contextmanager
def _new_run_dir(root: Path) -> Iterator[RunDir]:
    """A new run directory that goes away again when the block fails, with those parents made for it that are empty."""
    missing = [folder for folder in (root, *root.parents) if not folder.exists()]
    run_dir = RunDir.create(root)
    try:
        yield run_dir
    except BaseException:
        for made in list(root.iterdir()):
            shutil.rmtree(made)
        with contextlib.suppress(OSError):  # another run has begun in one of the parents
            for folder in missing:
                folder.rmdir()
        raise


def _every_tenth(notify: Notify) -> Callable[[int, int | None], None]:
    """Reports a download whenever another tenth of it has come."""
    told = 0

    def progress(done_bytes: int, total_bytes: int | None) -> None:
        nonlocal told
        tenths = 10 * done_bytes // total_bytes if total_bytes else 0
        if tenths > told:
            told = tenths
            notify(f"downloaded {tenths * 10} % of {total_bytes / 1e6:.0f} MB")

    return progress
