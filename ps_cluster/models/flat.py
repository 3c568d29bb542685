"""Lay out the variables of a network in one flat vector, and run a network as a pure function of such vectors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod
from typing import NamedTuple, TypeVar

import keras
import numpy as np
import tensorflow as tf

from ps_cluster.config.equations import Matrix
from ps_cluster.config.objectives import ExampleSpec
from ps_cluster.models.dynamic_embedding import DynamicEmbedding
from ps_cluster.models.embedding_tables import NO_TABLES, LookUp, TableCall, Tables
from ps_cluster.models.fused_layers import with_fused_layers
from ps_cluster.models.lookups import constant_tables
from ps_cluster.models.pure import Outputs, PureScope, seed_states, seeds_of
from ps_cluster.models.rows import NO_ROWS, Rows
from ps_cluster.private_names import has_training_argument, layers_of, notes_of, own_weights_of, with_notes

Input = TypeVar("Input")
ATTENTION_INPUTS = ("query/kernel", "key/kernel", "value/kernel")  # ends of paths in Keras's attention layers


@dataclass(frozen=True)
class FlatLayout:
    """The layout of a flat vector: the paths and shapes of the variables whose values the vector holds end to end."""

    paths: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, variables: Sequence[keras.Variable]) -> FlatLayout:
        return cls(tuple(v.path for v in variables), tuple(tuple(v.shape) for v in variables))

    @property
    def lines(self) -> list[str]:
        """A line for each variable with its path and shape, e.g. "sequential/dense/kernel [512, 10]"."""
        return [f"{path} {list(shape)}" for path, shape in zip(self.paths, self.shapes, strict=True)]

    @property
    def sizes(self) -> list[int]:
        return [prod(shape) for shape in self.shapes]

    @property
    def length(self) -> int:
        return sum(self.sizes)

    def split(self, vector: tf.Tensor) -> list[tf.Tensor]:
        """Split `vector [length]` into a tensor for each variable, in the variable's shape and the vector's dtype."""
        if not self.shapes:
            return []
        return [tf.reshape(part, shape) for part, shape in zip(tf.split(vector, self.sizes), self.shapes)]

    def join(self, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
        """Join a tensor for each variable into one vector, float32 [length]. This is the reverse of `split`."""
        if not tensors:
            return tf.zeros([0])
        return tf.concat([tf.reshape(tf.cast(t, tf.float32), [-1]) for t in tensors], axis=0)

    def factors(self, rules: Iterable[tuple[str, float]]) -> np.ndarray:
        """Return the factor of each weight, e.g. for its learning rate, float32 [length].

        `rules` are pairs of a pattern and a factor. A weight gets the factor of the first pattern that matches the path
        of its variable, or 1 if none matches. A pattern may match any part of the path, and may contain the wildcards
        `?` and `*`.
        """
        rules = [(f"*{pattern}*", factor) for pattern, factor in rules]
        chosen = [next((factor for glob, factor in rules if fnmatchcase(path, glob)), 1.0) for path in self.paths]
        return np.repeat(np.array(chosen, np.float32), self.sizes)

    def matrices(self, patterns: Sequence[str]) -> list[Matrix]:
        """Return the positions of the variables that have two axes or more and whose paths contain one of the patterns.

        Each variable is described as a matrix. The matrix has a column for each index of the variable's last axis
        (units or filters), and a row for each combination of the other indices. The kernels of queries, keys and values
        in Keras's attention, [inputs, heads, units of a head], have a row for each index of the first axis instead.
        """
        begins = np.cumsum([0, *self.sizes])
        return [
            Matrix(
                int(begin),
                rows := shape[0] if path.endswith(ATTENTION_INPUTS) else prod(shape[:-1]),
                prod(shape) // rows,
            )
            for begin, path, shape in zip(begins, self.paths, self.shapes)
            if len(shape) > 1 and contains_pattern(path, patterns)
        ]


def contains_pattern(path: str, patterns: Iterable[str]) -> bool:
    """Return whether a variable's path contains one of the patterns. `*`: any characters, `?`: one character."""
    return any(fnmatchcase(path, f"*{pattern}*") for pattern in patterns)


def statistics_of(model: keras.Model) -> list[keras.Variable]:
    """Return the non-trainable float variables: moving statistics, frozen weights, state of a user's own layers."""
    return [v for v in model.non_trainable_variables if v.dtype == "float32"]


