"""The chief's training loop: hands out step ids and follows them in the ledger. In mode single it computes them too."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import tensorflow as tf

from ps_cluster.catalogue.imports import find
from ps_cluster.clock import AwakeClock
from ps_cluster.config import RunConfig
from ps_cluster.data.packed import PackedDataset
from ps_cluster.run.run_dir import RunDir
from ps_cluster.training.parameter_store import ParameterStore
from ps_cluster.training.session import LOCAL_DEVICE, Build, Session, build
from ps_cluster.training.slice import NO_END
from ps_cluster.training.worker import Compute

POLL_S = 0.25  # every look costs the chief and the parameter server some milliseconds
DRAIN_TIMEOUT_S = 60.0
# Seconds of work handed out ahead of what was seen applied, so that no worker waits for the chief's next look.
AHEAD_S = 1.0


def train(
    config: RunConfig,
    run_dir: RunDir,
    dataset: PackedDataset,
    cluster: dict[str, list[str]],
    index: int = 0,
    *,
    resume: bool,
    drain: threading.Event,
    build: Build = build,
) -> None:
    """Train until every update is applied, or until `drain` is set and the steps under way have ended.

    Writes checkpoints with the ended mark, rows in metrics/ and TensorBoard's files.

    Args:
      build: makes the store and what a worker computes from it.

    Raises:
      UserError: the checkpoint to resume from is missing or of another model.
      tf.errors.OpError: the cluster failed.
    """
    session = Session(config, run_dir, dataset, build=build)
    session.begin(resume=resume)
    if config.on_parameter_servers:
        dispatcher = connect(cluster)
        devices = [f"/job:ps/replica:0/task:{index}/device:CPU:0" for index in range(len(cluster["ps"]))]
        store, compute = session.build(devices, "/job:chief/task:0/device:CPU:0")
    else:
        dispatcher = LocalDispatcher()
        store, compute = session.build([LOCAL_DEVICE], LOCAL_DEVICE)
    _Chief(config, session, dispatcher, store, compute).run(drain)
    session.end(stopped=drain.is_set())


def connect(cluster: dict[str, list[str]]) -> tf.distribute.coordinator.ClusterCoordinator:
    """Connect to every server of the cluster; wait until all answer. Make variables and Keras objects only after it."""
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster), rpc_layer="grpc", task_type="chief", task_id=0
    )
    return tf.distribute.coordinator.ClusterCoordinator(tf.distribute.ParameterServerStrategy(resolver))


class LocalDispatcher:
    """A ClusterCoordinator's interface that runs each function in this process, one after the other."""

    def __init__(self):
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="steps")
        self._under_way: list[Future] = []

    def schedule(self, function: Callable, args: tuple) -> None:
        self.done()
        self._under_way.append(self._pool.submit(function, *args))

    def done(self) -> bool:
        """Return whether nothing is under way. Raises the error of a function that failed."""
        for future in [future for future in self._under_way if future.done()]:
            self._under_way.remove(future)
            future.result()
        return not self._under_way


class _Chief:
    """The loop that keeps the dispatcher busy, a little ahead of the updates applied."""

    def __init__(
        self,
        config: RunConfig,
        session: Session,
        dispatcher: tf.distribute.coordinator.ClusterCoordinator | LocalDispatcher,
        store: ParameterStore,
        compute: Compute,
    ):
        self._config = config
        self._session = session
        self._progress = session.progress
        self._dispatcher = dispatcher
        self._store = store
        self._work = find(config.mode_kind.work)(config, self._progress, store, compute, self._schedule)
        self._dispatches = self._work.dispatches()

    def run(self, drain: threading.Event) -> None:
        self._session.start()
        while not self._progress.completed and not drain.is_set():
            self._dispatch()
            drain.wait(POLL_S)
            if self._look("training") and self._work.ends:
                return  # updates may be missing; the proof then names the first
        self._work.ends = True
        self._finish_steps_under_way()

    def _look(self, phase: str) -> bool:
        """Read the ledger; return whether no dispatch was under way before. Raises the error of a worker."""
        idle = self._dispatcher.done()
        last_step = self._work.handed_out if self._work.ends else NO_END
        self._store.tick(POLL_S, last_step=last_step)
        self._session.keep_up(phase)
        return idle

    def _dispatch(self) -> None:
        ahead = self._work.two_dispatches_each + AHEAD_S * self._progress.updates_per_second()
        while not self._work.ends and self._progress.outstanding < ahead:
            if not next(self._dispatches, False):
                return  # there is no room

    def _schedule(self, function: Callable, what: np.ndarray | int) -> None:
        """Schedule a dispatch of `what` (step ids, or the version to reach). It carries the time, for the ledger."""
        self._dispatcher.schedule(function, args=(tf.constant(what, tf.int64), tf.constant(time.time(), tf.float64)))

    def _finish_steps_under_way(self) -> None:
        clock = AwakeClock()
        applied, moved = -1, clock()
        limit_s = max(DRAIN_TIMEOUT_S, self._config.longest_update_seconds)
        while self._progress.outstanding:
            if self._progress.applied > applied:
                applied, moved = self._progress.applied, clock()
            if clock() - moved > limit_s:
                raise TimeoutError(
                    f"{self._progress.outstanding} updates under way, and none ended within {limit_s:.0f} s"
                )
            time.sleep(POLL_S)
            if self._look("draining"):
                return  # nothing is under way any more: updates still outstanding are lost
