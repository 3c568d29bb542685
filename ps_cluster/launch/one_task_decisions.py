"""Decide what one task of a cluster on several machines does: the rules of the command `task`, as a state machine.

Nothing here restarts a process. The command ends with an exit code, and a scheduler restarts it unless the code is in
`NEVER_RETRY`. The rules by which `run` restarts tasks are in decisions.py and recovery.py.

`decisions_for` returns the rules of the leader (`LeaderDecisions`) or of another task (`FollowerDecisions`). Each of
their methods takes an event and returns actions, which one_task_loop.py carries out. Nothing here uses a process, a file
or a clock. Stages, their limits and the rule for frozen processes are those of a whole run (stages.py).
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

ANNOUNCE_EVERY_S = 10.0  # between two lines about the same wait
LATE_WORKERS_S = 60.0  # how long the leader waits for late workers once all other tasks are there
_NAMED = 3  # the most tasks that a line names

_DRAINS = "no new steps are handed out; when the running steps have ended, a last checkpoint is written"
_CONTINUES = "run the same command again to continue"
_AGAIN = f"{_CONTINUES} (exit code {RETRY})"


@dataclass(frozen=True)
class RendezvousLimits:
    """The limits of the wait for other tasks.

    Attributes:
      wait_s: how long a task waits for the tasks that it needs.
      least_workers: training begins as soon as this number of workers and all other tasks are there. If it is None,
        training begins as soon as all tasks are there. If only workers are still missing, but at least one is there, it
        begins without them after `LATE_WORKERS_S` seconds.
      needs_all: whether the mode needs all workers. Training then never begins without some of them.
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
      early_stop: why the training was stopped early; None unless the patience or the time limit of early stopping has
        run out.
      proof_decides: whether FAILED_FOR_GOOD replaces `exit_code` if the proof, the check of the ledger after training,
        has found an error.
    """

    exit_code: int
    outcome: Outcome | None = None
    early_stop: EarlyStop | None = None
    proof_decides: bool = False
    error: str | None = None


TaskAction = Notice | StartProcess | PassSignalOn | WriteStacks | Kill | EndTask
TaskActions = tuple[TaskAction, ...]


class LeaderDecisions:
    """A state machine that decides what the leader of a cluster on several machines does.

    A leader first waits for the other tasks, then starts its process and enforces the time limits of the training.

    The methods take two times. The waits for other tasks are limited by `now_s`, which counts all time. The stages of
    the task's process are limited by `awake_s`. It does not count time in which the process of the command is frozen,
    because the process of the task may be frozen at the same time.
    """

    def __init__(
        self, task: Task, topology: ClusterTopology, limits: RunLimits, rendezvous: RendezvousLimits,
        *, total_updates: int, early_stopping: EarlyStopping,
    ):  # fmt: skip
        """Create the state machine; `begin` starts it. `early_stopping`: a rule that has not seen a score yet."""
        self._task, self._topology = task, topology
        self._rendezvous = rendezvous
        self._total_updates = total_updates
        self._early_stopping = early_stopping
        self._stopped_early = False
        self._others = {other: address for other, address in topology.addresses.items() if other != task}
        self._process_started = False  # it is started after the wait for the other tasks
        if task.type == WORKER:  # without a chief its process waits for the other workers
            limits = replace(limits, startup_s=limits.startup_s + rendezvous.wait_s)
        self._clock = StageClock(limits, now_s=0.0)  # counts from the start of the process
        self._frozen = FrozenProcesses(limits.frozen_s)
        self._mark: EndedMark | None = None
        self._stop_signal = 0  # the last stop signal
        self._wait = _Wait()
        self._late_since_s: float | None = None  # since when only workers are missing

    @property
    def probed_tasks(self) -> Mapping[Task, str]:
        """The tasks that the leader probes, with their addresses.

        These are all other tasks until the leader's own process is started, and no tasks after that.
        """
        return {} if self._process_started else self._others

    def begin(self, now_s: float, awake_s: float) -> TaskActions:
        """Begin to wait for the other tasks, or start the process if there are no other tasks."""
        self._wait.begin(now_s)
        line = _first_line(self._task, self._topology)
        return (line,) if self._others else (line, self._start(None, awake_s))

    def _start(self, least_workers: int | None, awake_s: float) -> StartProcess:
        self._process_started = True
        self._clock.restart(awake_s)
        return StartProcess(least_workers)

    def stop_requested(self, number: int, awake_s: float) -> TaskActions:
        """Handle a signal that asks this command to stop. If training has begun, the first such signal drains it."""
        first, self._stop_signal = not self._stop_signal, number
        if first and self._clock.stage is RunStage.TRAINING:
            return self._drain(f"stopping: {_DRAINS}", number, awake_s)
        if first and self._stopped_early:
            return (Notice("training is being stopped early already; press Ctrl-C again to stop now"),)
        kills = (Kill(self._task),) if self._process_started else ()
        return *kills, _stopped_by(self._task, number), self._with_summary(EndTask(128 + number))

    def _drain(self, line: str, number: int, awake_s: float) -> TaskActions:
        self._clock.enter(RunStage.DRAINING, awake_s)
        return Notice(DRAINING(line)), PassSignalOn(number)

    def probed(
        self, there: Collection[Task], unknown_hosts: Sequence[str], now_s: float, awake_s: float
    ) -> TaskActions:
        """Handle the result of a probe of all other tasks, before this task's process is started.

        Args:
          there: the tasks that have answered.
          unknown_hosts: the hosts of other tasks whose names this machine can't resolve.
        """
        missing = [task for task in self._others if task not in there]
        workers = sum(task.type == WORKER for task in there)
        if not missing:
            return Notice(CONNECTED("all other tasks answer")), self._start(workers, awake_s)
        if self._begins_without(missing, workers, now_s):
            names = _names(missing, self._others)
            line = f"beginning with {workers} of {workers + len(missing)} workers; {names} may come later"
            return Notice(line), self._start(workers, awake_s)
        return self._keep_waiting(missing, unknown_hosts, now_s)

    def _begins_without(self, missing: Sequence[Task], workers: int, now_s: float) -> bool:
        """Return whether training begins although tasks are missing. `workers`: how many workers have answered."""
        limits = self._rendezvous
        only_workers = all(task.type == WORKER for task in missing)
        if not only_workers or limits.needs_all or workers < (limits.least_workers or 1):
            self._late_since_s = None
            return False
        if self._late_since_s is None:
            self._late_since_s = now_s
        return limits.least_workers is not None or now_s - self._late_since_s >= LATE_WORKERS_S

    def _keep_waiting(self, missing: Sequence[Task], unknown_hosts: Sequence[str], now_s: float) -> TaskActions:
        """Say for which tasks this task waits, or end if it has waited for too long."""
        names, why = _names(missing, self._others), _why_silent(unknown_hosts)
        waited_s, wait_s = self._wait.lasts_s(now_s), self._rendezvous.wait_s
        if waited_s < wait_s:
            waiting = WAITING(f"waiting for {names} ({waited_s:.0f} of {wait_s:g} s){why}")
            return self._wait.announce(waiting, tuple(missing), now_s)
        in_vain = Notice(f"{names} did not answer for {wait_s:g} s{why}")
        if self._is_complete:  # an earlier leader completed it, but could not tell all tasks
            return in_vain, *_complete(self._task)
        return in_vain, Notice(TASK_GIVES_UP(f"{self._task} ends; {_AGAIN}")), EndTask(RETRY)

    def mark_seen(self, mark: EndedMark | None) -> None:
        """Record the content of the file that marks the end of training.

        `mark`: None if there is no such file, or if it can't be read here.
        """
        self._mark = mark

    def progress_seen(self, row: ProgressRow, awake_s: float) -> TaskActions:
        self._clock.record_row(row, awake_s)
        self._early_stopping.check_time_limit(row)
        return self._stop_early(awake_s)

    def score_seen(self, score: EvaluationRow, awake_s: float) -> TaskActions:
        """Record a score of the evaluator. The score may be from before the start of this leader."""
        self._early_stopping.add_score(score)
        return self._stop_early(awake_s)

    def _stop_early(self, awake_s: float) -> TaskActions:
        """Drain the training if the patience or the time limit of early stopping has run out.

        As after Ctrl-C, no other leader then continues the training.
        """
        if self._early_stopping.due is None or self._stop_signal or self._clock.stage is not RunStage.TRAINING:
            return ()
        self._stopped_early = True
        line = f"stopping early: {self._early_stopping.due.line}; {_DRAINS}"
        return self._drain(line, signal.SIGINT, awake_s)

    def time_passed(self, is_frozen: bool, awake_s: float) -> TaskActions:
        """Return the actions whose time has come. `is_frozen`: whether the task's process is suspended (SIGSTOP)."""
        if self._frozen.take_overdue([self._task] if is_frozen else [], awake_s):
            return self._give_up(_was_frozen(self._frozen))
        what = self._clock.overdue(self._task, awake_s)
        if what is None:
            return ()
        if self._is_complete:  # only the leader's last messages to the other tasks take long
            return Kill(self._task), *self._training_ended()
        return self._give_up(what)

    def _give_up(self, why: str) -> TaskActions:
        return *_given_up(self._task, why), self._with_summary(EndTask(RETRY))

    def process_ended(self, code: int, stop_signal: int) -> TaskActions:
        """Handle the end of the task's process, if it was not killed by this command.

        Args:
          code: the exit code of the process, negative if a signal ended it.
          stop_signal: the last signal that asked this command to stop, even if it was not reported yet; 0 for none.
        """
        self._stop_signal = stop_signal
        if code == 0:
            return self._training_ended()
        notices, end = _process_failed(self._task, self._topology, code)
        return *notices, self._with_summary(end)

    def _training_ended(self) -> TaskActions:
        """Return the actions with which the leader ends after its process has reported the end of training."""
        mark = self._mark
        if mark is None:
            line = TASK_GIVES_UP(f"{self._task} has ended without a result")
            return Notice(line), self._with_summary(EndTask(FAILED))
        text = f"{self._task} has ended: training is {mark.outcome} at step {mark.last_step:,}"
        ended = Notice(TASK_ENDED(text, outcome=mark.outcome, step=mark.last_step))
        if mark.outcome in BROKEN:
            why = Notice(TASK_GIVES_UP(why_broken(mark.outcome, mark.last_step)))
            return ended, why, EndTask(FAILED_FOR_GOOD, mark.outcome)
        early_stop = self._early_stopping.due if self._stopped_early and mark.outcome == "stopped" else None
        asked_to_leave = self._stop_signal not in (0, signal.SIGINT) and early_stop is None
        preempted = mark.outcome != "completed" and asked_to_leave
        return ended, EndTask(RETRY if preempted else 0, mark.outcome, early_stop, proof_decides=True)

    def _with_summary(self, end: EndTask) -> EndTask:
        """Return `end` with an outcome for the summary. Call this if the leader ends before the training has ended.

        A leader that has changed nothing in the run writes no summary.
        """
        if not self._process_started or end.exit_code in (BAD_INPUT, SUPERSEDED):
            return end
        return replace(end, outcome="stopped" if self._stop_signal else "failed")

    @property
    def _is_complete(self) -> bool:
        return _completes(self._mark, self._total_updates)


