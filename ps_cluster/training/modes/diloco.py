"""Mode diloco: each worker trains alone for many steps; the change of its weights becomes an outer step on arrival.

See outer_steps.py for the papers.
"""

from __future__ import annotations

import numpy as np
from pydantic import Field

from ps_cluster.config import RunConfig
from ps_cluster.config.lazy import tf
from ps_cluster.config.modes import ClusterShape
from ps_cluster.config.staleness_methods import METHODS
from ps_cluster.files.values import join_names
from ps_cluster.server.initial_state import InitialState
from ps_cluster.server.shard import ParameterShard, Push
from ps_cluster.server.store import ParameterStore
from ps_cluster.training.modes.fragments import batches_before_exchange, fragments_graph
from ps_cluster.training.modes.local_steps import LocalTraining
from ps_cluster.training.modes.outer_steps import OuterMode, OuterSettings
from ps_cluster.training.modes.waiting import put
from ps_cluster.training.step import Compute
from ps_cluster.training.worker import DispatchGraph

# The highest speed is taken over the workers that pushed within the last COUNTS_AS_FASTEST_FOR x (number of workers)
# pushes.
COUNTS_AS_FASTEST_FOR = 4
# A worker's speed is the median over this number of its newest periods. So a single wrong measurement, made while a
# clock was set, does no harm.
MEASURED = 3


class DilocoSettings(OuterSettings):
    dynamic_steps: bool = Field(
        default=False,
        description="A slower worker takes fewer local steps: local_steps x its speed / the highest speed, rounded down.",
    )
    fragments: bool = Field(
        default=False,
        description="Exchange each server's shard after a different local step, so that the shards are not all sent at once.",
    )
    momentum_every: int | None = Field(
        default=None,
        ge=1,
        le=1000,
        description="The momentum changes only with every N-th push, by the mean of the last N pushes. If it is null, N is "
        "cluster.workers, or 1 if the staleness method gathers several pushes into one change of the weights.",
    )
    momentum_spread: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="The share of the momentum that moves the weights at each push, not only at every N-th push (c of "
        "arXiv:2401.09135, algorithm 3). N is mode.momentum_every. This share is at most 1 / N.",
    )


class DilocoShard(ParameterShard):
    """A shard that measures the speed of each worker if `dynamic_steps` is set.

    Dynamic local updates (Liu et al. 2024, section 5): worker w takes ⌊v_w / v_max · H⌋ steps, at least one, where H is
    `local_steps`. v_w is the worker's number of steps per second, the median over its three newest periods. v_max is
    the highest speed of the workers that have pushed lately.
    """

    def __init__(self, device: str, start: InitialState, config: RunConfig, total_steps: int):
        super().__init__(device, start, config, total_steps)
        self._batch_size = config.training.batch_size_per_worker
        if self.capabilities.limits_batches:
            self._lately = COUNTS_AS_FASTEST_FOR * config.most_workers
            with tf.device(device):
                # The speeds of each worker, in steps per second, the newest first; 0 where there is none yet.
                self._speeds = tf.Variable(tf.zeros([config.most_workers, MEASURED], tf.float64))
                # The version at each worker's newest push.
                self._heard = tf.Variable(tf.zeros([config.most_workers], tf.int64))

    def apply_or_drop(self, push: Push) -> tf.Tensor:
        if not self.capabilities.limits_batches:
            return super().apply_or_drop(push)
        columns = push.from_worker
        steps, seconds = columns.examples / self._batch_size, columns.pushed_time - columns.pulled_time
        # If the clock was set meanwhile, a period may end before it begins. Then the speed stays the same.
        before = self._speeds.sparse_read(push.worker)
        speed = tf.where(seconds > 0, tf.math.divide_no_nan(steps, seconds), _speed(before[None])[0])
        newest = tf.concat([[speed], before[:-1]], 0)
        with tf.control_dependencies([put(self._speeds, push.worker, newest)]):
            heard = put(self._heard, push.worker, self.version.read_value())
        with tf.control_dependencies([heard]):
            return super().apply_or_drop(push)

    def batches_for(self, worker: tf.Tensor) -> tf.Tensor:
        speeds = _speed(self._speeds.read_value())
        lately = self.version.read_value() - self._heard.read_value() <= self._lately
        share = tf.math.divide_no_nan(speeds[worker], tf.reduce_max(tf.where(lately, speeds, 0.0)))
        steps = tf.cast(tf.floor(share * self._batches_per_step), tf.int64)
        # The speed of a worker without a finished period is not known yet.
        return tf.where(speeds[worker] > 0, tf.clip_by_value(steps, 1, self._batches_per_step), self._batches_per_step)


