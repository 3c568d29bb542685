"""Simulate training by discrete events: pulls, pushes, rounds and the staleness of gradients.

`SimulatedTraining` simulates the steps of the workers. Its subclasses, which are in other modules, simulate the
machines on which the processes run.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ps_cluster.config.dispatch_size import dispatch_size
from ps_cluster.config.modes import Waits
from ps_cluster.tools.simulate.costs import Costs, SimulatedCluster
from ps_cluster.tools.simulate.drawing import Slow
from ps_cluster.tools.simulate.events import Events

STEPS_PER_WORKER, FEWEST_STEPS = 10, 4000
WARM_UP = 0.4  # share of the steps that is left out, because the queues fill up first


@dataclass(frozen=True)
class Trained:
    """The result of a simulation: its steps, the warm-up included, in the order in which they ended."""

    seconds: np.ndarray  # float64 [steps]: when the gradient was applied or dropped
    staleness: np.ndarray  # int64 [steps]: -1 where it was dropped
    versions: np.ndarray  # int64 [servers]: the version of each shard at the end
    computing_seconds: float  # of all workers together, without the waits of workers that are slow on purpose
    dispatches: int

    @property
    def _span(self) -> tuple[int, float]:
        first = int(WARM_UP * len(self.seconds))
        return first, self.seconds[-1] - self.seconds[first - 1]

    @property
    def steps_per_second(self) -> float:
        """Computed steps per second, including steps whose gradient came too late."""
        first, seconds = self._span
        return (len(self.seconds) - first) / seconds

    @property
    def gradients_per_second(self) -> float:
        """Applied gradients per second."""
        first, seconds = self._span
        return np.count_nonzero(self.staleness[first:] >= 0) / seconds

    @property
    def warm_staleness(self) -> np.ndarray:
        """The staleness of the gradients that were applied after the warm-up, int64 [gradients]."""
        warm = self.staleness[self._span[0] :]
        return warm[warm >= 0]


class SimulatedTraining(ABC):
    """Simulates workers in a loop: get a step → pull → compute → push → (in rounds: wait for the next round).

    A dispatch of the chief gives a worker several steps at once. In a mode without rounds, the reply to a push
    contains the parameters for the worker's next step, so only the first step of a dispatch pulls them.
    """

    def __init__(self, costs: Costs, cluster: SimulatedCluster):
        self.costs = costs
        self.cluster = cluster
        self.events = Events()
        self.random = np.random.default_rng(cluster.seed)
        self._in_rounds = cluster.waits is Waits.IN_ROUNDS
        self._slow = Slow(cluster.stragglers, cluster.workers, self.random, cluster.seed)
        # The share of its dispatch that each worker has done. Each worker begins somewhere in the middle, since in a
        # long run the workers don't ask the chief at the same time.
        self._dispatch_done = self.random.random(cluster.workers)
        self._dispatches = 0
        self._versions = np.zeros(cluster.servers, np.int64)
        self._pulled = np.zeros([cluster.workers, cluster.servers], np.int64)
        self._stalest = np.zeros(cluster.workers, np.int64)
        self._contributions = 0
        self._computing = 0.0
        self._ends: list[tuple[float, int]] = []
        self._waiting: list[int] = []  # workers that wait for the next round
        self._asks: set[int] = set()  # workers that begin a dispatch

    def run(self, steps: int | None = None) -> Trained:
        """Simulate `steps` steps, by default enough steps for steady means."""
        wanted = steps or max(FEWEST_STEPS, STEPS_PER_WORKER * self.cluster.workers)
        for worker, late in enumerate(self.random.random(self.cluster.workers)):
            self.events.at(late * self.costs.compute_seconds, self.dispatch, worker)
        self.events.run_while(lambda: len(self._ends) < wanted)
        seconds, staleness = np.array(sorted(self._ends)).T
        return Trained(seconds, staleness.astype(np.int64), self._versions.copy(), self._computing, self._dispatches)

    def dispatch(self, worker: int) -> None:
        """Give the worker its next step, from its current dispatch or from a new dispatch of the chief."""
        gap, workers = self.costs.step_gap_seconds, self.cluster.workers
        per_second = len(self._ends) / self.events.now / workers if self.events.now else 0.0
        size = dispatch_size(self.costs.steps_per_dispatch, workers=workers, per_second=per_second, left=math.inf)
        self._dispatch_done[worker] += 1 / size
        if self._dispatch_done[worker] < 1:
            self.events.after(gap, self.pull, worker)
            return
        self._dispatch_done[worker] -= 1
        self._dispatches += 1
        self._asks.add(worker)
        self.ask_chief(lambda: self.events.after(self.costs.dispatch_delay_seconds + gap, self.pull, worker))

    @abstractmethod
    def ask_chief(self, then: Callable[[], None]) -> None:
        """Ask the chief for new steps, and call `then()` when the chief has dispatched them."""

    @abstractmethod
    def pull(self, worker: int) -> None:
        """Let the worker pull (`read` from every parameter server), compute, wait (`end_computation`) and push."""

    def read(self, worker: int, server: int | slice) -> None:
        """Serve a pull: record the version of each shard that the worker gets.

        In a mode without rounds, this records only the first pull of a dispatch. After that, the worker already has the
        shards from the reply to its last push.
        """
        if self._in_rounds or worker in self._asks:
            self._pulled[worker, server] = self._versions[server]

    def end_computation(self, worker: int, seconds: float, then: Callable[[int], None]) -> None:
        """End a computation that took `seconds`, and call `then(worker)`.

        A worker that is slowed down by `--straggler` waits before that call.
        """
        self._asks.discard(worker)
        self._computing += seconds
        self.events.after(self._slow.seconds(worker, seconds), then, worker)

    def take(self, worker: int, server: int | slice) -> None:
        """Apply the gradient of a push. In a mode with rounds, add it to the current round unless it comes too late."""
        behind = self._versions[server] - self._pulled[worker, server]
        if self._in_rounds:
            self._take_in_round(worker, late=bool(np.any(behind)))
            return
        self._versions[server] += 1
        self._stalest[worker] = max(self._stalest[worker], np.max(behind))
        self._pulled[worker, server] = self._versions[server]

    def _take_in_round(self, worker: int, *, late: bool) -> None:
        # With several servers, a simulated machine would count each gradient once for each server.
        assert self.cluster.servers == 1, f"mode {self.cluster.mode} is simulated only with 1 parameter server"
        self._stalest[worker] = -1 if late else 0
        self._contributions += not late
        if self._contributions == self.cluster.gradients_per_update:
            self._contributions = 0
            self._versions += 1
            for waiting in self._waiting:
                self.dispatch(waiting)
            self._waiting.clear()

    def ended(self, worker: int, seconds: float) -> None:
        """Record that a worker's step ends at the simulated time `seconds`, when the last shard receives its push."""
        self._ends.append((seconds, int(self._stalest[worker])))
        self._stalest[worker] = 0

    def go_on(self, worker: int) -> None:
        """Let the worker continue with its next step.

        In a mode with rounds, the worker first waits for the next round if the round in which it pulled has not ended.
        """
        if self._in_rounds and self._versions[0] == self._pulled[worker, 0]:
            self._waiting.append(worker)
        else:
            self.dispatch(worker)
