"""The launcher's event loop: look at tasks and run files, tell `Decisions` what was seen, carry out what follows."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from typing import assert_never

from ps_cluster.catalogue.task_types import EVALUATOR, TRAINING_TYPES, WORKER
from ps_cluster.cluster.decisions import Decisions
from ps_cluster.cluster.ending import Ending, training_outcome
from ps_cluster.cluster.events_and_actions import (
    Action,
    AnswerScale,
    ClusterStarted,
    Drain,
    EvaluatorDone,
    Event,
    GiveUp,
    Kill,
    LeaderDone,
    Notice,
    PortTaken,
    ProgressSeen,
    RestartTask,
    RestartTraining,
    Scale,
    ScaleRequested,
    ScoreSeen,
    StartCluster,
    StopAll,
    Stopped,
    StopRequested,
    StopTraining,
    TakeBack,
    TakenBack,
    TaskDied,
    TimePassed,
    WriteStacks,
)
from ps_cluster.cluster.local_cluster import LocalCluster
from ps_cluster.cluster.policy import Limits
from ps_cluster.cluster.silence import Silent
from ps_cluster.cluster.task import PORT_TAKEN
from ps_cluster.config import RunConfig
from ps_cluster.errors import RunFailed
from ps_cluster.files.json_rows import RowTail
from ps_cluster.files.writing import open_append
from ps_cluster.processes.stop_requests import StopRequests
from ps_cluster.processes.supervisor import TaskExit
from ps_cluster.reporting.progress import ProgressView
from ps_cluster.run import checkpoints, log_formats
from ps_cluster.run.resume import newest_for
from ps_cluster.run.rows.progress import ProgressRow, with_work
from ps_cluster.run.rows.scaling import ScalingRow
from ps_cluster.run.rows.scores import EvaluationRow
from ps_cluster.run.run_dir import RunDir
from ps_cluster.run.scale_desk import ScaleDesk


class Watch:
    """The event loop. Each look polls everything once and tells it as events, in the order of `_look`.

    Attributes:
      scalings: the changes of the number of workers.
    """

    def __init__(
        self,
        config: RunConfig,
        cluster: LocalCluster,
        run_dir: RunDir,
        view: ProgressView,
        requests: StopRequests,
        limits: Limits,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], None] = time.sleep,
    ):
        self._clock = clock
        self._sleep = sleep
        self._cluster = cluster
        self._run_dir = run_dir
        self._view = view
        self._requests = requests
        self._requests_seen = 0
        self._look_every_s = limits.look_every_s
        self._grace_s = limits.grace_s
        self._scale_desk = ScaleDesk(run_dir, self._notice)
        self.scalings: list[ScalingRow] = []
        self._workers: int | None = None  # None: the cluster has not started
        self._newest = ProgressRow(phase="starting")
        self._progress = RowTail(run_dir.progress, ProgressRow)
        self._evaluation = RowTail(run_dir.evaluation, EvaluationRow)
        self._decisions = Decisions(config, run_dir, limits, clock())
        self._ending: Ending | None = None

    @property
    def silences(self) -> list[Silent]:
        """The worker processes that were killed because they were silent."""
        return self._decisions.silences

    def until_the_end(self) -> Ending:
        """Start the cluster; return when nothing is left to wait for. The caller stops what still runs."""
        for rows_of_before in (self._progress, self._evaluation):
            rows_of_before.skip()
        self._carry_out(StartCluster())
        while True:
            self._look()
            if self._ending is not None:
                break
            self._sleep(self._look_every_s)
        self._read_rows()
        return self._ending

    def _tell(self, event: Event) -> None:
        if self._ending is not None:
            return
        for action in self._decisions.decide(event, self._clock()):
            self._carry_out(action)
            if self._ending is not None:
                return

    # Looking.

    def _look(self) -> None:
        # Read before the rows: who asks to stop because of a row finds that row read here too.
        requests = self._requests.count
        self._read_rows()
        if exits := self._cluster.poll():
            for event in self._ends(exits):
                self._tell(event)
            self._show_tasks()
        if requests > self._requests_seen:
            self._requests_seen += 1
            self._tell(StopRequested(self._requests.exit_code))
        if (workers := self._scale_desk.asked()) is not None:
            self._tell(ScaleRequested(workers))
        states = ", ".join(f"{row['type']}-{row['index']} {row['state']}" for row in self._cluster.states())
        self._tell(TimePassed(self._cluster.pids, tuple(self._cluster.frozen()), states))

    def _read_rows(self) -> None:
        for row in with_work(self._run_dir.work, self._progress.new_rows()):
            self._newest = row
            self._view.progress(row.model_dump())
            workers = {task.index: pid for task, pid in self._cluster.pids.items() if task.type == WORKER}
            self._tell(ProgressSeen(row, workers))
        for score in self._evaluation.new_rows():
            self._view.evaluation(score)
            self._tell(ScoreSeen())

    def _ends(self, exits: list[TaskExit]) -> Iterator[Event]:
        if taken := [task_exit for task_exit in exits if task_exit.exit_code == PORT_TAKEN]:
            yield PortTaken(taken[0])
        # The leader's end first: exits of other training tasks after it need no recovery.
        for task_exit in sorted(exits, key=lambda task_exit: not self._is_leaders_end(task_exit)):
            # Because of an earlier event its task may have a new process by now.
            if self._cluster.pids.get(task_exit.task) is None:
                yield self._end(task_exit)

    def _is_leaders_end(self, task_exit: TaskExit) -> bool:
        return task_exit.task == self._cluster.topology.leader and task_exit.exit_code == 0

    def _end(self, task_exit: TaskExit) -> Event:
        if self._is_leaders_end(task_exit):
            return LeaderDone(training_outcome(self._run_dir))
        done = task_exit.task.type == EVALUATOR and task_exit.exit_code == 0
        if done and checkpoints.ended(self._run_dir.checkpoints):
            return EvaluatorDone()
        return TaskDied(task_exit)

    # Acting.

    def _carry_out(self, action: Action) -> None:
        cluster = self._cluster
        match action:
            case Notice(line):
                self._notice(line)
            case StartCluster():
                cluster.start()
                self._has_started()
            case RestartTraining(resume):
                cluster.restart_training(resume=resume)
                self._has_started()
            case RestartTask(task):
                cluster.restart(task)
                self._show_tasks()
            case TakeBack():
                self._take_back(action)
            case GiveUp(task):
                cluster.give_up(task)
                self._has_started()
            case Scale(start, stop):
                cluster.scale(start=start, stop=stop, grace_s=self._grace_s)
                self._has_started()
            case AnswerScale(line, refused):
                self._scale_desk.answer(line, refused=refused)
            case Drain(leader):
                cluster.signal(leader, signal.SIGTERM)
            case WriteStacks(tasks):
                for task in tasks:
                    cluster.signal(task, signal.SIGUSR1)
                self._sleep(self._look_every_s)
            case Kill(task):
                if task in cluster.pids:
                    cluster.signal(task, signal.SIGKILL)
            case StopTraining(grace_s):
                cluster.stop(TRAINING_TYPES, grace_s)
                self._has_stopped()
            case StopAll():
                cluster.stop_all(grace_s=0)
                self._has_stopped()
            case Ending():
                self._ending = action
            case _:
                assert_never(action)

    def _has_started(self) -> None:
        self._note_the_number_of_workers()
        self._show_tasks()
        self._tell(ClusterStarted(self._cluster.topology))

    def _note_the_number_of_workers(self) -> None:
        before, self._workers = self._workers, len(self._cluster.topology.workers)
        if before is not None and before != self._workers:
            now = self._newest
            self.scalings.append(
                ScalingRow(
                    applied=now.applied,
                    train_seconds=max(0.0, now.train_seconds),
                    before=before,
                    workers=self._workers,
                )
            )

    def _has_stopped(self) -> None:
        self._show_tasks()
        self._tell(Stopped())

    def _take_back(self, request: TakeBack) -> None:
        self._cluster.stop(TRAINING_TYPES, grace_s=0)
        self._read_rows()  # the last ones of the old leader
        problem, snapshot = "", False
        try:
            snapshot = newest_for(self._cluster.slices, self._run_dir, self._notice) is not None
            if not snapshot and checkpoints.newest_first(self._run_dir.states):
                problem = f"no state in '{self._run_dir.root}' can be read, and nothing is begun anew over them"
        except RunFailed as error:
            problem = str(error)
        self._tell(TakenBack(request, snapshot, problem))

    def _show_tasks(self) -> None:
        self._view.tasks(self._cluster.states())

    def _notice(self, line: str) -> None:
        self._view.notice(line)
        with contextlib.suppress(OSError), open_append(self._run_dir.launcher_log) as log:  # the disk may be full
            text = log_formats.chosen().line(line, time.strftime("%Y-%m-%d %H:%M:%S "))
            log.write(f"{text}\n".encode())
