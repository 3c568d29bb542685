"""Add workers that arrive late or return, while the other workers continue.

TensorFlow's handler of failed workers (WorkerPreemptionHandler) waits for all of them at once, under one lock: a worker that
never returns keeps the other failed workers from returning. TensorFlow's runtime can do more. A cluster may have gaps, and
`update_server_def` adds and removes workers while the other workers continue. So this module waits for each failed worker
separately, and adds it to the cluster as soon as its server works.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import tensorflow as tf

from ps_cluster.config.tasks import WORKER, Task
from ps_cluster.files.values import one_line
from ps_cluster.notices import Notify
from ps_cluster.private_names import CLOSURE_ERRORS, is_ps_failure, is_worker_failure, server_def, update_server_def
from ps_cluster.runs.run_dir import log_line
from ps_cluster.system import connections
from ps_cluster.system.probes import working

POLL_INTERVAL_S = 1.0
_LONGEST_GAP_S = 15.0  # if two checks for silent workers are farther apart than this, silence is measured from 0 again
MOST_ERROR_CHARACTERS = 150  # longer errors are shortened in messages to the user
_RETRY_S = 0.5  # the pause before a dispatch is tried again that cannot succeed at once
_DISPATCH_ERRORS = (tf.errors.OpError, *CLOSURE_ERRORS, TypeError)


class Membership:
    """The set of workers that take part. It replaces TensorFlow's handler of failed workers.

    Attributes:
      present: the indices of the workers that take part now. Other threads may read it at any time.
    """

    def __init__(
        self, addresses: Mapping[int, str], present: Iterable[int], reason_to_refuse: Callable[[Task], str | None],
        *, keep_s: int | None = None, lost_after_s: float = math.inf,
        reach: Callable[[Mapping[int, str]], set[int]] = working,
        disconnect: Callable[[str], None] = connections.cut, notify: Notify = log_line,
        clock: Callable[[], float] = time.monotonic,
    ):  # fmt: skip
        """Start with the workers `present`.

        Args:
          addresses: index → host:port of all workers that may ever take part.
          reason_to_refuse: returns why a new worker can't take part; None if it can.
          keep_s: how many seconds servers keep this process's resources after its last sign of life; None for
            TensorFlow's default.
          lost_after_s: a member that does not answer delays the joining of other workers for at most this many seconds.
          reach: gets workers as index → host:port, and returns the indices of the workers whose servers answer.
          disconnect: ends the connections to an address.
        """
        self.present = frozenset(present)
        self._connected = set(present)  # may also have a worker that is not admitted yet
        self._addresses = dict(addresses)
        self._reason_to_refuse = reason_to_refuse
        self._reach = reach
        self._keep_s = keep_s
        self._disconnect = disconnect
        self._notify = notify
        self._clock = clock
        self._lost_after_s = lost_after_s
        self._silent_since: dict[int, float] = {}
        self._polled_s = clock()
        self._update = threading.Lock()
        self._refused: dict[int, str] = {}
        self._over = threading.Event()

    @property
    def tasks(self) -> list[Task]:
        """The tasks of the workers that take part now."""
        return [Task(WORKER, index) for index in sorted(self.present)]

    def stop(self) -> None:
        """Stop waiting for workers."""
        self._over.set()

    @contextlib.contextmanager
    def wait_on_failure(
        self,
        on_failure_fn: Callable[[Exception], None] | None = None,
        on_transient_failure_fn: Callable[[], None] | None = None,
        on_recovery_fn: Callable[[], None] | None = None,
        worker_device_name: str = "",
    ) -> Iterator[None]:
        """Run a dispatch of one worker. If the worker is lost, return once it takes part again.

        TensorFlow calls this in the worker's thread, and runs the dispatch in the `with` block. The first three arguments are
        TensorFlow's reactions to a lost worker, to a transient failure, and to the worker's return.
        """
        worker = int(worker_device_name.rpartition(":")[2])
        try:
            yield
        except _DISPATCH_ERRORS as error:
            if is_ps_failure(error) or isinstance(error, (tf.errors.CancelledError, tf.errors.DeadlineExceededError)):
                # The worker lost a parameter server, or the dispatch was cancelled or timed out. The dispatch is retried. If
                # a parameter server is lost, the chief finds that out when it checks the ledgers of all servers.
                time.sleep(_RETRY_S)
                if on_transient_failure_fn:
                    on_transient_failure_fn()
            elif is_worker_failure(error):
                self._note_loss(worker, error)
                if on_failure_fn:
                    on_failure_fn(error)
                self._take_in_again(worker)
                if on_recovery_fn:
                    on_recovery_fn()
            else:
                raise

    def _note_loss(self, worker: int, error: Exception) -> None:
        with self._update:
            was_there = worker in self.present
            self.present -= {worker}
            self._connected.discard(worker)
        if was_there:
            self._notify(
                f"worker-{worker} is gone ({one_line(str(error), MOST_ERROR_CHARACTERS)}); other workers take its steps"
            )

    def _take_in_again(self, worker: int) -> None:
        """Wait until the worker takes part again, or until `stop` is called."""
        if self._over.is_set():
            time.sleep(_RETRY_S)  # the worker's thread still tries the remaining dispatches; this pause slows it down
        while not self._over.is_set():
            address = self._addresses[worker]
            if self._reach({worker: address}) and self._try_to_take_in(worker):
                return
            self._over.wait(POLL_INTERVAL_S)

    def _try_to_take_in(self, worker: int) -> bool:
        with self._update:
            others = {index: self._addresses[index] for index in self._connected if index != worker}
            silent = others.keys() - self._reach(others)
            self._disconnect_from_lost(silent)
            if silent:
                return False  # TensorFlow would wait for the silent workers, and block everything
            members = {index: self._addresses[index] for index in self._connected | {worker}}
            try:
                with self._disconnecting_from_silent(members):
                    update_members(members, self._keep_s)
            except tf.errors.OpError as error:
                self._notify(f"worker-{worker} can't join yet ({one_line(str(error), MOST_ERROR_CHARACTERS)})")
                return False
            self._connected.add(worker)
        return self._admit_or_refuse(worker)

    def _disconnect_from_lost(self, silent: Collection[int]) -> None:
        """End the connections to members that have not answered for too long, so that their dispatches fail.

        `silent`: the members that do not answer now.
        """
        now = self._clock()
        known = self._silent_since if now - self._polled_s <= _LONGEST_GAP_S else {}
        self._polled_s = now
        self._silent_since = {worker: known.get(worker, now) for worker in silent}
        for worker, since in self._silent_since.items():
            if now - since >= self._lost_after_s:
                self._disconnect_from(worker, f"has not answered for {now - since:.0f} s")
                self._silent_since[worker] = now

    @contextlib.contextmanager
    def _disconnecting_from_silent(self, members: Mapping[int, str]) -> Iterator[None]:
        """End the connections to silent members if the block takes too long, because TensorFlow waits for these members."""

        def disconnect() -> None:
            for worker in members.keys() - self._reach(members):
                self._disconnect_from(
                    worker, f"does not answer, and all workers have waited for it for {self._lost_after_s:.0f} s"
                )

        timer = threading.Timer(min(self._lost_after_s, threading.TIMEOUT_MAX), disconnect)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _disconnect_from(self, worker: int, why: str) -> None:
        self._notify(f"worker-{worker} {why}: its connections are cut")
        try:
            self._disconnect(self._addresses[worker])
        except OSError as error:  # the host name is not known any more
            self._notify(f"the connections to worker-{worker} can't be cut: {error.strerror}")

    def _admit_or_refuse(self, worker: int) -> bool:
        """Return whether a connected worker may take part, and let it take part if so.

        A refused worker is disconnected only when another worker joins.
        """
        try:
            reason = self._reason_to_refuse(Task(WORKER, worker))
        except tf.errors.OpError as error:
            reason = one_line(str(error), MOST_ERROR_CHARACTERS)
        if reason is None:
            self._refused.pop(worker, None)
            with self._update:
                self.present |= {worker}
            self._notify(f"worker-{worker} takes part")
            return True
        with self._update:
            self._connected.discard(worker)
        if self._refused.get(worker) != reason:
            self._refused[worker] = reason
            self._notify(f"worker-{worker} ({self._addresses[worker]}) is refused: {reason}")
        return False


def update_members(workers: Mapping[int, str], keep_s: int | None) -> None:
    """Connect this process to a cluster with exactly these workers.

    Args:
      workers: index → host:port.
      keep_s: how many seconds servers keep this process's resources after its last sign of life; None for
        TensorFlow's default.
    """
    server = server_def()
    for job in server.cluster.job:
        if job.name == WORKER:
            job.tasks.clear()
            for index, address in workers.items():
                job.tasks[index] = address
    update_server_def(server, keep_s)
