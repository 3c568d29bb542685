"""Modes diloco and sync-diloco: workers train by themselves for many steps, then the server takes an outer step.

Douillard et al. 2023, "DiLoCo: Distributed Low-Communication Training of Language Models" (arXiv:2311.08105), algorithm 1;
asynchronously Liu et al. 2024, "Asynchronous Local-SGD Training for Language Modeling" (arXiv:2401.09135), algorithm 3. With
the weights θ that it pulled, a worker takes H steps of the run's optimizer (the inner one) to θ_w, and pushes the outer
gradient g = θ - θ_w. The server applies Nesterov's momentum to it. A push is a step id with H batches, applied exactly once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from pydantic import Field

from ps_cluster.config import RunConfig
from ps_cluster.config.equations import Slots, UpdateParts
from ps_cluster.config.modes import METHODS, ModeSettings
from ps_cluster.config.registry import Momentum, Part, tf
from ps_cluster.config.schema import parse_stragglers
from ps_cluster.config.sections import listed
from ps_cluster.runs.run_dir import of_left_out
from ps_cluster.server.shard import InitialState, ParameterShard, Push, after, now_after
from ps_cluster.server.store import ParameterStore
from ps_cluster.server.update_rules import UpdateRule, times
from ps_cluster.training.modes.local_steps import (
    LocalMode,
    LocalOptimizer,
    LocalTraining,
    Progress,
    local_steps_field,
)
from ps_cluster.training.modes.waiting import RoundShard, SyncPs, SyncPsSettings, put
from ps_cluster.training.step import WorkerIdentity
from ps_cluster.training.worker import AsynchronousSteps, SlowDown, steps_function, with_remainders, worker_row
from ps_cluster.training.worker_state import ErrorFeedback

_APART = 1_000_003  # between the seeds of two slices
HEARD_OF = 4  # a worker that pushed within so many pushes for each worker counts for the highest speed
# A worker's speed is the median over so many of its newest periods: one that a clock which was set made much too short or
# much too long changes nothing.
MEASURED = 3


class OuterSettings(ModeSettings):
    local_steps: int = local_steps_field(16)
    outer_rate: float = Field(default=0.7, gt=0, le=10, description="Learning rate of the outer step.")
    outer_momentum: Momentum = Field(default=0.9, description="Of the outer step, which is Nesterov's.")


class DilocoSettings(OuterSettings):
    dynamic_steps: bool = Field(
        default=False,
        description="A slower worker takes fewer local steps: local_steps x its speed / the highest speed, rounded down.",
    )
    fragments: bool = Field(
        default=False,
        description="Exchange the slice of each parameter server after other local steps, so that no moment carries all.",
    )
    momentum_every: int | None = Field(
        default=None,
        ge=1,
        le=1000,
        description="The momentum changes with every N-th push, by the mean of the N; null: N is cluster.workers, or 1 with "
        "a staleness method that gathers pushes.",
    )
    momentum_spread: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="c of the paper: this share of the momentum moves the weights with each push, not only every N-th. At "
        "most 1 / N.",
    )


def pushes_of_momentum(config: RunConfig) -> int:
    """Return N: with so many pushes, or changes of the weights by several, the momentum changes once."""
    settings: DilocoSettings = config.mode_kind.settings(config)
    return settings.momentum_every or (1 if METHODS[config.staleness.method].gathers else config.cluster.workers)


class DelayedNesterov(UpdateRule):
    """Delayed Nesterov (Liu et al. 2024, algorithm 3), with N `every`, c `spread`, ε the rate and β `momentum`.

      Δ ← Δ + g
      every N-th push:  m ← βm + Δ/N;  θ ← θ - ε [(1 - cN + c) βm + g/N];  Δ ← 0
      else:             θ ← θ - ε [cβm + g/N]

    With c = 0 it is the rule of a public implementation (`DelayedNesterovOptimizer` in github.com/jdinalt/forgather). With
    N = 1 it is Nesterov's momentum as PyTorch has it, the usual outer step: m ← βm + g; θ ← θ - ε [βm + g].
    """

    slot_names = ("momentum", "delta")

    def __init__(self, config: RunConfig, weights: tf.Variable, *, every: int, spread: float):
        """Create the slots. `every`: N. `spread`: c."""
        # The inner steps have decayed the weights already, and gone by the factors.
        without_decay = config.optimizer.model_copy(update={"weight_decay": 0.0})
        super().__init__(without_decay, weights, np.ones(weights.shape, np.float32))
        self._momentum, self._every, self._spread = config.mode.outer_momentum, every, spread  # type: ignore[attr-defined]

    def _change(
        self, gradient: tf.Tensor, learning_rate: tf.Tensor, updates_before: tf.Tensor, share: tf.Tensor | None
    ) -> tf.Operation:
        momentum, delta = (self.slots[name].read_value() for name in self.slot_names)
        gradient = times(share, gradient)
        delta += gradient
        every, spread = self._every, self._spread
        due = tf.equal((updates_before + 1) % every, 0)
        momentum = tf.where(due, self._momentum * momentum + delta / every, momentum)
        weight = tf.where(due, 1 - spread * every + spread, spread) * self._momentum
        return tf.group(
            self._weights.assign_sub(learning_rate * (weight * momentum + gradient / every), read_value=False),
            self.slots["momentum"].assign(momentum, read_value=False),
            self.slots["delta"].assign(tf.where(due, tf.zeros_like(delta), delta), read_value=False),
        )


def delayed_nesterov(settings: OuterSettings, parts: UpdateParts, *, every: int, spread: float) -> Slots:
    """Return what `DelayedNesterov` computes, in numpy, with N `every` and c `spread`."""
    beta, is_due = settings.outer_momentum, (parts.updates_before + 1) % every == 0
    gradient, momentum = parts.shared_gradient, parts.slots["momentum"]
    delta = parts.slots["delta"] + gradient
    if is_due:
        momentum = beta * momentum + delta / every
    weight = beta * ((1 - spread * every + spread) if is_due else spread)
    step = settings.outer_rate * (weight * momentum + gradient / every)
    return {"weights": parts.weights - step, "momentum": momentum, "delta": 0 * delta if is_due else delta}


class OuterShard(ParameterShard):
    """A slice that takes outer steps."""

    def __init__(self, device: str, start: InitialState, config: RunConfig, total_steps: int):
        self._outer_rate = config.mode.outer_rate  # type: ignore[attr-defined]
        super().__init__(device, start, config, total_steps)

    def _rule_of(self, config: RunConfig, start: InitialState) -> UpdateRule:
        settings: DilocoSettings = config.mode_kind.settings(config)
        every = pushes_of_momentum(config)
        return DelayedNesterov(config, self._weights, every=every, spread=settings.momentum_spread)

    def apply_gradient(
        self, gradient: tf.Tensor, learning_rate: tf.Tensor, fresh: tf.Tensor, share: tf.Tensor | None = None
    ) -> tf.Tensor:
        return super().apply_gradient(gradient, tf.constant(self._outer_rate), fresh, share)


class AsynchronousOuterShard(OuterShard):
    """A slice that takes an outer step with each push, and with `dynamic_steps` measures the speed of each worker.

    Dynamic local updates (Liu et al. 2024, section 5): worker w takes ⌊v_w / v_max · H⌋ steps, at least one. v is the steps
    per second of its newest periods, of three the median; v_max is the highest of the workers heard of lately.
    """

    def __init__(self, device: str, start: InitialState, config: RunConfig, total_steps: int):
        self._local_steps = config.batches_per_step
        self._batch_size = config.training.batch_size_per_worker
        self.limits_batches = config.mode_kind.takes_fewer_batches(config)
        super().__init__(device, start, config, total_steps)
        if self.limits_batches:
            self._lately = HEARD_OF * config.most_workers
            with tf.device(device):
                # The newest first; 0 where there was none yet.
                self._speeds = tf.Variable(tf.zeros([config.most_workers, MEASURED], tf.float64))
                self._heard = tf.Variable(tf.zeros([config.most_workers], tf.int64))  # the version of its newest push

    def _apply_or_drop(self, push: Push) -> tf.Tensor:
        if not self.limits_batches:
            return super()._apply_or_drop(push)
        steps, seconds = (
            push.value("examples") / self._batch_size,
            push.value("pushed_time") - push.value("pulled_time"),
        )
        # An end before the beginning, by a clock that was set meanwhile, says nothing: then the speed stays as it is.
        before = self._speeds.sparse_read(push.worker)
        speed = tf.where(seconds > 0, tf.math.divide_no_nan(steps, seconds), _speed(before[None])[0])
        newest = tf.concat([[speed], before[:-1]], 0)
        with tf.control_dependencies([put(self._speeds, push.worker, newest)]):
            heard = put(self._heard, push.worker, self._version.read_value())
        with tf.control_dependencies([heard]):
            return super()._apply_or_drop(push)

    def _batches_for(self, worker: tf.Tensor) -> tf.Tensor:
        speeds = _speed(self._speeds.read_value())
        lately = self._version.read_value() - self._heard.read_value() <= self._lately
        share = tf.math.divide_no_nan(speeds[worker], tf.reduce_max(tf.where(lately, speeds, 0.0)))
        steps = tf.cast(tf.floor(share * self._local_steps), tf.int64)
        # Of a worker without a period nothing is known yet.
        return tf.where(speeds[worker] > 0, tf.clip_by_value(steps, 1, self._local_steps), self._local_steps)


def _speed(measured: tf.Tensor) -> tf.Tensor:
    """Return the median of each row's speeds that are not 0, float64 [k]: of two the lower, of none 0."""
    known = tf.math.count_nonzero(measured, axis=1)
    place = tf.maximum(known - 1, 0) // 2
    in_order = tf.sort(tf.where(measured > 0, measured, np.inf), axis=1)
    return tf.where(known > 0, tf.gather(in_order, place, axis=1, batch_dims=1), tf.zeros([], tf.float64))


