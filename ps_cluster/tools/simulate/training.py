"""Simulate asynchronous and round-based training by events: the versions that workers pull, staleness, and all queues."""

from __future__ import annotations

import heapq
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from ps_cluster.config.modes import Waits
from ps_cluster.config.schema import TASK_VARIATION, Stragglers, dispatch_size, machine_means
from ps_cluster.launch.topology import own_cores
from ps_cluster.tools.simulate.costs import Costs, SimulatedCluster

# The clock of the simulation, and its queues.

Action = Callable[..., None]


class Events:
    """A queue of events by time. Events of the same time happen in the order in which they were planned."""

    def __init__(self) -> None:
        self.now = 0.0  # seconds
        self._heap: list[tuple[float, int, Action, tuple[Any, ...]]] = []
        self._order = count()

    def at(self, time: float, action: Action, *arguments: Any) -> None:
        """Plan `action(*arguments)` for a time that is not over."""
        heapq.heappush(self._heap, (time, next(self._order), action, arguments))

    def after(self, seconds: float, action: Action, *arguments: Any) -> None:
        self.at(self.now + seconds, action, *arguments)

    def run_while(self, more: Callable[[], bool]) -> None:
        while more():
            self.now, _, action, arguments = heapq.heappop(self._heap)
            action(*arguments)


class Core:
    """One core. All its jobs progress at the same rate: egalitarian processor sharing.

    `_share`, the seconds that each job has had since the beginning, orders the jobs: a job ends when `_share` reaches
    its value at the job's start plus the job's seconds.
    """

    def __init__(self, events: Events, ran_dry: Callable[[Core], None]):
        """Make an idle core. `ran_dry` is called when it has no job left."""
        self._events = events
        self._ran_dry = ran_dry
        self._jobs: list[tuple[float, int, Action]] = []
        self._order = count()
        self._share = 0.0
        self._seen = 0.0
        self._plan = 0

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, seconds: float, then: Action) -> None:
        """Add a job; call `then()` when it has had `seconds` of CPU."""
        self._go_on()
        heapq.heappush(self._jobs, (self._share + seconds, next(self._order), then))
        self._plan_next()

    def take_longest(self) -> tuple[float, Action]:
        """Remove the job that would end last; return its seconds left and its action."""
        self._go_on()
        longest = max(self._jobs)
        self._jobs.remove(longest)
        heapq.heapify(self._jobs)
        self._plan_next()
        return max(0.0, longest[0] - self._share), longest[2]

    def _go_on(self) -> None:
        if self._jobs:
            self._share += (self._events.now - self._seen) / len(self._jobs)
        self._seen = self._events.now

    def _plan_next(self) -> None:
        self._plan += 1  # cancels what was planned with another rate
        if self._jobs:
            left = max(0.0, self._jobs[0][0] - self._share)
            self._events.after(left * len(self._jobs), self._end_first, self._plan)

    def _end_first(self, plan: int) -> None:
        if plan != self._plan:
            return
        self._go_on()
        *_, then = heapq.heappop(self._jobs)
        self._plan_next()
        if not self._jobs:
            self._ran_dry(self)
        then()


class Cores:
    """Cores of one machine under a fair scheduler: no core is idle while two threads share another one.

    A thread starts on the core with the fewest threads. A core without threads takes one from the core with the most.
    """

    def __init__(self, events: Events, number: int):
        self._idle = [Core(events, self._take_over) for _ in range(number)]
        self._all = tuple(self._idle)

    def run(self, seconds: float, then: Action, threads: float = 1.0) -> None:
        """Call `then()` when each thread has had `seconds` of CPU; with 1.5 threads the second one has half of them."""
        left = math.ceil(threads)

        def ended() -> None:
            nonlocal left
            left -= 1
            if not left:
                then()

        for begun in range(left):
            core = self._idle.pop() if self._idle else min(self._all, key=len)
            core.add(seconds * min(1.0, threads - begun), ended)

    @property
    def load(self) -> float:
        """Threads per core."""
        return sum(map(len, self._all)) / len(self._all)

    def _take_over(self, dry: Core) -> None:
        fullest = dry if self._idle else max(self._all, key=len)
        if len(fullest) > 1:
            dry.add(*fullest.take_longest())
        else:
            self._idle.append(dry)


