"""The launcher's rules as tables: what it sees at which second, and all that it does because of it.

A story has looks, `(second, event, …)`, and the actions that follow from all of them, in order. An action is given
whole, with its task (`in_words` of tests/helpers/event_table.py). Of a line that a user reads, a part is enough. What is
not named is not done.
"""

from dataclasses import dataclass, field
from typing import Any

import pytest

from ps_cluster.installation import PROGRAM
from ps_cluster.runs.result_rows import PatienceExhausted, TimeLimitReached
from tests.helpers.event_table import (
    ScriptedRun,
    ctrl_c,
    died,
    evaluator_done,
    follows,
    freezes,
    in_words,
    leader_done,
    port_taken,
    row,
    scale_to,
    scored,
    sigterm,
)


@dataclass(frozen=True)
class Story:
    looks: list[tuple]
    follows: list[str]
    run: dict[str, Any] = field(default_factory=dict)

    def check(self):
        told = ScriptedRun(**self.run)
        for at_s, *events in self.looks:
            told.poll(at_s, *events)
        assert len(told.actions) == len(self.follows), [in_words(action) for action in told.actions]
        for action, expected in zip(told.actions, self.follows, strict=True):
            assert follows(action, expected), f"{in_words(action)}, and not {expected}"


def every(seconds, *events, times, since):
    return [(since + seconds * number, *events) for number in range(times)]


BEGINS = (1, row(1))
ON_OTHER_PORTS = ["StopAll()", "StartCluster()"]
DIES = "ended with exit code 1: out of luck (log: log)"
AGAIN = ["; starting it again", "RestartTask(worker-0)"]
ALL_STACKS = "WriteStacks(chief-0, ps-0, worker-0, worker-1, evaluator-0)"


def again(task, *delays):
    """The notices and restarts of a task that dies in a row; the first one is at once."""
    lines = ["; starting it again", *(f"; starting it again in {delay:g} s" for delay in delays)]
    return [each for line in lines for each in (line, f"RestartTask({task})")]


def taken_back(task, *, resume=False):
    """All that follows from a death that restarts the cluster."""
    return [f"RestartFromSnapshot({task}", "; starting ", f"RestartTraining({resume})"]


STARTING = {
    "start-up takes as long as it may": Story([(180, row(0, phase="connecting"))], []),
    "training that does not begin is given up with the state of every task": Story(
        [(180, row(0, phase="connecting")), (181,)],
        ["failed, 1: training did not begin for 180 s (chief-0 running; logs: /run/logs)"],
    ),
    "a save that takes long is no standstill while it is told": Story(
        [BEGINS, (60, row(1, phase="saving")), (110, row(1, phase="saving")), (165,)], []
    ),
    "slow steps are no standstill while the leader says to wait for them": Story(
        [(1, row(0, wait_s=600)), (70, row(1, wait_s=600)), (670,)], []
    ),
    "once they are measured the limit is theirs": Story(
        [(1, row(0, wait_s=600)), (70, row(1, wait_s=600)), (134, row(2, wait_s=192)), (325,), (327,)],
        [ALL_STACKS, "Kill(chief-0)", "training stands still: no update for 192 s"],
    ),
    "a leader with nothing left to train has begun": Story([(1, row(9, phase="writing")), (61,)], []),
    "a port that is taken starts all again on other ports": Story(
        [(5, port_taken("worker-0")), (180,), (185,)], ["took the port of worker-0: starting again", *ON_OTHER_PORTS]
    ),
    "start-up on other ports takes as long as any": Story(
        [(5, port_taken("worker-0")), (186,)],
        ["took the port of worker-0", *ON_OTHER_PORTS, "failed, 1: training did not begin for 180 s"],
    ),
    "ports that stay taken are given up": Story(
        every(5, port_taken("ps-0"), times=3, since=1),
        ["took the port of ps-0", *ON_OTHER_PORTS] * 2 + ["failed, 1: no free ports in 3 attempts: ps-0 (pid "],
        {"port_attempts": 3},
    ),
    "what was planned for a task is forgotten when all start on other ports": Story(
        [(1, died("evaluator-0")), (2, died("evaluator-0")), (2.1, port_taken("ps-0")), (9,)],
        ["again", "RestartTask(evaluator-0)", "again in 0.5 s", "took the port of ps-0", *ON_OTHER_PORTS],
    ),
    "a port that is taken while training takes all back": Story(
        [BEGINS, (9, port_taken("worker-0"), died("worker-0", code=98))],
        taken_back("worker-0"),
    ),
    "a stop before training is at once": Story(
        [(1, ctrl_c)], ["StopAll()", "stopped, 130: stopped at once, before training began"]
    ),
}

