"""Decide the actions that each event of a run asks for. Touches no process, file or clock; `watch.py` carries it out."""

from __future__ import annotations

from ps_cluster.catalogue.task_types import EVALUATOR, TRAINING_TYPES, WORKER, Task
from ps_cluster.cluster.ending import Ending, diverged_line
from ps_cluster.cluster.events_and_actions import (
    Action,
    Actions,
    AnswerScale,
    ClusterStarted,
    Drain,
    EvaluatorDone,
    Event,
    GiveUp,
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
from ps_cluster.cluster.policy import Limits
from ps_cluster.cluster.recovery import CLUSTER, Plans, Recovery, after, all_of
from ps_cluster.cluster.scaling import scale
from ps_cluster.cluster.silence import UNDER_WAY, Silent
from ps_cluster.cluster.stages import STAGES, AtLimit, Stage
from ps_cluster.cluster.stuck import Stuck
from ps_cluster.cluster.topology import ClusterTopology
from ps_cluster.config import RunConfig
from ps_cluster.installation import PROGRAM
from ps_cluster.processes.supervisor import TaskExit
from ps_cluster.run.log_events import (
    CLUSTER_RESTARTED,
    DRAINING,
    EVALUATOR_GIVEN_UP,
    PORT_TAKEN,
    STANDSTILL,
    TASK_RESTARTED,
)
from ps_cluster.run.rows.progress import SAVING
from ps_cluster.run.run_dir import RunDir

# Phases that show that training has begun. A leader with nothing left to train goes straight to "writing".
BEGUN = (*UNDER_WAY, SAVING, "writing", "ended")


class Decisions:
    """The rules of a run, and what they remember.

    Training is over when the leader ends: the chief, or worker 0 without one.
    """

    def __init__(self, config: RunConfig, run_dir: RunDir, limits: Limits, now_s: float):
        """Start in the first stage. `run_dir`: only for the names of files in messages."""
        self._config = config
        self._run_dir = run_dir
        self._limits = limits
        self._longest_wait_s = 0.0  # for an update, as the leader tells
        self._on_death = config.mode_kind.on_death
        self._recovery = Recovery(limits, self._on_death)
        self._plans = Plans()
        self._stuck = Stuck(config, limits, now_s)
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
        self._enter(Stage.STARTING, now_s)

    @property
    def silences(self) -> list[Silent]:
        """The worker processes that were killed because they were silent."""
        return self._stuck.silences

    def decide(self, event: Event, now_s: float) -> Actions:
        """Return the actions that follow from `event`, in their order."""
        match event:
            case ClusterStarted(topology):
                self._topology = topology
            case Stopped():
                self._moved_at = now_s  # the time that it took counts for no stage
            case ScoreSeen():
                self._moved_at = now_s if self._stage is Stage.SCORING else self._moved_at
            case ProgressSeen():
                return self._on_progress(event, now_s)
            case PortTaken(first):
                return self._on_port_taken(first)
            case LeaderDone(outcome):
                return self._on_leader_done(outcome, now_s)
            case EvaluatorDone():
                self._scored = True
                return (self._ended(),) if self._stage is Stage.SCORING else ()
            case TaskDied(task_exit):
                return self._on_death_of(task_exit, now_s)
            case TakenBack():
                return self._on_taken_back(event, now_s)
            case StopRequested(exit_code):
                return self._on_stop_request(exit_code, now_s)
            case ScaleRequested(workers):
                return self._on_scale_request(workers)
            case TimePassed():
                return self._on_time(event, now_s)
        return ()

    def _enter(self, stage: Stage, now_s: float) -> None:
        self._stage, self._moved_at = stage, now_s

    @property
    def _limits_now(self) -> Limits:
        return self._limits.for_waits_of(self._longest_wait_s)

    @property
    def _under_way(self) -> bool:
        return self._stage in (Stage.TRAINING, Stage.DRAINING)

    # Training goes on, and ends.

    def _on_progress(self, event: ProgressSeen, now_s: float) -> Actions:
        row = event.row
        self._longest_wait_s = row.longest_wait_seconds
        actions: Actions = ()
        if self._stage is Stage.STARTING and row.phase in BEGUN:
            self._trained = True
            self._enter(Stage.TRAINING, now_s)
            actions = self._drain(now_s) if self._draining else ()
        if self._under_way:
            self._stuck.see(event, now_s)
            if (row.applied, row.written) != self._seen or row.phase == SAVING:
                self._seen = row.applied, row.written
                self._most_applied = max(self._most_applied, row.applied)
                self._moved_at = now_s
        return actions

    def _on_leader_done(self, outcome: str, now_s: float) -> Actions:
        if self._expects_ends:
            return ()
        if outcome == "failed":
            leader = self._topology.leader
            log = self._run_dir.log(leader.type, leader.index)
            return (Ending("failed", 1, f"{leader} ended without a result (log: {log})"),)
        self._outcome = outcome
        self._plans.drop(*self._tasks(TRAINING_TYPES))
        self._enter(Stage.SCORING, now_s)
        return (StopTraining(self._limits.grace_s), *self._scoring_over_already())

    def _scoring_over_already(self) -> Actions:
        if self._evaluator_lost:
            return (self._unscored(f"the evaluator was given up: {self._evaluator_lost}"),)
        return (self._ended(),) if self._scored or not self._topology.evaluator else ()

    def _on_stop_request(self, exit_code: int, now_s: float) -> Actions:
        again, self._stop_requested = self._stop_requested, True
        if again or not self._trained:
            when = f"while {self._stage.value}" if self._trained else "before training began"
            outcome = self._outcome if self._stage is Stage.SCORING else "stopped"
            return StopAll(), Ending(outcome, exit_code, f"stopped at once, {when}")
        if self._stage is Stage.SCORING:
            return (Notice("training is over, the evaluator is scoring; Ctrl-C again to stop now"),)
        self._draining = True
        line = DRAINING(
            "stopping: no new steps; when those under way have ended, a last checkpoint is written and scored "
            f"(given up after {self._limits_now.drain_s:.0f} s without an update); Ctrl-C again to stop now"
        )
        return (Notice(line), *(self._drain(now_s) if self._stage is Stage.TRAINING else ()))

    def _drain(self, now_s: float) -> Actions:
        self._enter(Stage.DRAINING, now_s)
        return (Drain(self._topology.leader),)

    def _on_scale_request(self, workers: int) -> Actions:
        if self._stage is not Stage.TRAINING or CLUSTER in self._plans:
            line = f"not now, while {self._stage.value}: workers are started and stopped during training"
            return (AnswerScale(line, refused=True),)
        actions = scale(self._config, self._topology, workers)
        for action in actions:
            self._plans.drop(*(action.stop if isinstance(action, Scale) else ()))
        return actions

    # A task dies.

    def _on_port_taken(self, first: TaskExit) -> Actions:
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
        return CLUSTER in self._plans or self._stage is Stage.SCORING

    def _on_death_of(self, death: TaskExit, now_s: float) -> Actions:
        task = death.task
        if task.type != EVALUATOR:
            if self._expects_ends:
                return ()
            if death.user_error:
                return (Ending("failed", 2, death.last_line, user_error=True),)
            if death.final:
                return (Ending("failed", 1, f"{death}"),)
        silent_s = self._stuck.silent_s(death.pid)
        delay_s = self._recovery.next_delay_s(death, self._most_applied, now_s, silent_s)
        if delay_s is None:
            return self._give_up(task, self._recovery.first_cause(death), gone=True)
        if self._recovery.restarts_all(death):
            return (TakeBack(f"{death}", delay_s),)
        self._plans.add(task, now_s + delay_s, RestartTask(task))
        return (Notice(TASK_RESTARTED(f"{death}; starting it again{after(delay_s)}")),)

    def _on_taken_back(self, event: TakenBack, now_s: float) -> Actions:
        cause, delay_s = event.request.cause, event.request.delay_s
        if event.problem:
            return (Ending("failed", 1, f"{cause}; {event.problem}"),)
        self._stuck.forget_work()
        self._plans.drop(*self._tasks(TRAINING_TYPES))
        self._plans.add(CLUSTER, now_s + delay_s, RestartTraining(resume=event.snapshot))
        self._enter(Stage.STARTING, now_s)
        where = "the newest snapshot" if event.snapshot else "the beginning"
        line = f"{cause}; starting {all_of(self._topology.types)} again{after(delay_s)} from {where}"
        return (Notice(CLUSTER_RESTARTED(line)),)

    def _give_up(self, task: Task, cause: str, *, gone: bool) -> Actions:
        if not self._on_death[task.type].dispensable:
            return (Ending("failed", 1, cause),)
        if task.type == EVALUATOR:
            return self._go_on_without_evaluator(cause)
        if len(self._tasks((task.type,))) == 1 or self._recovery.others_died(task):
            return (Ending("failed", 1, cause),)
        self._recovery.forgive(task)
        line = f"{cause}; training goes on without {task}"
        if task.type == WORKER and gone and self._stage is not Stage.STARTING:
            return GiveUp(task), Notice(line)
        # Of a worker: the chief waits for it, before training begins for its server, later for an answer of one that hangs.
        return GiveUp(task), TakeBack(line, delay_s=0)

    def _go_on_without_evaluator(self, cause: str) -> Actions:
        if self._stage is Stage.SCORING:
            return (self._unscored(f"the evaluator was given up: {cause}"),)
        self._evaluator_lost = cause
        return (Notice(EVALUATOR_GIVEN_UP(f"{cause}; training goes on without it")),)

    # Time passes.

    def _on_time(self, event: TimePassed, now_s: float) -> Actions:
        actions = [*self._plans.due(now_s), *self._stuck.end_frozen(event, now_s)]
        if self._under_way:
            actions += self._stuck.end_silent(event, now_s)
        given_up: list[Action] = []
        found = self._stuck.unkillable(event.pids, now_s)
        for kind in {task.type for task, _ in found} - {EVALUATOR}:
            if len(stuck := [task for task, _ in found if task.type == kind]) >= len(self._tasks((kind,))) > 1:
                message = f"{stuck[0]} and {stuck[-1]} are still there {self._limits.kill_s:.0f} s after SIGKILL"
                return (*actions, Ending("failed", 1, message))
        for task, pid in found:
            cause = f"{task} (pid {pid}) is still there {self._limits.kill_s:.0f} s after SIGKILL"
            given_up += self._give_up(task, cause, gone=False)
        return (*actions, *(given_up or self._at_limit(event, now_s)))

    def _at_limit(self, event: TimePassed, now_s: float) -> Actions:
        stage, leader = STAGES[self._stage], self._topology.leader
        limit_s = stage.seconds(self._limits_now)
        if now_s - self._moved_at <= limit_s:
            return ()
        what = stage.message.format(leader=leader)
        message = f"{what} for {limit_s:.0f} s ({event.states}; logs: {self._run_dir.logs})"
        match stage.then:
            case AtLimit.FAIL:
                return (Ending("failed", 1, message),)
            case AtLimit.LEAVE_UNSCORED:
                return (self._unscored(message),)
            case AtLimit.END_THE_LEADER:
                self._moved_at = now_s
                notice = Notice(STANDSTILL(f"{message}; stacks are in the logs; ending {leader}"))
                return (WriteStacks(self._topology.tasks), *self._stuck.end(leader, event, now_s), notice)

    def _ended(self) -> Ending:
        """Return the end of a run of which nothing is left to do."""
        if self._outcome != "diverged":
            return Ending(self._outcome)
        return Ending("diverged", 1, diverged_line(max(0, self._most_applied)))

    def _unscored(self, why: str) -> Ending:
        do = f"score it with: {PROGRAM} evaluate --once --checkpoint-dir {self._run_dir.checkpoints}"
        return Ending(self._outcome, 1, f"the last checkpoint is not scored, {why}; {do}")

    def _tasks(self, types: tuple[str, ...]) -> list[Task]:
        return [task for task in self._topology.tasks if task.type in types]
