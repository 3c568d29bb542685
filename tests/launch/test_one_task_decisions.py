"""The rules of the command `task` as tables: what one task sees at which second, and all that it does because of it.

A story has looks, `(second, event, …)`, and all actions that follow but notices, whole; and a part of each notice that
matters. Between the looks, time passes as in a loop that looks twice a second.
"""

import signal
from dataclasses import dataclass, field

import pytest

from ps_cluster.config import build_config
from ps_cluster.config.tasks import Task
from ps_cluster.errors import BAD_INPUT, FAILED, FAILED_FOR_GOOD, PORT_IN_USE, RETRY, SUPERSEDED
from ps_cluster.launch.actions import Kill, Notice, WriteStacks
from ps_cluster.launch.one_task_decisions import (
    EndTask,
    PassSignalOn,
    RendezvousLimits,
    StartProcess,
    decisions_for,
)
from ps_cluster.launch.stages import RunLimits
from ps_cluster.launch.topology import ClusterTopology
from ps_cluster.runs.checkpoints import EndedMark
from ps_cluster.runs.monitor import EarlyStopping
from ps_cluster.runs.result_rows import PatienceExhausted, TimeLimitReached
from tests.helpers.rows import progress_row, score_row

CHIEF, PS, WORKER = Task("chief", 0), Task("ps", 0), Task("worker", 0)
ALONE = ClusterTopology({"chief": ["a:1"]})
CLUSTER = ClusterTopology({"chief": ["a:1"], "ps": ["b:2"], "worker": ["c:3"]})
THREE = ClusterTopology({"chief": ["a:1"], "ps": ["b:2"], "worker": ["c:3", "d:4", "e:5"]})
SYNC = ClusterTopology({"worker": ["a:1", "b:2"]})
LIMITS = RunLimits()
INTERVAL_S = 0.5
MAX_SECONDS = 1000.0
WITH_ALL, AT_ONCE = StartProcess(1), StartProcess(None)


class ToldTask:
    """A task that goes as the table says. `answers`: the addresses at which a server answers; `unknown`: hosts."""

    def __init__(self, task, topology, rendezvous, answers, unknown=()):
        self.now_s = self.frozen_s = 0.0
        self.answers, self.unknown, self.frozen, self.stop_signal = set(answers), list(unknown), False, 0
        settings = build_config(None, {"evaluation.patience": 2, "training.max_seconds": MAX_SECONDS})
        self.decisions = decisions_for(
            task, topology, LIMITS, rendezvous, total_updates=7, early_stopping=EarlyStopping(settings)
        )
        self.actions, self.said = [], []
        self.do(self.decisions.begin(0.0, 0.0))
        self.pass_time()

    @property
    def awake_s(self):
        return self.now_s - self.frozen_s

    def do(self, actions):
        for action in actions or ():
            if not self.ended:
                (self.said if isinstance(action, Notice) else self.actions).append(
                    (self.now_s, str(action.line)) if isinstance(action, Notice) else action
                )
                if isinstance(action, EndTask):
                    self.ended_s = self.now_s

    @property
    def ended(self):
        return bool(self.actions) and isinstance(self.actions[-1], EndTask)

    def poll(self, at_s, *events):
        while self.now_s < at_s - INTERVAL_S:
            self.now_s += INTERVAL_S
            self.pass_time()
        self.now_s = max(self.now_s, at_s)
        for event in events:
            self.do(event(self))
        self.pass_time()

    def pass_time(self):
        if self.ended:
            return
        if sought := self.decisions.probed_tasks:
            there = {task for task, address in sought.items() if address in self.answers}
            self.do(self.decisions.probed(there, self.unknown, self.now_s, self.awake_s))
        if any(isinstance(action, StartProcess) for action in self.actions):
            self.do(self.decisions.time_passed(self.frozen, self.awake_s))


# Events of a table.


def row(applied, phase="training", wait_s=0.0, train_s=0.0):
    """The leader's process writes a row: how long to wait for the next update, and how long training has taken."""
    progress = progress_row(applied, phase, longest_wait_seconds=wait_s, train_seconds=train_s)
    return lambda told: told.decisions.progress_seen(progress, told.awake_s)


def scored(step, accuracy):
    """The evaluator scores a checkpoint."""
    return lambda told: told.decisions.score_seen(score_row(step, accuracy), told.awake_s)


def process_ends(code):
    return lambda told: told.decisions.process_ended(code, told.stop_signal)


def mark(outcome="completed", step=7):
    return lambda told: told.decisions.mark_seen(EndedMark(last_step=step, outcome=outcome))


def asked_to_stop(number):
    def event(told):
        told.stop_signal = number
        return told.decisions.stop_requested(number, told.awake_s)

    return event