DEATHS = {
    "a worker that dies is started again at once and alone": Story(
        [BEGINS, (9, died("worker-0"))], [f"worker-0 (pid 102) {DIES}; starting it again", "RestartTask(worker-0)"]
    ),
    "the next restarts of a worker wait longer": Story(
        [BEGINS, (9, died("worker-0")), (10, died("worker-0")), (10.4,), (10.5,), (11, died("worker-0")), (11.9,), (12,)],
        again("worker-0", 0.5, 1),
    ),
    "a worker that never comes back is given up with its first cause, and training goes on": Story(
        [BEGINS, (2, died("worker-1", line="first")), *every(9, row(2), died("worker-1"), times=5, since=3)],
        [*again("worker-1", 0.5, 1, 2, 4), "GiveUp(worker-1)",
         "first (log: log) (given up after 5 restarts); training continues without worker-1"],
        {"stable_s": 100},
    ),
    "a worker that never comes back before training began is not waited for by the next chief": Story(
        [(1, died("worker-1", line="first")), *every(9, died("worker-1"), times=5, since=2)],
        [*again("worker-1", 0.5, 1, 2, 4), "GiveUp(worker-1)", "RestartFromSnapshot(worker-1",
         "training continues without worker-1; starting chief, ps and", "RestartTraining(False)"],
        {"stable_s": 100},
    ),
    "the last worker that is given up ends the run": Story(
        [BEGINS, *every(9, row(2), died("worker-0"), times=6, since=3)],
        [*again("worker-0", 0.5, 1, 2, 4), "failed, 1: worker-0 (pid 102) ended with exit code 1"],
        {"workers": 1, "stable_s": 100},
    ),
    "rounds on the parameter server do not go on without a worker": Story(
        [BEGINS, *every(9, row(2), died("worker-1"), times=6, since=3)],
        [*again("worker-1", 0.5, 1, 2, 4), "failed, 1: worker-1 (pid 103) ended with exit code 1"],
        {"mode": "sync-ps", "stable_s": 100},
    ),
    "a dead ps takes training back to the beginning where there is no snapshot": Story(
        [BEGINS, (9, died("ps-0"))],
        ["RestartFromSnapshot(ps-0", f"{DIES}; starting chief, ps and workers again from the beginning",
         "RestartTraining(False)"],
    ),
    "a dead ps ends the run if training can neither continue nor start again": Story(
        [BEGINS, (9, died("ps-0"))],
        ["RestartFromSnapshot(ps-0", f"failed, 1: ps-0 (pid 101) {DIES}; the snapshots can't be read"],
        {"problem": "the snapshots can't be read"},
    ),
    "a dead chief takes training back to the newest snapshot": Story(
        [BEGINS, (9, died("chief-0"))],
        ["RestartFromSnapshot(chief-0", "ps and workers again from the newest snapshot", "RestartTraining(True)"],
        {"snapshot": True},
    ),
    "a dead synchronous worker takes all workers back": Story(
        [BEGINS, (9, died("worker-1"))],
        ["RestartFromSnapshot(worker-1", "starting workers again from the newest snapshot", "RestartTraining(True)"],
        {"mode": "sync", "snapshot": True},
    ),
    "a synchronous worker that ends by itself has died": Story(
        [BEGINS, (9, died("worker-1", code=0, line=""))],
        ["RestartFromSnapshot(worker-1", "ended with exit code 0: no output", "RestartTraining(False)"],
        {"mode": "sync"},
    ),
    "a cluster that gets no further is given up with its first cause": Story(
        [BEGINS, (2, died("ps-0", code=-9, time=0, line="the last words")),
         *every(60, row(1), died("chief-0"), times=5, since=3)],
        taken_back("ps-0") + taken_back("chief-0") * 4
        + ["failed, 1: ps-0 (pid 101) ended with SIGKILL, its last line: the last words (log: log) (given up after 5"],
        {"standstill_s": 100},
    ),
    "a ps that never comes back is given up, and training goes on from the snapshot with those that are left": Story(
        [BEGINS, *every(60, row(1), died("ps-1"), times=6, since=3), (400, row(1), died("ps-0")), (401,)],
        taken_back("ps-1", resume=True) * 5
        + ["GiveUp(ps-1)", "RestartFromSnapshot(ps-1",
           "training continues without ps-1; starting chief, ps and workers again from the new", "RestartTraining(True)"]
        + taken_back("ps-0", resume=True),
        {"standstill_s": 100, "ps": 3, "snapshot": True},
    ),
    "the last ps is not given up": Story(
        [BEGINS, *every(60, row(1), died("ps-1"), times=6, since=3), *every(60, row(1), died("ps-0"), times=6, since=400)],
        taken_back("ps-1") * 5
        + ["GiveUp(ps-1)", "RestartFromSnapshot(ps-1", "training continues without ps-1", "RestartTraining(False)"]
        + taken_back("ps-0") * 5
        + ["failed, 1: ps-0 (pid "],
        {"standstill_s": 100, "ps": 2},
    ),
    "where one ps and another die it is nothing that only one of them has, and none is given up": Story(
        [BEGINS, (3, row(1), died("ps-0")), *every(60, row(1), died("ps-1"), times=5, since=63)],
        taken_back("ps-0") + taken_back("ps-1") * 4 + ["failed, 1: ps-0 (pid 101) ended with exit code 1"],
        {"standstill_s": 100, "ps": 2},
    ),
    "a cluster that got no further waits before it starts again": Story(
        [BEGINS, (9, died("ps-0")), (10, row(1)), (11, died("ps-0")), (11.4,)],
        [*taken_back("ps-0"), "RestartFromSnapshot(ps-0", "starting chief, ps and workers again in 0.5 s"],
    ),
    "what else dies while all are taken back is no news": Story(
        [BEGINS, (9, died("ps-0"), died("chief-0"), died("worker-1", user_error=True))],
        taken_back("ps-0"),
    ),
    "a restart that was planned for a worker is not made when all are taken back": Story(
        [BEGINS, (9, died("worker-0")), (10, died("worker-0")), (10.1, died("ps-0")), (15,)],
        [*AGAIN, "again in 0.5 s", *taken_back("ps-0")],
    ),
    "bad input that a task found ends the run as the user's error": Story(
        [(1, died("chief-0", code=2, line="no checkpoint", user_error=True))], ["failed, 2: no checkpoint"]
    ),
    "what would fail again is not tried again": Story(
        [BEGINS, (9, died("chief-0", line="No space left", final=True))], ["failed, 1: chief-0 (pid 100) ended with"]
    ),
    "an evaluator that died is started again whatever it says": Story(
        [BEGINS, (9, died("evaluator-0", user_error=True))], [DIES, "RestartTask(evaluator-0)"]
    ),
    "an evaluator whose computation fails is not started again, as it would fail each time": Story(
        [BEGINS, (9, died("evaluator-0", code=2, line="indices", computation=True)), (20,)],
        ["ended with exit code 2: indices (log: log); training continues without it"],
    ),
    "a leader that ends without a result fails the run": Story(
        [BEGINS, (9, leader_done("failed"))], ["failed, 1: chief-0 ended without a result (log: /run/logs/chief-0.log)"]
    ),
}  # fmt: skip

