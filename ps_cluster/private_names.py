"""Wrap all private names of TensorFlow and Keras that this package uses. No other module uses such names.

A new version may remove any of them without notice. tests/test_private_names.py checks each one, and says what to do
if it is gone. Each function here says why no public name can replace it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import tensorflow as tf
from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2
from tensorflow.python.distribute.coordinator import cluster_coordinator
from tensorflow.python.eager import context
from tensorflow.python.framework import convert_to_constants
from tensorflow.python.ops import resource_variable_ops

if TYPE_CHECKING:
    import keras

# TensorFlow's cluster of parameter servers. Its public classes can only wait for all workers together.

CLOSURE_ERRORS = (cluster_coordinator.ClosureInputError, cluster_coordinator.ClosureAbortedError)
"""The errors of a dispatch that fails because another dispatch failed. TensorFlow's coordinator raises them, but does
not export their classes."""


def is_worker_failure(error: Exception) -> bool:
    """Return whether a dispatch failed because its worker is gone. Other failures have the same public error code."""
    return bool(cluster_coordinator._is_worker_failure(error))


def is_ps_failure(error: Exception) -> bool:
    """Return whether a dispatch failed because its worker lost a parameter server.

    Other failures have the same public error code.
    """
    return bool(cluster_coordinator._is_ps_failure(error))


class FailureHandler(Protocol):
    """A handler of failed workers, such as TensorFlow's WorkerPreemptionHandler. `Membership` implements it."""

    def wait_on_failure(
        self,
        on_failure_fn: Callable[[Exception], None] | None = None,
        on_transient_failure_fn: Callable[[], None] | None = None,
        on_recovery_fn: Callable[[], None] | None = None,
        worker_device_name: str = "",
    ) -> contextlib.AbstractContextManager[None]:
        """Return a context manager. TensorFlow runs each dispatch to a worker inside it.

        The block runs in the thread that the coordinator has for this worker.
        """

    def stop(self) -> None:
        """Stop waiting for workers."""


def replace_failure_handler(handler: FailureHandler, coordinator: tf.distribute.coordinator.ClusterCoordinator) -> None:
    """Replace TensorFlow's handler of failed workers.

    There is no public way to choose a handler. Call this before the first dispatch, so that no thread uses the old
    handler.
    """
    cluster = coordinator._cluster
    cluster.failure_handler.stop()
    for part in (cluster, *cluster.workers):
        part.failure_handler = handler


class PartlyConnectedStrategy(tf.distribute.ParameterServerStrategy):
    """A strategy that connects to only some of its workers at first. The public class needs all workers from the start."""

    def __init__(
        self, resolver: tf.distribute.cluster_resolver.ClusterResolver, *, all_workers: int, keep_s: int | None
    ):
        """Connect to the tasks that `resolver` lists.

        Args:
          all_workers: the number of workers, including those that connect later.
          keep_s: how many seconds servers keep this process's resources after its last sign of life, or None for
            TensorFlow's default.
        """
        self._all_workers = all_workers
        self._keep_s = keep_s
        super().__init__(resolver)

    def _connect_to_cluster(self, coordinator_name: str) -> None:
        default = context._KEEP_ALIVE_SECS
        context._KEEP_ALIVE_SECS = self._keep_s or default  # the first connection reads it only from there
        try:
            super()._connect_to_cluster(coordinator_name)
        finally:
            context._KEEP_ALIVE_SECS = default
        self._num_workers = self._all_workers


def server_def() -> tf.train.ServerDef:
    """Return a copy of the cluster's current description. The public resolver has only the original one."""
    present = tf.train.ServerDef()
    present.CopyFrom(context.get_server_def())
    return present


def update_server_def(changed: tf.train.ServerDef, keep_s: int | None) -> None:
    """Connect this process to the changed tasks of a cluster. The public call would discard the resources of all tasks.

    Args:
      changed: the new description of the cluster.
      keep_s: how many seconds servers keep this process's resources after its last sign of life, or None for
        TensorFlow's default.
    """
    context.context().update_server_def(changed, keep_s or context._KEEP_ALIVE_SECS)


# TensorFlow's all-reduce.


def abort_collectives(reason: str) -> None:
    """Make every waiting all-reduce fail. The public strategy would wait for a lost worker forever."""
    context.context().abort_collective_ops(tf.errors.UNAVAILABLE, reason)


def wait_at_barrier(name: str, within_s: float) -> None:
    """Wait until all workers have called this function with the same `name`.

    A public all-reduce would also wait, but needs a graph.

    Raises:
      tf.errors.OpError: another worker has not called this within `within_s` seconds, or has failed.
    """
    context.context().wait_at_barrier(name, round(1000 * within_s))


