"""The chief: hands out step ids, watches the ledger, writes rows and checkpoints. Without a cluster it trains by itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import tensorflow as tf

from ps_cluster.config import RunConfig
from ps_cluster.data.packed import PackedDataset
from ps_cluster.errors import UserError
from ps_cluster.models import flat, registry
from ps_cluster.reporting.tensorboard import TrainingWriter
from ps_cluster.run_dir import RunDir, append_row, say, write_json
from ps_cluster.training import checkpoints
from ps_cluster.training.elastic import LocalSteps
from ps_cluster.training.ledger import write_csv
from ps_cluster.training.parameter_store import ParameterStore
from ps_cluster.training.run_progress import RunProgress
from ps_cluster.training.saver import Saver
from ps_cluster.training.slice import Slice
from ps_cluster.training.step import TrainStep
from ps_cluster.training.worker import SLICE_KINDS, Compute, rounds_function, steps_function

LOCAL_DEVICE = "/device:CPU:0"
POLL_S = 0.1
ROW_EVERY_S = 0.5
DRAIN_TIMEOUT_S = 60.0
# Steps handed out ahead of what the poll has seen applied, so that no worker waits for the chief's next look.
AHEAD_S = 1.0


def train(
    config: RunConfig,
    run_dir: RunDir,
    dataset: PackedDataset,
    cluster: dict[str, list[str]],
    *,
    resume: bool,
    drain: threading.Event,
) -> None:
    """Trains until every update is applied, or until `drain` is set and the steps under way have ended.

    Leaves checkpoints with their ended mark, rows in metrics/ and TensorBoard's files.

    Raises:
      UserError: the checkpoint to resume from is missing or of another model.
      tf.errors.OpError: the cluster failed.
    """
    progress, started = begin(config, run_dir, dataset, resume=resume)
    checkpoints.clear_ended(run_dir.checkpoints)
    reporter = Reporter(run_dir, progress)
    reporter.row("connecting")
    dispatcher = connect(cluster) if config.on_parameter_servers else LocalDispatcher()
    reporter.row("building")
    devices = [f"/job:ps/replica:0/task:{index}/device:CPU:0" for index in range(len(cluster.get("ps", ())))]
    chief = "/job:chief/task:0/device:CPU:0" if config.on_parameter_servers else LOCAL_DEVICE
    store, compute = build(config, dataset, devices or [LOCAL_DEVICE], chief)
    if started is not None:
        store.restore(started.arrays)
    _Chief(config, run_dir, dataset, dispatcher, store, compute, progress, reporter).run(drain)


def begin(
    config: RunConfig, run_dir: RunDir, dataset: PackedDataset, *, resume: bool
) -> tuple[RunProgress, checkpoints.Checkpoint | None]:
    """Where a training starts: its progress so far, and the checkpoint to restore when it is resumed.

    Raises:
      UserError: there is no checkpoint to resume from, or it is of other work.
    """
    started = checkpoints.load_newest_good(run_dir.states, say) if resume else None
    if resume and started is None:
        raise UserError(f"run directory '{run_dir.root}' holds no checkpoint to resume from")
    progress = RunProgress(config, dataset.train_examples)
    if started is not None:
        _check_same_work(config, RunConfig.model_validate(started.meta["config"]))
        progress.resume(started.arrays["ledger"], started.meta["train_seconds"])
    return progress, started


def _check_same_work(config: RunConfig, before: RunConfig) -> None:
    """The ledger's step ids mean the same only where these are equal."""
    works = [
        {
            "training.mode": c.training.mode,
            "training.batch_size_per_worker": c.training.batch_size_per_worker,
            "training.seed": c.training.seed,
            "steps of an update": c.steps_per_update,
        }
        for c in (before, config)
    ]
    for name, value in works[0].items():
        if value != works[1][name]:
            raise UserError(f"{name}: got {works[1][name]}, but the checkpoint to resume from was made with {value}")


def connect(cluster: dict[str, list[str]]) -> tf.distribute.coordinator.ClusterCoordinator:
    """Waits for every server of the cluster. Make variables and Keras objects after it, never before."""
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster), rpc_layer="grpc", task_type="chief", task_id=0
    )
    return tf.distribute.coordinator.ClusterCoordinator(tf.distribute.ParameterServerStrategy(resolver))


class LocalDispatcher:
    """Takes what a ClusterCoordinator takes and runs it in this process, one after the other."""

    def __init__(self):
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="steps")
        self._under_way: list[Future] = []

    def schedule(self, function: Callable, args: tuple) -> None:
        self.done()
        self._under_way.append(self._pool.submit(function, *args))

    def done(self) -> bool:
        """Whether nothing is under way; raises what went wrong."""
        for future in [future for future in self._under_way if future.done()]:
            self._under_way.remove(future)
            future.result()
        return not self._under_way


def build(
    config: RunConfig, dataset: PackedDataset, devices: Sequence[str], own_device: str
) -> tuple[ParameterStore, Compute]:
    """The store, a slice on each of `devices`, and what a worker computes from it."""
    with tf.device(own_device):
        model = registry.build(
            config.model.name,
            len(dataset.classes),
            precision=config.model.precision,
            seed=config.training.seed,
            whitening_images=np.asarray(dataset.images("train")[: registry.WHITENING_EXAMPLES]),
        )
        network = flat.FlatNetwork(model)
        weights, statistics = flat.flatten(model.trainable_variables), flat.flatten(flat.statistics_of(model))
    factors = network.weights.factors((rule.match, rule.factor) for rule in config.optimizer.learning_rate_factors)
    store = ParameterStore(
        devices,
        weights,
        statistics,
        factors,
        config=config,
        total_steps=config.total_steps(dataset.train_examples),
        kind=SLICE_KINDS.get(config.training.mode, Slice),
    )
    step = TrainStep(config, network, train_examples=dataset.train_examples, classes=len(dataset.classes))
    return store, LocalSteps(step, config, factors) if config.training.mode == "elastic" else step


