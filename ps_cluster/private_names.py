"""The private names of TensorFlow and Keras: all that this package uses, and the only place that uses them.

A new version may lack any of them without a word. tests/test_private_names.py asks for each one by itself, and says what to
do where it is gone. Each function says why a public name does not do.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import tensorflow as tf
from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2
from tensorflow.python.distribute.coordinator import cluster_coordinator
from tensorflow.python.eager import context
from tensorflow.python.framework import convert_to_constants
from tensorflow.python.ops import resource_variable_ops

if TYPE_CHECKING:
    import keras

# TensorFlow's cluster of parameter servers. Its public classes offer one way to wait for workers: for all at once.

CLOSURE_ERRORS = (cluster_coordinator.ClosureInputError, cluster_coordinator.ClosureAbortedError)
"""Errors of a dispatch that came from another one. The coordinator raises them, and exports neither."""


def is_worker_failure(error: Exception) -> bool:
    """Return whether a dispatch failed because its worker is gone. The error's public code is that of many failures."""
    return bool(cluster_coordinator._is_worker_failure(error))


def is_ps_failure(error: Exception) -> bool:
    """Return whether a dispatch failed because its worker lost a parameter server. The reason as above."""
    return bool(cluster_coordinator._is_ps_failure(error))


def hand_failures_to(handler: Any, coordinator: tf.distribute.coordinator.ClusterCoordinator) -> None:
    """Let a handler with `wait_on_failure` and `stop` deal with failed workers, in place of TensorFlow's.

    There is no public way to choose one. Call it before the first dispatch, so that no thread uses the one before.
    """
    cluster = coordinator._cluster
    cluster.failure_handler.stop()
    for part in (cluster, *cluster.workers):
        part.failure_handler = handler


class PartlyConnectedStrategy(tf.distribute.ParameterServerStrategy):
    """A strategy of more workers than it connects to at first. The public class takes as many as there are."""

    def __init__(
        self, resolver: tf.distribute.cluster_resolver.ClusterResolver, *, all_workers: int, keep_s: int | None
    ):
        """Connect. `keep_s`: how long servers keep what is made there; None: as long as TensorFlow wants."""
        self._all_workers = all_workers
        self._keep_s = keep_s
        super().__init__(resolver)

    def _connect_to_cluster(self, coordinator_name: str) -> None:
        default = context._KEEP_ALIVE_SECS
        context._KEEP_ALIVE_SECS = self._keep_s or default  # of the first connection nothing else tells it
        try:
            super()._connect_to_cluster(coordinator_name)
        finally:
            context._KEEP_ALIVE_SECS = default
        self._num_workers = self._all_workers


def server_def() -> tf.train.ServerDef:
    """Return a copy of the cluster's description that this process is connected by. The public resolver has the first one."""
    own = tf.train.ServerDef()
    own.CopyFrom(context.get_server_def())
    return own


def update_server_def(changed: tf.train.ServerDef, keep_s: int) -> None:
    """Connect this process to the tasks of a changed cluster; the others go on. The public call ends all resources.

    Args:
      keep_s: how long servers keep what is made there after the last sign of life.
    """
    context.context().update_server_def(changed, keep_s)


# TensorFlow's all-reduce.


def abort_collectives(reason: str) -> None:
    """Let every all-reduce that waits fail. The public strategy waits for a lost worker without end."""
    context.context().abort_collective_ops(tf.errors.UNAVAILABLE, reason)


def wait_at_barrier(name: str, within_s: float) -> None:
    """Wait for all workers, without the graph that a public all-reduce would need. Raises tf.errors.OpError."""
    context.context().wait_at_barrier(name, round(1000 * within_s))


