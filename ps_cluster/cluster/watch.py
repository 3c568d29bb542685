"""The launcher's event loop: polls tasks and run files; decides restarts, draining and the outcome."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable

from ps_cluster.catalogue.task_types import CHIEF, EVALUATOR, PS, TRAINING_TYPES, WORKER, OnDeaths, Task
from ps_cluster.cluster.ending import Ending, training_outcome
from ps_cluster.cluster.local_cluster import LocalCluster
from ps_cluster.cluster.policy import Limits
from ps_cluster.cluster.recovery import CLUSTER, Plans, Recovery
from ps_cluster.cluster.silence import UNDER_WAY, SilenceWatch, Silent
from ps_cluster.cluster.stuck import Stuck
from ps_cluster.cluster.task import PORT_TAKEN
from ps_cluster.config import RunConfig
from ps_cluster.files.json_rows import RowTail
from ps_cluster.files.writing import open_append
from ps_cluster.installation import PROGRAM
from ps_cluster.processes.stop_requests import StopRequests
from ps_cluster.processes.supervisor import TaskExit
from ps_cluster.reporting.progress import ProgressView
from ps_cluster.run import checkpoints
from ps_cluster.run.rows.progress import ProgressRow
from ps_cluster.run.rows.scores import EvaluationRow
from ps_cluster.run.run_dir import RunDir

# Phases that show that training has begun. A leader with nothing left to train goes straight to "writing".
_BEGUN = (*UNDER_WAY, "writing", "ended")
_IN_WORDS = {CHIEF: "chief", PS: "ps", WORKER: "workers"}


class Watch:
    """The event loop. Each look polls everything once and returns None, or the run's `Ending`.

    Attributes:
      silences: the worker processes that were killed because they were silent.

    A run goes through stages, each with a time limit: starting → training (→ draining) → scoring. A death that restarts
    the whole cluster leads back to starting. Training is over when the leader ends: the chief, or worker 0 without one.
    """

    def __init__(
        self,
        config: RunConfig,
        cluster: LocalCluster,
        run_dir: RunDir,
        view: ProgressView,
        requests: StopRequests,
        limits: Limits,
        on_death: OnDeaths,
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
        self._limits = limits
        self._progress = RowTail(run_dir.progress, ProgressRow)
        self._evaluation = RowTail(run_dir.evaluation, EvaluationRow)
        self._on_death = on_death
        self._recovery = Recovery(limits, on_death, self._clock)
        self._plans = Plans(self._clock)
        self._stuck = Stuck(cluster, limits, self._notice, self._clock, sleep)
        self._silence = SilenceWatch(config, limits, self._clock)
        self.silences: list[Silent] = []
        self._starts = 0
        self._requests_seen = 0
        self._trained = False
        self._draining = False
        self._seen = (-1, 0)  # updates applied, rows of the ledger's tables written
        self._most_applied = -1
        self._outcome = "failed"  # as the leader writes it in the end
        self._scored = False
        self._evaluator_lost: str | None = None
        self._enter("starting")

    def until_the_end(self) -> Ending:
        """Start the cluster; return when nothing is left to wait for. The caller stops what still runs."""
        for rows_of_before in (self._progress, self._evaluation):
            rows_of_before.skip()
        self._start()
        while (ending := self._look()) is None:
            self._sleep(self._limits.look_every_s)
        self._read_rows()
        return ending

    def _notice(self, line: str) -> None:
        self._view.notice(line)
        with contextlib.suppress(OSError), open_append(self._run_dir.launcher_log) as log:  # the disk may be full
            log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n".encode())

    def _start(self) -> None:
        self._starts += 1
        self._enter("starting")
        self._cluster.start()
        self._view.tasks(self._cluster.states())

    def _enter(self, stage: str) -> None:
        self._stage = stage
        self._moved()

    def _moved(self) -> None:
        self._moved_at = self._clock()

    def _look(self) -> Ending | None:
        self._read_rows()
        # The leader's end first: exits of other training tasks after it need no recovery.
        exits = sorted(self._cluster.poll(), key=lambda task_exit: not self._is_done(task_exit))
        if not self._trained and any(task_exit.exit_code == PORT_TAKEN for task_exit in exits):
            return self._start_elsewhere(exits)
        for task_exit in exits:
            no_news = CLUSTER in self._plans or self._stage == "scoring"
            if no_news and task_exit.task.type in TRAINING_TYPES:
                continue
            if ending := self._on_exit(task_exit):
                return ending
        if self._plans.carry_out() or exits:
            self._view.tasks(self._cluster.states())
        self._stuck.end_frozen()
        self._end_silent()
        return self._give_up_unkillable() or self._on_request() or self._on_timeout()

    def _read_rows(self) -> None:
        for row in self._progress.new_rows():
            self._view.progress(row.model_dump())
            if self._stage == "starting" and row.phase in _BEGUN:
                self._trained = True
                self._enter("training")
                if self._draining:
                    self._drain()
            if self._stage in ("training", "draining"):
                self._see_updates(row)
        for row in self._evaluation.new_rows():
            self._view.evaluation(row)
            if self._stage == "scoring":
                self._moved()

    def _see_updates(self, row: ProgressRow) -> None:
        self._silence.see(row, {task.index: pid for task, pid in self._cluster.pids.items() if task.type == WORKER})
        if (row.applied, row.written) != self._seen:
            self._seen = row.applied, row.written
            self._most_applied = max(self._most_applied, row.applied)
            self._moved()

    def _start_elsewhere(self, exits: list[TaskExit]) -> Ending | None:
        first = next(task_exit for task_exit in exits if task_exit.exit_code == PORT_TAKEN)
        if self._starts >= self._limits.port_attempts:
            return Ending("failed", 1, f"no free ports in {self._starts} attempts: {first}")
        self._notice(f"another program took the port of {first.task}: starting again on other ports")
        self._plans.clear()
        self._cluster.stop_all(grace_s=0)
        self._start()
        return None

    def _on_exit(self, task_exit: TaskExit) -> Ending | None:
        if task_exit.user_error and task_exit.task.type != EVALUATOR:
            return Ending("failed", 2, task_exit.last_line, user_error=True)
        if task_exit.final and task_exit.task.type != EVALUATOR:
            return Ending("failed", 1, f"{task_exit}")
        if self._is_done(task_exit):
            return self._training_over()
        over = checkpoints.ended(self._run_dir.checkpoints)
        if task_exit.task.type == EVALUATOR and task_exit.exit_code == 0 and over:
            self._scored = True
            return Ending(self._outcome) if self._stage == "scoring" else None
        return self._recover(task_exit)

    def _is_done(self, task_exit: TaskExit) -> bool:
        """Return whether the leader ended with exit code 0, so that training is over."""
        return task_exit.task == self._cluster.topology.leader and task_exit.exit_code == 0

    def _training_over(self) -> Ending | None:
        self._outcome = training_outcome(self._run_dir)
        if self._outcome == "failed":
            leader = self._cluster.topology.leader
            log = self._run_dir.log(leader.type, leader.index)
            return Ending("failed", 1, f"{leader} ended without a result (log: {log})")
        self._plans.drop(*self._cluster.tasks(TRAINING_TYPES))
        self._cluster.stop(TRAINING_TYPES, self._limits.grace_s)
        self._view.tasks(self._cluster.states())
        self._enter("scoring")
        if self._evaluator_lost:
            return self._unscored(f"the evaluator was given up: {self._evaluator_lost}")
        return Ending(self._outcome) if self._scored or not self._cluster.topology.evaluator else None

    def _recover(self, task_exit: TaskExit) -> Ending | None:
        task = task_exit.task
        # A worker whose port is taken needs another address, which the others only learn by a restart.
        whole_cluster = self._on_death[task.type].whole_cluster or task_exit.exit_code == PORT_TAKEN
        key = CLUSTER if whole_cluster else task
        silent_s = sum(silent.seconds for silent in self.silences if silent.pid == task_exit.pid)
        delay_s = self._recovery.next_delay_s(key, task_exit, self._most_applied, silent_s)
        if delay_s is None:
            return self._give_up(task, self._recovery.first_cause(key))
        if whole_cluster:
            self._recover_cluster(f"{task_exit}", delay_s)
        else:
            self._notice(f"{task_exit}; starting it again{_in(delay_s)}")
            self._plans.add(task, delay_s, lambda: self._cluster.restart(task))
        return None

    def _recover_cluster(self, cause: str, delay_s: float) -> None:
        """Restart all training tasks from the newest snapshot, since the state of a ps or of the leader is lost."""
        self._cluster.stop(TRAINING_TYPES, grace_s=0)
        self._read_rows()  # the last ones of the old leader
        self._silence.forget()
        resume = checkpoints.load_newest_good(self._run_dir.states, self._notice) is not None
        where = "the newest snapshot" if resume else "the beginning"
        self._notice(f"{cause}; starting {_all_of(self._cluster.topology.types)} again{_in(delay_s)} from {where}")
        self._plans.drop(*self._cluster.tasks(TRAINING_TYPES), CLUSTER)
        self._plans.add(CLUSTER, delay_s, lambda: self._cluster.restart_training(resume=resume))
        self._enter("starting")

    def _end_silent(self) -> None:
        """Kill a worker that is silent while others go on: it is then started again, and others take its steps."""
        if self._stage not in ("training", "draining") or (silent := self._silence.longest()) is None:
            return
        task = Task(WORKER, silent.worker)
        if self._cluster.pids.get(task) != silent.pid:
            return  # it ended since the last row
        self.silences.append(silent)
        self._stuck.write_stacks(task)
        self._notice(
            f"{task} (pid {silent.pid}) is silent: no update for {silent.seconds:.0f} s, after {silent.updates}; "
            "its stacks are in its log; ending it"
        )
        self._stuck.end(task)

    def _give_up_unkillable(self) -> Ending | None:
        for task, pid in self._stuck.unkillable():
            cause = f"{task} (pid {pid}) is still there {self._limits.kill_s:.0f} s after SIGKILL"
            if ending := self._give_up(task, cause):
                return ending
        return None

    def _give_up(self, task: Task, cause: str) -> Ending | None:
        if not self._on_death[task.type].dispensable:
            return Ending("failed", 1, cause)
        if task.type == EVALUATOR:
            return self._go_on_without_evaluator(cause)
        if len(self._cluster.tasks((task.type,))) == 1:
            return Ending("failed", 1, cause)
        # While TensorFlow waits for one worker it takes no restarted one back: this one must leave the cluster spec.
        self._cluster.give_up(task)
        self._recover_cluster(f"{cause}; training goes on without {task}", delay_s=0)
        return None

    def _go_on_without_evaluator(self, cause: str) -> Ending | None:
        if self._stage == "scoring":
            return self._unscored(f"the evaluator was given up: {cause}")
        self._evaluator_lost = cause
        self._notice(f"{cause}; training goes on without it")
        return None

    def _on_request(self) -> Ending | None:
        if self._requests.count == self._requests_seen:
            return None
        self._requests_seen += 1
        if self._requests_seen > 1 or not self._trained:
            when = f"while {self._stage}" if self._trained else "before training began"
            outcome = self._outcome if self._stage == "scoring" else "stopped"
            self._cluster.stop_all(grace_s=0)
            return Ending(outcome, self._requests.exit_code, f"stopped at once, {when}")
        if self._stage == "scoring":
            self._notice("training is over, the evaluator is scoring; Ctrl-C again to stop now")
            return None
        self._notice(
            "stopping: no new steps; when those under way have ended, a last checkpoint is written and scored "
            f"(given up after {self._limits.drain_s:.0f} s without an update); Ctrl-C again to stop now"
        )
        self._draining = True
        if self._stage == "training":
            self._drain()
        return None

    def _drain(self) -> None:
        self._cluster.signal(self._cluster.topology.leader, signal.SIGTERM)
        self._enter("draining")

    def _on_timeout(self) -> Ending | None:
        limits, leader = self._limits, self._cluster.topology.leader
        limit_s, what = {
            "starting": (limits.startup_s, "training did not begin"),
            "training": (limits.standstill_s, "training stands still: no update"),
            "draining": (limits.drain_s, f"{leader} did not end"),
            "scoring": (limits.scoring_s, "the evaluator scored nothing"),
        }[self._stage]
        if self._clock() - self._moved_at <= limit_s:
            return None
        states = ", ".join(f"{row['type']}-{row['index']} {row['state']}" for row in self._cluster.states())
        message = f"{what} for {limit_s:.0f} s ({states}; logs: {self._run_dir.logs})"
        if self._stage == "scoring":
            return self._unscored(message)
        if self._stage != "training":
            return Ending("failed", 1, message)
        return self._on_standstill(message)

    def _on_standstill(self, message: str) -> Ending | None:
        """Let every process write its Python stacks into its log, then kill the leader, which restarts the cluster."""
        self._stuck.write_stacks(*self._cluster.topology.tasks)
        leader = self._cluster.topology.leader
        self._stuck.end(leader)
        self._notice(f"{message}; stacks are in the logs; ending {leader}")
        self._moved()
        return None

    def _unscored(self, why: str) -> Ending:
        do = f"score it with: {PROGRAM} evaluate --once --checkpoint-dir {self._run_dir.checkpoints}"
        return Ending(self._outcome, 1, f"the last checkpoint is not scored, {why}; {do}")


def _all_of(types: tuple[str, ...]) -> str:
    """Return "chief, ps and workers", or those of them that the cluster has."""
    *others, last = (_IN_WORDS[kind] for kind in types)
    return f"{', '.join(others)} and {last}" if others else last


def _in(delay_s: float) -> str:
    return f" in {delay_s:g} s" if delay_s else ""
