"""Run the chief's loop: hand out step ids, and read which steps the parameter servers have accepted.

Each parameter server records its accepted steps in a table, the ledger. In mode single, the chief also computes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from ps_cluster.clock import AwakeClock
from ps_cluster.config import RunConfig
from ps_cluster.config.tasks import CHIEF, PS, Task
from ps_cluster.runs.run_dir import log_line
from ps_cluster.runs.training_phases import Phase
from ps_cluster.server.shard import NO_END
from ps_cluster.system.stop_signals import Drain
from ps_cluster.training.agreement import CompatibilityFingerprint
from ps_cluster.training.building import Build, build
from ps_cluster.training.connecting import TaskAdmission, ask_to_start_again, connect, tell_end
from ps_cluster.training.devices import device_name
from ps_cluster.training.job import TrainingJob
from ps_cluster.training.session import LOCAL_DEVICE, Session, SessionStart
from ps_cluster.training.worker import DispatchGraph

# The chief checks the ledger periodically. Each check costs the chief and the parameter server a few milliseconds.
POLL_S = 0.25
LEAST_POLL_S = 0.02  # the shortest pause between two checks, just before a checkpoint of whole epochs is due
DRAIN_TIMEOUT_S = 60.0
# The chief hands out this many seconds of work ahead of the updates that it has seen applied, so that no worker waits for the
# chief's next check.
AHEAD_S = 1.0


def train(job: TrainingJob, build: Build = build) -> None:
    """Train until every update is applied, or until `job.drain` asks to stop and the steps under way have ended.

    Writes checkpoints, a file that marks the end of training, rows in metrics/, and TensorBoard's files.

    Args:
      build: builds the parameter store and the computation of the workers' steps.

    Raises:
      UserError: the checkpoint to resume from is missing or belongs to another model.
      tf.errors.OpError: the cluster failed.
    """
    config, cluster, drain, leading = job.config, job.cluster, job.drain, job.leading
    start = SessionStart(job, build=build)
    start.begin(resume=job.resume)
    if not config.chosen_mode.has_parameter_servers:
        session = start.build([LOCAL_DEVICE], LOCAL_DEVICE)
        Chief(config, session, LocalDispatcher()).run(drain)
        session.end(stopped=drain.is_set())
        return
    dispatcher, membership = connect(
        cluster, leading, TaskAdmission(leading, CompatibilityFingerprint.of(config, job.dataset))
    )
    servers = [Task(PS, index) for index in range(len(cluster[PS]))]
    session = start.build([device_name(server) for server in servers], device_name(Task(CHIEF, 0)))
    lost_after_s = leading.lost_after_s if leading.alone else math.inf
    Chief(
        config,
        session,
        dispatcher,
        lost_after_s=lost_after_s,
        present=lambda: membership.present,
        start_again=partial(ask_to_start_again, leading) if leading.alone else None,
    ).run(drain)
    outcome = session.end(stopped=drain.is_set(), is_continued=leading.alone and not drain.for_good)
    membership.stop()
    tell_end(leading, [*servers, *membership.tasks], outcome, drain)


class BackgroundPoller:
    """Runs the chief's periodic checks of the servers in a separate thread.

    A check that also saves a checkpoint takes long. In a separate thread, it does not delay dispatches.

    Use this object as a context manager. If the block ends without an error, the context manager waits for the current
    check, and raises the error of that check, if there is one.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="upkeep")
        self._under_way: Future[None] | None = None

    def __enter__(self) -> BackgroundPoller:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._pool.shutdown(wait=kind is None)  # after another error, a server that is gone may never answer
        if kind is None and self._under_way is not None:
            self._under_way.result()

    @property
    def is_under_way(self) -> bool:
        return self._under_way is not None

    def begin(self, poll: Callable[[], None]) -> None:
        """Begin a check by calling `poll` in the thread. Call this only while no check is under way."""
        self._under_way = self._pool.submit(poll)

    def ended_within(self, seconds: float) -> bool:
        """Wait at most `seconds` for the current check; return whether it has ended. If it failed, raise its error."""
        if (check := self._under_way) is not None:
            if not wait([check], seconds).done:
                return False
            self._under_way = None
            check.result()
        return True


class Dispatcher(Protocol):
    """An object that runs dispatches on free workers: TensorFlow's ClusterCoordinator, or a `LocalDispatcher`."""

    def schedule(self, graph: DispatchGraph, /, args: tuple[tf.Tensor, tf.Tensor]) -> object:
        """Hand out a dispatch: a free worker will call `graph` with `args`."""

    def done(self) -> bool:
        """Return whether no dispatch is under way. Raises the error of a dispatch that has failed."""