def leaves(*addresses):
    return lambda told: told.answers.difference_update(addresses)


def comes(*addresses):
    return lambda told: told.answers.update(addresses)


def freezes(told):
    told.frozen = not told.frozen


def all_freeze_for(seconds):
    """Everything stands still, this command too: the clock that counts only its own time does not move."""

    def event(told):
        told.now_s += seconds
        told.frozen_s += seconds

    return event


TERM, INT = signal.SIGTERM, signal.SIGINT


@dataclass(frozen=True)
class Story:
    """What happens to `task`, the actions but notices, and parts of notices. `ends_at`: seconds, from and to."""

    task: Task
    looks: list[tuple]
    follows: list
    says: list[str] = field(default_factory=list)
    ends_at: tuple[float, float] | None = None
    topology: ClusterTopology = CLUSTER
    rendezvous: RendezvousLimits = RendezvousLimits(600)
    answers: tuple[str, ...] = ("a:1", "b:2", "c:3", "d:4", "e:5")
    unknown: tuple[str, ...] = ()

    def check(self):
        told = ToldTask(self.task, self.topology, self.rendezvous, self.answers, self.unknown)
        for at_s, *events in self.looks:
            if not told.ended:
                told.poll(at_s, *events)
        assert told.actions == self.follows
        lines = iter(line for _, line in told.said)
        for part in self.says:
            assert any(part in line for line in lines), (part, told.said)
        if self.ends_at is not None:
            assert self.ends_at[0] <= told.ended_s <= self.ends_at[1]


def given_up(task, outcome=None):
    return [WriteStacks((task,)), Kill(task), EndTask(RETRY, outcome)]


BEGINS = (1, row(1))
LEADER = {
    "training that does not begin is given up, and its stacks are written": Story(
        CHIEF, [(190,)], [WITH_ALL, *given_up(CHIEF, "failed")],
        ["chief-0 ends: training did not begin for 180 s; run the same command again to continue (exit code 75)"],
        ends_at=(180, 181),
    ),
    "a worker that leads may wait for the other workers in its process": Story(
        WORKER, [(240,)], [WITH_ALL, *given_up(WORKER, "failed")], ["did not begin for 230 s"],
        topology=SYNC, rendezvous=RendezvousLimits(50), ends_at=(230, 231),
    ),
    "a standstill counts from the last update": Story(
        CHIEF, [BEGINS, (40, row(2)), (90, row(3)), (120, row(3)), (160,)], [WITH_ALL, *given_up(CHIEF, "failed")],
        ["training stands still: no update for 60 s"], ends_at=(150, 151),
    ),
    "time in which all processes were frozen counts for no limit": Story(
        CHIEF, [BEGINS, (30, all_freeze_for(970)), (1040,)], [WITH_ALL, *given_up(CHIEF, "failed")], ends_at=(1030, 1032),
    ),
    "a leader that hangs after its last message has ended well": Story(
        CHIEF, [(1, row(7)), (2, mark()), (70,)],
        [WITH_ALL, Kill(CHIEF), EndTask(0, "completed", proof_decides=True)], ends_at=(61, 62),
    ),
    "the mark of a shorter training before does not excuse one that hangs": Story(
        CHIEF, [(1, row(7)), (2, mark(step=5)), (70,)], [WITH_ALL, *given_up(CHIEF, "failed")]
    ),
    "a drain that does not end is given up": Story(
        CHIEF, [BEGINS, (2, asked_to_stop(TERM)), (130,)],
        [WITH_ALL, PassSignalOn(TERM), *given_up(CHIEF, "stopped")], ["stopping: no new steps", "chief-0 did not end for 120"],
        ends_at=(122, 123),
    ),
    "a leader without a result has failed": Story(
        CHIEF, [(5, process_ends(0))], [WITH_ALL, EndTask(FAILED, "failed")], ["chief-0 has ended without a result"]
    ),
    "a training that diverged has failed for good": Story(
        CHIEF, [(5, mark("diverged", 5), process_ends(0))], [WITH_ALL, EndTask(FAILED_FOR_GOOD, "diverged")],
        ["training is diverged at step 5", "the training diverged: after 5 updates"],
    ),
    "a task without others starts at once": Story(
        CHIEF, [(5, mark(), process_ends(0))], [AT_ONCE, EndTask(0, "completed", proof_decides=True)],
        ["chief-0 at a:1", "chief-0 has ended: training is completed at step 7"], topology=ALONE, answers=(),
    ),
}  # fmt: skip