def limit_silence(limit_ms: int, workers: int) -> None:
    """Set the heartbeat timeout for an all-reduce of this number of workers. Call this before the strategy is created.

    TensorFlow's coordination service ends the job if a worker sends no heartbeat for this time. No public call sets it.
    """
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader="/job:worker/replica:0/task:0",
        heartbeat_timeout_in_ms=limit_ms,
        coordinated_jobs=[coordination_config_pb2.CoordinatedJob(name="worker", num_tasks=workers)],
    )


# TensorFlow's graphs.


def variable_of_process(name: str, shape: Sequence[int], dtype: tf.DType) -> tf.Variable:
    """Return a variable, for use in a graph, that stands for the variable `name` of the process that runs the graph.

    The variable of that process may have no value yet. The public class `tf.Variable` can't replace this function,
    because its variables belong to the process that builds the graph.
    """
    handle = tf.raw_ops.VarHandleOp(dtype=dtype, shape=shape, shared_name=name)
    return resource_variable_ops.BaseResourceVariable(
        trainable=False, shape=tf.TensorShape(shape), dtype=dtype, handle=handle, handle_name=name
    )


@contextlib.contextmanager
def recorded_graphs() -> Iterator[list[Any]]:
    """Record the graphs of all functions that run for the first time inside the block.

    Yield a list that is filled at the end of the block. Each operation in the graphs names the device that runs it. The
    public profiler records the times of operations, but not their devices.
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
    """Mark the operation that computes a tensor of a graph, so that constant folding skips it.

    The mark is a private attribute of the operation. Constant folding skips operations that have this attribute
    (IsConstantFoldable, common_runtime/constant_folding.cc). The public options turn folding off only in Grappler, or
    for the whole process.
    """
    empty = tf.compat.v1.AttrValue(list=tf.compat.v1.AttrValue.ListValue())
    tensor.op._set_attr("_scoped_allocator", empty)


def frozen(graph: tf.types.experimental.ConcreteFunction) -> tf.types.experimental.ConcreteFunction:
    """Return a copy of a concrete function with constants instead of variables. The public function needs a session."""
    return convert_to_constants.convert_variables_to_constants_v2(graph)


# Keras's layers and models.


def layers_of(model: keras.Model) -> list[keras.Layer]:
    """Return the model and all layers in it at any depth. The public `layers` has only the first level."""
    return list(model._flatten_layers())


def own_weights_of(layer: keras.Layer) -> list[keras.Variable]:
    """Return the variables that a layer itself has created as trainable, even if the layer is frozen now.

    The public attribute `trainable_variables` of a frozen layer is empty.
    """
    return list(layer._trainable_variables)


def seed_generators_of(layer: keras.Layer) -> list[keras.random.SeedGenerator]:
    """Return the seed generators of a layer. The public API has only their states, among all other variables."""
    return list(layer._seed_generators)


def has_training_argument(model: keras.Model) -> bool:
    """Return whether a model's `call` has an argument `training`. Keras wraps `call`, which hides its signature."""
    return bool(model._call_has_training_arg)


def origin_of(tensor: keras.KerasTensor) -> tuple[keras.Operation, list[keras.KerasTensor]]:
    """Return the layer or operation that made a symbolic tensor, and the inputs of that call.

    The public `input` of a layer has only the inputs of its first call.
    """
    history = tensor._keras_history
    return history.operation, history.operation._inbound_nodes[history.node_index].input_tensors


def functional_of(model: keras.Sequential) -> keras.Model | None:
    """Return the functional model that a Sequential builds and calls; None if the Sequential is not built."""
    return model._functional


def calls_of(graph: keras.Model | None) -> list[LayerCall] | None:
    """Return the nodes (calls of layers) of a functional model, beginning at its inputs; None for any other model.

    The public `layers` lists a layer once, however often it is called.
    """
    by_depth = getattr(graph, "_nodes_by_depth", None)
    return None if by_depth is None else [node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth]]


# Keras's compile(). The public methods compute losses and metrics with variables of this process.


def compiled_loss_of(model: keras.Model) -> KerasLosses | None:
    """Return one object with all losses of a compiled model; None if it has no loss."""
    found: KerasLosses | None = model._compile_loss
    return found


def compiled_metrics_of(model: keras.Model) -> KerasMetrics | None:
    """Return one object with all metrics of a compiled model; None if it has no metrics."""
    found: KerasMetrics | None = model._compile_metrics
    return found


class GivenToCompile(NamedTuple):
    """The losses and metrics that `compile` got: names, functions and objects in nested lists and dictionaries."""

    losses: list[Any]
    metrics: list[Any]


def given_to_compile(model: keras.Model) -> GivenToCompile:
    """Return the losses and metrics as they were passed to `compile`. The public API has only their names."""
    loss, metrics = model._compile_loss, model._compile_metrics
    losses = [loss._user_loss] if loss is not None else []
    of_metrics = [metrics._user_metrics, metrics._user_weighted_metrics] if metrics is not None else []
    return GivenToCompile(losses, [one for one in of_metrics if one is not None])