def kept_shares(model: keras.Model) -> np.ndarray:
    """Return the share of each statistic's old value that a batch in training mode keeps, float32 [m].

    The statistics are the variables that `statistics_of` returns. The share is the layer's momentum for the moving mean
    and variance of a BatchNormalization, and 1 for a frozen weight. The share of any other variable is 0, so the
    variable takes the newest value that a step has computed.
    """
    layers = layers_of(model)
    shares = {
        id(variable): layer.momentum
        for layer in layers
        if isinstance(layer, keras.layers.BatchNormalization)
        for variable in (layer.moving_mean, layer.moving_variance)
    }
    frozen = [layer for layer in layers if not layer.trainable]
    shares |= {id(variable): 1.0 for layer in frozen for variable in layer.variables}
    shares |= {id(variable): 1.0 for layer in layers for variable in own_weights_of(layer)}
    statistics = statistics_of(model)
    found = np.array([shares.get(id(variable), 0.0) for variable in statistics], np.float32)
    return np.repeat(found, FlatLayout.of(statistics).sizes)


def flatten(variables: Sequence[keras.Variable]) -> np.ndarray:
    """Return the values of the variables, end to end, as one vector, float32 [sum of sizes]."""
    return np.concatenate([np.zeros(0, np.float32), *(np.asarray(v.value).ravel() for v in variables)])


def assign(model: keras.Model, weights: np.ndarray, statistics: np.ndarray, keyed: np.ndarray | None = None) -> None:
    """Copy flat vectors into a model's variables. Raises ValueError if the length of a vector does not fit the model.

    `weights`: the values of the trainable variables. `statistics`: the values of the variables that `statistics_of`
    returns. `keyed`: int64, the state of the dynamic embedding tables in a checkpoint (server/keyed_tables.py); None
    without such tables.
    """
    for variables, vector, what in (
        (model.trainable_variables, weights, "weights"),
        (statistics_of(model), statistics, "statistics"),
    ):
        layout = FlatLayout.of(variables)
        if vector.shape != (layout.length,):
            raise ValueError(f"{model.name} has {layout.length:,} {what}, but {vector.size:,} were given")
        for variable, part in zip(variables, np.split(vector, np.cumsum(layout.sizes)[:-1]) if variables else ()):
            variable.assign(part.reshape(variable.shape))
    layers = [layer for layer in layers_of(model) if isinstance(layer, DynamicEmbedding) and layer.trainable]
    ends = np.cumsum([layer.layout.state_size for layer in layers])
    if (0 if keyed is None else keyed.size) != (ends[-1] if layers else 0):
        raise ValueError(
            f"the checkpoint's state of the dynamic embedding tables does not fit {model.name}: their sizes differ"
        )
    for layer, part in zip(layers, np.split(keyed, ends[:-1]) if keyed is not None else ()):
        layer.keys.assign(part.reshape(layer.layout.buckets, -1)[:, : layer.layout.ways].ravel())


def as_arguments(inputs: Mapping[str, Input]) -> Input | dict[str, Input]:
    """Return inputs as a Keras model takes them: a single input as a tensor, several inputs as a dictionary."""
    return next(iter(inputs.values())) if len(inputs) == 1 else dict(inputs)


def input_signature(spec: ExampleSpec, batch_size: int | None = None) -> dict[str, tf.TensorSpec]:
    """Return the shape and dtype of each input of a network, by name. If `batch_size` is None, any size is allowed."""
    return {name: tf.TensorSpec([batch_size, *field.shape], field.network_dtype) for name, field in spec.inputs.items()}


class Arguments(NamedTuple):
    """The arguments of a forward pass. The result of the forward pass depends on nothing else."""

    values: Sequence[tf.Tensor]  # the values of the trainable variables that are not tables, in any float dtype
    statistics: tf.Tensor  # float32 [m]
    inputs: Mapping[str, tf.Tensor]  # name → raw examples [B, ...]
    # int32 [2], the random state of dropout and the like. Keras would keep it in a variable of the layer, which depends
    # on the steps that the process ran before. As an argument, it depends only on the step id.
    random_state: tf.Tensor


class Forward(NamedTuple):
    """The result of a forward pass in training mode."""

    outputs: Outputs  # of a whole network: float32 [B, outputs], or several such tensors
    fresh: tf.Tensor  # float32 [m], the new statistics minus `keep` times the given statistics
    losses: list[tf.Tensor]  # [] each: the losses of regularisers, and those that layers have added


