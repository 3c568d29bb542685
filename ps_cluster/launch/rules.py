"""Rules of a run: from what the launcher sees to what it does (actions). Nothing here acts or waits."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from ps_cluster.config import RunConfig
from ps_cluster.config.sections import listed
from ps_cluster.config.tasks import CHIEF, EVALUATOR, PS, TRAINING_TYPES, WORKER, OnDeaths, Task
from ps_cluster.errors import PORT_IN_USE
from ps_cluster.installation import PROGRAM
from ps_cluster.launch.silence import UNDER_WAY, SilenceDetector
from ps_cluster.launch.topology import ClusterTopology
from ps_cluster.runs.logs import (
    CLUSTER_RESTARTED,
    DRAINING,
    EVALUATOR_GIVEN_UP,
    PORT_TAKEN,
    STANDSTILL,
    TASK_FROZEN,
    TASK_RESTARTED,
    WORKER_SILENT,
    Line,
)
from ps_cluster.runs.result_rows import BROKEN, SAVING, ProgressRow, SilenceRow
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.system.supervisor import TaskExit

# The end of a run, on one machine or on several.


@dataclass(frozen=True)
class Ending:
    """The end of a run; `message` says what went wrong, on one line."""

    outcome: str  # one of `result_rows.Outcome`
    exit_code: int = 0
    message: str | None = None
    user_error: bool = False


def broken_line(outcome: str, updates: int) -> str:
    """Return what to do about a training that ended in one of `BROKEN`, on one line."""
    if outcome == "nan_loss":
        return (
            f"the loss was NaN or infinite in every step of {updates:,} updates, so the training can't be judged: look for "
            "NaN in the inputs and targets, and in the loss for a logarithm of 0 or a division by 0 "
            "(docs/extending.md#if-it-does-not-learn)"
        )
    return (
        f"the training diverged: after {updates:,} updates weights are NaN or infinite; begin a new run with a lower "
        "optimizer.learning_rate or with optimizer.global_clip_norm=1 (docs/extending.md#if-it-does-not-learn)"
    )


# The time limits, and a table of the stages of a run with the limit of each.


@dataclass(frozen=True)
class LauncherLimits:
    """The launcher's time limits, in seconds. Only time in which the launcher ran counts (ps_cluster/clock.py)."""

    look_every_s: float = 0.2
    startup_s: float = 180.0  # until training begins
    standstill_s: float = 60.0  # without a new update
    frozen_s: float = 5.0  # a process that is stopped (SIGSTOP) for longer counts as dead
    # Minimum time without an update, while others have some, for a worker to be silent; more for long steps.
    silent_s: float = 10.0
    first_update_s: float = 60.0  # until a worker process's first update: it connects and builds its graph before
    kill_s: float = 10.0  # from SIGKILL until a task whose process is still there is given up
    stable_s: float = 20.0  # a worker or evaluator that lived longer than this did not die "in a row"
    # Before the first restart in a row, the second …; the last for all others. The first is at once: an accident costs no time.
    restart_delays_s: tuple[float, ...] = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0)
    drain_s: float = 120.0  # from the first Ctrl-C, or an update after it, to the next one or the end of training
    scoring_s: float = 300.0  # for each checkpoint to be scored, once training is over
    grace_s: float = 5.0  # from SIGTERM to SIGKILL
    port_attempts: int = 5

    def for_waits_of(self, seconds: float) -> LauncherLimits:
        """Return these limits where an update may take so long, as the leader tells in its rows."""
        return replace(
            self,
            standstill_s=max(self.standstill_s, seconds),
            first_update_s=self.first_update_s + seconds,
            drain_s=max(self.drain_s, 2 * seconds),
        )


class RunStage(Enum):
    """Starting → training (→ draining) → scoring. A death that restarts the whole cluster leads back to starting."""

    STARTING = "starting"
    TRAINING = "training"
    DRAINING = "draining"
    SCORING = "scoring"


class StageLimit(NamedTuple):
    """A row of the table.

    Attributes:
      seconds: the limit, out of the run's `LauncherLimits`. It counts from the beginning of the stage, or the last thing that
        moved in it: an update while training and draining, a score while scoring.
      message: says what did not happen. "{leader}" stands for the leader's name.
    """

    seconds: Callable[[LauncherLimits], float]
    message: str


