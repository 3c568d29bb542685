"""The launcher's event loop: observe tasks and run files, report events to `Decisions`, and carry out its actions.

For example, a worker that has ended is started again in these steps. `_poll` gets its `TaskExit` from
`Supervisor.poll`, and `_report_exit` passes it to `Decisions.task_died`, which plans a `RestartTask`. Once its time has
come, `Decisions.time_passed` returns this action, and `_act` calls `LocalCluster.restart`.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable
from typing import assert_never

from ps_cluster.config import RunConfig
from ps_cluster.config.tasks import EVALUATOR, TRAINING_TYPES, WORKER
from ps_cluster.errors import PORT_IN_USE, RunFailed
from ps_cluster.files.json_rows import RowTail, read_rows
from ps_cluster.files.writing import open_append
from ps_cluster.launch import actions
from ps_cluster.launch.actions import Action, Actions, EndRun
from ps_cluster.launch.decisions import Decisions, TaskStates
from ps_cluster.launch.endings import early_stopping_of, training_result
from ps_cluster.launch.local_cluster import LocalCluster
from ps_cluster.launch.stages import RunLimits
from ps_cluster.notices import Line
from ps_cluster.report.progress import ProgressView
from ps_cluster.runs import checkpoints, logs
from ps_cluster.runs.result_rows import EvaluationRow, ProgressRow, with_work
from ps_cluster.runs.rows import ScalingRow
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.runs.scale_requests import ScaleRequestHandler
from ps_cluster.runs.update_samples import RecomputedRow
from ps_cluster.system.forked_tasks import StopRequested
from ps_cluster.system.stop_signals import StopRequests
from ps_cluster.system.supervisor import TaskExit
from ps_cluster.training.resuming import newest_for


class EventLoop:
    """The event loop. Each round polls tasks and files once, in the order of `_poll`, and reports to `decisions`."""

    def __init__(
        self,
        config: RunConfig,
        cluster: LocalCluster,
        run_dir: RunDir,
        view: ProgressView,
        requests: StopRequests,
        limits: RunLimits,
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
        self._limits = limits
        self._scale_requests = ScaleRequestHandler(run_dir, self._notice)
        self.scalings: list[ScalingRow] = []  # the changes of the number of workers
        self._workers: int | None = None  # None: the cluster has not started
        self._newest = ProgressRow(phase="starting")
        self._progress = RowTail(run_dir.progress, ProgressRow)
        self._evaluation = RowTail(run_dir.evaluation, EvaluationRow)
        self._recomputed = RowTail(run_dir.recomputed, RecomputedRow)
        early_stopping = early_stopping_of(run_dir, config)
        self.decisions = Decisions(config, run_dir, limits, early_stopping, clock())
        self._ending: EndRun | None = None

    def until_the_end(self) -> EndRun:
        """Start the cluster. Return the `EndRun` once all work is done. The caller stops the remaining processes."""
        for rows_of_before in (self._progress, self._evaluation, self._recomputed):
            rows_of_before.skip()
        for score in read_rows(self._run_dir.evaluation, EvaluationRow):
            self._carry_out(self.decisions.score_seen(score, self._clock()))
        try:
            self._carry_out((actions.StartCluster(),))
            while True:
                self._poll()
                if self._ending is not None:
                    break
                self._sleep(self._limits.poll_interval_s)
        except StopRequested:  # raised in a wait for the fork server, before `_poll` could report the requests
            while self._ending is None:
                self._carry_out(self.decisions.stop_requested(self._requests.exit_code, self._clock()))
        self._read_rows()
        return self._ending

    def stops_at_once(self) -> bool:
        """Return whether the run will end at once because of stop signals that were not yet reported to `decisions`."""
        return self.decisions.stops_at_once(self._requests.count - self._requests_seen)

    def _carry_out(self, decided: Actions) -> None:
        """Carry out actions in their order. Actions after an `EndRun` are dropped."""
        for action in decided:
            if self._ending is None:
                self._act(action)

    # Observe tasks and files, and report events.

    def _poll(self) -> None:
        # Read the count before the rows: if a row makes the user stop the run, that row is read first.
        requests = self._requests.count
        self._read_rows()
        if exits := self._cluster.poll():
            self._report_exits(exits)
            self._show_tasks()
        if requests > self._requests_seen:
            self._requests_seen += 1
            self._carry_out(self.decisions.stop_requested(self._requests.exit_code, self._clock()))
        if (workers := self._scale_requests.asked()) is not None:
            self._carry_out(self.decisions.scale_requested(workers, self._clock()))
        states = ", ".join(f"{one.task} {one.state}" for one in self._cluster.states())
        seen = TaskStates(self._cluster.pids, tuple(self._cluster.frozen()), states)
        self._carry_out(self.decisions.time_passed(seen, self._clock()))

    def _read_rows(self) -> None:
        for row in with_work(self._run_dir.work, self._progress.new_rows()):
            self._newest = row
            self._view.progress(row)
            workers = {task.index: pid for task, pid in self._cluster.pids.items() if task.type == WORKER}
            self._carry_out(self.decisions.progress_seen(row, workers, self._clock()))
        for score in self._evaluation.new_rows():
            self._view.evaluation(score)
            self._carry_out(self.decisions.score_seen(score, self._clock()))
        if self._recomputed.new_rows():
            self._carry_out(self.decisions.evaluator_progressed(self._clock()))

    def _report_exits(self, exits: list[TaskExit]) -> None:
        if taken := [task_exit for task_exit in exits if task_exit.exit_code == PORT_IN_USE]:
            self._carry_out(self.decisions.port_taken(taken[0], self._clock()))
        # Report the leader's end first: after it, exits of other training tasks need no recovery.
        for task_exit in sorted(exits, key=lambda task_exit: not self._is_leaders_end(task_exit)):
            # An earlier report may have started the task again.
            if self._cluster.pids.get(task_exit.task) is None:
                self._report_exit(task_exit)

    def _is_leaders_end(self, task_exit: TaskExit) -> bool:
        return task_exit.task == self._cluster.topology.leader and task_exit.exit_code == 0

    def _report_exit(self, task_exit: TaskExit) -> None:
        done = task_exit.task.type == EVALUATOR and task_exit.exit_code == 0
        if self._is_leaders_end(task_exit):
            result = training_result(self._run_dir)
            self._carry_out(self.decisions.leader_done(result.outcome if result else "failed", self._clock()))
        elif done and checkpoints.ended(self._run_dir.checkpoints):
            self._carry_out(self.decisions.evaluator_done(self._clock()))
        else:
            self._carry_out(self.decisions.task_died(task_exit, self._clock()))

    # Carry out actions.

    def _act(self, action: Action) -> None:
        """Carry out an action, mostly by a method of the cluster."""
        cluster = self._cluster
        match action:
            case actions.Notice(line):
                self._notice(line)
            case actions.StartCluster():
                cluster.start()
                self._report_started()
            case actions.RestartTraining(resume):
                refused = cluster.restart_training(resume=resume)
                self._report_started()
                self._report_refused(refused)
            case actions.RestartTask(task):
                refused = cluster.restart(task)
                self._show_tasks()
                self._report_refused(refused)
            case actions.RestartFromSnapshot():
                self._restart_from_snapshot(action)
            case actions.GiveUp(task):
                cluster.give_up(task)
                self._report_started()
            case actions.Scale(start, stop):
                refused = cluster.scale(start=start, stop=stop, grace_s=self._limits.grace_s)
                self._report_started()
                self._report_refused(refused)
                self._carry_out(self.decisions.scaled(action, refused, self._clock()))
            case actions.AnswerScale(line, refused):
                self._scale_requests.answer(line, refused=refused)
            case actions.DrainLeader(leader):
                cluster.signal(leader, signal.SIGTERM)
            case actions.WriteStacks(tasks):
                for task in tasks:
                    if task in cluster.pids:
                        cluster.signal(task, signal.SIGUSR1)
                self._sleep(self._limits.poll_interval_s)
            case actions.Kill(task):
                if task in cluster.pids:
                    cluster.signal(task, signal.SIGKILL)
            case actions.StopTraining():
                cluster.stop(TRAINING_TYPES, self._limits.grace_s)
                self._report_stopped()
            case actions.StopAll():
                cluster.stop_all(grace_s=0)
                self._report_stopped()
            case EndRun():
                self._ending = action
            case _:
                assert_never(action)

    def _report_started(self) -> None:
        before, self._workers = self._workers, len(self._cluster.topology.workers)
        if before is not None and before != self._workers:
            applied, seconds = self._newest.applied, max(0.0, self._newest.train_seconds)
            row = ScalingRow(applied=applied, train_seconds=seconds, before=before, workers=self._workers)
            self.scalings.append(row)
        self._show_tasks()
        self._carry_out(self.decisions.cluster_started(self._cluster.topology, self._clock()))

    def _report_refused(self, refused: list[TaskExit]) -> None:
        """Report a death for each task that the machine has refused to start, so that it is started again later."""
        for task_exit in refused:
            self._carry_out(self.decisions.task_died(task_exit, self._clock()))

    def _report_stopped(self) -> None:
        self._show_tasks()
        self._carry_out(self.decisions.stopped(self._clock()))

    def _restart_from_snapshot(self, request: actions.RestartFromSnapshot) -> None:
        """Stop all training tasks and look for a state to continue from. `Decisions` then plans the restart."""
        self._cluster.stop(TRAINING_TYPES, grace_s=0)
        self._read_rows()  # the last rows of the old leader
        problem, snapshot = "", False
        try:
            snapshot = newest_for(self._cluster.shards, self._run_dir, self._notice) is not None
            if not snapshot and checkpoints.newest_first(self._run_dir.states):
                states = f"any checkpoint or snapshot in '{self._run_dir.root}'"
                problem = f"training can't continue from {states}, and does not start over while such files exist"
        except RunFailed as error:
            problem = str(error)
        self._carry_out(self.decisions.snapshot_checked(request, snapshot, problem, self._clock()))

    def _show_tasks(self) -> None:
        self._view.tasks(self._cluster.states())

    def _notice(self, line: Line) -> None:
        self._view.notice(line)
        with contextlib.suppress(OSError), open_append(self._run_dir.launcher_log) as log:  # the disk may be full
            text = logs.chosen().line(line, time.strftime("%Y-%m-%d %H:%M:%S "))
            log.write(f"{text}\n".encode())