def copy_compiled(model: keras.Model, to: keras.Model) -> None:
    """Copy the loss, metrics and optimizer of one model to another, so that both share these objects.

    `compile` would create new objects for the loss and the metrics. A plain assignment would make Keras track the
    copied objects as parts of `to`.
    """
    for name in ("_compile_loss", "_compile_metrics", "optimizer"):
        object.__setattr__(to, name, getattr(model, name, None))


def losses_of(compiled: KerasLosses) -> list[OutputLoss]:
    """Return the loss of each output that has a loss. `compiled` must be built."""
    return compiled._flat_losses


def metrics_of(compiled: Any, outputs: Any) -> Iterator[tuple[keras.Metric, tf.Tensor]]:
    """Yield each metric with the output to which it applies. `compiled` must be built."""
    flat = compiled._flatten_y(outputs)
    for of_outputs in (compiled._flat_metrics, compiled._flat_weighted_metrics):
        for of_one, output in zip(of_outputs, flat, strict=True):
            for metric in of_one.metrics if of_one else ():
                yield metric, output


def mode_of_metric(metric: keras.Metric) -> Literal["max", "min"] | None:
    """Return "max" if larger values of a metric are better, "min" if smaller ones are; None if this is unknown.

    Keras's EarlyStopping decides in the same way.
    """
    modes: dict[str | None, Literal["max", "min"]] = {"up": "max", "down": "min"}
    return modes.get(getattr(metric, "_direction", None))


def wrapped_function_of(loss_or_metric: keras.Loss | keras.Metric | Callable[..., Any]) -> Callable[..., Any] | None:
    """Return the function that a loss or metric wraps; None if it wraps none, or is a function itself.

    The attribute in which a metric keeps this function is private.
    """
    return getattr(loss_or_metric, "fn", getattr(loss_or_metric, "_fn", None))


# Attributes of an optimizer that hold its state, or that follow from its configuration.
_STATE_ATTRIBUTES = {
    "built", "name", "_lock", "_variables", "_trainable_variables", "_trainable_variables_indices", "_tracker", "_iterations",
    "_learning_rate", "_momentums", "momentums", "_velocities", "_velocity_hats", "_average_gradients",
    "_accumulators", "_linears", "_exclude_from_weight_decay_cache", "_distribution_strategy",
}  # fmt: skip


def attributes_outside_config(optimizer: keras.Optimizer) -> list[str]:
    """Return the names of an optimizer's attributes that have an effect but are missing from `get_config`.

    Examples are the list of variables without weight decay, and an `update_step` that replaced the original one.
    """
    plain = vars(type(optimizer).from_config(optimizer.get_config()))
    return [
        name
        for name, value in vars(optimizer).items()
        if name not in _STATE_ATTRIBUTES
        and not name.startswith("_self_")
        and (value if name not in plain else value != plain[name])
    ]


NOTES = ("_keras_logits", "_keras_mask")


def notes_of(output: tf.Tensor) -> list[tf.Tensor | None]:
    """Return the two attributes that Keras may have set on an output tensor (`NOTES`): its logits and its mask.

    The logits are the tensor from which softmax or sigmoid computed the output. An attribute that is not set is None.
    Keras's losses look for both attributes, use the logits instead of the output, and skip masked values.
    """
    return [getattr(output, name, None) for name in NOTES]


def with_notes(output: tf.Tensor, notes: Sequence[tf.Tensor | None]) -> tf.Tensor:
    """Set the logits and the mask that `notes_of` returned as attributes of an output, and return the output.

    Keras's losses look for them there. The names of the attributes are in `NOTES`.
    """
    for name, note in zip(NOTES, notes, strict=True):
        if note is not None:
            setattr(output, name, note)
    return output


# The attributes of the private objects that the functions above return.


class LayerCall(Protocol):
    """A call of a layer or of another operation in a functional model."""

    operation: keras.Operation
    is_input: bool  # whether this is an input of the model instead of a call
    input_tensors: list[keras.KerasTensor]
    output_tensors: list[keras.KerasTensor]


class OutputLoss(Protocol):
    """The loss of one output, as it was passed to `compile`."""

    path: tuple[int | str, ...]  # the keys and indices that lead to the output in the structure of all outputs
    loss: keras.Loss
    loss_weights: float | None


class CompiledPart(Protocol):
    """All losses, or all metrics, of a compiled model."""

    built: bool  # whether the losses or metrics have been matched to the outputs

    def build(self, targets: object, outputs: object, /) -> None:
        """Match the losses or metrics to the outputs. Both arguments are tensors in the structure of the outputs."""


class KerasLosses(CompiledPart, Protocol):
    """All losses of a compiled model."""

    _flat_losses: list[OutputLoss]


class KerasMetrics(CompiledPart, Protocol):
    """All metrics of a compiled model."""

    metrics: list[keras.Metric]

    def result(self) -> dict[str, tf.Tensor]:
        """Return the values of all metrics, by name, in the order of `metrics`."""

    def reset_state(self) -> None:
        """Reset all metrics, so that earlier examples no longer count."""
