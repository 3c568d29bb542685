"""The graphs that run in a worker's process: pull, compute, push, with the waits of each mode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from ps_cluster.config import RunConfig
from ps_cluster.config.cluster_settings import TASK_VARIATION, Stragglers, machine_means, parse_stragglers
from ps_cluster.config.registry import tf
from ps_cluster.runs.ledger import WORKER_COLUMNS
from ps_cluster.runs.run_dir import IDENTITY
from ps_cluster.server.shard import DROPPED
from ps_cluster.server.store import ParameterStore, Pulled
from ps_cluster.server.waiting import after, now_after, sleep

if TYPE_CHECKING:
    from ps_cluster.training.step import StepResult

Compute: TypeAlias = "Callable[[tf.Tensor, tf.Tensor, tf.Tensor], StepResult]"
"""(step id int64 [], weights [n], statistics float32 [m]) → the step's result. A `TrainStep`, or what a mode wraps around
it."""


@dataclass(frozen=True)
class Identity:
    """The worker that runs a graph: index and pid, read from the file in the process's working directory."""

    worker: tf.Tensor  # int64 []
    pid: tf.Tensor  # int64 []

    @classmethod
    def read(cls) -> Identity:
        """Read the identity file, in the process where the graph runs."""
        content = tf.io.decode_raw(tf.io.read_file(IDENTITY), tf.int64)
        return cls(content[0], content[1])

    def both(self) -> tf.Tensor:
        return tf.stack([self.worker, self.pid])


def worker_row(values: dict[str, tf.Tensor]) -> tf.Tensor:
    """Return the worker's part of a row, float64 [len(WORKER_COLUMNS)]."""
    return tf.stack([tf.cast(values[name], tf.float64) for name in WORKER_COLUMNS])


class Computation:
    """Computes a step from the pulled parameters, and its row; slow on purpose where stragglers are configured."""

    def __init__(self, compute: Compute, config: RunConfig):
        self._compute = compute
        self._examples = config.examples_per_step
        self._slow_down = SlowDown(
            parse_stragglers(config.cluster.straggler), config.most_workers, config.training.seed
        )

    def __call__(
        self,
        step_id: tf.Tensor,
        pulled: Pulled,
        identity: Identity,
        scheduled: tf.Tensor | float,
        asked: tf.Tensor,
        admitted: tf.Tensor,
    ) -> tuple[StepResult, tf.Tensor]:
        """Return the result and its row, float64 [len(WORKER_COLUMNS)]. The times given are copied into the row.

        A replay is not computed: its result is 0, and every slice will refuse it.
        """
        pulled_time = now_after(pulled.weights)
        result = self._computed(step_id, pulled, pulled_time)
        computed_time = now_after(result.gradient)
        waited = self._slow_down.wait(identity.worker, step_id, computed_time - pulled_time)
        row = worker_row(
            {
                "worker": identity.worker,
                "pid": identity.pid,
                "examples": self._examples,
                "metric": result.metric,
                "loss": result.loss,
                "learning_rate": result.learning_rate,
                "scheduled_time": scheduled,
                "asked_time": asked,
                "admitted_time": admitted,
                "pulled_time": pulled_time,
                "computed_time": computed_time,
                "pushed_time": now_after(computed_time, *waited),
            }
        )
        return result, row

    def _computed(self, step_id: tf.Tensor, pulled: Pulled, pulled_time: tf.Tensor) -> StepResult:
        from ps_cluster.training.step import StepResult

        def compute() -> dict[str, tf.Tensor]:
            return vars(self._compute(step_id, pulled.weights, pulled.statistics))

        def zero() -> dict[str, tf.Tensor]:
            numbers = {name: tf.zeros([]) for name in ("loss", "metric", "learning_rate")}
            gradient = tf.zeros(pulled.weights.shape[-1:], pulled.weights.dtype)
            return {"gradient": gradient, "fresh": tf.zeros_like(pulled.statistics), **numbers}

        if pulled.is_replay is None:
            return StepResult(**compute())
        # TensorFlow may run all of a branch before it reads the time that was ready with the branch's inputs.
        return StepResult(**tf.cond(after([pulled_time], pulled.is_replay), zero, compute))