class FollowerDecisions:
    """A state machine that decides what a task of a cluster on several machines does, if it is not the leader.

    A follower starts its process at once. Unless it is the evaluator, it probes the leader from time to time.

    The loop reports the same events to a follower as to a leader, so some methods take a value that only a leader needs.

    Attributes:
      probed_tasks: the leader with its address, or, for the evaluator, no task.
    """

    def __init__(
        self, task: Task, topology: ClusterTopology, limits: RunLimits, rendezvous: RendezvousLimits,
        *, total_updates: int,
    ):  # fmt: skip
        self._task, self._topology = task, topology
        self._rendezvous = rendezvous
        self._total_updates = total_updates
        leader = topology.leader
        self.probed_tasks: Mapping[Task, str] = (
            {leader: topology.addresses[leader]} if task.type in topology.types else {}
        )
        self._frozen = FrozenProcesses(limits.frozen_s)
        self._is_complete = False  # whether training is complete, as far as this machine's run directory shows
        self._wait = _Wait()
        self._leader_answered = False

    def begin(self, now_s: float, awake_s: float) -> TaskActions:
        """Start the process."""
        self._wait.begin(now_s)
        return _first_line(self._task, self._topology), StartProcess(None)

    def stop_requested(self, number: int, awake_s: float) -> TaskActions:
        """Handle a signal that asks this command to stop. There is nothing to drain here."""
        return Kill(self._task), _stopped_by(self._task, number), EndTask(128 + number)

    def probed(
        self, there: Collection[Task], unknown_hosts: Sequence[str], now_s: float, awake_s: float
    ) -> TaskActions:
        """Handle the result of a probe of the leader. `there`: the leader, if it has answered.

        `unknown_hosts`: the leader's host, if it has not answered and this machine can't resolve the host's name.
        """
        ((leader, address),) = self.probed_tasks.items()
        if there:
            return self._leader_answers(f"{leader} ({address}) answers", now_s)
        away_s, wait_s, why = self._wait.lasts_s(now_s), self._rendezvous.wait_s, _why_silent(unknown_hosts)
        in_vain = away_s >= wait_s
        if (in_vain or (self._leader_answered and away_s > ANNOUNCE_EVERY_S)) and self._is_complete:
            return Kill(self._task), *_complete(self._task)
        if not in_vain:
            line = WAITING(f"waiting for {leader} ({address}) ({away_s:.0f} of {wait_s:g} s){why}")
            return self._wait.announce(line, (leader,), now_s)
        if not why:
            return self._give_up(f"{leader} ({address}) did not answer for {wait_s:g} s")
        # This task's process does not hang, so its stack traces would tell nothing.
        line = TASK_GIVES_UP(f"{self._task} ends: {leader} ({address}) can't be reached{why}; {_AGAIN}")
        return Kill(self._task), Notice(line), EndTask(RETRY)

    def _leader_answers(self, line: str, now_s: float) -> TaskActions:
        self._leader_answered = True
        self._wait.begin(now_s)
        return () if self._wait.announced_missing == () else self._wait.announce(CONNECTED(line), (), now_s)

    def mark_seen(self, mark: EndedMark | None) -> None:
        """Record the content of the file that marks the end of training.

        `mark`: None if there is no such file, or if it can't be read here.
        """
        self._is_complete = _completes(mark, self._total_updates)

    def time_passed(self, is_frozen: bool, awake_s: float) -> TaskActions:
        """Return the actions whose time has come. `is_frozen`: whether the task's process is suspended (SIGSTOP)."""
        if self._frozen.take_overdue([self._task] if is_frozen else [], awake_s):
            return self._give_up(_was_frozen(self._frozen))
        return ()

    def _give_up(self, why: str) -> TaskActions:
        return *_given_up(self._task, why), EndTask(RETRY)

    def process_ended(self, code: int, stop_signal: int) -> TaskActions:
        """Handle the end of the task's process, if it was not killed by this command.

        `code`: the exit code of the process, negative if a signal ended it.
        """
        if code == 0:
            return Notice(TASK_ENDED(f"{self._task} has ended")), EndTask(0)
        notices, end = _process_failed(self._task, self._topology, code)
        return *notices, end