STAGES: Mapping[RunStage, StageLimit] = {
    RunStage.STARTING: StageLimit(lambda it: it.startup_s, "training did not begin"),
    RunStage.TRAINING: StageLimit(lambda it: it.standstill_s, "training stands still: no update"),
    RunStage.DRAINING: StageLimit(lambda it: it.drain_s, "{leader} did not end"),
    RunStage.SCORING: StageLimit(lambda it: it.scoring_s, "the evaluator scored nothing"),
}


# What the launcher sees, and the actions that it takes. `Decisions` leads from one to the other.


@dataclass(frozen=True)
class Look:
    """All tasks, as the launcher sees them in one look.

    Attributes:
      pids: task → pid of all that run.
      frozen: the tasks whose process is stopped (SIGSTOP).
      states: all tasks and their states on one line, for messages.
    """

    pids: Mapping[Task, int]
    frozen: tuple[Task, ...]
    states: str


# Actions, carried out by the loop.


@dataclass(frozen=True)
class Notice:
    """Show a line, and write it to launcher.log."""

    line: Line


@dataclass(frozen=True)
class StartCluster:
    """Start all tasks on new ports."""


@dataclass(frozen=True)
class RestartTask:
    """Start one task that ended again, at its old address."""

    task: Task


@dataclass(frozen=True)
class RestartTraining:
    """Start all training tasks again on new ports; `resume`: from the newest snapshot."""

    resume: bool


@dataclass(frozen=True)
class RestartFromSnapshot:
    """Stop all training tasks at once, and look for the newest snapshot: the state of a ps or of the leader is lost.

    Attributes:
      cause: what happened, for the notice.
      delay_s: until the training tasks are to start again.
    """

    cause: str
    delay_s: float


@dataclass(frozen=True)
class GiveUp:
    """Start a worker no more; or leave a ps out of the cluster from the next `RestartTraining` on."""

    task: Task


@dataclass(frozen=True)
class Scale:
    """Start workers that are absent, and stop others politely: what they had under way goes to others."""

    start: tuple[Task, ...]
    stop: tuple[Task, ...]


@dataclass(frozen=True)
class AnswerScale:
    """Tell the one who asked for another number of workers what was done, or why it was not."""

    line: str
    refused: bool = False


@dataclass(frozen=True)
class DrainLeader:
    """Ask the leader (SIGTERM) to end in order: no new steps, a last checkpoint."""

    leader: Task


@dataclass(frozen=True)
class WriteStacks:
    """Make these tasks write their Python stacks into their logs."""

    tasks: tuple[Task, ...]


@dataclass(frozen=True)
class Kill:
    """Kill a task's process, if it still runs."""

    task: Task


@dataclass(frozen=True)
class StopTraining:
    """Stop all training tasks; SIGKILL follows `grace_s` after SIGTERM."""

    grace_s: float


@dataclass(frozen=True)
class StopAll:
    """Stop all tasks at once."""


Action = (
    Notice
    | StartCluster
    | RestartTask
    | RestartTraining
    | RestartFromSnapshot
    | GiveUp
    | Scale
    | AnswerScale
    | DrainLeader
    | WriteStacks
    | Kill
    | StopTraining
    | StopAll
    | Ending  # ends the run; nothing after it is carried out
)
Actions = tuple[Action, ...]


# Decide after a death who starts again, when, and when to give up.
#
# What follows from the death of a worker, a ps, the chief or the evaluator is the mode's table, `Mode.on_death`
# (`ON_DEATH` in config/modes.py, unless the mode has its own). This module counts by it.

CLUSTER = "the cluster"
_IN_WORDS = {CHIEF: "chief", PS: "ps", WORKER: "workers"}


