"""Mode sync: synchronous training by all-reduce between the workers, without parameter servers."""

from __future__ import annotations

from ps_cluster.config.modes import ON_DEATH, WORKER, Flow, Mode, OnDeath, Waits
from ps_cluster.config.registry import Part


class Sync(Mode):
    name = "sync"
    says = "all workers average each gradient by all-reduce, without parameter servers"
    tasks = (WORKER,)
    flows = (Flow(WORKER, WORKER, "parts of gradients, in a ring"),)
    waits = Waits.FOR_ALL_REDUCE
    is_stale = False
    fixed_workers = "each all-reduce needs all of them"
    # Each all-reduce waits for every worker, and the strategy can't replace a worker that died.
    on_death = {**ON_DEATH, WORKER: OnDeath(restarts=5, whole_cluster=True, dispensable=False)}
    is_simulated = True
    trainer = Part.TRAIN_BY_ALL_REDUCE


SYNC = Sync()
