"""The chief of modes that split one network: it holds the graph of a step, whose operations are on all workers.

Each worker holds the weights of its part, with version and ledger, and updates them where they are. Between workers
go activations and their gradients.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import tensorflow as tf

from ps_cluster.config import RunConfig
from ps_cluster.config.modes import WORKER, Task
from ps_cluster.config.registry import find
from ps_cluster.data.packed import PackedDataset
from ps_cluster.errors import UserError
from ps_cluster.runs.leaders import Leading
from ps_cluster.runs.run_dir import RunDir, say
from ps_cluster.server.store import ParameterStore
from ps_cluster.server.waiting import now_after
from ps_cluster.system.environment import Drain
from ps_cluster.training.agreement import Agreement
from ps_cluster.training.chief import Chief, LocalDispatcher
from ps_cluster.training.membership import Welcome, check_all, tell_end
from ps_cluster.training.modes.layers import SplitNetwork
from ps_cluster.training.placement import Part, SplitStep, device_of, names_of_all_devices, recorded
from ps_cluster.training.session import SessionStart, make_network, make_store
from ps_cluster.training.step import StepResult
from ps_cluster.training.work import Steps
from ps_cluster.training.worker import Compute, Identity, worker_row

OWN_DEVICE = "/job:chief/task:0/device:CPU:0"


def train(
    config: RunConfig,
    run_dir: RunDir,
    dataset: PackedDataset,
    cluster: dict[str, list[str]],
    index: int = 0,
    *,
    resume: bool,
    drain: Drain,
    leading: Leading = Leading(),
) -> None:
    """Train until every update is applied, or until `drain` is set and the steps under way have ended.

    Raises:
      UserError: the network can't be cut as asked for, or the checkpoint to resume from is missing or of another one.
      tf.errors.OpError: a worker failed.
    """
    start = SessionStart(config, run_dir, dataset, epoch=leading.epoch, build=partial(build, log=run_dir.placement))
    start.begin(resume=resume)
    spec = tf.train.ClusterSpec(cluster)
    tf.config.experimental_connect_to_cluster(spec, job_name="chief", task_index=index, protocol="grpc")
    workers = [Task(WORKER, worker) for worker in range(len(cluster[WORKER]))]
    check_all(workers, cluster, Welcome(leading, Agreement.of(config, dataset)))
    # Variables are made on processors: soft placement is of graphs alone.
    holders = [device_of(worker) for worker in range(len(workers))]
    session = start.build(holders, OWN_DEVICE)
    Chief(config, session, LocalDispatcher()).run(drain)
    session.end(stopped=drain.is_set(), goes_on=leading.alone and not drain.for_good)
    if leading.alone and (session.progress.completed or drain.for_good):
        tell_end(leading, workers, completed=session.progress.completed)


def build(
    config: RunConfig, dataset: PackedDataset, holders: Sequence[str], own_device: str, *, log: Path | None = None
) -> tuple[ParameterStore, Compute]:
    """Return the store, with a slice for each worker's part on each of `holders`, and the step through all of them.

    Args:
      log: the file to write the device of each operation to, if that is asked for.
    """
    mode = cast(SplitNetwork, config.mode_kind)
    network, start = make_network(config, dataset, own_device)
    try:
        step = find(mode.cut)(config, dataset, network, own_device, len(holders))
    except ValueError as error:
        raise UserError(str(error)) from error
    for line in _lines(step.parts, names_of_all_devices()):
        say(line)
    positions = [part.positions for part in step.parts]
    store = make_store(
        config, dataset, network, holders, start.cut(positions, [part.statistics for part in step.parts]), positions
    )
    store.in_turn = InTurn()  # a snapshot between two steps has the same version of all slices
    function = SplitFunction(store, step, config, holders, log if mode.settings(config).log_placement else None)
    return store, cast(Compute, function)


def _lines(parts: Sequence[Part], there: Sequence[str]) -> list[str]:
    """Return a line on each worker's part. `there`: the devices that the cluster has."""
    lines = []
    for worker, part in enumerate(parts):
        soft = "" if part.device in there else ", which is not there: soft placement takes its processor"
        lines.append(f"worker {worker}: {len(part.positions):,} weights on {part.device}{soft}: {part.layers}")
    return lines


class SplitSteps(Steps):
    """Dispatches of step ids, each for all workers."""

    def function(self, store: ParameterStore, compute: Compute) -> Callable[..., Any]:
        return cast("SplitFunction", compute)


class SplitFunction:
    """A dispatch: pulls, computes and pushes one step after the other, each as one graph over all workers."""

    def __init__(
        self, store: ParameterStore, step: SplitStep, config: RunConfig, holders: Sequence[str], log: Path | None
    ):
        """Read which process holds each slice. `holders`: their devices. `log`: as for `build`."""
        self._store = store
        self._step = step
        self._examples = config.examples_per_step
        self._holders = holders
        self._identities = [_identity(device) for device in holders]
        self._log = log
        scalars = [tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.float64)]
        self._run_step = tf.function(self._one, autograph=False, input_signature=scalars)

    def __call__(self, step_ids: tf.Tensor, scheduled: tf.Tensor) -> None:
        """Run steps. Args: int64 [k], and when they were handed out, float64 []."""
        for step_id in step_ids:
            with self._store.in_turn, recorded(self._log) if self._log else contextlib.nullcontext():
                self._run_step(step_id, scheduled)
            self._log = None

    def _one(self, step_id: tf.Tensor, scheduled: tf.Tensor) -> tf.Tensor:
        asked, pulled = [], []
        for holder, (worker, _), part in zip(self._holders, self._identities, self._store.slices, strict=True):
            with tf.device(holder):
                asked.append(now_after(step_id))
                pulled.append(part.pull(tf.constant(worker, tf.int64), [asked[-1]]))
        weights, statistics, versions = zip(*pulled)
        results = self._step.by_parts(step_id, weights, statistics)
        pushed = []
        for number, (part, result) in enumerate(zip(self._store.slices, results, strict=True)):
            with tf.device(self._holders[number]):
                row = self._row(number, result, scheduled, asked[number], now_after(weights[number]))
                pushed.append(part.push(step_id, versions[number][0], result.gradient, result.fresh, row))
        return tf.stack(pushed)

    def _row(
        self, number: int, result: StepResult, scheduled: tf.Tensor, asked: tf.Tensor, pulled: tf.Tensor
    ) -> tf.Tensor:
        worker, pid = self._identities[number]
        computed = now_after(result.gradient)
        return worker_row(
            {
                "worker": worker,
                "pid": pid,
                "examples": self._examples,
                "metric": result.metric,
                "loss": result.loss,
                "learning_rate": result.learning_rate,
                "scheduled_time": scheduled,
                "asked_time": asked,
                "admitted_time": asked,
                "pulled_time": pulled,
                "computed_time": computed,
                "pushed_time": computed,
            }
        )


def _identity(device: str) -> tuple[int, int]:
    """Return index and pid, as the process on a device reads them from its own folder."""
    with tf.device(device):
        worker, pid = Identity.read().both().numpy().tolist()
    return worker, pid


# A lock for two threads of which one takes it again and again: the other gets its turn at the next release.


class InTurn:
    """A context manager. A plain lock may be taken again by the thread that has just released it, for ever."""

    def __init__(self) -> None:
        self._next, self._held = threading.Lock(), threading.Lock()

    def __enter__(self) -> None:
        with self._next:  # who waits for the lock keeps others from asking for it
            self._held.acquire()

    def __exit__(self, *error: object) -> None:
        self._held.release()
