"""Pass a table of events to the launcher's rules, and record what they decide, without processes, files or a clock.

An event is a method of `Decisions` with its arguments.
"""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import get_args

from ps_cluster.config import build_config
from ps_cluster.config.tasks import TRAINING_TYPES, WORKER, Task
from ps_cluster.launch import actions as ea
from ps_cluster.launch.actions import EndRun
from ps_cluster.launch.decisions import Decisions, TaskStates
from ps_cluster.launch.stages import RunLimits
from ps_cluster.launch.topology import ClusterTopology
from ps_cluster.runs.monitor import EarlyStopping
from ps_cluster.runs.rows import TaskError
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.system.supervisor import TaskExit
from tests.helpers.rows import progress_row, score_row


class ScriptedRun:
    """A run in which the events of a table happen. Its cluster obeys each action at once, and answers as the loop does.

    A process that is killed ends when the table says so.

    Args:
      problem: why training can neither continue nor start again; "" if it can.
      stop_takes_s: how long it takes to stop tasks.
      patience: training stops early after this many scored checkpoints without a better accuracy.
      max_seconds: training stops early once it has taken so many seconds.
      ended_at: the last update of an earlier session that ended in order.
      refuses: the additional workers that the machine refuses to start.
    Attributes:
      actions: all actions so far.
    """

    def __init__(
        self,
        mode="async",
        *,
        workers=2,
        ps=1,
        evaluator=True,
        snapshot=False,
        problem="",
        stop_takes_s=0.0,
        bounds=(None, None),
        patience=None,
        max_seconds=None,
        ended_at=-1,
        refuses=(),
        **limits,
    ):
        settings = {
            "mode.name": mode, "data.dataset": "synthetic", "evaluation.patience": patience, "training.max_seconds": max_seconds
        }  # fmt: skip
        config = build_config(None, settings)
        bounded = {"cluster.workers": workers, "cluster.min_workers": bounds[0], "cluster.max_workers": bounds[1]}
        self._config = config if mode == "single" else config.with_values(bounded)
        self._ps = ps
        self._evaluator, self._stop_takes_s = evaluator, stop_takes_s
        self._snapshot, self._problem = snapshot, problem
        self.now, self.actions, self.pids, self.frozen = 0.0, [], {}, set()
        self._refused = {task(name) for name in refuses}
        self._pid_numbers = itertools.count(100)
        self._absent = frozenset(range(self._config.training_workers, self._config.most_workers))
        early_stopping = EarlyStopping(self._config, ended_at)
        self.decisions = Decisions(self._config, RunDir(Path("/run")), RunLimits(**limits), early_stopping, self.now)
        self._start()

    def poll(self, at_s, *events):
        """Let time pass until `at_s`, with two looks a second, and report these events in the last one."""
        while self.now < at_s - POLL_INTERVAL_S:
            self.now += POLL_INTERVAL_S
            self._pass_time()
        self.now = max(self.now, at_s)
        for event in events:
            if (decide_and_facts := event(self)) is not None:
                self.tell(*decide_and_facts)
        self._pass_time()

    def _pass_time(self):
        self.tell(Decisions.time_passed, TaskStates(dict(self.pids), tuple(sorted(self.frozen)), "chief-0 running"))

    def tell(self, decide, *facts):
        if self.ended:
            return
        for action in decide(self.decisions, *facts, self.now):
            self.actions.append(action)
            self._obey(action)
            if self.ended:
                return

    @property
    def ended(self):
        return bool(self.actions) and isinstance(self.actions[-1], EndRun)

    def _start(self, types=(*TRAINING_TYPES, "evaluator")):
        self.topology = ClusterTopology.local(
            self._config.chosen_mode.cluster.types,
            self._config.most_workers,
            self._ps,
            evaluator=self._evaluator,
            absent=self._absent,
            pick_port=lambda: 4000,
        )
        self.pids |= {each: next(self._pid_numbers) for each in self.topology.tasks if each.type in types}
        self.tell(Decisions.cluster_started, self.topology)

    def _scale(self, start, stop):
        self.topology = self.topology.with_workers(started=start, stopped=stop)
        self._absent = self.topology.absent
        self.pids = {each: pid for each, pid in self.pids.items() if each not in stop}
        self.pids |= {each: next(self._pid_numbers) for each in start if each not in self._refused}
        self.tell(Decisions.cluster_started, self.topology)

    def _refusals(self, tasks):
        """Return those of the tasks that the machine refuses to start, after they were reported as deaths."""
        found = [TaskExit(each, None, 1, Path("log"), "no room") for each in tasks if each in self._refused]
        for refusal in found:
            self.tell(Decisions.task_died, refusal)
        return found

    def _stop(self, types):
        self.pids = {each: pid for each, pid in self.pids.items() if each.type not in types}
        self.now += self._stop_takes_s

    def _obey(self, action):
        match action:
            case ea.StartCluster():
                self._start()
            case ea.RestartTraining():
                self._start(TRAINING_TYPES)
            case ea.RestartTask(of):
                if not self._refusals([of]):
                    self.pids[of] = next(self._pid_numbers)
            case ea.GiveUp(Task("ps")):
                self._ps -= 1
            case ea.GiveUp(of):
                self._scale((), (of,))
            case ea.Scale(start, stop):
                self._scale(start, stop)
                self.tell(Decisions.scaled, action, self._refusals(start))
            case ea.Kill(of):
                self.frozen.discard(of)
            case ea.StopAll():
                self._stop((*TRAINING_TYPES, "evaluator"))
                self.tell(Decisions.stopped)
            case ea.StopTraining():
                self._stop(TRAINING_TYPES)
                self.tell(Decisions.stopped)
            case ea.RestartFromSnapshot():
                self._stop(TRAINING_TYPES)
                self.tell(Decisions.snapshot_checked, action, self._snapshot, self._problem)


