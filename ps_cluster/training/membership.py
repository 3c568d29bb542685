"""Take in workers that come later, or again, while the others go on.

TensorFlow's own handler (WorkerPreemptionHandler) waits for all workers at once, under one lock: a worker that never
comes back keeps the others from coming back. TensorFlow's runtime can do more. A cluster may have gaps, and
`update_server_def` adds and removes workers while the others go on. So here each worker that fails is waited for by
itself, and is taken in as soon as its server works.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeAlias

import tensorflow as tf

from ps_cluster.config.tasks import CHIEF, PS, WORKER, Task
from ps_cluster.errors import UserError
from ps_cluster.files.values import Malformed
from ps_cluster.private_names import (
    CLOSURE_ERRORS,
    PartlyConnectedStrategy,
    hand_failures_to,
    is_ps_failure,
    is_worker_failure,
    server_def,
    update_server_def,
)
from ps_cluster.runs.leader_messages import MESSAGE_FILE, LeaderMessage
from ps_cluster.runs.leaders import LeaderStart
from ps_cluster.runs.result_rows import Ending
from ps_cluster.runs.run_dir import AGREEMENT, say
from ps_cluster.server.leftovers import end_earlier
from ps_cluster.system.addresses import check_is_free
from ps_cluster.system.connections import cut
from ps_cluster.system.probes import working
from ps_cluster.training.agreement import CompatibilityFingerprint

LOOK_EVERY_S = 1.0
_LOOKS_LAST_S = 15.0  # one look is at most so long after the one before, probes included; else nobody looked
# A server keeps what a leader made there for so long after its last sign of life. Without a launcher servers outlive
# leaders, and each leader makes weights and slots of its own; TensorFlow's 600 s would keep those of several.
KEEP_S = 120
_RETRY_S = 0.5  # after a failure between a worker and a parameter server
_DISPATCH_ERRORS = (tf.errors.OpError, *CLOSURE_ERRORS, TypeError)


class Membership:
    """The workers that take part. It stands in for TensorFlow's handler of failed workers.

    Attributes:
      present: the indices of the workers that are part of the cluster now.
    """

    def __init__(
        self, addresses: Mapping[int, str], present: set[int], welcome: Callable[[Task], str | None],
        *, silent_after_s: float = math.inf, reach: Callable[[Mapping[int, str]], set[int]] = working,
        cut: Callable[[str], None] = cut, notify: Callable[[str], None] = say,
        clock: Callable[[], float] = time.monotonic,
    ):  # fmt: skip
        """Begin with the workers `present`, out of all that may ever come: `addresses`, index → host:port.

        Args:
          welcome: returns why a worker that has come can't take part; None if it can.
          silent_after_s: a member that has answered nothing for so long keeps nobody out any more.
          cut: ends the connections to an address.
        """
        self.present = set(present)
        self._addresses = dict(addresses)
        self._welcome = welcome
        self._reach = reach
        self._cut = cut
        self._notify = notify
        self._clock = clock
        self._silent_after_s = silent_after_s
        self._silent_since: dict[int, float] = {}
        self._looked_s = clock()
        self._update = threading.Lock()
        self._refused: dict[int, str] = {}
        self._over = threading.Event()

    @property
    def tasks(self) -> list[Task]:
        """The workers that take part now."""
        return [Task(WORKER, index) for index in sorted(self.present)]

    def stop(self) -> None:
        """Wait for no worker any more."""
        self._over.set()

    @contextlib.contextmanager
    def wait_on_failure(
        self,
        on_failure_fn: Callable[[Exception], None] | None = None,
        on_transient_failure_fn: Callable[[], None] | None = None,
        on_recovery_fn: Callable[[], None] | None = None,
        worker_device_name: str = "",
    ) -> Iterator[None]:
        """Run a dispatch of one worker; where the worker is gone, return once it takes part again.

        TensorFlow calls this in the worker's own thread, with what it does with the dispatch.
        """
        worker = int(worker_device_name.rpartition(":")[2])
        try:
            yield
        except _DISPATCH_ERRORS as error:
            if _is_transient(error):
                # The chief's own look at the parameter servers tells whether one is lost.
                time.sleep(_RETRY_S)
                if on_transient_failure_fn:
                    on_transient_failure_fn()
            elif is_worker_failure(error):
                self._has_gone(worker, error)
                if on_failure_fn:
                    on_failure_fn(error)
                self._take_in_again(worker)
                if on_recovery_fn:
                    on_recovery_fn()
            else:
                raise

    def _has_gone(self, worker: int, error: Exception) -> None:
        with self._update:
            was_there = worker in self.present
            self.present.discard(worker)
        if was_there:
            self._notify(f"worker-{worker} is gone ({_first_line(error)}); its steps go to others")

    def _take_in_again(self, worker: int) -> None:
        """Return when the worker takes part, or nothing is waited for any more."""
        if self._over.is_set():
            time.sleep(_RETRY_S)  # its thread goes on to try dispatches that are left
        while not self._over.is_set():
            address = self._addresses[worker]
            if self._reach({worker: address}) and self._takes_in(worker):
                return
            self._over.wait(LOOK_EVERY_S)

    def _takes_in(self, worker: int) -> bool:
        with self._update:
            others = {index: self._addresses[index] for index in self.present if index != worker}
            silent = others.keys() - self._reach(others)
            self._cut_off(silent)
            if silent:
                return False  # TensorFlow would wait for the silent one, and hold up everything
            members = {index: self._addresses[index] for index in self.present | {worker}}
            try:
                with self._cutting_off_the_silent_of(members):
                    update_members(members)
            except tf.errors.OpError as error:
                self._notify(f"worker-{worker} can't be taken in yet ({_first_line(error)})")
                return False
            self.present.add(worker)
        return self._is_welcome(worker)

    def _cut_off(self, silent: Collection[int]) -> None:
        """End the connections to those of the members `silent` now that are so for too long: their dispatches then fail."""
        now = self._clock()
        known = self._silent_since if now - self._looked_s <= _LOOKS_LAST_S else {}
        self._looked_s = now
        self._silent_since = {worker: known.get(worker, now) for worker in silent}
        for worker, since in self._silent_since.items():
            if now - since >= self._silent_after_s:
                self._cut_connections(worker, f"answers nothing for {now - since:.0f} s")
                self._silent_since[worker] = now

    @contextlib.contextmanager
    def _cutting_off_the_silent_of(self, members: Mapping[int, str]) -> Iterator[None]:
        """Cut the connections to members that have fallen silent, if the block takes too long: TensorFlow waits for them."""

        def cut() -> None:
            for worker in members.keys() - self._reach(members):
                self._cut_connections(worker, f"answers nothing, and all wait for it for {self._silent_after_s:.0f} s")

        timer = threading.Timer(min(self._silent_after_s, threading.TIMEOUT_MAX), cut)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _cut_connections(self, worker: int, why: str) -> None:
        self._notify(f"worker-{worker} {why}: its connections are cut")
        try:
            self._cut(self._addresses[worker])
        except OSError as error:  # its name is not known any more
            self._notify(f"the connections to worker-{worker} can't be cut: {error.strerror}")

    def _is_welcome(self, worker: int) -> bool:
        try:
            reason = self._welcome(Task(WORKER, worker))
        except tf.errors.OpError as error:
            reason = _first_line(error)
        if reason is None:
            self._refused.pop(worker, None)
            self._notify(f"worker-{worker} takes part")
            return True
        with self._update:
            self.present.discard(worker)
        if self._refused.get(worker) != reason:
            self._refused[worker] = reason
            self._notify(f"worker-{worker} ({self._addresses[worker]}) is not taken in: {reason}")
        return False


def _is_transient(error: Exception) -> bool:
    """Return whether a dispatch may be tried again: its worker lost a parameter server, or was cancelled over it."""
    return is_ps_failure(error) or isinstance(error, (tf.errors.CancelledError, tf.errors.DeadlineExceededError))


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:150]


def update_members(workers: Mapping[int, str]) -> None:
    """Make exactly these workers (index → host:port) part of the cluster that this process is connected to."""
    server = server_def()
    for job in server.cluster.job:
        if job.name == WORKER:
            job.tasks.clear()
            for index, address in workers.items():
                job.tasks[index] = address
    update_server_def(server, KEEP_S)


# Connect the chief to the tasks that are there, compare what each works with, and tell them how training ends.

Coordinator: TypeAlias = "tf.distribute.coordinator.ClusterCoordinator"

CONNECT_EVERY_S = 0.2
TELL_WITHIN_S = 10.0


def device_of(task: Task) -> str:
    return f"/job:{task.type}/replica:0/task:{task.index}/device:CPU:0"


class TaskAdmission:
    """Compares what a task that has come works with, tells it who leads, and ends what earlier leaders left there.

    A launcher's tasks need none of it.
    """

    def __init__(self, leading: LeaderStart, own: CompatibilityFingerprint):
        self._leading = leading
        self._own = own

    def __call__(self, task: Task) -> str | None:
        """Return why a task can't take part, on one line; None if it can. Raises tf.errors.OpError where it is gone."""
        if not self._leading.alone:
            return None
        with tf.device(device_of(task)):
            text = tf.io.read_file(AGREEMENT).numpy()
        try:
            reason = self._own.difference(CompatibilityFingerprint.from_json(text), at=str(task))
        except Malformed as error:
            reason = f"its {AGREEMENT} {error}"
        if reason is None:
            end_earlier(device_of(task), self._leading.term)
        tell(task, LeaderMessage(term=self._leading.term, refused=reason))
        return reason