TaskDecisions = LeaderDecisions | FollowerDecisions


def decisions_for(
    task: Task, topology: ClusterTopology, limits: RunLimits, rendezvous: RendezvousLimits,
    *, total_updates: int, early_stopping: EarlyStopping,
) -> TaskDecisions:  # fmt: skip
    """Return the state machine for `task`: `LeaderDecisions` for the leader of the cluster, else `FollowerDecisions`.

    Only the topology decides which task is the leader, so this does not change during the run.
    """
    if task != topology.leader:
        return FollowerDecisions(task, topology, limits, rendezvous, total_updates=total_updates)
    return LeaderDecisions(
        task, topology, limits, rendezvous, total_updates=total_updates, early_stopping=early_stopping
    )


class _Wait:
    """A wait for other tasks. It measures how long the wait lasts, and limits how often lines about it are shown.

    Attributes:
      announced_missing: the tasks that the last line named as missing, or None before the first line.
    """

    def __init__(self) -> None:
        self._since_s = 0.0
        self.announced_missing: tuple[Task, ...] | None = None
        self._announce_again_s = 0.0

    def begin(self, now_s: float) -> None:
        """Begin the wait, or begin it anew."""
        self._since_s = now_s

    def lasts_s(self, now_s: float) -> float:
        """Return how long the wait has lasted."""
        return now_s - self._since_s

    def announce(self, line: Line, missing: tuple[Task, ...], now_s: float) -> TaskActions:
        """Return a notice, or () if a line about the same missing tasks was shown less than `ANNOUNCE_EVERY_S` ago."""
        if missing == self.announced_missing and now_s < self._announce_again_s:
            return ()
        self.announced_missing, self._announce_again_s = missing, now_s + ANNOUNCE_EVERY_S
        return (Notice(line),)