ENDS_THE_LEADER = [ALL_STACKS, "Kill(chief-0)", "stands still"]
STUCK = {
    "updates are movement": Story([(50 * n + 1, row(n + 1)) for n in range(9)], []),
    "rows of the ledger's tables are movement": Story([(50 * n + 1, row(1, "writing", n)) for n in range(9)], []),
    "rows without an update are none: the leader is ended, and its death takes all back": Story(
        [BEGINS, (60, row(1)), (62, row(1)), (63, died("chief-0"))],
        [*ENDS_THE_LEADER, *taken_back("chief-0")],
    ),
    "a process that is stopped for a moment is left alone": Story(
        [BEGINS, (9, freezes("ps-0")), (13.5, freezes("ps-0")), (14, freezes("ps-0")), (18.5, freezes("ps-0"))], []
    ),
    "a process that stays stopped is ended": Story(
        [BEGINS, (9, freezes("ps-0")), (14,), (15, died("ps-0", -9))],
        ["ps-0 has been frozen for 5 s: killing it", "Kill(ps-0)", *taken_back("ps-0")],
    ),
    "a leader that SIGKILL does not end ends the run": Story(
        [BEGINS, (9, freezes("chief-0")), (14,), (24,), (24.1,)],
        ["frozen", "Kill(chief-0)", "failed, 1: chief-0 (pid 100) is still there 10 s after SIGKILL"],
    ),
    "a worker that SIGKILL does not end is left out": Story(
        [BEGINS, (9, freezes("worker-1")), (14,), (24.1,), (24.3,)],
        ["frozen", "Kill(worker-1)", "GiveUp(worker-1)", "RestartFromSnapshot(worker-1 (pid 103) is still there",
         "10 s after SIGKILL; training continues without worker-1; starting chief", "RestartTraining(False)"],
    ),
    "two workers that SIGKILL does not end are both left out": Story(
        [BEGINS, (9, freezes("worker-1"), freezes("worker-2")), (14,), (24.1,), (24.3,)],
        ["frozen", "Kill(worker-1)", "frozen", "Kill(worker-2)",
         "GiveUp(worker-1)", "RestartFromSnapshot(worker-1", "without worker-1", "GiveUp(worker-2)",
         "RestartFromSnapshot(worker-2", "without worker-2", "RestartTraining(False)"],
        {"workers": 3},
    ),
    "a run whose workers are all still there after SIGKILL ends": Story(
        [BEGINS, (9, freezes("worker-0"), freezes("worker-1")), (14,), (24.1,)],
        ["frozen", "Kill(worker-0)", "frozen", "Kill(worker-1)",
         "failed, 1: worker-0 and worker-1 are still there 10 s after SIGKILL"],
    ),
    "rounds end where a worker can not be ended": Story(
        [BEGINS, (9, freezes("worker-1")), (14,), (24.1,)],
        ["frozen", "Kill(worker-1)", "failed, 1: worker-1 (pid 103) is still there"],
        {"mode": "sync-ps"},
    ),
    "an evaluator that SIGKILL does not end is gone without": Story(
        [BEGINS, (9, freezes("evaluator-0")), (14,), (24.1,), (40,)],
        ["frozen", "Kill(evaluator-0)", "10 s after SIGKILL; training continues without it"],
    ),
    "an evaluator that was given up and ends at last is not started again": Story(
        [BEGINS, (9, freezes("evaluator-0")), (14,), (24.1,), (40, row(2), died("evaluator-0", -9)), (50, leader_done())],
        ["frozen", "Kill(evaluator-0)", "10 s after SIGKILL; training continues without it", "StopTraining()",
         "completed, 1: the last checkpoint is not scored, because the evaluator was given up: evaluator-0 (pid 104) is still"],
    ),
    "one that dies of SIGKILL and its successor are not taken for it": Story(
        [BEGINS, (9, freezes("worker-1")), (14,), (15, died("worker-1", -9)), (24.1,)],
        ["frozen", "Kill(worker-1)", "starting it again", "RestartTask(worker-1)"],
    ),
}  # fmt: skip