def limit_silence(limit_ms: int, workers: int) -> None:
    """Set TensorFlow's heartbeat timeout for an all-reduce of some workers; before its strategy is made.

    TensorFlow's coordination service ends a job in which a worker sent no heartbeat for so long. No public call sets it.
    """
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader="/job:worker/replica:0/task:0",
        heartbeat_timeout_in_ms=limit_ms,
        coordinated_jobs=[coordination_config_pb2.CoordinatedJob(name="worker", num_tasks=workers)],
    )


# TensorFlow's graphs.


def variable_of_process(name: str, shape: Sequence[int], dtype: tf.DType) -> tf.Variable:
    """Return, in a graph, the variable of this name in the process that runs the graph; it may have no value yet.

    A public `tf.Variable` is made once, by the process that writes the graph.
    """
    handle = tf.raw_ops.VarHandleOp(dtype=dtype, shape=shape, shared_name=name)
    return resource_variable_ops.BaseResourceVariable(
        trainable=False, shape=tf.TensorShape(shape), dtype=dtype, handle=handle, handle_name=name
    )


@contextlib.contextmanager
def recorded_graphs() -> Iterator[list[Any]]:
    """Yield a list that has, after the block, the graphs of the functions that ran for the first time in it, as placed.

    The public profiler writes a trace of times, without the device of each operation.
    """
    graphs: list[Any] = []
    context.context().enable_run_metadata()
    try:
        yield graphs
        for function in context.context().export_run_metadata().function_graphs:
            graphs += function.partition_graphs
    finally:
        context.context().disable_run_metadata()


def keep_from_folding(tensor: tf.Tensor) -> None:
    """Mark the operation of a graph's tensor, so that constant folding passes it by.

    Constant folding skips nodes with this attribute (IsConstantFoldable, common_runtime/constant_folding.cc). The public
    options turn folding off in Grappler alone, or for the whole process.
    """
    empty = tf.compat.v1.AttrValue(list=tf.compat.v1.AttrValue.ListValue())
    tensor.op._set_attr("_scoped_allocator", empty)


def frozen(graph: Any) -> Any:
    """Return a concrete function with constants in place of variables. The public one, of version 1, takes a session."""
    return convert_to_constants.convert_variables_to_constants_v2(graph)


# Keras's layers and models.


def layers_of(model: keras.Model) -> list[keras.Layer]:
    """Return the model and all layers in it, also those within models, wrappers and layers; `layers` has the first level."""
    found: list[keras.Layer] = model._flatten_layers()
    return found


def own_weights_of(layer: keras.Layer) -> list[keras.Variable]:
    """Return a layer's own variables that were made to be trained, also where it is frozen, and has publicly none."""
    found: list[keras.Variable] = layer._trainable_variables
    return found


def seed_generators_of(layer: keras.Layer) -> list[keras.random.SeedGenerator]:
    """Return the sources of random numbers that are attributes of a layer; publicly their states are variables as others."""
    found: list[keras.random.SeedGenerator] = layer._seed_generators
    return found


def takes_training(model: keras.Model) -> bool:
    """Return whether `call` of a model has an argument `training`. Its signature does not tell: Keras wraps it."""
    return bool(model._call_has_training_arg)


def made_by(tensor: keras.KerasTensor) -> tuple[Any, list[keras.KerasTensor]]:
    """Return the layer or operation that a symbolic tensor came from, and what it was given there.

    The public `input` of a layer is that of its first call.
    """
    history = tensor._keras_history
    return history.operation, history.operation._inbound_nodes[history.node_index].input_tensors


def functional_of(model: keras.Sequential) -> Any:
    """Return what a Sequential has made of its layers; None where it is not built. Nothing public has its calls of layers."""
    return model._functional


def calls_of(graph: Any) -> list[Any] | None:
    """Return the nodes (calls of layers) of a functional model, the first ones first; None for a model that has none.

    Publicly a layer is there once, however often it is called.
    """
    by_depth = getattr(graph, "_nodes_by_depth", None)
    return None if by_depth is None else [node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth]]


# Keras's compile(): a model's public ways to its loss and metrics compute them with variables of this process.