def _first_line(task: Task, topology: ClusterTopology) -> Notice:
    address = topology.address(task)
    return Notice(f"{task} at {address}" if address else f"{task}")


def _stopped_by(task: Task, number: int) -> Notice:
    return Notice(TASK_ENDED(f"{task} was stopped by {signal_name(number)}"))


def _was_frozen(frozen: FrozenProcesses) -> str:
    return f"its process was frozen for {frozen.limit_s:g} s"


def _given_up(task: Task, why: str) -> TaskActions:
    """Return the actions that write the stack traces of a task's process, to show where it hangs, and then kill it."""
    return WriteStacks((task,)), Kill(task), Notice(TASK_GIVES_UP(f"{task} ends: {why}; {_AGAIN}"))


def _complete(task: Task) -> TaskActions:
    return Notice(TASK_ENDED(f"{task} has ended: training is completed")), EndTask(0)


def _completes(mark: EndedMark | None, total_updates: int) -> bool:
    """Return whether `mark` shows that all `total_updates` were made. The mark of a shorter training does not."""
    return mark is not None and mark.completes(total_updates)


def _process_failed(task: Task, topology: ClusterTopology, code: int) -> tuple[tuple[Notice, ...], EndTask]:
    """Return the notices and the last action for a task whose process has ended with an exit code other than 0."""
    if code == PORT_IN_USE:
        return (), EndTask(BAD_INPUT, error=port_taken_message(task, topology))
    if code in (FAILED, BAD_INPUT, SUPERSEDED, RETRY):  # the process has said why
        return (), EndTask(code)
    number = -code if code < 0 else code - 128
    line = TASK_GIVES_UP(f"{task} was ended by {signal_name(number)}; {_CONTINUES}")
    return (Notice(line),), EndTask(128 + number)


def port_taken_message(task: Task, topology: ClusterTopology) -> str:
    """Return an error message for a task whose port is used by another program."""
    return (
        f"{topology.origin.field(task.type)}: '{topology.address(task)}': {task} can't listen there, usually "
        f"because another program does: stop that program, or give {task} another port in the TF_CONFIG or cluster file "
        "of every task"
    )


def _why_silent(unknown_hosts: Sequence[str]) -> str:
    """Return text to append to a line about tasks that do not answer: the hosts that can't be resolved, or ""."""
    if not unknown_hosts:
        return ""
    named = ", ".join(f"'{one_line(host, 100)}'" for host in unknown_hosts)
    return (
        f": this machine can't resolve the name {named}; correct the address, or wait until the name service knows it"
    )


def _names(tasks: Sequence[Task], addresses: Mapping[Task, str]) -> str:
    more = f" and {len(tasks) - _NAMED} more" if len(tasks) > _NAMED else ""
    return ", ".join(f"{task} ({addresses[task]})" for task in tasks[:_NAMED]) + more