ASKED = [
    "stopping: no new steps are handed out; when the running steps have ended, a last checkpoint is written and scored"
]
STOPPING = {
    "one Ctrl-C drains": Story([BEGINS, (9, ctrl_c), (10,)], [*ASKED, "DrainLeader(chief-0)"]),
    "a synchronous run is drained by its first worker": Story(
        [BEGINS, (9, ctrl_c)], [*ASKED, "DrainLeader(worker-0)"], {"mode": "sync"}
    ),
    "a second stop is at once, with the code of its signal": Story(
        [BEGINS, (9, ctrl_c), (9.2, sigterm)],
        [*ASKED, "DrainLeader(chief-0)", "StopAll()", "stopped, 143: stopped at once, while draining"],
    ),
    "a cluster that recovers has no leader to drain": Story(
        [BEGINS, (2, died("ps-0")), (3, ctrl_c)], [*taken_back("ps-0"), *ASKED]
    ),
    "a stop while the cluster recovers drains it once it trains again": Story(
        [BEGINS, (2, died("ps-0")), (3, ctrl_c), (60, row(2))],
        [*taken_back("ps-0"), *ASKED, "DrainLeader(chief-0)"],
    ),
    "a cluster that recovers from a death in its drain is drained again": Story(
        [BEGINS, (2, ctrl_c), (3, died("ps-0")), (9, row(1))],
        [*ASKED, "DrainLeader(chief-0)", *taken_back("ps-0"), "DrainLeader(chief-0)"],
    ),
    "a drain lasts as long as there are updates": Story(
        [BEGINS, (9, ctrl_c), (100, row(2)), (200, row(3)), (320,)], [*ASKED, "DrainLeader(chief-0)"]
    ),
    "a drain that does not end is given up": Story(
        [BEGINS, (9, ctrl_c), (129,), (129.1,)],
        [*ASKED, "DrainLeader(chief-0)", "failed, 1: chief-0 did not end for 120 s (chief-0 running; logs: /run/logs)"],
    ),
    "a drained run is scored": Story(
        [BEGINS, (9, ctrl_c), (10, leader_done("stopped")), (20, evaluator_done)],
        [*ASKED, "DrainLeader(chief-0)", "StopTraining()", "stopped, 0: None"],
    ),
    "a run whose loss was never a number is scored, and has failed": Story(
        [BEGINS, (8, row(340)), (10, leader_done("nan_loss")), (20, evaluator_done)],
        ["StopTraining()", "nan_loss, 1: the loss was NaN or infinite in every step of 340 updates"],
    ),
    "a run that diverged is scored, and has failed": Story(
        [BEGINS, (8, row(340)), (10, leader_done("diverged")), (20, evaluator_done)],
        ["StopTraining()", "diverged, 1: the training diverged: after 340 updates, weights are NaN or infinite"],
    ),
    "a stop while the evaluator scores asks once more, and keeps the outcome": Story(
        [BEGINS, (9, leader_done()), (10, ctrl_c), (11, ctrl_c)],
        ["StopTraining()", "Ctrl-C again to stop now", "StopAll()",
         "completed, 130: stopped at once, while scoring"],
    ),
    "a stop asks once more although all was trained by an earlier launcher": Story(
        [(0.5, leader_done()), (1, ctrl_c), (2, ctrl_c)],
        ["StopTraining()", "training is over, and the evaluator is scoring; press Ctrl-C again to stop now", "StopAll()",
         "completed, 130: stopped at once, while scoring"],
    ),
}  # fmt: skip

