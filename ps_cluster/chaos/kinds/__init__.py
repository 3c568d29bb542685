"""The kinds of fault that there are: an object each, that knows all about its kind (chaos/kind.py)."""

from __future__ import annotations

import signal

from ps_cluster.catalogue.task_types import CHIEF, EVALUATOR, PS, WORKER
from ps_cluster.chaos.kind import FaultKind
from ps_cluster.chaos.kinds.clock import ClockSetBack
from ps_cluster.chaos.kinds.deaths import Signalled
from ps_cluster.chaos.kinds.disk import FullAtLastCheckpoint, OutOfInodes
from ps_cluster.chaos.kinds.forking import ForkServerStopped
from ps_cluster.chaos.kinds.hang_up import HangUp
from ps_cluster.chaos.kinds.limits import OutOfMemory, Throttled
from ps_cluster.chaos.kinds.link import LinkCut, LinkSlow

KINDS: tuple[FaultKind, ...] = (
    Signalled("kill worker", (WORKER,), signal.SIGKILL),
    Signalled("freeze worker", (WORKER,), signal.SIGSTOP),
    Signalled("kill evaluator", (EVALUATOR,), signal.SIGKILL),
    Signalled("kill ps", (PS,), signal.SIGKILL),
    Signalled("freeze ps", (PS,), signal.SIGSTOP),
    Signalled("kill chief", (CHIEF,), signal.SIGKILL),
    Signalled("freeze chief", (CHIEF,), signal.SIGSTOP),
    Signalled("kill worker+ps", (WORKER, PS), signal.SIGKILL),
    Signalled("kill ps+chief", (PS, CHIEF), signal.SIGKILL),
    OutOfMemory(),
    Throttled(),
    LinkCut(),
    LinkSlow(),
    OutOfInodes(),
    FullAtLastCheckpoint(),
    ClockSetBack(),
    HangUp(),
    ForkServerStopped(),
)
BY_NAME = {kind.name: kind for kind in KINDS}