class LocalDispatcher:
    """Runs each dispatch in this process, one after the other."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="steps")
        self._under_way: list[Future[Any]] = []

    def schedule(self, graph: DispatchGraph, /, args: tuple[tf.Tensor, tf.Tensor]) -> None:
        self._reap()
        self._under_way.append(self._pool.submit(graph, *args))

    def done(self) -> bool:
        self._reap()
        return not self._under_way

    def _reap(self) -> None:
        for future in [future for future in self._under_way if future.done()]:
            self._under_way.remove(future)
            future.result()


class _LateWorker(NamedTuple):
    """A worker that delays a round."""

    round: int
    since_s: float  # the chief's clock when the delay was first seen, or when the worker was last asked to start again


class Chief:
    """Runs the chief's loop, which hands out steps so early that no worker has to wait for the next ones."""

    def __init__(
        self,
        config: RunConfig,
        session: Session,
        dispatcher: Dispatcher,
        *,
        lost_after_s: float = math.inf,
        present: Callable[[], frozenset[int]] | None = None,
        start_again: Callable[[Sequence[int], str], None] | None = None,
        clock: Callable[[], float] | None = None,
    ):
        """Create a chief.

        Args:
          lost_after_s: the chief gives a dispatch to another worker too if none of its steps was applied for this many
            seconds in addition to the longest time that an update may take. If it is infinite, a launcher finds lost
            workers instead.
          present: returns the indices of the workers that take part now; None if all workers always take part.
          start_again: asks workers, with the reason, to exit and be started again; None if the launcher finds and ends
            workers that do nothing (launch/silence.py).
        """
        self._config = config
        self._session = session
        self._progress = session.progress
        self._dispatcher = dispatcher
        self._work = config.chosen_mode.step_source(config, self._progress, session.graphs, self._schedule)
        self._handed_out = self._work.hand_out()
        self._lost_after_s = lost_after_s
        self._upkeep = BackgroundPoller()
        self._polled = time.monotonic()
        self._end_told = False  # whether the shards were told that no step will be handed out before the next tick
        self._over = False  # whether no dispatch was under way before the current check, and none will follow
        self._present = present
        self._start_again, self._clock = start_again, clock or AwakeClock()
        self._ticked_s = self._clock()  # when the shards got the last tick
        self._late: dict[int, _LateWorker] = {}  # by worker

    def run(self, drain: Drain) -> None:
        """Train until every update is applied, the training is broken, or `drain` asks to stop.

        A training is broken if a weight, or the loss of every step, is NaN or infinite (`Session.broken`).
        """
        self._session.start()
        with self._upkeep:
            while not (self._progress.completed or drain.is_set() or self._session.broken):
                self._dispatch()
                drain.wait(self._until_next_poll_s())
                if self._poll("training"):
                    return  # updates may be missing; if so, the proof names the first missing one
            self._work.ends = True
            self._finish_steps_under_way(drain)

    def _until_next_poll_s(self) -> float:
        """Return the seconds until the next check.

        These are POLL_S, or fewer if a checkpoint that `checkpoints.every_epochs` asks for is due earlier.
        """
        speed = self._progress.speed.updates_per_second
        least_s = max(LEAST_POLL_S, 1 / speed) if speed else POLL_S
        return min(POLL_S, max(least_s, self._session.saver.seconds_to_checkpoint))

    def _poll(self, phase: Phase) -> bool:
        """Begin a check of the ledger, or continue to wait for a check that takes long.

        Returns False while the check is under way. After the check, returns True if no dispatch was under way when the
        check began, and none will follow. Raises the error of the check, or the error of a worker.
        """
        idle = self._dispatcher.done()
        if not self._upkeep.is_under_way:
            self._over = idle and self._work.ends
            handed_out = self._progress.scheduled_updates.count if self._work.ends or self._is_paused else NO_END
            self._upkeep.begin(partial(self._keep_up, phase, handed_out))
        if not self._upkeep.ended_within(POLL_S):
            return False
        self._polled = time.monotonic()
        self._repeat_late_dispatches()
        self._ask_late_workers_to_restart()
        return self._over

    @property
    def _is_paused(self) -> bool:
        """Whether the chief hands out no steps for now, because a state has to be saved first."""
        return self._session.saver.is_paused or self._progress.is_held

    def _keep_up(self, phase: Phase, handed_out: int) -> None:
        # At the end of training, the tick reports at least the grace period as passed, so that a round that waits for
        # late gradients ends at once.
        least_s = self._config.chosen_mode.grace_seconds(self._config) if phase == "draining" else 0.0
        present = None if self._present is None else self._present()
        self._tick(handed_out, present, least_s)
        self._session.keep_up(phase)
        if present is not None:
            self._work.workers = max(1, len(present))

    def _tick(self, handed_out: int, present: frozenset[int] | None, least_s: float = 0.0) -> None:
        before_s, self._ticked_s = self._ticked_s, self._clock()
        seconds = max(least_s, min(POLL_S, self._ticked_s - before_s))
        longest_s = self._progress.pace.longest_update_s
        self._session.store.tick(seconds, handed_out=handed_out, longest_update_s=longest_s, present=present)
        self._end_told = handed_out != NO_END

    def _repeat_late_dispatches(self) -> None:
        """Give each late dispatch to another worker too.

        A dispatch is late if none of its steps was applied for a long time. If two workers compute the same step, the
        ledger accepts only the first of the two pushes.
        """
        late_after_s = self._lost_after_s + self._progress.pace.longest_wait_s
        for steps in self._progress.take_late_dispatches(late_after_s, self._work.workers):
            log_line(
                f"no step of a dispatch was applied for {late_after_s:.0f} s: another worker also gets its {len(steps)} "
                "open steps"
            )
            self._work.repeat(steps)

    def _ask_late_workers_to_restart(self) -> None:
        """Ask late workers to start again.

        A worker is late if it has not pushed in the open round for a long time, although other workers have pushed.
        A round needs every worker, so no other worker can take over the step of a worker that answers but does not
        compute.
        """
        if self._start_again is None or self._present is None:
            return
        now_s, open_round = self._clock(), self._progress.applied
        known = {worker: late for worker, late in self._late.items() if late.round == open_round}
        # A worker that takes part again after its death gets the full time.
        self._late = {
            worker: known.get(worker, _LateWorker(open_round, now_s))
            for worker in self._present() & set(self._progress.missing_in_round())
        }
        # Half of `lost_after_s`, so that the worker is back before the leader gives up.
        late_after_s = max(self._lost_after_s / 2, self._progress.pace.longest_wait_s)
        asked = [worker for worker, late in self._late.items() if now_s - late.since_s >= late_after_s]
        if asked:
            why = f"it has sent no gradient for {late_after_s:.0f} s, and the other workers wait for it"
            for worker in asked:
                log_line(f"worker-{worker} has to start again: {why}")
                self._late[worker] = _LateWorker(open_round, now_s)
            self._start_again(asked, why)

    def _dispatch(self) -> None:
        if self._is_paused:
            return
        if self._end_told and not self._work.ends:
            self._tick(NO_END, None if self._present is None else self._present())
        unseen_s = AHEAD_S + time.monotonic() - self._polled  # during a long check, the chief does not see new updates
        ahead = self._work.updates_in_two_dispatches + unseen_s * self._progress.speed.updates_per_second
        while not self._work.ends and self._progress.outstanding < ahead:
            if not next(self._handed_out, False):
                return  # the ledger has no room

    def _schedule(self, graph: DispatchGraph, what: np.ndarray | int) -> None:
        """Schedule a dispatch. The current time is sent with it, because the ledger has a column for this time.

        `what`: the step ids of the dispatch; in modes with rounds, the version of the weights at which it ends.
        """
        self._dispatcher.schedule(graph, args=(tf.constant(what, tf.int64), tf.constant(time.time(), tf.float64)))

    def _finish_steps_under_way(self, drain: Drain) -> None:
        clock = AwakeClock()
        applied, moved = -1, clock()
        limit_s = max(DRAIN_TIMEOUT_S, self._progress.pace.longest_wait_s)
        while self._progress.outstanding:
            if self._progress.applied > applied:
                applied, moved = self._progress.applied, clock()
            if self._upkeep.is_under_way:
                moved = clock()  # during a check that saves a state, the chief does not see new updates
            if clock() - moved > limit_s:
                line = f"{self._progress.outstanding} updates are under way, and none has ended within {limit_s:.0f} s"
                # Without a launcher, only this process can save the finished updates, so it does not end with an error.
                # If another leader follows, it computes all other updates again.
                if self._lost_after_s < math.inf:
                    self._progress.ends_with_open_updates = True
                    return log_line(f"{line}: they are {'lost' if drain.for_good else 'left for the next leader'}")
                raise TimeoutError(line)
            time.sleep(POLL_S)
            if self._poll("draining"):
                return  # no step is under way any more, so updates that are still outstanding are lost