# A leader whose training ends is to be started again if it was preempted, unless all is trained.
for outcome, number, code in (
    ("completed", None, 0), ("completed", TERM, 0), ("stopped", INT, 0), ("stopped", TERM, RETRY),
):  # fmt: skip
    drained = [] if number is None else [(2, asked_to_stop(number))]
    LEADER[f"training is {outcome} after {number and number.name}: exit code {code}"] = Story(
        CHIEF, [BEGINS, *drained, (5, mark(outcome), process_ends(0))],
        [WITH_ALL, *([] if number is None else [PassSignalOn(number)]), EndTask(code, outcome, proof_decides=True)],
    )  # fmt: skip

# The process has said why, unless a signal ended it. A leader that has changed nothing writes no ending.
for task in (CHIEF, PS):
    for code, expected in ((1, 1), (2, 2), (3, 3), (RETRY, RETRY), (-9, 137), (143, 143)):
        outcome = "failed" if task == CHIEF and code not in (BAD_INPUT, SUPERSEDED) else None
        LEADER[f"the process of {task} ends with {code}"] = Story(
            task, [(5, process_ends(code))], [WITH_ALL if task == CHIEF else AT_ONCE, EndTask(expected, outcome)]
        )

STOPS = {
    "a second signal ends a leader at once": Story(
        CHIEF, [BEGINS, (2, asked_to_stop(TERM)), (3, asked_to_stop(INT))],
        [WITH_ALL, PassSignalOn(TERM), Kill(CHIEF), EndTask(130, "stopped")], ["chief-0 was stopped by SIGINT"],
    ),
    "a leader that has not begun to train is ended at once": Story(
        CHIEF, [(2, asked_to_stop(TERM))], [WITH_ALL, Kill(CHIEF), EndTask(143, "stopped")]
    ),
    "a leader that waits ends at once, and writes nothing": Story(
        CHIEF, [(3, asked_to_stop(TERM))], [EndTask(143)], answers=()
    ),
    "a server ends at once by SIGTERM": Story(PS, [(3, asked_to_stop(TERM))], [AT_ONCE, Kill(PS), EndTask(143)]),
}  # fmt: skip

WORSE = [(2, scored(1, 0.6)), (3, scored(2, 0.5)), (4, scored(3, 0.6))]
EARLY = PatienceExhausted(step=3, patience=2, monitor="accuracy", examples="test", best_step=1, best_value=0.6)
STOPPED_EARLY = EndTask(0, "stopped", EARLY, proof_decides=True)
STOPS |= {
    "the end of the patience drains for good, whatever a scheduler asks for meanwhile": Story(
        CHIEF, [BEGINS, *WORSE, (5, asked_to_stop(TERM)), (6, mark("stopped", 4), process_ends(0))],
        [WITH_ALL, PassSignalOn(INT), STOPPED_EARLY],
        ["stopping early: test accuracy has not become better in 2 scored checkpoints", "stopped early already"],
    ),
    "the end of the time drains for good": Story(
        CHIEF, [BEGINS, (2, row(9, train_s=MAX_SECONDS)), (6, mark("stopped", 9), process_ends(0))],
        [WITH_ALL, PassSignalOn(INT), EndTask(0, "stopped", TimeLimitReached(max_seconds=MAX_SECONDS), proof_decides=True)],
        ["stopping early: it has trained for 1000 s (training.max_seconds); "],
    ),
    "a leader that was not there when the patience ended drains as soon as it trains": Story(
        CHIEF, [(0.5, *(event for _, event in WORSE)), BEGINS, (6, mark("stopped", 4), process_ends(0))],
        [WITH_ALL, PassSignalOn(INT), STOPPED_EARLY],
    ),
}  # fmt: skip