class RestartPolicy:
    """Counts deaths in a row, and tells when to start again and when to give up. It knows nothing of what died.

    Here it counts the tasks of a run; in tools/fleet.py whole runs; in tools/chaos/ tasks that no launcher starts.
    """

    def __init__(self, delays_s: Sequence[float]):
        """Begin without any death. `delays_s`: before the first restart in a row, the second …; the last for all others."""
        self._delays_s = delays_s
        self._deaths: Counter[Hashable] = Counter()

    def next_delay_s(self, key: Hashable, restarts: float) -> float | None:
        """Count a death of `key`; return the seconds after which to start it again, None to give it up.

        Args:
          restarts: how many there are in a row.
        """
        self._deaths[key] += 1
        if self._deaths[key] > restarts:
            return None
        return self._delays_s[min(self._deaths[key], len(self._delays_s)) - 1]

    def deaths(self, key: Hashable) -> int:
        """Return the number of deaths in the current row."""
        return self._deaths[key]

    def end_row(self, key: Hashable) -> None:
        """Forget the deaths of `key`: it recovered, or begins anew."""
        del self._deaths[key]


@dataclass
class _DeathsInARow:
    """Deaths without recovery between them, of one task or of the cluster."""

    first: TaskExit
    died: set[Task] = field(default_factory=set)
    updates: int = 0  # the most that were applied at the last of them
    started_s: float = 0.0  # when the task starts, or was started, after the last of them


class Recovery:
    """Recovers tasks from death: each by itself, or all together where a death restarts the whole cluster."""

    def __init__(self, limits: LauncherLimits, on_death: OnDeaths):
        self._stable_s = limits.stable_s
        self._on_death = on_death
        self._policy = RestartPolicy(limits.restart_delays_s)
        self._rows: dict[Hashable, _DeathsInARow] = {}

    def restarts_all(self, death: TaskExit) -> bool:
        """Return whether all training tasks start again with this one."""
        # A worker whose port is taken needs another address, which the others only learn by a restart.
        return self._on_death[death.task.type].whole_cluster or death.exit_code == PORT_IN_USE

    def next_delay_s(self, death: TaskExit, updates: int, now_s: float, silent_s: float = 0.0) -> float | None:
        """Count a death; return the seconds after which to start again, None to give up.

        Args:
          updates: the most updates ever applied. A cluster's death is "in a row" if no new update came since its last
            death, however long ago that was. For a single task the time it lived decides.
          silent_s: seconds at the end of its life without an update; they do not count as life.
        """
        key = self._key(death)
        row = self._rows.get(key)
        if row is not None:
            lived_s = now_s - silent_s - row.started_s
            has_recovered = updates > row.updates if key == CLUSTER else lived_s > self._stable_s
        if row is None or has_recovered:
            row = self._rows[key] = _DeathsInARow(death)
            self._policy.end_row(key)
        row.died.add(death.task)
        row.updates = updates
        delay_s = self._policy.next_delay_s(key, self._on_death[death.task.type].restarts)
        row.started_s = now_s + (delay_s or 0.0)
        return delay_s

    def first_cause(self, death: TaskExit) -> str:
        """Return the first of the deaths in a row to which this one belongs, on one line."""
        key = self._key(death)
        return f"{self._rows[key].first} (given up after {self._policy.deaths(key) - 1} restarts)"

    def others_died(self, task: Task) -> bool:
        """Return whether, in the row of deaths of the cluster, another task of this type died too.

        Then it is not this one's machine or memory that is at fault, and the cluster does no better without it.
        """
        row = self._rows.get(CLUSTER) if self._on_death[task.type].whole_cluster else None
        return row is not None and any(other.type == task.type and other != task for other in row.died)

    def forgive(self, task: Task) -> None:
        """Forget the deaths of the cluster, as it goes on without `task`."""
        if self._on_death[task.type].whole_cluster:
            self._rows.pop(CLUSTER, None)  # the next death begins a new row

    def _key(self, death: TaskExit) -> Hashable:
        return CLUSTER if self.restarts_all(death) else death.task


def after(delay_s: float) -> str:
    """Return " in 2 s", or nothing for no delay."""
    return f" in {delay_s:g} s" if delay_s else ""


# Decide which workers start and which stop where the user asks for another number of them. Pure functions.


def refusal(config: RunConfig, workers: int) -> str | None:
    """Return why a run can't have so many workers, on one line; None if it can."""
    if why := config.mode_kind.cluster.fixed_workers and config.mode_kind.cannot_scale:
        return f"--workers: got {workers}: {why}"
    least, most = config.least_workers, config.most_workers
    if least <= workers <= most:
        return None
    between = f"{least} to {most}" if least < most else f"{least} and no other number of"
    return f"--workers: got {workers}: this run was started for {between} workers (run --min-workers, --max-workers)"


