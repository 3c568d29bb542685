"""Define the capabilities of shards and staleness methods."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Capabilities:
    """Describes what a shard or its staleness method can do beyond applying each push as it arrives.

    Attributes:
      waits: whether a push may have to wait in the shard and be tried again. Such a shard does not support exchanges (a
        push and a pull in one message), so its mode needs a different graph for workers (`Mode.dispatch`).
      drops: whether the shard may drop a push. The worker then pulls again and retries the step.
      stops: whether a worker asks the shard, between its local steps, if a push would still be accepted. If not, the
        worker takes no more local steps.
      limits_batches: whether the answer to a pull says how many batches the worker may use for its next step.
      vectors_given: the number of vectors of weights in the answer to a pull. If there are several, the worker gets
        them as one array, [vectors, n].
      vectors_per_worker: the number of vectors [n] that the shard keeps for each worker, not counting slots.
      slots_per_worker: the number of slots that have a row for each worker, [workers, n].
    """

    waits: bool = False
    drops: bool = False
    stops: bool = False
    limits_batches: bool = False
    vectors_given: int = 1
    vectors_per_worker: int = 0
    slots_per_worker: int = 0
