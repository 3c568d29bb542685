"""Connect the chief to the tasks that are there, compare what each works with, and tell them how training ends.

The names with an underscore are TensorFlow's own, of the version that is pinned.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import tensorflow as tf
from tensorflow.python.eager import context

from ps_cluster.catalogue.task_types import CHIEF, PS, WORKER, Task
from ps_cluster.errors import UserError
from ps_cluster.files.malformed import Malformed
from ps_cluster.processes.reach import check_is_free, working
from ps_cluster.run.agreement import Agreement
from ps_cluster.run.leading import Leading
from ps_cluster.run.run_dir import AGREEMENT
from ps_cluster.run.told import TOLD, Told
from ps_cluster.training.membership import KEEP_S, Membership

Coordinator: TypeAlias = "tf.distribute.coordinator.ClusterCoordinator"

LOOK_EVERY_S = 0.2
TELL_WITHIN_S = 10.0


def device_of(task: Task) -> str:
    return f"/job:{task.type}/replica:0/task:{task.index}/device:CPU:0"


class Welcome:
    """Compares what a task that has come works with, and tells it who leads. A launcher's tasks need neither."""

    def __init__(self, leading: Leading, own: Agreement):
        self._leading = leading
        self._own = own

    def __call__(self, task: Task) -> str | None:
        """Return why a task can't take part, on one line; None if it can. Raises tf.errors.OpError where it is gone."""
        if not self._leading.alone:
            return None
        with tf.device(device_of(task)):
            text = tf.io.read_file(AGREEMENT).numpy()
        try:
            reason = self._own.difference(Agreement.from_json(text), at=str(task))
        except Malformed as error:
            reason = f"its {AGREEMENT} {error}"
        tell(task, Told(epoch=self._leading.epoch, refused=reason))
        return reason


class _Strategy(tf.distribute.ParameterServerStrategy):
    """A strategy of as many workers as may come, connected to those that are there."""

    def __init__(self, cluster: Mapping[str, list[str]], present: Mapping[int, str], keep_s: int | None):
        """Connect. `keep_s`: how long servers keep what is made there; None: as long as TensorFlow wants."""
        self._all_workers = len(cluster[WORKER])
        self._keep_s = keep_s
        there = tf.train.ClusterSpec({CHIEF: cluster[CHIEF], PS: cluster[PS], WORKER: dict(present)})
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            there, rpc_layer="grpc", task_type=CHIEF, task_id=0
        )
        super().__init__(resolver)

    def _connect_to_cluster(self, coordinator_name: str) -> None:
        default = context._KEEP_ALIVE_SECS
        context._KEEP_ALIVE_SECS = self._keep_s or default  # of the first connection nothing else tells it
        try:
            super()._connect_to_cluster(coordinator_name)
        finally:
            context._KEEP_ALIVE_SECS = default
        self._num_workers = self._all_workers


def connect(
    cluster: Mapping[str, list[str]],
    leading: Leading = Leading(),
    welcome: Callable[[Task], str | None] = lambda task: None,
) -> tuple[Coordinator, Membership]:
    """Connect to the parameter servers and the workers that are there; make variables and Keras objects only after it.

    Waits until all parameter servers and `leading.least_workers` workers are there. Whoever started this process
    bounds the wait.

    Raises:
      UserError: a task is there that can't take part.
      OSError: another program has the chief's port.
    """
    check_is_free(cluster[CHIEF][0])  # before a wait that may be long
    present = _wait_for(cluster, leading.least_workers)
    strategy = _Strategy(cluster, present, KEEP_S if leading.alone else None)
    silent_after_s = leading.silent_after_s if leading.alone else math.inf  # a launcher ends what is silent
    membership = Membership(dict(enumerate(cluster[WORKER])), set(present), welcome, silent_after_s=silent_after_s)
    check_all([*(Task(PS, index) for index in range(len(cluster[PS]))), *membership.tasks], cluster, welcome)
    return _coordinator(strategy, membership), membership


def check_all(tasks: Sequence[Task], cluster: Mapping[str, list[str]], welcome: Callable[[Task], str | None]) -> None:
    """Raise UserError where one of these tasks can't take part, with its address and the reason."""
    for task in tasks:
        if reason := welcome(task):
            raise UserError(f"{task} ({cluster[task.type][task.index]}) can't take part: {reason}")


def _wait_for(cluster: Mapping[str, list[str]], least_workers: int | None) -> dict[int, str]:
    """Return the workers that are there, index → address, once there are enough. None: all."""
    servers, workers = dict(enumerate(cluster[PS])), dict(enumerate(cluster[WORKER]))
    least = len(workers) if least_workers is None else least_workers
    while True:
        there = working(workers)
        if len(there) >= least and working(servers) == servers.keys():
            return {index: workers[index] for index in sorted(there)}
        time.sleep(LOOK_EVERY_S)


def _coordinator(strategy: _Strategy, membership: Membership) -> Coordinator:
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    cluster = coordinator._cluster
    cluster.failure_handler.stop()
    for part in (cluster, *cluster.workers):  # no dispatch is handed out yet, so no thread uses the one before
        part.failure_handler = membership
    return coordinator


def tell(task: Task, told: Told) -> None:
    """Write a word to a task into its workspace. Raises tf.errors.OpError where it can't be reached."""
    with tf.device(device_of(task)):
        tf.io.write_file(TOLD, told.model_dump_json())


def tell_end(leading: Leading, tasks: Sequence[Task], *, completed: bool) -> None:
    """Tell all tasks at once that training has ended. One that can't be reached in time ends by itself, later."""
    told = Told(epoch=leading.epoch, ended="completed" if completed else "stopped")

    def one(task: Task) -> None:
        with contextlib.suppress(tf.errors.OpError):
            tell(task, told)

    threads = [threading.Thread(target=one, args=(task,), daemon=True) for task in tasks]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + TELL_WITHIN_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
