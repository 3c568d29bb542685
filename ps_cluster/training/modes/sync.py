"""Mode sync: synchronous training by all-reduce between the workers, without parameter servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ps_cluster.config.modes import ClusterShape, Flow, Promise, Waits
from ps_cluster.config.tasks import ON_DEATH, WITH_ALL_WORKERS, WORKER
from ps_cluster.server.replica import ReplicaShard
from ps_cluster.training.modes.base import DefaultMode

if TYPE_CHECKING:
    from ps_cluster.training.job import TrainingJob


class Sync(DefaultMode):
    """Synchronous training by all-reduce between the workers, without parameter servers."""

    name = "sync"
    says = "all workers average each gradient by all-reduce, without parameter servers"
    cluster = ClusterShape(
        types=(WORKER,),
        flows=(Flow(WORKER, WORKER, "parts of gradients, in a ring"),),
        fixed_workers="each all-reduce needs all workers",
        # Each all-reduce waits for every worker, and the strategy can't replace a worker that died.
        on_death={**ON_DEATH, WORKER: WITH_ALL_WORKERS},
    )
    promise = Promise(waits=Waits.FOR_ALL_REDUCE, is_stale=False)
    shard = ReplicaShard

    def train(self, job: TrainingJob) -> None:
        from ps_cluster.training.all_reduce import train

        train(job)