def compiled_loss_of(model: keras.Model) -> Any:
    """Return the losses that a model was compiled with, as one object; None without any."""
    return model._compile_loss


def compiled_metrics_of(model: keras.Model) -> Any:
    """Return the metrics that a model was compiled with, as one object; None without any."""
    return model._compile_metrics


def given_to_compile(model: keras.Model) -> list[Any]:
    """Return the losses and metrics that were given to `compile`, as they were given. Publicly only their names are known."""
    losses, metrics = model._compile_loss, model._compile_metrics
    of_metrics = [metrics._user_metrics, metrics._user_weighted_metrics] if metrics is not None else []
    return [one for one in (losses and losses._user_loss, *of_metrics) if one is not None]


def copy_compiled(model: keras.Model, to: keras.Model) -> None:
    """Give a model what another one was compiled with. `compile` would track the same objects as new layers."""
    for name in ("_compile_loss", "_compile_metrics", "optimizer"):
        object.__setattr__(to, name, getattr(model, name, None))


def losses_of(compiled: Any) -> list[Any]:
    """Return the loss of each output, once it is built: with `path`, `loss` and `loss_weights`."""
    found: list[Any] = compiled._flat_losses
    return found


def metrics_of(compiled: Any, outputs: Any) -> Iterator[tuple[keras.Metric, tf.Tensor]]:
    """Yield each metric, once they are built, and the output that it is for."""
    flat = compiled._flatten_y(outputs)
    for of_outputs in (compiled._flat_metrics, compiled._flat_weighted_metrics):
        for of_one, output in zip(of_outputs, flat, strict=True):
            for metric in of_one.metrics if of_one else ():
                yield metric, output


def mode_of_metric(metric: keras.Metric) -> Literal["max", "min"] | None:
    """Return which values of a metric are better, as Keras's EarlyStopping finds it out; None if Keras does not know."""
    modes: dict[str | None, Literal["max", "min"]] = {"up": "max", "down": "min"}
    return modes.get(getattr(metric, "_direction", None))


def wrapped_by(judging: keras.Loss | keras.Metric) -> Callable[..., Any] | None:
    """Return the function that a loss or metric is made of; None for a class of its own. Of a metric it is private."""
    return getattr(judging, "fn", getattr(judging, "_fn", None))


_OF_STATE = {
    "built", "name", "_lock", "_variables", "_trainable_variables", "_trainable_variables_indices", "_tracker", "_iterations",
    "_learning_rate", "_momentums", "momentums", "_velocities", "_velocity_hats", "_average_gradients",
    "_accumulators", "_linears", "_exclude_from_weight_decay_cache", "_distribution_strategy",
}  # fmt: skip


def besides_config(optimizer: keras.Optimizer) -> list[str]:
    """Return the names of attributes of an optimizer that `get_config` does not tell, and that do something.

    Such are variables without decay, and whatever somebody has set after it was made, such as another `update_step`.
    """
    plain = vars(type(optimizer).from_config(optimizer.get_config()))
    return [
        name
        for name, value in vars(optimizer).items()
        if name not in _OF_STATE
        and not name.startswith("_self_")
        and (value if name not in plain else value != plain[name])
    ]


NOTES = ("_keras_logits", "_keras_mask")


def notes_of(output: tf.Tensor) -> list[tf.Tensor | None]:
    """Return what Keras notes on an output, by `NOTES`: the scores that softmax or sigmoid has made it of, and its mask.

    Keras's losses find both on the tensor alone: they compute from the scores, and leave out what is masked.
    """
    return [getattr(output, name, None) for name in NOTES]


def with_notes(output: tf.Tensor, notes: Sequence[tf.Tensor | None]) -> tf.Tensor:
    """Return an output on which Keras's losses find `notes`, as if the layers had just made it."""
    for name, note in zip(NOTES, notes, strict=True):
        if note is not None:
            setattr(output, name, note)
    return output
