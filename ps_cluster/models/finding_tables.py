"""Find out which embeddings of a network can be tables, whose rows are pulled and pushed individually.

Each step pulls the rows of its batch, so the ids of the batch have to be known before the weights are pulled.
Therefore nothing between the inputs of the network and the embedding layer may depend on weights. The graph of a
forward pass shows whether anything does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import keras
import tensorflow as tf

from ps_cluster.config.objectives import ExampleSpec
from ps_cluster.errors import UserError
from ps_cluster.models.dynamic_embedding import DynamicEmbedding
from ps_cluster.models.embedding_tables import NO_TABLES, TableCall, TableLayer, Tables
from ps_cluster.models.flat import Arguments, FlatNetwork, contains_pattern, input_signature
from ps_cluster.notices import Notify, ignore
from ps_cluster.private_names import layers_of


def find_tables(
    model: keras.Model,
    spec: ExampleSpec,
    *,
    rows_from: int,
    against: str | None = None,
    matrices: Sequence[str] = (),
    notify: Notify = ignore,
) -> Tables:
    """Return the tables of a network: the embedding layers whose rows are pulled and pushed individually.

    A trained `Embedding` layer becomes a table if it has at least `rows_from` rows, and if the ids that it looks up do
    not depend on weights. A trained `DynamicEmbedding` has to be a table. Raises UserError if it can't be one.

    Args:
      against: the reason why no embedding of this run can be a table; None if there is no such reason.
      matrices: patterns for the paths of the variables that the optimizer rule needs as whole matrices.
      notify: called with a line for each large embedding that can't be a table. The line gives the reason.
    """
    found = []
    for layer in layers_of(model):
        if isinstance(layer, DynamicEmbedding) and layer.trainable:
            if reason := against or _why_whole(layer, matrices):
                raise _untrainable(layer, reason)
            found.append(layer)
        elif type(layer) is keras.layers.Embedding and layer.input_dim >= rows_from and layer.trainable:
            if reason := against or _why_unfit(layer) or _why_whole(layer, matrices):
                notify(f"the Embedding '{layer.name}' is pulled and pushed with all its rows: {reason}")
            else:
                found.append(layer)
    while found:
        tables = Tables(found)
        reasons = _unfit_tables(FlatNetwork(model, tables=tables), spec)
        if not reasons:
            return tables
        for layer, reason in reasons:
            if isinstance(layer, DynamicEmbedding):
                raise _untrainable(layer, reason)
            notify(f"the Embedding '{layer.name}' is pulled and pushed with all its rows: {reason}")
        refused = {id(layer) for layer, _ in reasons}
        found = [layer for layer in found if id(layer) not in refused]
    return NO_TABLES


def _untrainable(layer: DynamicEmbedding, reason: str) -> UserError:
    return UserError(f"model.name: its DynamicEmbedding '{layer.name}' can't be trained: {reason}")


def _why_whole(layer: TableLayer, matrices: Sequence[str]) -> str:
    """Return why the optimizer rule needs all rows of a layer, or "" if it does not. `matrices`: as in `find_tables`."""
    if contains_pattern(layer.embeddings.path, matrices):
        return "optimizer.matrices names it, and an orthogonal step needs all rows"
    return ""


def _why_unfit(layer: keras.layers.Embedding) -> str:
    """Return why the settings of an embedding layer prevent it from being a table, or "" if they do not."""
    if layer.embeddings_regularizer is not None or layer.activity_regularizer is not None:
        return "it has a regulariser, which needs all rows"
    if layer.lora_enabled or layer.quantization_mode is not None:
        return "it has LoRA weights or is quantized"
    return ""


def _unfit_tables(network: FlatNetwork, spec: ExampleSpec) -> list[tuple[TableLayer, str]]:
    """Return the layers among `network.tables` that can't be tables after all, each with the reason."""
    vectors = tf.TensorSpec([network.weights.length]), tf.TensorSpec([network.statistics.length])
    calls, unread, given = list[TableCall](), list[keras.Variable](), list[tf.Tensor]()

    @tf.function(autograph=False)
    def forward(inputs: Mapping[str, tf.Tensor], *values: tf.Tensor) -> None:
        weights, statistics, value = values
        arguments = Arguments(network.weights.split(weights), statistics, inputs, tf.constant([0, 0]))
        found, unknown = network.calls(arguments, value)
        calls.extend(found)
        unread.extend(unknown)
        given.extend(values)

    signature = input_signature(spec), *vectors, tf.TensorSpec([])  # the last spec: `value` of `FlatNetwork.calls`
    graph = forward.get_concrete_function(*signature).graph
    reasons = []
    for table in network.tables.tables:
        ids = [call.ids for call in calls if call.table is table]
        if any(table.layer.embeddings is variable for variable in unread):
            reasons.append((table.layer, "another part of the network reads its weights too"))
        elif not ids:
            reasons.append((table.layer, "the network never calls it"))
        elif any(of_call.graph is not graph for of_call in ids):
            reasons.append((table.layer, "it is called within a loop or a condition"))
        elif any(_comes_from(of_call, given) for of_call in ids):
            reasons.append((table.layer, "its ids depend on weights, so they are not known before the pull"))
    return reasons


def _comes_from(tensor: tf.Tensor, sources: Sequence[tf.Tensor]) -> bool:
    """Return whether a tensor of a graph is computed from one of `sources`."""
    wanted = {source.op.name for source in sources}
    waiting, seen = [tensor.op], set()
    while waiting:
        operation = waiting.pop()
        if operation.name in wanted:
            return True
        if operation.name not in seen:
            seen.add(operation.name)
            waiting += [one.op for one in operation.inputs] + list(operation.control_inputs)
    return False