UNSCORED = "completed, 1: the last checkpoint is not scored, because "
SCORE_IT = f"; score it with: {PROGRAM} evaluate --once --checkpoint-dir /run/checkpoints"
SCORING = {
    "the run ends when the last checkpoint is scored": Story(
        [BEGINS, (9, leader_done()), (20, evaluator_done)], ["StopTraining()", "completed, 0: None"]
    ),
    "the run ends with training where there is no evaluator": Story(
        [BEGINS, (9, leader_done())], ["StopTraining()", "completed, 0: None"], {"evaluator": False}
    ),
    "the run ends with training where all is scored by then": Story(
        [BEGINS, (9, evaluator_done), (10, leader_done())], ["StopTraining()", "completed, 0: None"]
    ),
    "a restart that was planned is not made when training is over": Story(
        [BEGINS, (2, died("worker-0")), (3, died("worker-0")), (3.1, leader_done()), (5,)],
        [*AGAIN, "again in 0.5 s", "StopTraining()"],
    ),
    "how training tasks end once it is over is no news": Story(
        [BEGINS, (9, leader_done(), died("worker-0"), died("ps-0", user_error=True))], ["StopTraining()"]
    ),
    "scoring may take long for each checkpoint": Story(
        [BEGINS, (9, leader_done()), (300, scored(1, 0.5)), (600, scored(2, 0.5))], ["StopTraining()"]
    ),
    "an evaluator that scores nothing is given up": Story(
        [BEGINS, (9, leader_done()), (309,), (310,)],
        ["StopTraining()", f"{UNSCORED}the evaluator scored nothing for 300 s (chief-0 running; logs: /run/logs)"],
    ),
    "the time of stopping is not taken from that of scoring": Story(
        [BEGINS, (9, leader_done()), (313,)], ["StopTraining()"], {"stop_takes_s": 5.0}
    ),
    "an evaluator that crashes while scoring is started again, three times": Story(
        [BEGINS, (9, leader_done()), *every(9, died("evaluator-0", line="every time"), times=4, since=10)],
        ["StopTraining()", *again("evaluator-0", 0.5, 1)]
        + [f"{UNSCORED}the evaluator was given up: evaluator-0 (pid 104) ended with exit code 1: every time"],
    ),
    "training goes on without an evaluator, and the run ends unscored": Story(
        [BEGINS, *every(9, died("evaluator-0"), times=4, since=10), (50, row(2)), (51, leader_done())],
        [*again("evaluator-0", 0.5, 1), "(given up after 3 restarts); training continues without it", "StopTraining()",
         f"{UNSCORED}the evaluator was given up: evaluator-0 (pid 104) ended with exit code 1: out of luck (log: log) "
         f"(given up after 3 restarts){SCORE_IT}"],
    ),
}  # fmt: skip