class Process:
    """A process of the machine that does its jobs one after the other, in the order of their arrival.

    Each job runs on the cores that are least busy when it begins.
    """

    def __init__(self, cores: Sequence[Cores]):
        self._cores = cores
        self._waiting: deque[tuple[float, Action]] = deque()
        self._busy = False

    def do(self, seconds: float, then: Action) -> None:
        """Add a job of `seconds` CPU seconds; call `then()` when it and all earlier jobs are done."""
        self._waiting.append((seconds, then))
        if not self._busy:
            self._start_next()

    def _start_next(self) -> None:
        self._busy = bool(self._waiting)
        if self._busy:
            seconds, then = self._waiting.popleft()
            min(self._cores, key=lambda cores: cores.load).run(seconds, lambda: self._end(then))

    def _end(self, then: Action) -> None:
        then()
        self._start_next()


# Draw what varies: seconds from gamma distributions, and the delays of slow workers.

_NUMBERS_AT_ONCE = 1 << 14


def gamma(random: np.random.Generator, mean: float, variation: float, shape: tuple[int, ...] = ()) -> np.ndarray:
    """Return float64 `shape`, gamma-distributed with this mean and coefficient of variation; the mean if that is 0.

    Task times are drawn so in Ali et al. 2000 and, for asynchronous training, in Hakimi et al. 2019 (arXiv:1907.11612).
    """
    if variation == 0 or mean == 0:
        return np.full(shape, mean)
    return random.gamma(variation**-2, mean * variation**2, size=shape)