def _speed(measured: tf.Tensor) -> tf.Tensor:
    """Return the median of each worker's known speeds (of two speeds, the lower one), float64 [k]; 0 if none is known.

    `measured`: float64 [k, MEASURED], the speeds of k workers. 0 stands for a speed that is not known.
    """
    known = tf.math.count_nonzero(measured, axis=1)
    place = tf.maximum(known - 1, 0) // 2
    in_order = tf.sort(tf.where(measured > 0, measured, np.inf), axis=1)
    return tf.where(known > 0, tf.gather(in_order, place, axis=1, batch_dims=1), tf.zeros([], tf.float64))


class Diloco(OuterMode):
    """Asynchronous local SGD: each change of the weights that a worker pushes after a period becomes one outer step."""

    name = "diloco"
    description = (
        "each worker trains alone for many steps; the change of its weights is one outer step as soon as it arrives"
    )
    Settings = DilocoSettings
    cluster = ClusterShape(pins_workers=True)
    shard = DilocoShard

    def dispatch(self, store: ParameterStore, compute: Compute, config: RunConfig, *, repeats: bool) -> DispatchGraph:
        if not DilocoSettings.of(config).fragments:
            return super().dispatch(store, compute, config, repeats=repeats)
        assert isinstance(compute, LocalTraining)
        return fragments_graph(store, compute, config)

    def momentum_period_and_spread(self, config: RunConfig) -> tuple[int, float]:
        """Return N and c of `DelayedNesterov`.

        The momentum changes with every N-th push. If the staleness method gathers several pushes into one change of the
        weights, N counts these changes, not the pushes. c is the share of the momentum that each push applies.
        """
        settings = DilocoSettings.of(config)
        gathered = METHODS[config.staleness.method].gathered_gradients(config) or 1
        return settings.momentum_every or (1 if gathered > 1 else config.cluster.workers), settings.momentum_spread

    def check(self, config: RunConfig) -> None:
        super().check(config)
        settings = DilocoSettings.of(config)
        servers = config.cluster.parameter_servers
        if settings.fragments and (settings.dynamic_steps or not 2 <= servers <= settings.local_steps):
            raise ValueError(
                "mode.fragments: got true: it needs mode.dynamic_steps=false, and between 2 and mode.local_steps "
                f"({settings.local_steps}) parameter servers; cluster.parameter_servers is {servers}"
            )
        name, method = config.staleness.method, METHODS[config.staleness.method]
        if not method.suits_local_steps or (method.drops and settings.fragments):
            suitable = [one.name for one in METHODS if one.suits_local_steps and not (one.drops and settings.fragments)]
            fragmented = " with mode.fragments" if method.suits_local_steps else ""
            raise ValueError(f"staleness.method: got '{name}': mode diloco{fragmented} supports {join_names(suitable)}")
        every, spread = self.momentum_period_and_spread(config)
        if spread > 1 / every:
            raise ValueError(
                f"mode.momentum_spread: got {spread:g}: it may be at most 1 / mode.momentum_every, 1 / {every}"
            )

    def worker_vectors(self, config: RunConfig) -> int:
        # With fragments, a worker also keeps the weights that it has pulled.
        return super().worker_vectors(config) + DilocoSettings.of(config).fragments

    def batches_in_ledger_row(self, config: RunConfig, shard: int) -> int:
        if not DilocoSettings.of(config).fragments:
            return super().batches_in_ledger_row(config, shard)
        return batches_before_exchange(config.batches_per_step, shard, config.shards)

    def takes_fewer_batches(self, config: RunConfig) -> bool:
        return DilocoSettings.of(config).dynamic_steps

    def label(self, config: RunConfig) -> str:
        settings = DilocoSettings.of(config)
        kinds = " dynamic_steps" * settings.dynamic_steps + " fragments" * settings.fragments
        return f"{self.name} H={config.batches_per_step}{kinds}"