def steps_function(
    store: ParameterStore, compute: Compute, config: RunConfig, *, repeats: bool = False
) -> Callable[..., Any]:
    """Return the graph of a dispatch: (step ids int64 [k], when it was scheduled). Each step is pulled and pushed.

    Args:
      repeats: ask with each pull whether all slices have the step, and do not compute it again then. Only dispatches that
        are handed out anew ask: a computation that waits for the answer can't prepare its batch meanwhile, which costs
        some per cent.
    """
    computation = Computation(compute, config)
    first = store.slices[0]

    def attempt(step_id: tf.Tensor, left: tf.Tensor, identity: Identity, scheduled: tf.Tensor) -> tf.Tensor:
        """Pull, compute and push one step; return whether its gradient was dropped."""
        # The pull has no input from this iteration, so without the dependency it could run before the last push.
        asked = now_after(step_id)
        # Where no worker waits, both times are equal. After a wait the ps goes on to the pull by itself.
        (admitted,) = first.admit(identity.worker, after([asked], left)) or [asked]
        pulled = store.pull(identity.worker, [admitted], step_id if repeats else None)
        result, row = computation(step_id, pulled, identity, scheduled, asked, admitted)
        pushed = store.push(step_id, pulled.versions, result.gradient, result.fresh, row)
        return tf.reduce_any(tf.equal(pushed, DROPPED))

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None], tf.int64), tf.TensorSpec([], tf.float64)])
    def run_steps(step_ids: tf.Tensor, scheduled: tf.Tensor) -> tf.Tensor:
        identity = Identity.read()

        def body(position: tf.Tensor) -> tf.Tensor:
            left = tf.cast(tf.size(step_ids) - position, tf.int64)
            dropped = attempt(step_ids[position], left, identity, scheduled)
            if first.repeats_dropped:
                return tf.where(dropped, position, position + 1)
            with tf.control_dependencies([dropped]):
                return position + 1

        return tf.while_loop(lambda position: position < tf.size(step_ids), body, [0], parallel_iterations=1)

    return run_steps


# Slow workers down by a wait after the computation, so that two cores can emulate a cluster with slow machines.


class SlowDown:
    """Computes how much longer a slow worker's step takes, and waits that long."""

    def __init__(self, stragglers: Stragglers, workers: int, seed: int):
        self._stragglers = stragglers
        self._seed = seed
        named = {slow.worker: slow for slow in stragglers.slow}
        self._factors = [named[w].factor if w in named else 1.0 for w in range(workers)]
        self._extras = [named[w].extra_s if w in named else 0.0 for w in range(workers)]
        self._means = machine_means(workers, seed)

    def seconds(self, worker: tf.Tensor, step: tf.Tensor, own_seconds: tf.Tensor) -> tf.Tensor:
        """Return the seconds, float64 [], that `worker` waits after a computation of `own_seconds` (float64 [])."""
        if self._stragglers.gamma:
            shape = TASK_VARIATION**-2
            seed = tf.stack([tf.constant(self._seed, tf.int64), step])
            draw = tf.random.stateless_gamma([], seed, shape, shape, tf.float64)
            return tf.maximum(tf.gather(tf.constant(self._means), worker) * draw - 1, 0.0) * own_seconds
        factor = tf.gather(tf.constant(self._factors, tf.float64), worker)
        return (factor - 1) * own_seconds + tf.gather(tf.constant(self._extras, tf.float64), worker)

    def wait(self, worker: tf.Tensor, step: tf.Tensor, own_seconds: tf.Tensor) -> list[tf.Tensor]:
        """Return the wait that must come before the push; empty where nobody is slow."""
        if not self._stragglers:
            return []
        seconds = self.seconds(worker, step, own_seconds)
        return [tf.cond(seconds > 0, lambda: sleep(seconds), lambda: 0)]