FROM_1_TO_4 = {"workers": 2, "bounds": (1, 4)}
NO_ROOM = "worker-3 could not be started: no room (log: log)"
NO_ROOM_FOR_2 = NO_ROOM.replace("3", "2")
SCALING = {
    "the lowest spare indices start": Story(
        [BEGINS, (2, scale_to(4))],
        ["Scale(worker-2, worker-3, )",
         "AnswerScale(started worker-2, worker-3; now 4 workers; the learning rate is 0.25 times that of 2 workers, "
         "False)"],
        FROM_1_TO_4,
    ),
    "the highest indices stop, and come back": Story(
        [BEGINS, (2, scale_to(4)), (3, scale_to(1)), (4, scale_to(2))],
        ["Scale(worker-2, worker-3, )", "AnswerScale(started worker-2, worker-3; now 4 workers; the learning rate is 0.25",
         "Scale(, worker-1, worker-2, worker-3)",
         "AnswerScale(stopped worker-1, worker-2, worker-3; other workers take over their steps; now 1 worker",
         "Scale(worker-1, )",
         "AnswerScale(started worker-1; now 2 workers, False)"],
        FROM_1_TO_4,
    ),
    "a worker that waits for its restart and is to stop is not started again": Story(
        [BEGINS, (2, died("worker-1")), (2.1, died("worker-1")), (2.2, scale_to(1)), (40, row(9))],
        [*again("worker-1"), "again in 0.5 s", "Scale(, worker-1)",
         "AnswerScale(stopped worker-1; other workers take over their steps; now 1 worker"],
        FROM_1_TO_4,
    ),
    "all that work now start again after a ps has died": Story(
        [BEGINS, (2, scale_to(1)), (3, died("ps-0")), (3.5, row(1)), (4, died("worker-0")), (5, scale_to(1))],
        ["Scale(, worker-1)", "AnswerScale(stopped worker-1", *taken_back("ps-0"), *again("worker-0"),
         "AnswerScale(1 worker already: nothing to do, False)"],
        FROM_1_TO_4,
    ),
    "a worker that the machine refuses to start is not said to be started, and is tried again": Story(
        [BEGINS, (2, scale_to(4)), (13,)],
        ["Scale(worker-2, worker-3, )", f"{NO_ROOM}; starting it again in 10 s",
         f"AnswerScale(started worker-2; {NO_ROOM}; the launcher tries to start it again in 10 s; now 3 workers; the "
         "learning rate is 0.44 times that of 2 workers, False)",
         "RestartTask(worker-3)", f"{NO_ROOM}; starting it again in 10 s"],
        FROM_1_TO_4 | {"refuses": ["worker-3"]},
    ),
    "a worker that waits for its next start is not said to run already, and the answer says why it waits": Story(
        [BEGINS, (2, scale_to(3)), (4, scale_to(3)), (5, scale_to(2)), (13, scale_to(2))],
        ["Scale(worker-2, )", f"{NO_ROOM_FOR_2}; starting it again in 10 s", f"AnswerScale({NO_ROOM_FOR_2}; the launcher",
         f"AnswerScale(running: worker-0, worker-1; {NO_ROOM_FOR_2}; the launcher tries to start it again in 8 s, False)",
         "Scale(, worker-2)", "AnswerScale(stopped worker-2; other workers take over their steps; now 2 workers, False)",
         "AnswerScale(2 workers already: nothing to do, False)"],
        FROM_1_TO_4 | {"refuses": ["worker-2"]},
    ),
    "a worker that waits for its next start does not count as running when others start": Story(
        [BEGINS, (2, scale_to(3)), (4, scale_to(4))],
        ["Scale(worker-2, )", f"{NO_ROOM_FOR_2}; starting it again in 10 s", f"AnswerScale({NO_ROOM_FOR_2}; the launcher",
         "Scale(worker-3, )",
         f"AnswerScale(started worker-3; {NO_ROOM_FOR_2}; the launcher tries to start it again in 8 s; now 3 workers; the "
         "learning rate is 0.44 times"],
        FROM_1_TO_4 | {"refuses": ["worker-2"]},
    ),
    "a worker that the machine has refused too often is said to be given up": Story(
        [BEGINS, (2, scale_to(3)), (53,), (54, scale_to(3))],
        ["Scale(worker-2, )", f"{NO_ROOM_FOR_2}; starting it again in 10 s",
         f"AnswerScale({NO_ROOM_FOR_2}; the launcher tries to start it again in 10 s; now 2 workers, False)",
         *["RestartTask(worker-2)", f"{NO_ROOM_FOR_2}; starting it again in 10 s"] * 4,
         "RestartTask(worker-2)", "GiveUp(worker-2)",
         f"{NO_ROOM_FOR_2} (given up after 5 restarts); training continues without worker-2",
         "Scale(worker-2, )", "GiveUp(worker-2)", "training continues without worker-2",
         f"AnswerScale({NO_ROOM_FOR_2}; training continues without it; now 2 workers, True)"],
        FROM_1_TO_4 | {"refuses": ["worker-2"]},
    ),
    "more than were said at the start are refused": Story(
        [BEGINS, (2, scale_to(5))],
        ["AnswerScale(--workers: got 5: this run was started for 1 to 4 workers (options --min-workers, --max-workers), True)"],
        FROM_1_TO_4,
    ),
    "without bounds it is the number of the start and no other": Story(
        [BEGINS, (2, scale_to(3))], ["AnswerScale(--workers: got 3: this run was started for exactly 2 workers"]
    ),
    "where a worker takes its own local steps, their rate stays whole": Story(
        [BEGINS, (2, scale_to(3))],
        ["Scale(worker-2, )", "AnswerScale(started worker-2; now 3 workers, False)"],
        FROM_1_TO_4 | {"mode": "diloco"},
    ),
    "a mode that needs all its workers refuses and says why": Story(
        [BEGINS, (2, scale_to(1))],
        ["AnswerScale(--workers: got 1: mode sync keeps its number of workers: each all-reduce needs all workers, True)"],
        {"mode": "sync"},
    ),
    "nobody is started before training has begun, or after it": Story(
        [(0.5, scale_to(3)), BEGINS, (2, leader_done()), (3, scale_to(3))],
        ["AnswerScale(not possible while starting", "StopTraining()", "AnswerScale(not possible while scoring"],
        FROM_1_TO_4,
    ),
}  # fmt: skip