def gammas(random: np.random.Generator, mean: float, variation: float, width: int | None = None) -> Iterator[Any]:
    """Yield draws without end: floats or, with `width`, float64 [width]. Drawing many at once is much faster."""
    rows = max(1, _NUMBERS_AT_ONCE // (width or 1))
    while True:
        block = gamma(random, mean, variation, (rows,) if width is None else (rows, width))
        yield from block.tolist() if width is None else block


class Slow:
    """The extra wait of slow workers after a computation, as `--straggler` makes real workers wait."""

    def __init__(self, stragglers: Stragglers, workers: int, random: np.random.Generator, seed: int):
        self._stragglers = stragglers
        self._random = random
        self._factors = machine_means(workers, seed) if stragglers.gamma else np.ones(workers)
        self._extras = np.zeros(workers)
        for slow in stragglers.slow:
            self._factors[slow.worker], self._extras[slow.worker] = slow.factor, slow.extra_s

    def seconds(self, worker: int | slice, own_seconds: float | np.ndarray) -> Any:
        """Return the wait of one worker, a float, or of several, float64 [workers], after computations of `own_seconds`."""
        if not self._stragglers:
            return 0.0 * own_seconds
        variation = gamma(self._random, 1.0, TASK_VARIATION if self._stragglers.gamma else 0.0, np.shape(own_seconds))
        slow = np.maximum(0.0, self._factors[worker] * variation - 1) * own_seconds
        return slow + self._extras[worker]


# The steps of workers: what they pull, compute and push, on any machines.

STEPS_PER_WORKER, FEWEST_STEPS = 10, 4000
WARM_UP = 0.4  # share of the steps that is left out, because the queues fill up first


@dataclass(frozen=True)
class Trained:
    """The steps of a simulation in the order in which they ended, the warm-up included."""

    seconds: np.ndarray  # float64 [steps]: when the gradient was applied or dropped
    staleness: np.ndarray  # int64 [steps]: -1 where it was dropped
    versions: np.ndarray  # int64 [servers]: at the end
    computing_seconds: float  # spent by all workers together, without being slow on purpose
    dispatches: int

    @property
    def _span(self) -> tuple[int, float]:
        first = int(WARM_UP * len(self.seconds))
        return first, self.seconds[-1] - self.seconds[first - 1]

    @property
    def steps_per_second(self) -> float:
        """Computed steps per second, including late ones."""
        first, seconds = self._span
        return (len(self.seconds) - first) / seconds

    @property
    def gradients_per_second(self) -> float:
        """Gradients per second that were applied."""
        first, seconds = self._span
        return np.count_nonzero(self.staleness[first:] >= 0) / seconds

    @property
    def warm_staleness(self) -> np.ndarray:
        """The staleness of the gradients that were applied after the warm-up, int64 [gradients]."""
        warm = self.staleness[self._span[0] :]
        return warm[warm >= 0]


class SimulatedTraining(ABC):
    """Workers in a loop: dispatched → pull → compute → push → (in rounds: wait for the next round) → dispatched.

    A push is answered with the parameters for the worker's next step. Only the first step of a dispatch asks for them.
    """

    def __init__(self, costs: Costs, cluster: SimulatedCluster):
        self.costs = costs
        self.cluster = cluster
        self.events = Events()
        self.random = np.random.default_rng(cluster.seed)
        self._slow = Slow(cluster.stragglers, cluster.workers, self.random, cluster.seed)
        # Steps of its dispatch that each worker has done. Each begins somewhere in the middle: in a long run the
        # workers don't ask the chief at the same time.
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
        """Simulate `steps` steps, by default as many as a steady mean needs."""
        wanted = steps or max(FEWEST_STEPS, STEPS_PER_WORKER * self.cluster.workers)
        for worker, late in enumerate(self.random.random(self.cluster.workers)):
            self.events.at(late * self.costs.compute_seconds, self.dispatch, worker)
        self.events.run_while(lambda: len(self._ends) < wanted)
        seconds, staleness = np.array(sorted(self._ends)).T
        return Trained(seconds, staleness.astype(np.int64), self._versions.copy(), self._computing, self._dispatches)

    @property
    def in_rounds(self) -> bool:
        return self.cluster.waits is Waits.IN_ROUNDS

    def dispatch(self, worker: int) -> None:
        """Give the worker its next step, from its dispatch or from a new one of the chief."""
        gap = self.costs.step_gap_seconds
        self._dispatch_done[worker] += 1 / self._steps_per_dispatch
        if self._dispatch_done[worker] < 1:
            self.events.after(gap, self.pull, worker)
            return
        self._dispatch_done[worker] -= 1
        self._dispatches += 1
        self._asks.add(worker)
        self.ask_chief(lambda: self.events.after(self.costs.dispatch_delay_seconds + gap, self.pull, worker))

    @property
    def _steps_per_dispatch(self) -> int:
        """Steps that the chief would put into a dispatch now."""
        workers = self.cluster.workers
        per_second = len(self._ends) / self.events.now / workers if self.events.now else 0.0
        return dispatch_size(self.costs.steps_per_dispatch, workers=workers, per_second=per_second, left=math.inf)

    @abstractmethod
    def ask_chief(self, then: Callable[[], None]) -> None:
        """Call `then()` when the chief has made a dispatch."""

    @abstractmethod
    def pull(self, worker: int) -> None:
        """Call `read` on every parameter server, compute, call `compute_and_wait` and push."""

    def read(self, worker: int, server: int | slice) -> None:
        """Serve a pull: note the version of each slice that the worker gets, unless the last push has brought it."""
        if self.in_rounds or worker in self._asks:
            self._pulled[worker, server] = self._versions[server]

    def compute_and_wait(self, worker: int, seconds: float, then: Callable[[int], None]) -> None:
        """End a computation of `seconds`: call `then(worker)`, later if the worker is slow on purpose."""
        self._asks.discard(worker)
        self._computing += seconds
        self.events.after(self._slow.seconds(worker, seconds), then, worker)

    def take(self, worker: int, server: int | slice) -> None:
        """Serve a push: its gradient is applied, counts in the round, or comes too late."""
        behind = self._versions[server] - self._pulled[worker, server]
        if self.in_rounds:
            self._take_in_round(worker, late=bool(np.any(behind)))
            return
        self._versions[server] += 1
        self._stalest[worker] = max(self._stalest[worker], np.max(behind))
        self._pulled[worker, server] = self._versions[server]

    def _take_in_round(self, worker: int, *, late: bool) -> None:
        self._stalest[worker] = -1 if late else 0
        self._contributions += not late
        if self._contributions == self.cluster.gradients_per_update:
            self._contributions = 0
            self._versions += 1
            for waiting in self._waiting:
                self.dispatch(waiting)
            self._waiting.clear()

    def ended(self, worker: int, seconds: float) -> None:
        """End a step: all slices have the worker's push, the last one at `seconds`."""
        self._ends.append((seconds, int(self._stalest[worker])))
        self._stalest[worker] = 0

    def go_on(self, worker: int) -> None:
        """Let the worker continue. In rounds it waits for the next one if its gradient counted in this one."""
        if self.in_rounds and self._versions[0] == self._pulled[worker, 0]:
            self._waiting.append(worker)
        else:
            self.dispatch(worker)


# Simulate one machine per process: queues at the CPUs and links of the parameter servers.


class SeparateMachines(SimulatedTraining):
    """A cluster with a machine for each process. One numpy operation serves a request in the queues of all servers.

    That is exact, not an approximation: the messages of a request arrive at all servers at the same time, so every
    queue has the same order, and Lindley's recursion `free = max(free, arrival) + service` (Lindley 1952) holds for all
    queues at once. The servers differ only in how long each takes.
    """

    def __init__(self, costs: Costs, cluster: SimulatedCluster):
        super().__init__(costs, cluster)
        servers, network = cluster.servers, cluster.network
        self._latency = network.latency_seconds
        self._slice_seconds = network.seconds(costs.wire_bytes / servers)
        self._all_seconds = network.seconds(costs.wire_bytes)
        # Seconds that a worker's link still has to receive when the i-th slice begins to arrive, that slice included.
        self._still_to_come = self._slice_seconds * np.arange(servers, 0, -1)
        self._processors_free = np.zeros(servers)
        self._links_out_free = np.zeros(servers)
        self._links_in_free = 0.0  # equal for all servers: the slices of a gradient leave the worker at the same time
        self._chief_free = 0.0
        self._pulls = gammas(self.random, costs.pull_seconds(servers), costs.server_cv, servers)
        self._pushes = gammas(self.random, costs.push_seconds(servers), costs.server_cv, servers)
        self._computations = gammas(self.random, costs.compute_seconds, costs.compute_cv)

    def ask_chief(self, then: Callable[[], None]) -> None:
        self._chief_free = max(self._chief_free, self.events.now) + self.costs.chief_seconds
        # The answer to the last push goes to the worker, and its first pull to the servers.
        self.events.at(self._chief_free + 2 * self._latency, then)

    def pull(self, worker: int) -> None:
        self.events.after(self.costs.pull_delay_seconds, self._serve_pull, worker)

    def _serve_pull(self, worker: int) -> None:
        self.read(worker, slice(None))
        served = self._serve(next(self._pulls))
        begins = np.maximum(self._links_out_free, served)
        self._links_out_free = begins + self._slice_seconds
        arrived = self._latency + float(np.max(np.sort(begins) + self._still_to_come))
        seconds = next(self._computations)
        self.events.at(arrived + seconds, self.compute_and_wait, worker, seconds, self._push)

    def _serve(self, seconds: np.ndarray) -> np.ndarray:
        """Return float64 [servers]: when each is done with a request that arrives now."""
        self._processors_free = np.maximum(self._processors_free, self.events.now) + seconds
        return self._processors_free

    def _push(self, worker: int) -> None:
        """Send a gradient's slices to all servers over their links, which other workers may be using."""
        reaches = self.events.now + self.costs.push_delay_seconds + self._latency
        self._links_in_free = max(self._links_in_free, reaches) + self._slice_seconds
        self.events.at(max(self._links_in_free, reaches + self._all_seconds), self._serve_push, worker)

    def _serve_push(self, worker: int) -> None:
        taken = float(np.max(self._serve(next(self._pushes))))
        self.take(worker, slice(None))
        self.ended(worker, taken)
        self.events.at(taken, self.go_on, worker)


# Simulate all processes on one machine with shared cores, to check the simulation against a run on one machine.

CHIEF_LOOKS_EVERY_S = 0.25  # POLL_S in ps_cluster/training/chief.py

Serve = Callable[[int, int], None]
"""(worker, server) → its request is served there."""


class OneMachine(SimulatedTraining):
    """One machine without a network. All CPU time is taken from `cluster.cores`.

    If a worker's CPU time exceeds the wall seconds of its computation, the excess was spent in what the costs call
    delays (calls, packing). Whatever exceeds these too was a second thread of the computation.
    """

    def __init__(self, costs: Costs, cluster: SimulatedCluster):
        more = max(0.0, costs.worker_cpu_seconds - costs.compute_seconds)
        work_in_delays = min(1.0, more / costs.delay_seconds) if costs.delay_seconds else 0.0
        super().__init__(costs.with_delays_times(1 - work_in_delays), cluster)
        self._pull_work = work_in_delays * (costs.step_gap_seconds + costs.pull_delay_seconds)
        self._push_work = work_in_delays * costs.push_delay_seconds
        computing = costs.worker_cpu_seconds - self._pull_work - self._push_work
        self._threads = max(1.0, computing / costs.compute_seconds)
        self._computations = gammas(self.random, computing / self._threads, costs.compute_cv)
        self._idle = max(0.0, costs.compute_seconds - computing)

        cores = range(cluster.cores or 1)
        own = [
            tuple(own_cores(worker, cluster.workers, cores) if cluster.pinned else cores)
            for worker in range(cluster.workers)
        ]
        # Cores that no worker is pinned to are left out: workers that wait for a server leave it enough cores.
        parts = {part: Cores(self.events, len(part)) for part in dict.fromkeys(own)}
        self._of_worker = [parts[part] for part in own]
        self._all = list(parts.values())
        self._chief, self._chief_looking = Process(self._all), Process(self._all)
        self._servers = [Process(self._all) for _ in range(cluster.servers)]
        self._pulls = gammas(self.random, costs.pull_seconds(cluster.servers), costs.server_cv)
        self._pushes = gammas(self.random, costs.push_seconds(cluster.servers), costs.server_cv)
        self._unserved = [0] * cluster.workers
        self._look_on()

    def _look_on(self) -> None:
        """Run the chief's background thread, which looks at the cluster and writes progress."""
        if self.costs.chief_background_cores:
            self._chief_looking.do(CHIEF_LOOKS_EVERY_S * self.costs.chief_background_cores, lambda: None)
            self.events.after(CHIEF_LOOKS_EVERY_S, self._look_on)

    def ask_chief(self, then: Callable[[], None]) -> None:
        self._chief.do(self.costs.chief_seconds, then)

    def pull(self, worker: int) -> None:
        self._of_worker[worker].run(self._pull_work, partial(self._pull, worker))

    def _pull(self, worker: int) -> None:
        delay = self.costs.pull_delay_seconds
        self.events.after(delay, self._request, worker, self._pulls, self.read, self._compute)

    def _request(self, worker: int, seconds: Iterator[float], serve: Serve, then: Callable[[int], None]) -> None:
        """Call `serve(worker, server)` when each server has done its part, and `then(worker)` when all have."""
        self._unserved[worker] = len(self._servers)
        for index, server in enumerate(self._servers):
            server.do(next(seconds), partial(self._served, worker, index, serve, then))

    def _served(self, worker: int, server: int, serve: Serve, then: Callable[[int], None]) -> None:
        serve(worker, server)
        self._unserved[worker] -= 1
        if not self._unserved[worker]:
            then(worker)

    def _compute(self, worker: int) -> None:
        computed = partial(self._computed, worker, self.events.now)
        self._of_worker[worker].run(next(self._computations), computed, self._threads)

    def _computed(self, worker: int, started: float) -> None:
        seconds = self.events.now - started + self._idle
        self.events.after(self._idle, self.compute_and_wait, worker, seconds, self._push)

    def _push(self, worker: int) -> None:
        self._of_worker[worker].run(self._push_work, partial(self._send, worker))

    def _send(self, worker: int) -> None:
        delay = self.costs.push_delay_seconds
        self.events.after(delay, self._request, worker, self._pushes, self.take, self._taken_by_all)

    def _taken_by_all(self, worker: int) -> None:
        self.ended(worker, self.events.now)
        self.go_on(worker)
