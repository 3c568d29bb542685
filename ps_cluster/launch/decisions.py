"""Define how the launcher responds to each event of a run, as a state machine without side effects.

Each method of `Decisions` takes an event and returns actions (actions.py), which event_loop.py carries out. Nothing here
uses a process, a file or a clock.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ps_cluster.config import RunConfig
from ps_cluster.config.tasks import CHIEF, EVALUATOR, PS, TRAINING_TYPES, WORKER, Task
from ps_cluster.files.values import join_names, with_noun
from ps_cluster.installation import PROGRAM
from ps_cluster.launch.actions import (
    Action,
    Actions,
    AnswerScale,
    DrainLeader,
    EndRun,
    GiveUp,
    Kill,
    Notice,
    RestartFromSnapshot,
    RestartTask,
    RestartTraining,
    Scale,
    StartCluster,
    StopAll,
    StopTraining,
    WriteStacks,
)
from ps_cluster.launch.endings import why_broken
from ps_cluster.launch.recovery import Recovery, delay_text
from ps_cluster.launch.silence import SilenceDetector
from ps_cluster.launch.stages import FrozenProcesses, RunLimits, RunStage, StageClock
from ps_cluster.launch.topology import ClusterTopology
from ps_cluster.runs import logs
from ps_cluster.runs.monitor import EarlyStopping
from ps_cluster.runs.result_rows import BROKEN, EarlyStop, EvaluationRow, Outcome, ProgressRow, SilenceRow
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.system.supervisor import TaskExit

_DRAINS = "no new steps are handed out; when the running steps have ended, a last checkpoint is written and scored"
_IN_WORDS = {CHIEF: "chief", PS: "ps", WORKER: "workers"}


@dataclass(frozen=True)
class TaskStates:
    """The state of all tasks in one round of the launcher's event loop.

    Attributes:
      pids: the pid of each task that runs.
      frozen: the tasks whose process is stopped (SIGSTOP).
      states: all tasks and their states on one line, for messages.
    """

    pids: Mapping[Task, int]
    frozen: tuple[Task, ...]
    states: str


@dataclass(frozen=True)
class _TaskRestart:
    """A restart of one task that is planned for the time `at_s`, because of its death."""

    at_s: float
    death: TaskExit


@dataclass(frozen=True)
class _TrainingRestart:
    """A restart of all training tasks that is planned for the time `at_s`."""

    at_s: float
    action: RestartTraining


class Decisions:
    """A state machine that decides how the launcher responds to the events of a run.

    Training is over when the leader ends. The leader is the chief, or worker 0 if there is no chief. Each method for an
    event takes the time as its last argument, and returns the resulting actions, in order. `silences`: the worker
    processes that were killed because they made no updates.
    """

    def __init__(
        self, config: RunConfig, run_dir: RunDir, limits: RunLimits, early_stopping: EarlyStopping, now_s: float
    ):
        """Create the state machine in the stage "starting". `run_dir` is used only for file names in messages."""
        self._config = config
        self._run_dir = run_dir
        self._limits = limits
        self._on_death = config.chosen_mode.cluster.on_death
        self._recovery = Recovery(limits, self._on_death)
        self._restarts: dict[Task, _TaskRestart] = {}  # of the tasks that have died and wait for their next start
        self._training_restart: _TrainingRestart | None = None  # the planned restart of all training tasks
        self._clock = StageClock(limits, now_s)
        self._silence = SilenceDetector(config, limits, now_s)
        self.silences: list[SilenceRow] = []
        self._frozen = FrozenProcesses(limits.frozen_s)
        self._killed_at: dict[tuple[Task, int], float] = {}  # (task, pid) → when it was killed; removed once it is gone
        self._topology = ClusterTopology({})
        self._ports_taken = 0
        self._trained = False
        self._stop_requested = False
        self._draining = False
        self._early_stopping = early_stopping
        self._stopped_early = False
        self._most_applied = -1
        self._outcome: Outcome = "failed"  # until the leader has written the outcome
        self._scored = False
        self._evaluator_lost: str | None = None

    # Answers to actions.

    def cluster_started(self, topology: ClusterTopology, now_s: float) -> Actions:
        """Record the tasks of the cluster after `StartCluster`, `RestartTraining`, `GiveUp` or `Scale` changed them."""
        self._topology = topology
        return ()

    def stopped(self, now_s: float) -> Actions:
        """Record that `StopTraining` or `StopAll` was carried out, and restart the time limit of the stage."""
        self._clock.restart(now_s)
        return ()

    def snapshot_checked(self, request: RestartFromSnapshot, snapshot: bool, problem: str, now_s: float) -> Actions:
        """Plan the restart of the training tasks that `RestartFromSnapshot` has stopped.

        `snapshot`: whether there is an undamaged snapshot to continue from.
        `problem`: why training can neither continue nor start again from its first step; "" if there is no problem.
        """
        cause, delay_s = request.cause, request.delay_s
        if problem:
            return (EndRun("failed", 1, f"{cause}; {problem}"),)
        self._silence.forget()
        self._drop_restarts(self._topology.of_types(TRAINING_TYPES))
        self._training_restart = _TrainingRestart(now_s + delay_s, RestartTraining(resume=snapshot))
        self._clock.enter(RunStage.STARTING, now_s)
        where = "the newest snapshot" if snapshot else "the beginning"
        tasks = join_names([_IN_WORDS[kind] for kind in self._topology.types])
        line = f"{cause}; starting {tasks} again{delay_text(delay_s)} from {where}"
        return (Notice(logs.CLUSTER_RESTARTED(line)),)

    @property
    def _stage(self) -> RunStage:
        return self._clock.stage

    # Training progresses, and ends.

    def progress_seen(self, row: ProgressRow, workers: Mapping[int, int], now_s: float) -> Actions:
        """Record a row that the leader wrote. `workers`: index → pid of the worker processes that run now."""
        begins = self._clock.record_row(row, now_s)
        self._trained |= begins
        if self._clock.under_way:
            self._silence.add_row(row, workers, now_s)
            self._most_applied = max(self._most_applied, row.applied)
        if begins and self._draining:
            return self._drain(now_s)
        self._early_stopping.check_time_limit(row)
        return self._stop_early(now_s) if self._stage is RunStage.TRAINING else ()

    def score_seen(self, score: EvaluationRow, now_s: float) -> Actions:
        """Record a score of the evaluator. The score may be from before the start of this launcher."""
        self.evaluator_progressed(now_s)
        self._early_stopping.add_score(score)
        return self._stop_early(now_s) if self._stage is RunStage.TRAINING else ()

    def evaluator_progressed(self, now_s: float) -> Actions:
        """Record that the evaluator made progress, for example that it has checked an update by recomputing it."""
        if self._stage is RunStage.SCORING:
            self._clock.restart(now_s)
        return ()

    @property
    def early_stop(self) -> EarlyStop | None:
        """The reason for an early stop: exhausted patience or the time limit. None without an early stop."""
        return self._early_stopping.due if self._stopped_early and self._outcome == "stopped" else None

    def _stop_early(self, now_s: float) -> Actions:
        """Drain the training if the patience or the time limit of early stopping has run out.

        The run then ends as if the user had stopped it.
        """
        if (due := self._early_stopping.due) is None or self._draining:
            return ()
        self._draining = self._stopped_early = True
        return Notice(logs.DRAINING(f"stopping early: {due.line}; {_DRAINS}")), *self._drain(now_s)

    def evaluator_done(self, now_s: float) -> Actions:
        """Record that the evaluator ended with exit code 0, after it scored the last checkpoint."""
        self._scored = True
        return (self._ended(),) if self._stage is RunStage.SCORING else ()

    def leader_done(self, outcome: Outcome, now_s: float) -> Actions:
        """Record that the leader ended with exit code 0.

        `outcome`: the outcome that the leader has written into its result, or "failed" if it has written no result.
        """
        if self._expects_ends:
            return ()
        if outcome == "failed":
            leader = self._topology.leader
            log = self._run_dir.log(leader)
            return (EndRun("failed", 1, logs.with_log(f"{leader} ended without a result", log)),)
        self._outcome = outcome
        self._trained = True  # also if this launcher has seen no row, because an earlier one was killed while scoring
        self._drop_restarts(self._topology.of_types(TRAINING_TYPES))
        self._clock.enter(RunStage.SCORING, now_s)
        if self._evaluator_lost:
            return StopTraining(), self._unscored(f"the evaluator was given up: {self._evaluator_lost}")
        is_over = self._scored or not self._topology.evaluator
        return (StopTraining(), self._ended()) if is_over else (StopTraining(),)

    def stops_at_once(self, requests: int) -> bool:
        """Return whether the run ends at once, without finishing the open steps, because of requests to stop.

        `requests`: the number of stop signals that were not yet passed to `stop_requested`.
        """
        return requests > 1 or (requests == 1 and (self._stop_requested or not self._trained))

    def stop_requested(self, exit_code: int, now_s: float) -> Actions:
        """Handle a signal by which the user asks to stop.

        `exit_code`: the exit code of the command if this signal ends the run at once.
        """
        again, self._stop_requested = self._stop_requested, True
        if again or not self._trained:
            when = f"while {self._stage.value}" if self._trained else "before training began"
            outcome = self._outcome if self._stage is RunStage.SCORING else "stopped"
            return StopAll(), EndRun(outcome, exit_code, f"stopped at once, {when}")
        if self._stage is RunStage.SCORING:
            return (Notice("training is over, and the evaluator is scoring; press Ctrl-C again to stop now"),)
        self._draining = True
        given_up = (
            f"the command stops waiting for these steps after {self._clock.limits.drain_s:.0f} s without an update"
        )
        line = logs.DRAINING(f"stopping: {_DRAINS} ({given_up}); press Ctrl-C again to stop now")
        return (Notice(line), *(self._drain(now_s) if self._stage is RunStage.TRAINING else ()))

    def _drain(self, now_s: float) -> Actions:
        self._clock.enter(RunStage.DRAINING, now_s)
        return (DrainLeader(self._topology.leader),)

    def scale_requested(self, workers: int, now_s: float) -> Actions:
        """Handle the request of a user for another number of workers (`ps-cluster scale`).

        Additional workers get the lowest free indices. If there are too many workers, those with the highest indices
        stop.
        """
        if self._stage is not RunStage.TRAINING or self._training_restart:
            line = f"not possible while {self._stage.value}: workers can be started and stopped only during training"
            return (AnswerScale(line, refused=True),)
        if why_not := _why_not_scaled(self._config, workers):
            return (AnswerScale(why_not, refused=True),)
        topology = self._topology
        more = workers - len(topology.workers)
        if not more:
            if waiting := self._waiting_workers(now_s):
                running = _names(self._running_workers) or "no worker"
                return (AnswerScale("; ".join((f"running: {running}", *waiting))),)
            return (AnswerScale(f"{with_noun(workers, 'worker')} already: nothing to do"),)
        start, stop = topology.absent_workers[: max(0, more)], topology.workers[len(topology.workers) + min(0, more) :]
        self._drop_restarts(stop)
        return (Scale(tuple(start), tuple(stop)),)

    def scaled(self, request: Scale, refused: Sequence[TaskExit], now_s: float) -> Actions:
        """Return the answer to a user's request, after the action `Scale` was carried out.

        `refused`: the workers that the machine has refused to start. Before this call, report each of them to
        `task_died`, which plans to start the worker again or gives it up.
        """
        here, not_started = self._topology.workers, [one.task for one in refused]
        done = [f"stopped {_names(request.stop)}; other workers take over their steps"] if request.stop else []
        if started := [task for task in request.start if task not in not_started]:
            done.append(f"started {_names(started)}")
        done += [f"{one}; training continues without it" for one in refused if one.task not in here]
        done += self._waiting_workers(now_s)
        workers = len(self._running_workers)
        now = f"now {with_noun(workers, 'worker')}{_rate_of(self._config, workers)}"
        return (AnswerScale("; ".join((*done, now)), refused=any(task not in here for task in not_started)),)

    @property
    def _running_workers(self) -> list[Task]:
        return [task for task in self._topology.workers if task not in self._restarts]

    def _waiting_workers(self, now_s: float) -> list[str]:
        """Return a line about each worker that waits for its next start: why it waits, and for how long."""
        waiting = [self._restarts[task] for task in self._topology.workers if task in self._restarts]
        return [
            f"{one.death}; the launcher tries to start it again{delay_text(round(one.at_s - now_s))}" for one in waiting
        ]

    # A task dies.

    def port_taken(self, first: TaskExit, now_s: float) -> Actions:
        """Handle the end of tasks that could not start because other programs use their ports.

        `first`: the end of one of these tasks. Call this before `task_died`.
        """
        if self._trained:
            return ()  # this is a death like any other
        self._ports_taken += 1
        if self._ports_taken >= self._limits.port_attempts:
            return (EndRun("failed", 1, f"no free ports in {self._ports_taken} attempts: {first}"),)
        self._restarts.clear()
        self._training_restart = None
        line = logs.PORT_TAKEN(f"another program took the port of {first.task}: starting again on other ports")
        return Notice(line), StopAll(), StartCluster()

    @property
    def _expects_ends(self) -> bool:
        """True if training tasks are meant to end, because all will be restarted or because training is over."""
        return self._training_restart is not None or self._stage is RunStage.SCORING

    def task_died(self, death: TaskExit, now_s: float) -> Actions:
        """Handle the end of a task, unless it has to be reported to `leader_done` or `evaluator_done`.

        What happens depends on the task, on its error and on earlier deaths. The task may restart (`time_passed`
        returns this action after a delay), all training tasks may restart, the task may be given up, or the run may
        end.
        """
        task = death.task
        if task.type != EVALUATOR:
            if self._expects_ends:
                return ()
            if death.error.user_error:
                return (EndRun("failed", 2, death.last_line, user_error=True),)
            if death.error.final:
                return (EndRun("failed", 1, f"{death}"),)
        elif self._evaluator_lost:
            return ()  # it was given up before it ended, because SIGKILL did not end it
        elif death.error.computation:
            return self._continue_without_evaluator(f"{death}")
        silent_s = sum(silent.seconds for silent in self.silences if silent.pid == death.pid)  # at the end of its life
        delay_s = self._recovery.record_death(death, self._most_applied, now_s, silent_s)
        if delay_s is None:
            return self._give_up(task, self._recovery.first_cause(death), gone=True)
        if self._recovery.restarts_all(death):
            return (RestartFromSnapshot(f"{death}", delay_s),)
        self._restarts[task] = _TaskRestart(now_s + delay_s, death)
        return (Notice(logs.TASK_RESTARTED(f"{death}; starting it again{delay_text(delay_s)}")),)

    def _give_up(self, task: Task, cause: str, *, gone: bool) -> Actions:
        if not self._on_death[task.type].dispensable:
            return (EndRun("failed", 1, cause),)
        if task.type == EVALUATOR:
            return self._continue_without_evaluator(cause)
        if len(self._topology.of_types((task.type,))) == 1 or self._recovery.others_died(task):
            return (EndRun("failed", 1, cause),)
        self._recovery.forgive(task)
        line = f"{cause}; training continues without {task}"
        if task.type == WORKER and gone and self._stage is not RunStage.STARTING:
            return GiveUp(task), Notice(line)
        # All training tasks restart. A ps holds a part of the state. A worker that died before training began is still
        # awaited by the chief, and a worker that SIGKILL did not end keeps its connection, so the chief would wait for
        # its answer.
        return GiveUp(task), RestartFromSnapshot(line, delay_s=0)

    def _continue_without_evaluator(self, cause: str) -> Actions:
        if self._stage is RunStage.SCORING:
            return (self._unscored(f"the evaluator was given up: {cause}"),)
        self._evaluator_lost = cause
        return (Notice(logs.EVALUATOR_GIVEN_UP(f"{cause}; training continues without it")),)

    # Time passes.

    def time_passed(self, seen: TaskStates, now_s: float) -> Actions:
        """Return the actions whose time has come. Call this after all events of a round have been reported."""
        actions = [*self._take_due_restarts(now_s), *self._end_frozen(seen, now_s)]
        if self._clock.under_way:
            actions += self._end_silent(seen, now_s)
        given_up: list[Action] = []
        unkillable = self._take_unkillable(seen.pids, now_s)
        for kind in {task.type for task, _ in unkillable} - {EVALUATOR}:
            stuck = [task for task, _ in unkillable if task.type == kind]
            if len(stuck) >= len(self._topology.of_types((kind,))) > 1:
                message = f"{stuck[0]} and {stuck[-1]} are still there {self._limits.kill_s:.0f} s after SIGKILL"
                return (*actions, EndRun("failed", 1, message))
        for task, pid in unkillable:
            cause = f"{task} (pid {pid}) is still there {self._limits.kill_s:.0f} s after SIGKILL"
            given_up += self._give_up(task, cause, gone=False)
        return (*actions, *(given_up or self._at_limit(seen, now_s)))

    def _take_due_restarts(self, now_s: float) -> Actions:
        """Return the planned restarts whose time has come, and forget them."""
        due = [task for task, planned in self._restarts.items() if planned.at_s <= now_s]
        self._drop_restarts(due)
        restarts = tuple(map(RestartTask, due))
        if self._training_restart is None or self._training_restart.at_s > now_s:
            return restarts
        planned, self._training_restart = self._training_restart, None
        return *restarts, planned.action

    def _end_frozen(self, seen: TaskStates, now_s: float) -> Actions:
        actions: list[Action] = []
        for task in self._frozen.take_overdue(seen.frozen, now_s):
            line = logs.TASK_FROZEN(f"{task} has been frozen for {self._frozen.limit_s:.0f} s: killing it")
            actions += (Notice(line), *self._kill(task, seen, now_s))
        return tuple(actions)

    def _end_silent(self, seen: TaskStates, now_s: float) -> Actions:
        """Kill a worker that is silent. Until it is restarted, the other workers take over its steps."""
        if (silent := self._silence.take_longest_silent()) is None:
            return ()
        task = Task(WORKER, silent.worker)
        if seen.pids.get(task) != silent.pid:
            return ()  # it ended since the last row
        self.silences.append(silent)
        line = logs.WORKER_SILENT(
            f"{task} (pid {silent.pid}) is silent: no update for {silent.seconds:.0f} s, after {silent.updates} "
            "updates; its stack traces are in its log; killing it"
        )
        return (WriteStacks((task,)), Notice(line), *self._kill(task, seen, now_s))

    def _kill(self, task: Task, seen: TaskStates, now_s: float) -> Actions:
        """Kill a task's process, if there is one. If the process does not end, `_take_unkillable` returns it later."""
        if (pid := seen.pids.get(task)) is None:
            return ()
        self._killed_at.setdefault((task, pid), now_s)
        return (Kill(task),)

    def _take_unkillable(self, pids: Mapping[Task, int], now_s: float) -> list[tuple[Task, int]]:
        """Return the tasks, with their pids, whose processes still exist long after they were killed.

        Each process is returned only once.
        """
        self._killed_at = {key: at for key, at in self._killed_at.items() if pids.get(key[0]) == key[1]}
        keys = [key for key, at in self._killed_at.items() if now_s - at > self._limits.kill_s]
        for key in keys:
            del self._killed_at[key]
        return keys

    def _at_limit(self, seen: TaskStates, now_s: float) -> Actions:
        """Return the actions to take if the time limit of the stage is exceeded, else ()."""
        leader = self._topology.leader
        if (what := self._clock.overdue(leader, now_s)) is None:
            return ()
        message = f"{what} ({seen.states}; logs: {self._run_dir.logs})"
        if self._stage is RunStage.SCORING:
            return (self._unscored(message),)
        if self._stage is not RunStage.TRAINING:
            return (EndRun("failed", 1, message),)
        self._clock.restart(now_s)  # the leader's death restarts the cluster
        notice = Notice(logs.STANDSTILL(f"{message}; stack traces are in the logs; killing {leader}"))
        return (WriteStacks(self._topology.tasks), *self._kill(leader, seen, now_s), notice)

    def _ended(self) -> EndRun:
        """Return the outcome of a run, once all its work is done."""
        if self._outcome not in BROKEN:
            return EndRun(self._outcome)
        return EndRun(self._outcome, 1, why_broken(self._outcome, max(0, self._most_applied)))

    def _unscored(self, why: str) -> EndRun:
        do = f"score it with: {PROGRAM} evaluate --once --checkpoint-dir {shlex.quote(str(self._run_dir.checkpoints))}"
        return EndRun(self._outcome, 1, f"the last checkpoint is not scored, because {why}; {do}")

    def _drop_restarts(self, tasks: Iterable[Task]) -> None:
        for task in tasks:
            self._restarts.pop(task, None)


def _names(tasks: Sequence[Task]) -> str:
    return ", ".join(map(str, tasks))


def _why_not_scaled(config: RunConfig, workers: int) -> str | None:
    """Return why a run can't have this number of workers, on one line; None if it can."""
    if why := config.chosen_mode.why_fixed:
        return f"--workers: got {workers}: {why}"
    least, most = config.least_workers, config.most_workers
    if least <= workers <= most:
        return None
    between = f"{least} to {most}" if least < most else f"exactly {least}"
    return (
        f"--workers: got {workers}: this run was started for {between} workers (options --min-workers, --max-workers)"
    )


def _rate_of(config: RunConfig, workers: int) -> str:
    """Return text to append to a line: how additional workers lower the learning rate, or "" if they do not."""
    begun = config.training_workers
    if not config.chosen_mode.lowers_rate or workers <= begun:
        return ""
    return f"; the learning rate is {(begun / workers) ** 2:.2g} times that of {with_noun(begun, 'worker')}"