# Fragments: each slice has its own moment of a period.


class FragmentedWorker:
    """What a worker's process keeps of each slice between its exchanges, in a graph: weights, statistics and version pulled.

    Streaming DiLoCo (Douillard et al. 2025, arXiv:2501.18512, section 2.1) without its overlap: with S slices and H local
    steps, slice S - 1 is exchanged after H / S steps of each period, slice S - 2 after 2 H / S, and slice 0 after all. The
    worker goes on from its own weights of the other slices, so between two exchanges of a slice there are H steps.
    """

    def __init__(self, store: ParameterStore, training: LocalTraining):
        lengths, counts = zip(*[(part.length, part.statistics_length) for part in store.slices])
        self._slices, self._training = store.slices, training
        self._ends, self._statistics_ends = np.cumsum(lengths), np.cumsum(counts)
        self.own = LocalOptimizer(training, int(self._ends[-1]), self._slices[0].wire)

        self._feedback = [
            ErrorFeedback(
                part.codec.rounded,
                [part.length],
                (training.seed + _APART * index) % 2**31,
                of_left_out(index),
                name=f"{store.session}/left-out-{index}",
            )
            for index, part in enumerate(self._slices)
            if part.codec.loses
        ]

        def variable(name: str, shape: list[int], dtype: tf.DType = tf.float32) -> tf.Variable:
            return self.own.state.scratch(name, shape, dtype)

        self._pulled = variable("pulled", [int(self._ends[-1])])
        self._statistics = variable("statistics", [int(self._statistics_ends[-1])])
        self._statistics_pulled = variable("statistics pulled", [int(self._statistics_ends[-1])])
        self._versions = variable("versions", [len(lengths)], tf.int64)

    def begin(self, store: ParameterStore, worker: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        """Pull all slices where this process has none yet. Returns a tensor to depend on."""

        def pull() -> tf.Tensor:
            pulled = store.pull(worker)
            weights = tf.cast(pulled.weights, tf.float32)
            kept = [(self.own.weights, weights), (self._pulled, weights), (self._versions, pulled.versions)]
            kept += [(one, pulled.statistics) for one in (self._statistics, self._statistics_pulled)]
            return after([variable.assign(value, read_value=False) for variable, value in kept], 0)

        is_there = tf.raw_ops.VarIsInitializedOp(resource=self._versions.handle)
        begun = tf.cond(is_there, lambda: 0, pull)
        return after([self.own.state.load(step, [begun])], begun)

    def take(self, step: tf.Tensor, first: int, end: int, progress: Progress) -> Progress:
        """Take local steps, and keep the statistics that they leave. See `LocalOptimizer.take`."""
        with tf.control_dependencies([progress.state]):
            statistics = self._statistics.read_value()
        ended = self.own.take(step, first, end, progress._replace(statistics=statistics))
        with tf.control_dependencies([self._statistics.assign(ended.statistics, read_value=False)]):
            return ended._replace(state=tf.identity(ended.state))

    def exchange(self, index: int, step: tf.Tensor, row: tf.Tensor, needed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Push how far slice `index` came since its last exchange, and go on from the answer.

        Returns a tensor as above, and the outcome of the push, int64 [].
        """
        part = self._slices[index]
        of, of_statistics = (
            slice(int(ends[index]) - length, int(ends[index]))
            for ends, length in ((self._ends, part.length), (self._statistics_ends, part.statistics_length))
        )
        with tf.control_dependencies([needed]):
            moved = self._pulled.read_value()[of] - self.own.weights.read_value()[of]
            before, now = (one.read_value()[of_statistics] for one in (self._statistics_pulled, self._statistics))
            version = self._versions.read_value()[index]
        fresh = now - np.broadcast_to(self._training.kept, self._statistics.shape)[of_statistics] * before
        if self._feedback:
            sent = self._feedback[index](step, moved)
            vector, settle, row = sent.vector, sent.settle, with_remainders(row, sent.remainders)
        else:
            vector, settle = tf.cast(moved, part.wire), lambda outcomes: []
        answer = part.exchange(step, version, vector, fresh, row, step)
        weights, statistics, numbers = part.read_message(answer)
        outcome = part.outcome(answer)
        weights = tf.cast(weights, tf.float32)
        kept = [one[of].assign(weights) for one in (self.own.weights, self._pulled)]
        kept += [one[of_statistics].assign(statistics) for one in (self._statistics, self._statistics_pulled)]
        with tf.control_dependencies([*kept, *settle(outcome[None])]):
            return after([self._versions[index].assign(numbers[0])], 0), outcome


def diloco_function(
    store: ParameterStore, compute: LocalTraining, config: RunConfig, *, repeats: bool = False
) -> Callable[..., Any]:
    """Return the graph of a dispatch: that of `steps_function`, or one that exchanges the slices one by one."""
    settings: DilocoSettings = config.mode_kind.settings(config)
    if not settings.fragments:
        return steps_function(store, compute, config, repeats=repeats)
    slices, steps = len(store.slices), config.batches_per_step
    stragglers = parse_stragglers(config.cluster.straggler)
    slow_down = SlowDown(stragglers, config.most_workers, config.training.seed, parts=slices)

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None], tf.int64), tf.TensorSpec([], tf.float64)])
    def run_steps(step_ids: tf.Tensor, scheduled: tf.Tensor) -> tf.Tensor:
        identity, worker = WorkerIdentity.read(), FragmentedWorker(store, compute)

        def body(position: tf.Tensor, before: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            step = step_ids[position]
            asked = began = now_after(before)
            progress, outcomes = Progress.begin(before, tf.zeros([0])), []
            for place, index in enumerate(reversed(range(slices))):
                first, end = (steps * k // slices for k in (place, place + 1))
                progress = worker.take(step, first, end, progress)
                computed = now_after(progress.state)
                waited = slow_down.wait(identity.worker, step, computed - began)
                row = worker_row(
                    identity, progress.result(end, tf.zeros([0]), tf.zeros([0])),
                    scheduled_time=scheduled, asked_time=asked, admitted_time=asked, pulled_time=asked,
                    computed_time=computed, pushed_time=now_after(computed, *waited),
                )  # fmt: skip
                exchanged, outcome = worker.exchange(index, step, row, after([row], progress.state))
                outcomes.append(outcome)
                progress, began = progress._replace(state=exchanged), now_after(exchanged)
            with tf.control_dependencies([progress.state]):
                settled = worker.own.settle(step, tf.stack(outcomes))
            return position + 1, after([settled], progress.state)

        begun = worker.begin(store, identity.worker, step_ids[0])
        return tf.while_loop(lambda position, _: position < tf.size(step_ids), body, (0, begun), parallel_iterations=1)[
            1
        ]

    dispatch: Callable[..., Any] = run_steps
    return dispatch


class DilocoSteps(AsynchronousSteps):
    graph = staticmethod(diloco_function)


class OuterRoundShard(OuterShard, RoundShard):
    """A slice that takes an outer step with the mean of each round's outer gradients."""

    def _rule_of(self, config: RunConfig, start: InitialState) -> UpdateRule:
        return DelayedNesterov(config, self._weights, every=1, spread=0.0)


class Diloco(LocalMode):
    name = "diloco"
    says = "workers train by themselves for many steps; each such period is one outer step, as it arrives"
    Settings = DilocoSettings
    ignores = LocalMode.ignores - {"staleness"}
    pins_workers = True
    rated_as = "single"
    unlabelled = frozenset({"outer_rate", "outer_momentum", "momentum_every", "momentum_spread"})
    slice = AsynchronousOuterShard
    work = DilocoSteps
    step = LocalTraining
    recomputed_steps = Part.RECOMPUTED_LOCAL_PERIODS

    def equation(self, config: RunConfig, parts: UpdateParts) -> Slots:
        """Return the outer step with the outer gradient of one worker."""
        settings: DilocoSettings = self.settings(config)
        return delayed_nesterov(settings, parts, every=pushes_of_momentum(config), spread=settings.momentum_spread)

    def check(self, config: RunConfig) -> None:
        super().check(config)
        settings: DilocoSettings = self.settings(config)
        servers = config.cluster.parameter_servers
        if settings.fragments and (settings.dynamic_steps or not 2 <= servers <= settings.local_steps):
            raise ValueError(
                f"mode.fragments: got true: it needs from 2 to mode.local_steps, {settings.local_steps}, parameter servers "
                f"(there are {servers}), and no mode.dynamic_steps"
            )
        name, method = config.staleness.method, METHODS[config.staleness.method]
        if not method.takes_periods or (method.drops and settings.fragments):
            suitable = [one.name for one in METHODS if one.takes_periods and not (one.drops and settings.fragments)]
            fragmented = " with mode.fragments" if method.takes_periods else ""
            raise ValueError(f"staleness.method: got '{name}': mode diloco{fragmented} takes {listed(suitable)}")
        every = pushes_of_momentum(config)
        if settings.momentum_spread > 1 / every:
            raise ValueError(
                f"mode.momentum_spread: got {settings.momentum_spread:g}: at most 1 / mode.momentum_every, 1 / {every}"
            )

    def worker_vectors(self, config: RunConfig) -> int:
        settings: DilocoSettings = self.settings(config)
        return 1 + settings.fragments  # its weights, and those that it has pulled

    def takes_fewer_batches(self, config: RunConfig) -> bool:
        settings: DilocoSettings = self.settings(config)
        return settings.dynamic_steps

    def label(self, config: RunConfig) -> str:
        settings: DilocoSettings = self.settings(config)
        kinds = [name for name, is_on in vars(settings).items() if is_on is True]
        return " ".join([f"{self.name} H={config.batches_per_step}", *kinds])


class SyncDilocoSettings(OuterSettings, SyncPsSettings):
    """As for diloco, in rounds."""


class SyncDiloco(LocalMode, SyncPs):
    name = "sync-diloco"
    says = "workers train by themselves for many steps; the mean of a round's periods is one outer step"
    Settings = SyncDilocoSettings
    rated_as = Diloco.rated_as
    unlabelled = Diloco.unlabelled
    slice = OuterRoundShard
    step = LocalTraining
    recomputed_steps = Part.RECOMPUTED_LOCAL_PERIODS

    def equation(self, config: RunConfig, parts: UpdateParts) -> Slots:
        """Return the outer step with the mean of a round's outer gradients."""
        return delayed_nesterov(self.settings(config), parts, every=1, spread=0.0)

    def worker_vectors(self, config: RunConfig) -> int:
        return 1

    def label(self, config: RunConfig) -> str:
        return f"{super().label(config)} H={config.batches_per_step}"
