"""A table of the stages of a run: the time limit of each, and what follows when it is over."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from ps_cluster.cluster.policy import Limits


class Stage(Enum):
    """Starting → training (→ draining) → scoring. A death that restarts the whole cluster leads back to starting."""

    STARTING = "starting"
    TRAINING = "training"
    DRAINING = "draining"
    SCORING = "scoring"


class AtLimit(Enum):
    """The consequence when nothing moves in a stage for as long as its limit."""

    FAIL = "the run ends as failed"
    END_THE_LEADER = "all tasks write their stacks, and the leader is killed: its death restarts the cluster"
    LEAVE_UNSCORED = "the run ends with the outcome of training, and exit code 1"


@dataclass(frozen=True)
class StageLimit:
    """A row of the table.

    Attributes:
      seconds: the limit, out of the run's `Limits`. It counts from the beginning of the stage, or the last thing that
        moved in it: an update while training and draining, a score while scoring.
      message: says what did not happen. "{leader}" stands for the leader's name.
    """

    seconds: Callable[[Limits], float]
    message: str
    then: AtLimit


STAGES: Mapping[Stage, StageLimit] = {
    Stage.STARTING: StageLimit(lambda it: it.startup_s, "training did not begin", AtLimit.FAIL),
    Stage.TRAINING: StageLimit(lambda it: it.standstill_s, "training stands still: no update", AtLimit.END_THE_LEADER),
    Stage.DRAINING: StageLimit(lambda it: it.drain_s, "{leader} did not end", AtLimit.FAIL),
    Stage.SCORING: StageLimit(lambda it: it.scoring_s, "the evaluator scored nothing", AtLimit.LEAVE_UNSCORED),
}