SERVER = {
    "a server ends well when its process was told that training has ended": Story(
        WORKER, [(5, process_ends(0))], [AT_ONCE, EndTask(0)], ["worker-0 has ended"]
    ),
    "a port that is taken is one line for the user": Story(
        PS, [(5, process_ends(PORT_IN_USE))],
        [AT_ONCE, EndTask(BAD_INPUT, error="TF_CONFIG: cluster.ps: 'b:2': ps-0 can't listen there, usually because another "
                          "program does: stop that program, or give ps-0 another port in the TF_CONFIG or cluster file of "
                          "every task")],
    ),
    "a process that stays frozen is ended": Story(
        PS, [(10, freezes), (20,)], [AT_ONCE, *given_up(PS)], ["its process was frozen for 5 s"], ends_at=(15, 16)
    ),
    "a process that is frozen for a moment is left alone": Story(
        PS, [(10, freezes), (14.5, freezes), (15, freezes), (19.5, freezes), (60,)], [AT_ONCE]
    ),
    "a server without a leader waits as long as it was told, and says so every 10 s": Story(
        WORKER, [(50,)], [AT_ONCE, *given_up(WORKER)],
        [*(f"waiting for chief-0 (a:1) ({second} of 45 s)" for second in (0, 10, 20, 30, 40)), "did not answer for 45 s"],
        answers=(), rendezvous=RendezvousLimits(45), ends_at=(45, 46),
    ),
    "the wait begins anew when the leader was there": Story(
        WORKER, [(100, leaves("a:1")), (150,)], [AT_ONCE, *given_up(WORKER)], ["chief-0 (a:1) answers", "waiting for"],
        rendezvous=RendezvousLimits(45), ends_at=(144, 146),
    ),
    "a server whose leader has an unknown name ends with that reason and without stacks": Story(
        WORKER, [(50,)], [AT_ONCE, Kill(WORKER), EndTask(RETRY)],
        ["can't be reached: this machine can't resolve the name 'a'; correct the address"],
        answers=(), unknown=("a",), rendezvous=RendezvousLimits(30), ends_at=(30, 31),
    ),
    "a server that shares the run directory sees there that all is trained": Story(
        WORKER, [(20, leaves("a:1"), mark()), (60,)], [AT_ONCE, Kill(WORKER), EndTask(0)],
        ["worker-0 has ended: training is completed"], ends_at=(30, 32),
    ),
    "a server whose leader is away is not ended by the mark of a shorter training before": Story(
        WORKER, [(20, leaves("a:1"), mark(step=5)), (60,)], [AT_ONCE]
    ),
    "an evaluator does without the leader": Story(
        Task("evaluator", 0), [(1000,)], [AT_ONCE], ["evaluator-0"], answers=(),
        topology=ClusterTopology(CLUSTER.cluster, evaluator=True),
    ),
}  # fmt: skip


def waits(looks, follows, says=(), *, rendezvous=RendezvousLimits(600), **more):
    return Story(CHIEF, looks, follows, list(says), topology=THREE, rendezvous=rendezvous, **{"answers": (), **more})


UNKNOWN = ": this machine can't resolve the name 'b'; correct the address, or wait until the name service knows it"
WAITS = {
    "the chief begins when all are there, whatever the order": waits(
        [(1, comes("e:5")), (3, comes("d:4")), (5, comes("c:3")), (7, comes("b:2"))], [StartProcess(3)],
        ["waiting for ps-0 (b:2), worker-0 (c:3), worker-1 (d:4) and 1 more (0 of 600 s)", "all other tasks answer"],
    ),
    "it says for whom it waits every 10 s until the bound": waits(
        [(40,)], [EndTask(RETRY)],
        [*(f"waiting for ps-0 (b:2) ({second} of 35 s)" for second in (0, 10, 20, 30)),
         "ps-0 (b:2) did not answer for 35 s", "chief-0 ends; run the same command again to continue (exit code 75)"],
        answers=("c:3", "d:4", "e:5"), rendezvous=RendezvousLimits(35), ends_at=(35, 36),
    ),
    "a host whose name is not known is named as such": waits(
        [(40,)], [EndTask(RETRY)],
        [f"waiting for ps-0 (b:2) (0 of 35 s){UNKNOWN}", f"ps-0 (b:2) did not answer for 35 s{UNKNOWN}"],
        answers=("c:3", "d:4", "e:5"), unknown=("b",), rendezvous=RendezvousLimits(35),
    ),
    "a training that ended before it could tell the others is complete": waits(
        [(1, mark()), (40,)], [EndTask(0)], ["chief-0 has ended: training is completed"], rendezvous=RendezvousLimits(35)
    ),
    "a worker that does not come is waited for a minute": waits(
        [(10, comes("c:3")), (69,), (75,)], [StartProcess(2)],
        ["beginning with 2 of 3 workers; worker-2 (e:5) may come later"], answers=("b:2", "d:4"),
    ),
    "as many as were asked for are enough at once": waits(
        [(4, comes("b:2")), (6, comes("d:4"))], [StartProcess(2)], ["beginning with 2 of 3"], answers=("c:3",),
        rendezvous=RendezvousLimits(600, least_workers=2),
    ),
    "without a parameter server nothing begins": waits(
        [(110,)], [EndTask(RETRY)], answers=("c:3", "d:4", "e:5"), rendezvous=RendezvousLimits(100, least_workers=1)
    ),
    "a mode that needs all waits for all": waits(
        [(110,)], [EndTask(RETRY)], answers=("b:2", "c:3", "d:4"), rendezvous=RendezvousLimits(100, needs_all=True)
    ),
}  # fmt: skip

STORIES = LEADER | STOPS | SERVER | WAITS


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_the_actions_of_a_task(story):
    story.check()