def _strategy(
    cluster: Mapping[str, list[str]], present: Mapping[int, str], keep_s: int | None
) -> PartlyConnectedStrategy:
    """Return a strategy of as many workers as may come, connected to those that are there."""
    there = tf.train.ClusterSpec({CHIEF: cluster[CHIEF], PS: cluster[PS], WORKER: dict(present)})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(there, rpc_layer="grpc", task_type=CHIEF, task_id=0)
    return PartlyConnectedStrategy(resolver, all_workers=len(cluster[WORKER]), keep_s=keep_s)


def connect(
    cluster: Mapping[str, list[str]],
    leading: LeaderStart = LeaderStart(),
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
    strategy = _strategy(cluster, present, KEEP_S if leading.alone else None)
    silent_after_s = leading.silent_after_s if leading.alone else math.inf  # a launcher ends what is silent
    membership = Membership(dict(enumerate(cluster[WORKER])), set(present), welcome, silent_after_s=silent_after_s)
    check_all([*(Task(PS, index) for index in range(len(cluster[PS]))), *membership.tasks], cluster, welcome)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    hand_failures_to(membership, coordinator)
    return coordinator, membership


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
        time.sleep(CONNECT_EVERY_S)


def tell(task: Task, told: LeaderMessage) -> None:
    """Write a word to a task into its workspace. Raises tf.errors.OpError where it can't be reached."""
    with tf.device(device_of(task)):
        tf.io.write_file(MESSAGE_FILE, told.model_dump_json())


def tell_end(leading: LeaderStart, tasks: Sequence[Task], outcome: Ending) -> None:
    """Tell all tasks at once that training has ended. One that can't be reached in time ends by itself, later."""
    _tell_all(tasks, LeaderMessage(term=leading.term, ended=outcome))


def ask_to_start_again(leading: LeaderStart, workers: Sequence[int], why: str) -> None:
    """Ask workers to end and be started again. `why`: on one line."""
    _tell_all([Task(WORKER, worker) for worker in workers], LeaderMessage(term=leading.term, start_again=why))


def _tell_all(tasks: Sequence[Task], message: LeaderMessage) -> None:
    def one(task: Task) -> None:
        with contextlib.suppress(tf.errors.OpError):
            tell(task, message)

    threads = [threading.Thread(target=one, args=(task,), daemon=True) for task in tasks]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + TELL_WITHIN_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