class Reporter:
    """Writes a row of progress where people and programs look: metrics/progress.jsonl and TensorBoard."""

    def __init__(self, run_dir: RunDir, progress: RunProgress):
        self.run_dir = run_dir
        self._progress = progress
        self._tensorboard: TrainingWriter | None = None
        self._next_s = 0.0

    def row(self, phase: str) -> None:
        row = self._progress.row(phase)
        try:
            append_row(self.run_dir.progress, row)
            if phase in ("training", "ended"):
                # Not before: making a writer needs TensorFlow's context, which connecting resets.
                self._tensorboard = self._tensorboard or TrainingWriter(self.run_dir)
                self._tensorboard.write(row)
        except (OSError, tf.errors.OpError) as error:
            # A full disk may have room again later, and the ledger has all that is in a row.
            say(f"training goes on, but a row can't be written: {' '.join(str(error).split())[:200]}")

    def end(self, result: dict, ledgers: np.ndarray) -> None:
        """The last row, the ledger, and the result where the launcher looks for it."""
        write_csv(self.run_dir.updates, ledgers)
        write_json(self.run_dir.training_result, result)
        self.row("ended")
        if self._tensorboard is not None:
            self._tensorboard.write_staleness(result["staleness"]["histogram"], self._progress.applied)
            self._tensorboard.close()

    def row_when_due(self, phase: str) -> None:
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + ROW_EVERY_S
            self.row(phase)


class _Chief:
    def __init__(self, config, run_dir, dataset, dispatcher, store, compute, progress, reporter):
        self._config: RunConfig = config
        self._dispatcher = dispatcher
        self._store: ParameterStore = store
        self._progress: RunProgress = progress
        self._reporter: Reporter = reporter
        self._saver = Saver(config, run_dir, dataset.kind, store, progress)
        if config.training.mode == "sync-ps":
            self._plan = self._rounds(rounds_function(store, compute, config))
        else:
            self._plan = self._steps(steps_function(store, compute, config))

    def run(self, drain: threading.Event) -> None:
        self._progress.start()
        self._poll()  # after a resume there may be nothing left to do, and the counts have to be known all the same
        while not self._progress.completed and not drain.is_set():
            self._dispatch()
            drain.wait(POLL_S)
            self._dispatcher.done()  # raises what went wrong on a worker
            self._poll()
            self._reporter.row_when_due("training")
            self._saver.save_when_due()
        self._finish_steps_under_way()
        end(self._config, self._saver, self._store, self._progress, self._reporter)

    def _dispatch(self) -> None:
        workers, at_once = self._config.training_workers, self._config.cluster.steps_per_dispatch
        ahead = 2 * workers * at_once / self._config.steps_per_update + AHEAD_S * self._progress.updates_per_second()
        while self._progress.outstanding < ahead and next(self._plan, None):
            pass

    def _steps(self, run_steps: Callable) -> Iterator[bool]:
        """Schedules the steps that are missing, a dispatch with each turn."""
        missing, size = self._progress.missing_steps(), self._config.cluster.steps_per_dispatch
        for step_ids in np.split(missing, range(size, len(missing), size)) if len(missing) else ():
            self._dispatcher.schedule(run_steps, args=(tf.constant(step_ids, tf.int64),))
            self._progress.scheduled_steps(step_ids)
            yield True

    def _rounds(self, run_rounds: Callable) -> Iterator[bool]:
        """Schedules rounds: a dispatch for every worker with each turn. One that takes a second one finds it done."""
        size, first, total = self._config.cluster.steps_per_dispatch, self._progress.applied, self._progress.total
        for round_end in (*range(first + size, total, size), total) if first < total else ():
            for _ in range(self._config.training_workers):
                self._dispatcher.schedule(run_rounds, args=(tf.constant(round_end, tf.int64),))
            self._progress.scheduled_updates(round_end)
            yield True

    def _poll(self) -> None:
        first, end = self._progress.open_range
        self._progress.update(*self._store.read_ledgers(first, end), first=first)

    def _finish_steps_under_way(self) -> None:
        applied, moved = -1, time.monotonic()
        while self._progress.outstanding:
            if self._progress.applied > applied:
                applied, moved = self._progress.applied, time.monotonic()
            if time.monotonic() - moved > DRAIN_TIMEOUT_S:
                raise TimeoutError(
                    f"{self._progress.outstanding} updates under way, and none ended within {DRAIN_TIMEOUT_S:.0f} s"
                )
            self._dispatcher.done()
            time.sleep(POLL_S)
            self._poll()
            self._reporter.row_when_due("draining")
            self._saver.save_when_due()


def end(config: RunConfig, saver: Saver, store: ParameterStore, progress: RunProgress, reporter: Reporter) -> None:
    """The last checkpoint, the ledger, the result, and the mark that no checkpoint comes after."""
    saver.save_last()
    outcome = "completed" if progress.completed else "stopped"
    lengths = [part.length for part in store.slices] if config.on_parameter_servers else []
    reporter.end(progress.result(lengths), progress.ledgers)
    checkpoints.mark_ended(reporter.run_dir.checkpoints, last_step=progress.applied, outcome=outcome)