def scale(config: RunConfig, topology: ClusterTopology, workers: int) -> Actions:
    """Return the actions that lead to so many workers: the lowest spare index starts, the highest stops."""
    if line := refusal(config, workers):
        return (AnswerScale(line, refused=True),)
    more = workers - len(topology.workers)
    start, stop = topology.spare[: max(0, more)], topology.workers[len(topology.workers) + min(0, more) :]
    if not more:
        return (AnswerScale(f"{_count(workers)} already: nothing to do"),)
    names = ", ".join(map(str, start or stop))
    done = f"started {names}" if start else f"stopped {names}; others take their steps"
    return Scale(tuple(start), tuple(stop)), AnswerScale(f"{done}; now {_count(workers)}{_rate_of(config, workers)}")


def _rate_of(config: RunConfig, workers: int) -> str:
    """Return what is to be told of the learning rate with so many workers; empty where it stays whole."""
    begun = config.training_workers
    if not config.mode_kind.lowers_rate or workers <= begun:
        return ""
    return f", with {(begun / workers) ** 2:.2g} of the learning rate, which suits {begun}"


def _count(workers: int) -> str:
    return "1 worker" if workers == 1 else f"{workers} workers"


# Decide the actions that each event of a run asks for. Touches no process, file or clock; launcher.py carries it out.

# Phases that show that training has begun. A leader with nothing left to train goes straight to "writing".
BEGUN = (*UNDER_WAY, SAVING, "writing", "ended")