POLL_INTERVAL_S = 0.5


def task(name):
    kind, index = name.split("-")
    return Task(kind, int(index))


def in_words(action):
    """Return an action as text: a notice's line, "failed, 1: message" of an ending, or e.g. "RestartTask(worker-0)"."""
    match action:
        case ea.Notice(line):
            return str(line)
        case EndRun():
            return f"{action.outcome}, {action.exit_code}: {action.message}"
    values = [getattr(action, field.name) for field in dataclasses.fields(action)]
    values = [", ".join(map(str, value)) if isinstance(value, tuple) else str(value) for value in values]
    return f"{type(action).__name__}({', '.join(values)})"


def follows(action, expected):
    """Return whether an action is the expected one. For a line to the user, a part of it is enough."""
    match action:
        case ea.Notice(line):
            return expected in str(line) and expected.partition("(")[0] not in ACTION_NAMES
        case EndRun() | ea.RestartFromSnapshot() | ea.AnswerScale():  # they begin with their outcome, task or answer
            return in_words(action).startswith(expected) and not expected.isalpha()
    return in_words(action) == expected


ACTION_NAMES = {kind.__name__ for kind in get_args(ea.Action)}


# Events of a table. They are functions of the run, which knows the pids.


def row(applied, phase="training", written=0, wait_s=0.0, train_s=0.0):
    """The leader writes a progress row: how long to wait for the next update, and how long training has taken."""
    progress = progress_row(applied, phase, written=written, longest_wait_seconds=wait_s, train_seconds=train_s)

    def event(run):
        workers = {each.index: pid for each, pid in run.pids.items() if each.type == WORKER}
        return Decisions.progress_seen, progress, workers

    return event


def died(name, code=1, line="out of luck", **fields):
    """A task ends by itself."""
    return lambda run: (Decisions.task_died, _exit(run, name, code, line, **fields))


def freezes(name):
    """A process is stopped (SIGSTOP), or continues if it was stopped."""
    return lambda run: run.frozen.symmetric_difference_update({task(name)})


def port_taken(name):
    """A task finds its port taken."""
    return lambda run: (Decisions.port_taken, _exit(run, name, 98, "address in use"))


def _exit(run, name, code, line, **fields):
    run.frozen.discard(task(name))
    error = TaskError(**{"time": 1.0} | fields)
    return TaskExit(task(name), run.pids.pop(task(name), 99), code, Path("log"), line, error)


def leader_done(outcome="completed"):
    """The leader ends with exit code 0."""

    def event(run):
        run.pids.pop(run.topology.leader, None)
        return Decisions.leader_done, outcome

    return event


def evaluator_done(run):
    """The evaluator ends with exit code 0."""
    run.pids.pop(task("evaluator-0"), None)
    return (Decisions.evaluator_done,)


def scored(step, accuracy):
    """The evaluator scores the checkpoint of a step."""
    return lambda _: (Decisions.score_seen, score_row(step, accuracy))


def ctrl_c(_):
    """The user presses Ctrl-C."""
    return Decisions.stop_requested, 130


def scale_to(workers):
    """The user asks for this number of workers."""
    return lambda _: (Decisions.scale_requested, workers)


def sigterm(_):
    """Somebody sends SIGTERM to the launcher."""
    return Decisions.stop_requested, 143