WORSE = [(3, scored(1, 0.6)), (4, scored(2, 0.5)), (5, scored(3, 0.6))]
OUT_OF_PATIENCE = (
    "stopping early: test accuracy has not become better in 2 scored checkpoints in a row up to step 3; the best value is "
    "that of step 1; no new steps"
)
ALL_AT_ONCE = (0.5, *(event for _, event in WORSE))

PATIENCE = {
    "without a patience no score stops": Story([BEGINS, *WORSE], []),
    "the end of the patience drains, once, and exits as a wanted stop does": Story(
        [BEGINS, *WORSE, (6, scored(4, 0.1)), (7, scored(5, 0.1)), (8, leader_done("stopped")), (9, evaluator_done)],
        [OUT_OF_PATIENCE, "DrainLeader(chief-0)", "StopTraining()", "stopped, 0: None"],
        {"patience": 2},
    ),
    "a patience that ended while the cluster was started again drains as soon as it trains": Story(
        [BEGINS, *WORSE[:2], (4.5, died("ps-0")), (4.6, scored(3, 0.6)), (9, row(1))],
        [*taken_back("ps-0"), OUT_OF_PATIENCE, "DrainLeader(chief-0)"],
        {"patience": 2},
    ),
    "a launcher that was killed before it drained leaves that to the next one": Story(
        [ALL_AT_ONCE, BEGINS], [OUT_OF_PATIENCE, "DrainLeader(chief-0)"], {"patience": 2}
    ),
    "a run that was stopped early and is resumed has its whole patience again": Story(
        [ALL_AT_ONCE, BEGINS, (3, scored(5, 0.6)), (4, scored(6, 0.6))],
        [OUT_OF_PATIENCE.partition(" up to")[0] + " up to step 6", "DrainLeader(chief-0)"],
        {"patience": 2, "ended_at": 4},
    ),
    "the end of the time drains, once": Story(
        [BEGINS, (6, row(5, train_s=4.9)), (7, row(6, train_s=5.1)), (8, row(7, phase="draining", train_s=6)),
         (9, leader_done("stopped")), (10, evaluator_done)],
        ["stopping early: it has trained for 5 s (training.max_seconds); no new steps", "DrainLeader(chief-0)",
         "StopTraining()", "stopped, 0: None"],
        {"max_seconds": 5},
    ),
    "time that is over while the run is drained or its last updates are written stops nothing": Story(
        [BEGINS, (6, row(9, phase="writing", train_s=5.1)), (7, leader_done()), (8, evaluator_done)],
        ["StopTraining()", "completed, 0: None"],
        {"max_seconds": 5},
    ),
    "a parameter server that dies while the run is drained for its time is no reason to go on": Story(
        [BEGINS, (6, row(5, train_s=5.1)), (7, died("ps-0")), (12, row(5, train_s=6))],
        ["stopping early: it has trained for 5 s", "DrainLeader(chief-0)", *taken_back("ps-0"), "DrainLeader(chief-0)"],
        {"max_seconds": 5},
    ),
    "a patience that ends after the training stops nothing": Story(
        [BEGINS, *WORSE[:2], (4.5, leader_done()), (5, scored(3, 0.6)), (6, evaluator_done)],
        ["StopTraining()", "completed, 0: None"],
        {"patience": 2},
    ),
    "Ctrl-C while it drains waits for the drain, and a second one does not": Story(
        [BEGINS, *WORSE, (6, ctrl_c), (7, ctrl_c)],
        [OUT_OF_PATIENCE, "DrainLeader(chief-0)", *ASKED, "StopAll()", "stopped, 130: stopped at once, while draining"],
        {"patience": 2},
    ),
}  # fmt: skip