class FlatNetwork:
    """A Keras model as a pure function of flat vectors. The variables of the model are never read or written.

    A batch changes the statistics s to `keep` * s + fresh, elementwise. The fresh part depends only on the batch, so
    it can be applied to statistics other than those that were passed to the step. The variables of embedding tables
    are not part of the vector of weights, because a step gets only the rows that it needs.
    """

    def __init__(
        self, model: keras.Model, *, tables: Tables = NO_TABLES, seeds_before: int = 0, to_float32: bool = True
    ):
        """Lay out the variables of the model in flat vectors.

        Args:
          tables: the embedding tables of the model, whose variables are left out of the vectors.
          seeds_before: if the model is a part of a network, the number of random states in the parts before it.
          to_float32: convert outputs to float32. Otherwise they keep the dtype of the layers.
        """
        self.model = model
        self._seeds_before = seeds_before
        self._to_float32 = to_float32
        self._computing = with_fused_layers(model)
        self.tables = tables
        self.variables = [v for v in model.trainable_variables if not tables.is_table(v)]
        self.weights = FlatLayout.of(self.variables)  # [n]
        self.all_weights = FlatLayout.of(model.trainable_variables)  # the layout in a checkpoint
        self._trained = [v for v in self._computing.trainable_variables if not tables.is_table(v)]
        self.statistics = FlatLayout.of(statistics_of(model))  # [m]
        self.keep = kept_shares(model)  # [m]. Until `count_calls`, it assumes that a step calls each layer once
        self._seeds = seeds_of(self._computing)
        self._statistics = statistics_of(self._computing)
        varying = {id(variable) for variable in (*self._seeds, *self._statistics)}
        self._constants = [
            (variable, keras.ops.convert_to_numpy(own))
            for variable, own in zip(self._computing.non_trainable_variables, model.non_trainable_variables)
            if id(variable) not in varying
        ]

    def graph(self, spec: ExampleSpec, batch_size: int | None = None) -> tf.types.experimental.ConcreteFunction:
        """Return a graph that computes the `Forward` of a step. `batch_size`: None allows any size."""
        return self._traced(spec, batch_size)[0]

    def count_calls(self, spec: ExampleSpec) -> None:
        """Count how often a step calls each layer, and set `keep` accordingly. Call this before the first step.

        A layer that is called n times in a step updates its statistics n times. The share of the old statistics that a
        step keeps is then the n-th power of the layer's momentum.
        """
        calls = np.array(self._traced(spec)[1], np.float32)
        self.keep = kept_shares(self.model) ** np.repeat(calls, self.statistics.sizes)

    @property
    def has_changing_statistics(self) -> bool:
        """True if a batch may change a statistic. This answer is exact only after `count_calls`."""
        return bool(np.any(self.keep < 1))

    def _traced(
        self, spec: ExampleSpec, batch_size: int | None = None
    ) -> tuple[tf.types.experimental.ConcreteFunction, list[int]]:
        """Return the graph of a step's forward pass, and how often it assigns each statistic."""
        vectors = tf.TensorSpec([self.weights.length]), tf.TensorSpec([self.statistics.length])
        any_rows, counts = self.tables.recording([]), list[int]()

        @tf.function(autograph=False)
        def forward(
            weights: tf.Tensor, statistics: tf.Tensor, inputs: Mapping[str, tf.Tensor], random_state: tf.Tensor
        ) -> Forward:
            given = Arguments(self.weights.split(weights), statistics, inputs, random_state)
            passed, counts[:] = self.run(given, any_rows)
            return passed

        inputs = input_signature(spec, batch_size)
        return forward.get_concrete_function(*vectors, inputs, tf.TensorSpec([2], tf.int32)), counts

    def forward(
        self,
        weights: tf.Tensor,
        statistics: tf.Tensor,
        inputs: Mapping[str, tf.Tensor],
        random_state: tf.Tensor,
        rows: Rows = NO_ROWS,
    ) -> Forward:
        """Run the forward pass in training mode, as a function of its arguments. Raises ValueError like `run`.

        Args:
          weights: the n weights, in any float dtype. If there are tables, the values of the rows that the step needs
            follow in the same vector, one group of tables after the other.
          statistics, inputs, random_state: as in `Arguments`.
          rows: which rows follow the weights, as `table_rows_of` returns them.
        """
        dense, *of_groups = self.split_rows(weights, rows)
        given = Arguments(self.weights.split(dense), statistics, inputs, random_state)
        passed, _ = self.run(given, self.tables.lookup_from(of_groups, rows))
        return passed

    def run(self, given: Arguments, look_up: LookUp) -> tuple[Forward, list[int]]:
        """Run the forward pass in training mode. Return its result, and how often it has assigned each statistic.

        `look_up` is called instead of the tables' layers. Raises ValueError if the forward pass reads a variable that
        has no value in `given` and is not a constant of the model. Also raises ValueError if the pass changes a
        variable that is neither a statistic nor the state of a random generator (`PureScope.check`).
        """
        scope, outputs, losses = self._run_in_scope(given, look_up)
        scope.check(self._computing, [*self._statistics, *self._seeds])
        if self._to_float32:
            outputs = keras.tree.map_structure(_in_float32, outputs)
        after = self.statistics.join([scope.after(variable) for variable in self._statistics])
        counts = [scope.times(variable) for variable in self._statistics]
        return Forward(outputs, after - self.keep * given.statistics, losses), counts

    def split_rows(self, vector: tf.Tensor, rows: Rows) -> list[tf.Tensor]:
        """Split a vector into the weights, [n], and the rows of each group of tables, [u, width], that follow them."""
        if not self.tables:
            return [vector]
        sizes = [tf.size(ids) * width for ids, width in zip(rows.ids, self.tables.widths, strict=True)]
        dense, *parts = tf.split(vector, tf.stack([tf.constant(self.weights.length), *sizes]), num=1 + len(sizes))
        shaped = [tf.reshape(part, [-1, width]) for part, width in zip(parts, self.tables.widths)]
        return [tf.ensure_shape(dense, [self.weights.length]), *shaped]

    def table_rows_of(self, inputs: Mapping[str, tf.Tensor], random_state: tf.Tensor, servers: int) -> Rows:
        """Return the rows that a step with these inputs looks up, sorted by parameter server.

        The arguments are as for `forward`; `servers` is the number of parameter servers. The forward pass is traced
        with zeros as weights. TensorFlow then removes from the graph everything that is not needed for the row ids.
        """
        if not self.tables:
            return NO_ROWS
        weights, statistics = tf.zeros([self.weights.length]), tf.zeros([self.statistics.length])
        given = Arguments(self.weights.split(weights), statistics, inputs, random_state)
        calls, _ = self.calls(given, tf.constant(0.0))
        return self.tables.table_rows_of(calls, servers)

    def calls(self, given: Arguments, value: tf.Tensor) -> tuple[list[TableCall], list[keras.Variable]]:
        """Run a forward pass. Return its calls of embedding tables, in order, and the unknown variables that it reads.

        A variable is unknown if it has no value in `given`, and is not a constant of the model. `value`: a scalar. The
        rows of the tables are not known here, so each of their numbers is replaced by this value.
        """
        calls: list[TableCall] = []
        scope, *_ = self._run_in_scope(given, self.tables.recording(calls, value))
        return calls, scope.unknown

    def _run_in_scope(self, given: Arguments, look_up: LookUp) -> tuple[PureScope, Outputs, list[tf.Tensor]]:
        """Run the forward pass in a scope; return the scope, the outputs, and the losses of layers."""
        model = self._computing
        states = seed_states(given.random_state, self._seeds_before + len(self._seeds))
        values = [
            *zip(self._trained, given.values),
            *zip(self._statistics, self.statistics.split(given.statistics)),
            *zip(self._seeds, states[self._seeds_before :]),
            *self._constants,
        ]
        with self.tables.replaced(look_up), PureScope(values, collect_losses=True) as scope, constant_tables(model):
            # As in Keras's `fit`: if `call` has no argument `training`, dropout and the like do nothing.
            training = {"training": True} if has_training_argument(model) else {}
            outputs = model(as_arguments(given.inputs), **training)
            losses = [tf.reduce_sum(tf.cast(loss, tf.float32)) for loss in model.losses]
        return scope, outputs, losses


def _in_float32(output: tf.Tensor) -> tf.Tensor:
    """Return an output of a network in float32, with the mask that Keras may have attached to it.

    Keras may also have attached logits, from which softmax or sigmoid computed the output. If the output has to be
    cast, these logits are dropped. Keras's losses do the same when they cast an output.
    """
    _, mask = notes_of(output)
    return output if output.dtype == tf.float32 else with_notes(tf.cast(output, tf.float32), [None, mask])