class Decisions:
    """The rules of a run, and what they remember.

    Training is over when the leader ends: the chief, or worker 0 without one.

    Attributes:
      silences: the worker processes that were killed because they were silent.
    """

    def __init__(self, config: RunConfig, run_dir: RunDir, limits: LauncherLimits, now_s: float):
        """Start in the first stage. `run_dir`: only for the names of files in messages."""
        self._config = config
        self._run_dir = run_dir
        self._limits = limits
        self._longest_wait_s = 0.0  # for an update, as the leader tells
        self._on_death = config.mode_kind.cluster.on_death
        self._recovery = Recovery(limits, self._on_death)
        self._plans: dict[Hashable, tuple[float, Action]] = {}  # a task, or `CLUSTER` → when to do what
        self._silence = SilenceDetector(config, limits, now_s)
        self.silences: list[SilenceRow] = []
        self._frozen_since: dict[Task, float] = {}
        self._killed_at: dict[tuple[Task, int], float] = {}  # (task, pid) → when it was killed, until it is gone
        self._topology = ClusterTopology({})
        self._ports_taken = 0
        self._trained = False
        self._stop_requested = False
        self._draining = False
        self._seen = (-1, 0)  # updates applied, rows of the ledger's tables written
        self._most_applied = -1
        self._outcome = "failed"  # as the leader writes it in the end
        self._scored = False
        self._evaluator_lost: str | None = None
        self._enter(RunStage.STARTING, now_s)

    # Answers to actions. Each method, here and below, takes the time last, and returns what follows, in its order.

    def cluster_started(self, topology: ClusterTopology, now_s: float) -> Actions:
        """After `StartCluster`, `RestartTraining`, `GiveUp` and `Scale` the tasks are these."""
        self._topology = topology
        return ()

    def stopped(self, now_s: float) -> Actions:
        """`StopTraining` or `StopAll` is done, which may have taken seconds: they count for no stage."""
        self._moved_at = now_s
        return ()

    def snapshot_checked(self, request: RestartFromSnapshot, snapshot: bool, problem: str, now_s: float) -> Actions:
        """`RestartFromSnapshot` has stopped all.

        Args:
          snapshot: there is a sound one to go on from.
          problem: why training can neither go on nor begin anew; "" for none.
        """
        cause, delay_s = request.cause, request.delay_s
        if problem:
            return (Ending("failed", 1, f"{cause}; {problem}"),)
        self._silence.forget()
        self._drop_plans(self._tasks(TRAINING_TYPES))
        self._plans[CLUSTER] = now_s + delay_s, RestartTraining(resume=snapshot)
        self._enter(RunStage.STARTING, now_s)
        where = "the newest snapshot" if snapshot else "the beginning"
        tasks = listed([_IN_WORDS[kind] for kind in self._topology.types])
        line = f"{cause}; starting {tasks} again{after(delay_s)} from {where}"
        return (Notice(CLUSTER_RESTARTED(line)),)

    def _enter(self, stage: RunStage, now_s: float) -> None:
        self._stage, self._moved_at = stage, now_s

    @property
    def _limits_now(self) -> LauncherLimits:
        return self._limits.for_waits_of(self._longest_wait_s)

    @property
    def _under_way(self) -> bool:
        return self._stage in (RunStage.TRAINING, RunStage.DRAINING)

    # Training goes on, and ends.

    def progress_seen(self, row: ProgressRow, workers: Mapping[int, int], now_s: float) -> Actions:
        """The leader wrote a row. `workers`: index → pid of the worker processes that run now."""
        self._longest_wait_s = row.longest_wait_seconds
        actions: Actions = ()
        if self._stage is RunStage.STARTING and row.phase in BEGUN:
            self._trained = True
            self._enter(RunStage.TRAINING, now_s)
            actions = self._drain(now_s) if self._draining else ()
        if self._under_way:
            self._silence.see(row, workers, now_s)
            if (row.applied, row.written) != self._seen or row.phase == SAVING:
                self._seen = row.applied, row.written
                self._most_applied = max(self._most_applied, row.applied)
                self._moved_at = now_s
        return actions

    def score_seen(self, now_s: float) -> Actions:
        """The evaluator scored a checkpoint, or computed a sampled update again."""
        self._moved_at = now_s if self._stage is RunStage.SCORING else self._moved_at
        return ()

    def evaluator_done(self, now_s: float) -> Actions:
        """The evaluator ended with exit code 0, and scored all there will be."""
        self._scored = True
        return (self._ended(),) if self._stage is RunStage.SCORING else ()

    def leader_done(self, outcome: str, now_s: float) -> Actions:
        """The leader ended with exit code 0. `outcome`: as it wrote it, "failed" if it wrote none."""
        if self._expects_ends:
            return ()
        if outcome == "failed":
            leader = self._topology.leader
            log = self._run_dir.log(leader.type, leader.index)
            return (Ending("failed", 1, f"{leader} ended without a result (log: {log})"),)
        self._outcome = outcome
        self._drop_plans(self._tasks(TRAINING_TYPES))
        self._enter(RunStage.SCORING, now_s)
        stop = StopTraining(self._limits.grace_s)
        if self._evaluator_lost:
            return stop, self._unscored(f"the evaluator was given up: {self._evaluator_lost}")
        return (stop, self._ended()) if self._scored or not self._topology.evaluator else (stop,)

    def stops_at_once(self, requests: int) -> bool:
        """Return whether so many more requests to stop end the run without a drain."""
        return requests > 1 or (requests == 1 and (self._stop_requested or not self._trained))

    def stop_requested(self, exit_code: int, now_s: float) -> Actions:
        """The user asks to stop: Ctrl-C, SIGTERM or SIGHUP. `exit_code`: of a program that this signal ends at once."""
        again, self._stop_requested = self._stop_requested, True
        if again or not self._trained:
            when = f"while {self._stage.value}" if self._trained else "before training began"
            outcome = self._outcome if self._stage is RunStage.SCORING else "stopped"
            return StopAll(), Ending(outcome, exit_code, f"stopped at once, {when}")
        if self._stage is RunStage.SCORING:
            return (Notice("training is over, the evaluator is scoring; Ctrl-C again to stop now"),)
        self._draining = True
        line = DRAINING(
            "stopping: no new steps; when those under way have ended, a last checkpoint is written and scored "
            f"(given up after {self._limits_now.drain_s:.0f} s without an update); Ctrl-C again to stop now"
        )
        return (Notice(line), *(self._drain(now_s) if self._stage is RunStage.TRAINING else ()))

    def _drain(self, now_s: float) -> Actions:
        self._enter(RunStage.DRAINING, now_s)
        return (DrainLeader(self._topology.leader),)

    def scale_requested(self, workers: int, now_s: float) -> Actions:
        """The user asks for another number of workers: `ps-cluster scale`."""
        if self._stage is not RunStage.TRAINING or CLUSTER in self._plans:
            line = f"not now, while {self._stage.value}: workers are started and stopped during training"
            return (AnswerScale(line, refused=True),)
        actions = scale(self._config, self._topology, workers)
        for action in actions:
            self._drop_plans(action.stop if isinstance(action, Scale) else ())
        return actions

    # A task dies.

    def port_taken(self, first: TaskExit, now_s: float) -> Actions:
        """At least one task ended because another program has its port. Comes before `task_died` of all that ended."""
        if self._trained:
            return ()  # a death like others
        self._ports_taken += 1
        if self._ports_taken >= self._limits.port_attempts:
            return (Ending("failed", 1, f"no free ports in {self._ports_taken} attempts: {first}"),)
        self._plans.clear()
        line = PORT_TAKEN(f"another program took the port of {first.task}: starting again on other ports")
        return Notice(line), StopAll(), StartCluster()

    @property
    def _expects_ends(self) -> bool:
        """True if training tasks are meant to end: all are taken back, or training is over."""
        return CLUSTER in self._plans or self._stage is RunStage.SCORING

    def task_died(self, death: TaskExit, now_s: float) -> Actions:
        """A task ended in any other way than `leader_done` and `evaluator_done`."""
        task = death.task
        if task.type != EVALUATOR:
            if self._expects_ends:
                return ()
            if death.user_error:
                return (Ending("failed", 2, death.last_line, user_error=True),)
            if death.final:
                return (Ending("failed", 1, f"{death}"),)
        elif death.computation:
            return self._go_on_without_evaluator(f"{death}")
        silent_s = sum(silent.seconds for silent in self.silences if silent.pid == death.pid)  # at the end of its life
        delay_s = self._recovery.next_delay_s(death, self._most_applied, now_s, silent_s)
        if delay_s is None:
            return self._give_up(task, self._recovery.first_cause(death), gone=True)
        if self._recovery.restarts_all(death):
            return (RestartFromSnapshot(f"{death}", delay_s),)
        self._plans[task] = now_s + delay_s, RestartTask(task)
        return (Notice(TASK_RESTARTED(f"{death}; starting it again{after(delay_s)}")),)

    def _give_up(self, task: Task, cause: str, *, gone: bool) -> Actions:
        if not self._on_death[task.type].dispensable:
            return (Ending("failed", 1, cause),)
        if task.type == EVALUATOR:
            return self._go_on_without_evaluator(cause)
        if len(self._tasks((task.type,))) == 1 or self._recovery.others_died(task):
            return (Ending("failed", 1, cause),)
        self._recovery.forgive(task)
        line = f"{cause}; training goes on without {task}"
        if task.type == WORKER and gone and self._stage is not RunStage.STARTING:
            return GiveUp(task), Notice(line)
        # Of a worker: the chief waits for it, before training begins for its server, later for an answer of one that hangs.
        return GiveUp(task), RestartFromSnapshot(line, delay_s=0)

    def _go_on_without_evaluator(self, cause: str) -> Actions:
        if self._stage is RunStage.SCORING:
            return (self._unscored(f"the evaluator was given up: {cause}"),)
        self._evaluator_lost = cause
        return (Notice(EVALUATOR_GIVEN_UP(f"{cause}; training goes on without it")),)

    # Time passes.

    def time_passed(self, seen: Look, now_s: float) -> Actions:
        """All that the loop has seen was told. Do what is due."""
        due = [key for key, (at_s, _) in self._plans.items() if at_s <= now_s]
        actions = [*(self._plans.pop(key)[1] for key in due), *self._end_frozen(seen, now_s)]
        if self._under_way:
            actions += self._end_silent(seen, now_s)
        given_up: list[Action] = []
        unkillable = self._unkillable(seen.pids, now_s)
        for kind in {task.type for task, _ in unkillable} - {EVALUATOR}:
            if len(stuck := [task for task, _ in unkillable if task.type == kind]) >= len(self._tasks((kind,))) > 1:
                message = f"{stuck[0]} and {stuck[-1]} are still there {self._limits.kill_s:.0f} s after SIGKILL"
                return (*actions, Ending("failed", 1, message))
        for task, pid in unkillable:
            cause = f"{task} (pid {pid}) is still there {self._limits.kill_s:.0f} s after SIGKILL"
            given_up += self._give_up(task, cause, gone=False)
        return (*actions, *(given_up or self._at_limit(seen, now_s)))

    def _end_frozen(self, seen: Look, now_s: float) -> Actions:
        """Kill processes that were stopped (SIGSTOP) for too long, so that they can't wake up during a recovery."""
        self._frozen_since = {task: self._frozen_since.get(task, now_s) for task in seen.frozen}
        actions: list[Action] = []
        for task, since in list(self._frozen_since.items()):
            if now_s - since >= self._limits.frozen_s:
                line = TASK_FROZEN(f"{task} has been frozen for {self._limits.frozen_s:.0f} s: ending it")
                actions += (Notice(line), *self._kill(task, seen, now_s))
                del self._frozen_since[task]
        return tuple(actions)

    def _end_silent(self, seen: Look, now_s: float) -> Actions:
        """Kill a worker that is silent while others go on: it is then started again, and others take its steps."""
        if (silent := self._silence.longest()) is None:
            return ()
        task = Task(WORKER, silent.worker)
        if seen.pids.get(task) != silent.pid:
            return ()  # it ended since the last row
        self.silences.append(silent)
        line = WORKER_SILENT(
            f"{task} (pid {silent.pid}) is silent: no update for {silent.seconds:.0f} s, after {silent.updates}; "
            "its stacks are in its log; ending it"
        )
        return (WriteStacks((task,)), Notice(line), *self._kill(task, seen, now_s))

    def _kill(self, task: Task, seen: Look, now_s: float) -> Actions:
        """Kill a task's process, if there is one. If it outlives that, `_unkillable` returns it later."""
        if (pid := seen.pids.get(task)) is None:
            return ()
        self._killed_at.setdefault((task, pid), now_s)
        return (Kill(task),)

    def _unkillable(self, pids: Mapping[Task, int], now_s: float) -> list[tuple[Task, int]]:
        """Return the tasks, with their pids, that were killed and are still there. Each is returned once."""
        self._killed_at = {key: at for key, at in self._killed_at.items() if pids.get(key[0]) == key[1]}
        keys = [key for key, at in self._killed_at.items() if now_s - at > self._limits.kill_s]
        for key in keys:
            del self._killed_at[key]
        return keys

    def _at_limit(self, seen: Look, now_s: float) -> Actions:
        """Return what follows when nothing moves in a stage for as long as its limit."""
        stage, leader = STAGES[self._stage], self._topology.leader
        limit_s = stage.seconds(self._limits_now)
        if now_s - self._moved_at <= limit_s:
            return ()
        what = stage.message.format(leader=leader)
        message = f"{what} for {limit_s:.0f} s ({seen.states}; logs: {self._run_dir.logs})"
        if self._stage is RunStage.SCORING:
            return (self._unscored(message),)
        if self._stage is not RunStage.TRAINING:
            return (Ending("failed", 1, message),)
        self._moved_at = now_s  # the leader's death restarts the cluster
        notice = Notice(STANDSTILL(f"{message}; stacks are in the logs; ending {leader}"))
        return (WriteStacks(self._topology.tasks), *self._kill(leader, seen, now_s), notice)

    def _ended(self) -> Ending:
        """Return the end of a run of which nothing is left to do."""
        if self._outcome not in BROKEN:
            return Ending(self._outcome)
        return Ending(self._outcome, 1, broken_line(self._outcome, max(0, self._most_applied)))

    def _unscored(self, why: str) -> Ending:
        do = f"score it with: {PROGRAM} evaluate --once --checkpoint-dir {shlex.quote(str(self._run_dir.checkpoints))}"
        return Ending(self._outcome, 1, f"the last checkpoint is not scored, {why}; {do}")

    def _drop_plans(self, tasks: Iterable[Task]) -> None:
        for task in tasks:
            self._plans.pop(task, None)

    def _tasks(self, types: tuple[str, ...]) -> list[Task]:
        return [task for task in self._topology.tasks if task.type in types]
