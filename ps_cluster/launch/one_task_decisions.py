"""Decide what one task of a cluster on several machines does: the rules of the command `task`, as a state machine.

Nothing here restarts a process. The command ends with an exit code, and a scheduler restarts it unless the code is in
`NEVER_RETRY`. The rules by which `run` restarts tasks are in decisions.py and recovery.py.

Each method of `TaskDecisions` takes an event and returns actions, which one_task_loop.py carries out. Nothing here uses a
process, a file or a clock. Stages, their limits and the rule for frozen processes are those of a whole run (stages.py).
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from ps_cluster.config.tasks import WORKER, Task
from ps_cluster.errors import BAD_INPUT, FAILED, FAILED_FOR_GOOD, PORT_IN_USE, RETRY, SUPERSEDED
from ps_cluster.files.values import one_line
from ps_cluster.launch.actions import Kill, Notice, WriteStacks
from ps_cluster.launch.endings import why_broken
from ps_cluster.launch.stages import FrozenProcesses, RunLimits, RunStage, StageClock
from ps_cluster.launch.topology import ClusterTopology
from ps_cluster.notices import Line
from ps_cluster.runs.checkpoints import EndedMark
from ps_cluster.runs.logs import CONNECTED, DRAINING, TASK_ENDED, TASK_GIVES_UP, WAITING
from ps_cluster.runs.monitor import EarlyStopping
from ps_cluster.runs.result_rows import BROKEN, EarlyStop, EvaluationRow, Outcome, ProgressRow
from ps_cluster.system.child_process import signal_name

SAY_EVERY_S = 10.0  # between two lines about the same wait
LATE_WORKERS_S = 60.0  # how long the leader waits for late workers once all other tasks are there
_NAMED = 3  # the most tasks that a line names

_DRAINS = "no new steps; a last checkpoint is written when the steps under way have ended"
_CONTINUES = "run the same command again to continue"
_AGAIN = f"{_CONTINUES} (exit code {RETRY})"


@dataclass(frozen=True)
class RendezvousLimits:
    """The limits of the wait for other tasks.

    Attributes:
      wait_s: how long a task waits for the tasks that it needs.
      least_workers: training begins as soon as this number of workers is there. If it is None, training begins with all
        workers, or with those that are there `LATE_WORKERS_S` seconds after all other tasks.
      needs_all: whether the mode needs all workers.
    """

    wait_s: float
    least_workers: int | None = None
    needs_all: bool = False


@dataclass(frozen=True)
class StartProcess:
    """Start the process that runs TensorFlow. A leader begins training with `least_workers` workers; None means all."""

    least_workers: int | None


@dataclass(frozen=True)
class PassSignalOn:
    """Send a stop signal to the process of the task, which then drains the training."""

    number: int


@dataclass(frozen=True)
class EndTask:
    """End the command.

    Attributes:
      outcome: the run's outcome, which a leader writes into the summary before it ends, or None to write no summary.
      early_stop: why the training was stopped early, if its patience or time has run out.
      proof_decides: whether the proof's exit code replaces `exit_code` if the proof of the run does not hold.
    """

    exit_code: int
    outcome: Outcome | None = None
    early_stop: EarlyStop | None = None
    proof_decides: bool = False
    error: str | None = None


TaskAction = Notice | StartProcess | PassSignalOn | WriteStacks | Kill | EndTask
TaskActions = tuple[TaskAction, ...]


class TaskDecisions:
    """The rules of one task, with the state that they need.

    A leader first waits for the other tasks, then starts its process and enforces the time limits. Other tasks start
    their process at once, and probe the leader from time to time.

    The methods take two times. `now_s` also advances while the process of the command is frozen, and limits the waits
    for other tasks. `awake_s` advances only while the process of the command runs, and limits the process of the task,
    because both processes may be frozen together.

    Attributes:
      leads: whether the task is the leader.
      others: for a leader, the addresses of the tasks that it waits for; for other tasks, the leader's address.
      process_started: whether the task's process was started. A leader starts it after the wait for the other tasks.
    """

    def __init__(
        self,
        task: Task,
        topology: ClusterTopology,
        limits: RunLimits,
        rendezvous: RendezvousLimits,
        *,
        total_updates: int,
        early_stopping: EarlyStopping,
    ):
        """Begin in the first stage. `early_stopping` has not seen a score yet."""
        self._task, self._topology = task, topology
        self._rendezvous = rendezvous
        self._total_updates = total_updates
        self._early_stopping = early_stopping
        self._stopped_early = False
        self.leads = task == topology.leader
        addresses = topology.addresses
        if self.leads:
            self.others = {other: address for other, address in addresses.items() if other != task}
            if task.type == WORKER:  # without a chief its process waits for the other workers
                limits = replace(limits, startup_s=limits.startup_s + rendezvous.wait_s)
        else:  # an evaluator does not look for the leader
            self.others = {topology.leader: addresses[topology.leader]} if task.type in topology.types else {}
        self.process_started = False
        self._clock = StageClock(limits, now_s=0.0)  # counts from the start of the process
        self._frozen = FrozenProcesses(limits.frozen_s)
        self._mark: EndedMark | None = None
        self._stop_signal = 0  # the last stop signal
        self._waits_since_s = 0.0
        self._late_since_s: float | None = None  # since when only workers are missing
        self._leader_answered = False
        self._said_missing: tuple[Task, ...] | None = None  # the missing tasks of the last line about a wait
        self._say_again_s = 0.0

    def begin(self, now_s: float, awake_s: float) -> TaskActions:
        """Start the process, or begin to wait for the other tasks."""
        self._waits_since_s = now_s
        address = self._topology.address(self._task)
        line = Notice(f"{self._task} at {address}" if address else f"{self._task}")
        return (line,) if self.leads and self.others else (line, *self._start(None, now_s, awake_s))

    def _start(self, least_workers: int | None, now_s: float, awake_s: float) -> TaskActions:
        self.process_started = True
        self._waits_since_s = now_s
        self._clock.restart(awake_s)
        return (StartProcess(least_workers),)

    # The user, or a scheduler, asks to stop.

    def stop_requested(self, number: int, awake_s: float) -> TaskActions:
        """Handle a signal that asks this command to stop."""
        first, self._stop_signal = not self._stop_signal, number
        if self.leads and first and self._clock.stage is RunStage.TRAINING:
            self._clock.enter(RunStage.DRAINING, awake_s)
            line = DRAINING(f"stopping: {_DRAINS}")
            return Notice(line), PassSignalOn(number)
        if first and self._stopped_early:
            return (Notice("training is being stopped early already; Ctrl-C again to stop now"),)
        line = TASK_ENDED(f"{self._task} was stopped by {signal_name(number)}")
        return (*self._kill(), Notice(line), self._ended(128 + number))

    # A leader waits for the servers of the other tasks.

    def tasks_probed(
        self, there: Collection[Task], unknown_hosts: Sequence[str], now_s: float, awake_s: float
    ) -> TaskActions:
        """Handle a waiting leader's probe of all other tasks. `there`: the tasks that have answered.

        `unknown_hosts`: the hosts, of the tasks that have not answered, whose names this machine can't resolve.
        """
        limits = self._rendezvous
        missing = [task for task in self.others if task not in there]
        workers = sum(task.type == WORKER for task in there)
        if not missing:
            return Notice(CONNECTED("all other tasks answer")), *self._start(workers, now_s, awake_s)
        names = _names(missing, self.others)
        only_workers = all(task.type == WORKER for task in missing)
        if only_workers and not limits.needs_all and workers >= (limits.least_workers or 1):
            self._late_since_s = now_s if self._late_since_s is None else self._late_since_s
            if limits.least_workers is not None or now_s - self._late_since_s >= LATE_WORKERS_S:
                line = f"beginning with {workers} of {workers + len(missing)} workers; {names} may come later"
                return Notice(line), *self._start(workers, now_s, awake_s)
        else:
            self._late_since_s = None
        waited_s, why = now_s - self._waits_since_s, _why_silent(unknown_hosts)
        if waited_s < limits.wait_s:
            waiting = WAITING(f"waiting for {names} ({waited_s:.0f} of {limits.wait_s:g} s){why}")
            return self._say(waiting, tuple(missing), now_s)
        in_vain = Notice(f"{names} did not answer for {limits.wait_s:g} s{why}")
        if self._is_complete:  # an earlier leader completed it, but could not tell all tasks
            return in_vain, *self._complete()
        return in_vain, Notice(TASK_GIVES_UP(f"{self._task} ends; {_AGAIN}")), EndTask(RETRY)

    # Another task looks for the leader.

    def leader_probed(self, answers: bool, unknown_hosts: Sequence[str], now_s: float) -> TaskActions:
        """Handle another task's probe of the leader. `answers`: whether the leader has answered."""
        ((leader, address),) = self.others.items()
        if answers:
            self._leader_answered, self._waits_since_s = True, now_s
            if self._said_missing == ():
                return ()
            return self._say(CONNECTED(f"{leader} ({address}) answers"), (), now_s)
        away_s, wait_s, why = now_s - self._waits_since_s, self._rendezvous.wait_s, _why_silent(unknown_hosts)
        in_vain = away_s >= wait_s
        if (in_vain or (self._leader_answered and away_s > SAY_EVERY_S)) and self._is_complete:
            return *self._kill(), *self._complete()
        if not in_vain:
            line = WAITING(f"waiting for {leader} ({address}) ({away_s:.0f} of {wait_s:g} s){why}")
            return self._say(line, (leader,), now_s)
        if not why:
            return self._give_up(f"{leader} ({address}) did not answer for {wait_s:g} s")
        # This task's process does not hang, so its stack traces would tell nothing.
        line = TASK_GIVES_UP(f"{self._task} ends: {leader} ({address}) can't be reached{why}; {_AGAIN}")
        return *self._kill(), Notice(line), self._ended(RETRY)

    # The process trains, and ends.

    def mark_seen(self, mark: EndedMark | None) -> None:
        """Record the mark that training has ended. `mark`: None if there is no mark, or if it can't be read here."""
        self._mark = mark

    def progress_seen(self, row: ProgressRow, awake_s: float) -> TaskActions:
        self._clock.record_row(row, awake_s)
        self._early_stopping.check_time_limit(row)
        return self._stop_early(awake_s)

    def score_seen(self, score: EvaluationRow, awake_s: float) -> TaskActions:
        """Record a score of the evaluator. The score may be from before the start of this leader."""
        self._early_stopping.see(score)
        return self._stop_early(awake_s)

    def _stop_early(self, awake_s: float) -> TaskActions:
        """Drain the training if patience or time has run out.

        As after Ctrl-C, no other leader then continues the training.
        """
        if self._early_stopping.due is None or self._stop_signal or self._clock.stage is not RunStage.TRAINING:
            return ()
        self._stopped_early = True
        self._clock.enter(RunStage.DRAINING, awake_s)
        line = DRAINING(f"stopping early: {self._early_stopping.due.line}; {_DRAINS}")
        return Notice(line), PassSignalOn(signal.SIGINT)

    def time_passed(self, is_frozen: bool, awake_s: float) -> TaskActions:
        """Return the actions that are due after all events of a round. `is_frozen`: whether the process is stopped."""
        if self._frozen.take_overdue([self._task] if is_frozen else [], awake_s):
            return self._give_up(f"its process was frozen for {self._frozen.limit_s:g} s")
        if not self.leads or (what := self._clock.overdue(self._task, awake_s)) is None:
            return ()
        if self._is_complete:  # only the leader's last messages to the other tasks take long
            return *self._kill(), *self._training_ended()
        return self._give_up(what)

    def process_ended(self, code: int, stop_signal: int) -> TaskActions:
        """Handle the end of the task's process, if it was not killed by this command.

        Args:
          code: the exit code of the process, negative if a signal ended it.
          stop_signal: the last signal that asked this command to stop, even if it was not reported yet; 0 for none.
        """
        self._stop_signal = stop_signal
        if code == 0:
            line = TASK_ENDED(f"{self._task} has ended")
            return self._training_ended() if self.leads else (Notice(line), EndTask(0))
        if code == PORT_IN_USE:
            return (EndTask(BAD_INPUT, error=taken(self._task, self._topology)),)
        if code in (FAILED, BAD_INPUT, SUPERSEDED, RETRY):  # the process has said why
            return (self._ended(code),)
        number = -code if code < 0 else code - 128
        line = TASK_GIVES_UP(f"{self._task} was ended by {signal_name(number)}; {_CONTINUES}")
        return Notice(line), self._ended(128 + number)

    def _training_ended(self) -> TaskActions:
        """Return the actions with which the leader ends after its process has reported the end of training."""
        mark = self._mark
        if mark is None:
            return Notice(TASK_GIVES_UP(f"{self._task} has ended without a result")), self._ended(FAILED)
        text = f"{self._task} has ended: training is {mark.outcome} at step {mark.last_step:,}"
        line = Notice(TASK_ENDED(text, outcome=mark.outcome, step=mark.last_step))
        if mark.outcome in BROKEN:
            why = Notice(TASK_GIVES_UP(why_broken(mark.outcome, mark.last_step)))
            return line, why, EndTask(FAILED_FOR_GOOD, mark.outcome)
        early_stop = self._early_stopping.due if self._stopped_early and mark.outcome == "stopped" else None
        asked_to_leave = self._stop_signal not in (0, signal.SIGINT) and early_stop is None
        preempted = mark.outcome != "completed" and asked_to_leave
        return line, EndTask(RETRY if preempted else 0, mark.outcome, early_stop, proof_decides=True)

    @property
    def _is_complete(self) -> bool:
        """True if the training is complete. The mark of a shorter training before does not count."""
        return self._mark is not None and self._mark.completes(self._total_updates)

    def _complete(self) -> TaskActions:
        return Notice(TASK_ENDED(f"{self._task} has ended: training is completed")), EndTask(0)

    def _give_up(self, why: str) -> TaskActions:
        """End the task and kill its process. Stack traces are written first, to show where the process hangs."""
        line = TASK_GIVES_UP(f"{self._task} ends: {why}; {_AGAIN}")
        return WriteStacks((self._task,)), *self._kill(), Notice(line), self._ended(RETRY)

    def _kill(self) -> TaskActions:
        return (Kill(self._task),) if self.process_started else ()

    def _ended(self, exit_code: int) -> EndTask:
        """Return the action that ends a task before the training has ended.

        A leader also writes the summary, unless it has changed nothing in the run.
        """
        writes = self.leads and self.process_started and exit_code not in (BAD_INPUT, SUPERSEDED)
        return EndTask(exit_code, ("stopped" if self._stop_signal else "failed") if writes else None)

    def _say(self, line: Line, missing: tuple[Task, ...], now_s: float) -> TaskActions:
        """Return a notice, or nothing if less than `SAY_EVERY_S` ago a line was shown while the same tasks were missing."""
        if missing == self._said_missing and now_s < self._say_again_s:
            return ()
        self._said_missing, self._say_again_s = missing, now_s + SAY_EVERY_S
        return (Notice(line),)


def taken(task: Task, topology: ClusterTopology) -> str:
    """Return an error message for a task whose port is used by another program."""
    return (
        f"{topology.origin.field(task.type)}: '{topology.address(task)}': {task} can't listen there, usually "
        "because another program does: stop that program, or name another port, the same for every task"
    )


def _why_silent(unknown_hosts: Sequence[str]) -> str:
    """Return the end of a line about tasks that do not answer: the names of hosts that can't be resolved, or ""."""
    if not unknown_hosts:
        return ""
    named = ", ".join(f"'{one_line(host, 100)}'" for host in unknown_hosts)
    return (
        f": this machine can't resolve the name {named}; correct the address, or wait until the name service knows it"
    )


def _names(tasks: Sequence[Task], addresses: Mapping[Task, str]) -> str:
    more = f" and {len(tasks) - _NAMED} more" if len(tasks) > _NAMED else ""
    return ", ".join(f"{task} ({addresses[task]})" for task in tasks[:_NAMED]) + more