STORIES = PATIENCE | STARTING | DEATHS | STUCK | STOPPING | SCORING | SCALING


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_the_actions_of_a_run(story):
    story.check()


def test_a_request_to_stop_ends_the_run_at_once_before_training_and_if_it_is_the_second():
    told = ScriptedRun()
    assert told.decisions.stops_at_once(1) and not told.decisions.stops_at_once(0)
    told.poll(*BEGINS)
    assert told.decisions.stops_at_once(2) and not told.decisions.stops_at_once(1)
    told.poll(2, ctrl_c)
    assert told.decisions.stops_at_once(1)


def test_only_a_run_whose_patience_or_time_has_run_out_says_that_it_was_stopped_early():
    def early_stop(*looks):
        told = ScriptedRun(patience=2, max_seconds=60)
        for at_s, *events in (BEGINS, *looks):
            told.poll(at_s, *events)
        return told.decisions.early_stop

    stopped = (8, leader_done("stopped"))
    expected = PatienceExhausted(step=3, patience=2, monitor="accuracy", examples="test", best_step=1, best_value=0.6)
    assert early_stop(*WORSE, stopped) == expected
    assert early_stop((2, ctrl_c), *WORSE, stopped) is None
    assert early_stop((3, row(5, train_s=60)), stopped) == TimeLimitReached(max_seconds=60)
    assert early_stop(*WORSE, (8, leader_done())) is None  # the last updates were under way already
