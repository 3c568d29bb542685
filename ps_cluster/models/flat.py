"""Lay out the variables of a network in one flat vector, and run a network as a pure function of such vectors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from math import prod
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from ps_cluster.config.objectives import ExampleSpec
from ps_cluster.private_names import (
    layers_of,
    notes_of,
    own_weights_of,
    seed_generators_of,
    takes_training,
    with_notes,
)


@dataclass(frozen=True)
class FlatLayout:
    """The paths and shapes of variables that lie end to end, in order."""

    paths: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, variables: Sequence[keras.Variable]) -> FlatLayout:
        return cls(tuple(v.path for v in variables), tuple(tuple(v.shape) for v in variables))

    @property
    def lines(self) -> list[str]:
        """Path and shape of each variable, e.g. "sequential/dense/kernel [512, 10]"."""
        return [f"{path} {list(shape)}" for path, shape in zip(self.paths, self.shapes, strict=True)]

    @property
    def sizes(self) -> list[int]:
        return [prod(shape) for shape in self.shapes]

    @property
    def length(self) -> int:
        return sum(self.sizes)

    def split(self, vector: tf.Tensor) -> list[tf.Tensor]:
        """Return the variables' tensors from `vector [length]`, in its dtype."""
        if not self.shapes:
            return []
        return [tf.reshape(part, shape) for part, shape in zip(tf.split(vector, self.sizes), self.shapes)]

    def join(self, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
        """Return float32 [length]: the reverse of `split`."""
        if not tensors:
            return tf.zeros([0])
        return tf.concat([tf.reshape(tf.cast(t, tf.float32), [-1]) for t in tensors], axis=0)

    def factors(self, rules: Iterable[tuple[str, float]]) -> np.ndarray:
        """Return float32 [length]: for each weight the factor of the first pattern in its variable's path, else 1.

        In a pattern, `?` is any character and `*` any number of them.
        """
        rules = [(f"*{pattern}*", factor) for pattern, factor in rules]
        chosen = [next((factor for glob, factor in rules if fnmatchcase(path, glob)), 1.0) for path in self.paths]
        return np.repeat(np.array(chosen, np.float32), self.sizes)

    def matrices(self, patterns: Sequence[str]) -> list[tuple[int, int, int]]:
        """Return begin, rows and columns of each variable of two axes or more whose path has one of the patterns.

        Its last axis, of units or filters, is that of the columns.
        """
        begins = np.cumsum([0, *self.sizes])
        return [
            (int(begin), prod(shape[:-1]), shape[-1])
            for begin, path, shape in zip(begins, self.paths, self.shapes)
            if len(shape) > 1 and any(fnmatchcase(path, f"*{pattern}*") for pattern in patterns)
        ]


def statistics_of(model: keras.Model) -> list[keras.Variable]:
    """Return the non-trainable float variables: moving statistics, frozen weights, state of a user's own layers."""
    return [v for v in model.non_trainable_variables if v.dtype == "float32"]


def kept_shares(model: keras.Model) -> np.ndarray:
    """Return float32 [m]: the share of each statistic's old value that a batch in training mode keeps.

    That is the layer's momentum for moving mean and variance of a BatchNormalization, and 1 for a frozen weight. Of any
    other variable the newest value that a step has computed is taken whole: its share is 0, which is stable.
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
    """Return float32 [sum of sizes]: the values of the variables, end to end."""
    return np.concatenate([np.zeros(0, np.float32), *(np.asarray(v.value).ravel() for v in variables)])


def assign(model: keras.Model, weights: np.ndarray, statistics: np.ndarray) -> None:
    """Copy flat vectors into a model's variables.

    Raises:
      ValueError: a vector's length is not that of the model's variables.
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


def as_arguments(inputs: Mapping[str, Any]) -> Any:
    """Return inputs as a Keras model takes them: a single one by itself, several by name."""
    return next(iter(inputs.values())) if len(inputs) == 1 else dict(inputs)


class Forward(NamedTuple):
    """The result of a forward pass in training mode."""

    outputs: Any  # float32 [B, outputs] of a whole network, or a list or dictionary of such, as the model has them
    fresh: tf.Tensor  # float32 [m], the new statistics less `keep` times those given
    losses: list[tf.Tensor]  # [] each: of regularisers, and what layers have added


class FlatNetwork:
    """A Keras model as a pure function of flat vectors. Its own variables are never read or written.

    A batch changes the statistics s to `keep` * s + fresh, elementwise. The fresh part depends on the batch alone, so
    it can be applied to other statistics than those that the step was given.

    Attributes:
      model: the model that it was made of.
      keep: float32 [m], see `kept_shares`. Only `trace` knows of a layer that is called several times a step.
    """

    def __init__(self, model: keras.Model, *, seeds_before: int = 0, to_float32: bool = True):
        """Lay out the variables.

        Args:
          seeds_before: how many random states the layers before have, where this is a part of a network.
          to_float32: return outputs in float32, else as the layers do.
        """
        self.model = model
        self._seeds_before = seeds_before
        self._to_float32 = to_float32
        self._computing = with_fused_layers(model)
        self.weights = FlatLayout.of(model.trainable_variables)
        self.statistics = FlatLayout.of(statistics_of(model))
        self.keep = kept_shares(model)
        self._seeds = seeds_of(self._computing)
        self._statistics = statistics_of(self._computing)
        self._calls = [1] * len(self._statistics)
        varying = {id(variable) for variable in (*self._seeds, *self._statistics)}
        self._constants = [
            (variable, keras.ops.convert_to_numpy(own))
            for variable, own in zip(self._computing.non_trainable_variables, model.non_trainable_variables)
            if id(variable) not in varying
        ]

    def trace(self, spec: ExampleSpec, batch_size: int | None = None) -> Any:
        """Return the graph of a step's forward pass, a `Forward`. Take into `keep` how often it moves each statistic.

        A layer that is called n times moves its statistics n times, so that they keep the n-th power of its momentum.

        Args:
          batch_size: the number of examples; None leaves it open.
        """
        inputs = {
            name: tf.TensorSpec([batch_size, *field.shape], field.network_dtype) for name, field in spec.inputs.items()
        }
        vectors = tf.TensorSpec([self.weights.length]), tf.TensorSpec([self.statistics.length])
        forward = tf.function(self.forward, autograph=False)
        graph = forward.get_concrete_function(*vectors, inputs, tf.TensorSpec([2], tf.int32))
        self.keep = kept_shares(self.model) ** np.repeat(np.array(self._calls, np.float32), self.statistics.sizes)
        return graph

    @property
    def has_moving_statistics(self) -> bool:
        """True if the network keeps moving averages: a batch moves such a statistic only a part of the way."""
        return bool(np.any((self.keep > 0) & (self.keep < 1)))

    def values_of(self, weights: tf.Tensor) -> list[tf.Tensor]:
        """Return the trainable variables' tensors from `weights [n]`, in its dtype."""
        return self.weights.split(weights)

    def forward(
        self, weights: tf.Tensor, statistics: tf.Tensor, inputs: Mapping[str, tf.Tensor], random_state: tf.Tensor
    ) -> Forward:
        """Run the forward pass in training mode.

        Args:
          weights: [n] in any float dtype.
          statistics: float32 [m].
          inputs: name → raw examples [B, ...].
          random_state: int32 [2], seed of dropout and the like. Keras keeps it in a variable of the layer, which would
            depend on who ran which step before; passed in, it can be computed from the step id.
        Raises:
          ValueError: the forward pass is no function of what it is given, see `PureScope`.
        """
        model = self._computing
        states = seed_states(random_state, self._seeds_before + len(self._seeds))
        values = [
            *zip(model.trainable_variables, self.values_of(weights)),
            *zip(self._statistics, self.statistics.split(statistics)),
            *zip(self._seeds, states[self._seeds_before :]),
            *self._constants,
        ]
        with PureScope(values, collect_losses=True) as scope:
            # As Keras's `fit`: where `call` has no such argument, dropout and the like do nothing.
            training = {"training": True} if takes_training(model) else {}
            outputs = model(as_arguments(inputs), **training)
            losses = [tf.reduce_sum(tf.cast(loss, tf.float32)) for loss in model.losses]
        scope.check(model)
        self._calls = [scope.times(variable) for variable in self._statistics]
        if self._to_float32:
            outputs = keras.tree.map_structure(_in_float32, outputs)
        after = self.statistics.join([scope.after(variable) for variable in self._statistics])
        return Forward(outputs, after - self.keep * statistics, losses)


def _in_float32(output: tf.Tensor) -> tf.Tensor:
    """Return an output in float32, with its mask. (Of an output in bfloat16 Keras's losses don't take the scores either.)"""
    _, mask = notes_of(output)
    return output if output.dtype == tf.float32 else with_notes(tf.cast(output, tf.float32), [None, mask])


# Run a Keras model as a pure function: with values in place of its variables, and random states of a step.

# Odd, and spread over all bits: neither a layer nor a step draws what its neighbour draws (Knuth, TAOCP 3, 6.4).
_GOLDEN = 0x9E3779B1


def seeds_of(model: keras.Model) -> list[keras.Variable]:
    """Return the state, [2], of each SeedGenerator in a model, once each, in the order of its variables."""
    generators = [generator for layer in layers_of(model) for generator in seed_generators_of(layer)]
    states = {id(generator.state) for generator in generators}
    return [variable for variable in model.non_trainable_variables if id(variable) in states]


def seed_states(random_state: tf.Tensor, count: int) -> list[tf.Tensor]:
    """Return a state, int64 [2], for each of `count` SeedGenerators: another for each, and for each step.

    A generator adds 1 to the second number whenever it is asked again. So steps are set far apart in it.

    Args:
      random_state: int32 [2], the run's seed and the step id.
    """
    if not count:
        return []
    seed, step = tf.unstack(tf.cast(random_state, tf.int64))
    far = step * _GOLDEN % 2**32
    return [tf.stack([seed + index * _GOLDEN, far]) for index in range(count)]


class PureScope(keras.StatelessScope):
    """A scope in which variables have the values given, and which notes what would not be a function of them."""

    def __init__(self, state_mapping: Sequence[tuple[Any, Any]], collect_losses: bool = False):
        super().__init__(state_mapping, collect_losses=collect_losses)
        self._given = dict(self.state_mapping)
        self._unknown: dict[int, keras.Variable] = {}
        self._times: Counter[int] = Counter()

    def add_update(self, update: tuple[keras.Variable, tf.Tensor]) -> None:
        """Take in a variable and its new value."""
        self._times[id(update[0])] += 1
        super().add_update(update)

    def times(self, variable: keras.Variable) -> int:
        """Return how often a variable has been assigned."""
        return self._times[id(variable)]

    def get_current_value(self, variable: keras.Variable) -> tf.Tensor | None:
        """Return the value of a variable. One that was not given has none, and is noted.

        No gradient flows through a value that a layer has assigned, as none flows through an assigned variable.
        """
        value = super().get_current_value(variable)
        if value is None:
            self._unknown[id(variable)] = variable
        elif self._changed(variable):
            value = tf.stop_gradient(value)
        return value

    def after(self, variable: keras.Variable) -> tf.Tensor:
        """Return the last value of a variable."""
        return self.state_mapping[id(variable)]

    def _changed(self, variable: keras.Variable) -> bool:
        return self.state_mapping[id(variable)] is not self._given.get(id(variable))

    def check(self, model: keras.Model) -> None:
        """Raise ValueError, with the variable's name, where the pass in this scope was not a function of its values.

        Raised here and not where it happens, because Keras writes much around an error within a layer.
        """
        for variable in self._unknown.values():
            if "seed_generator" in variable.path:
                raise ValueError(
                    "it draws random numbers without a seed of its own: give the layer a keras.random.SeedGenerator as "
                    "an attribute, and draw with seed=that"
                )
            raise ValueError(f"it uses the variable '{variable.path}', which is not among the model's own variables")
        statistics = {id(v) for v in model.non_trainable_variables if v.dtype == "float32"}
        free = statistics | {id(v) for v in seeds_of(model)}
        for variable in model.variables:
            if id(variable) in free or not self._changed(variable):
                continue
            what = "weight" if variable.trainable else f"{variable.dtype} variable"
            raise ValueError(
                f"its forward pass changes the {what} '{variable.path}', which would be lost between workers: only "
                "float32 variables that are not trainable may change there"
            )


def infer(model: keras.Model, inputs: Any) -> Any:
    """Return the outputs of a model outside of training. Its variables stay as they are.

    Layers that draw random numbers even then draw the same ones for every batch, so a score can be repeated.
    """
    seeds = seeds_of(model)
    own = {id(seed) for seed in seeds}
    values = [(variable, variable.value) for variable in model.variables if id(variable) not in own]
    with PureScope([*values, *zip(seeds, seed_states(tf.constant([0, 0]), len(seeds)))]):
        return model(inputs, training=False)


# Layers that compute the same as Keras's, faster.
#
# Keras 3 builds batch normalisation of single operations in float32; TensorFlow builds GELU and SiLU of single operations
# in the dtype of their input; and oneDNN's bfloat16 kernel for the gradient of a convolution's filters runs at half the
# speed of its others (measured without AMX). On one thread GELU takes 14 in place of 72 ms of a step of airbench.

CHEAP_ACTIVATIONS = ("linear", "relu", "sigmoid", "softmax")  # one operation already
WIDE = 256  # channels; with 64 the copies cost as much as the products gain


def with_fused_layers(model: keras.Model) -> keras.Model:
    """Return a model that computes the same as `model`, to compute with. Save the original: Keras can't load the copy.

    The copy shares all layers that stay as they are. There is no copy where nothing can be fused, or where a class of a
    user's own decides what is computed.
    """
    by_layers_alone = type(model).__module__.startswith("keras.")
    if not by_layers_alone or all(_fused_type(layer) is type(layer) for layer in model.layers):
        return model

    def clone(layer: keras.Layer) -> keras.Layer:
        fused = _fused_type(layer)
        return layer if fused is type(layer) else fused.from_config(layer.get_config())

    copy = keras.models.clone_model(model, clone_function=clone)
    if [variable.path for variable in copy.variables] != [variable.path for variable in model.variables]:
        return model
    for own, other in zip(copy.variables, model.variables, strict=True):
        own.trainable = other.trainable  # a layer's configuration does not have a flag of a single variable
    return copy


def _fused_type(layer: keras.Layer) -> type[keras.Layer]:
    if type(layer) is keras.layers.BatchNormalization:
        return FusedBatchNormalization
    if type(layer) is keras.layers.Activation:
        of_keras = getattr(layer.activation, "__module__", "").startswith("keras.")
        return CompiledActivation if of_keras and layer.activation.__name__ not in CHEAP_ACTIVATIONS else type(layer)
    if type(layer) is keras.layers.Conv2D and _multiplies_better(layer):
        return WideConvolution
    return type(layer)


def _multiplies_better(layer: keras.layers.Conv2D) -> bool:
    plain = layer.padding == "same" and {*layer.strides, *layer.dilation_rate, layer.groups} == {1}
    odd = all(size % 2 for size in layer.kernel_size)
    return plain and odd and layer.compute_dtype == "bfloat16" and layer.kernel.shape[2] >= WIDE


class FusedBatchNormalization(keras.layers.BatchNormalization):
    """`keras.layers.BatchNormalization` over the last axis of images, by TensorFlow's fused kernel."""

    def call(self, inputs: tf.Tensor, training: bool | None = None, mask: tf.Tensor | None = None) -> tf.Tensor:
        """Return `inputs` [B, height, width, channels] normalised, in the layer's compute dtype; others as Keras does."""
        if inputs.shape.rank != 4 or self.axis not in (-1, 3) or self.renorm or mask is not None:
            return super().call(inputs, training=training, mask=mask)
        training = training and self.trainable
        channels = inputs.shape[-1]
        normalised, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
            x=inputs,
            scale=self._value(self.gamma) if self.scale else tf.ones([channels]),
            offset=self._value(self.beta) if self.center else tf.zeros([channels]),
            mean=tf.zeros([0]) if training else self._value(self.moving_mean),
            variance=tf.zeros([0]) if training else self._value(self.moving_variance),
            epsilon=self.epsilon,
            exponential_avg_factor=1.0,
            is_training=bool(training),
        )
        if training:
            values = tf.cast(tf.size(inputs) // channels, tf.float32)
            self._move(self.moving_mean, mean)
            self._move(self.moving_variance, variance * (values - 1) / values)  # the kernel returns a sample variance
        return normalised

    def _value(self, variable: keras.Variable) -> tf.Tensor:
        return tf.cast(tf.convert_to_tensor(variable), tf.float32)

    def _move(self, moving: keras.Variable, seen: tf.Tensor) -> None:
        moving.assign(self.momentum * tf.convert_to_tensor(moving) + (1 - self.momentum) * seen)


class CompiledActivation(keras.layers.Activation):
    """`keras.layers.Activation`, compiled by XLA to one loop forward and one backward, in float32."""

    def __init__(self, activation: Callable[..., Any], **options: Any):
        super().__init__(activation, **options)
        self._compiled = compiled(self.activation)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return the activation of `inputs`, of any shape, in the layer's compute dtype."""
        return self._compiled(inputs)


@cache  # layers of equal shape share the compiled code
def compiled(function: Callable[[tf.Tensor], tf.Tensor]) -> Callable[[tf.Tensor], tf.Tensor]:
    """Return an elementwise `function` with its forward and its backward pass each compiled into one loop."""

    def in_float32(x: tf.Tensor) -> tf.Tensor:
        return tf.cast(function(tf.cast(x, tf.float32)), x.dtype)

    @tf.function(jit_compile=True, autograph=False)
    def backward(x: tf.Tensor, upstream: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = in_float32(x)
        return tape.gradient(y, x, upstream)

    forward = tf.function(in_float32, jit_compile=True, autograph=False)

    @tf.custom_gradient
    def both(x: tf.Tensor) -> tuple[tf.Tensor, Callable[..., Any]]:
        return forward(x), lambda upstream: backward(x, upstream)

    of_both: Callable[[tf.Tensor], tf.Tensor] = both
    return of_both


class WideConvolution(keras.layers.Conv2D):
    """`keras.layers.Conv2D` with stride 1 and "same" padding, whose kernel gradient is computed by matrix products."""

    def convolution_op(self, inputs: tf.Tensor, kernel: keras.Variable) -> tf.Tensor:
        """Return the convolution of `inputs` [B, height, width, channels], in the layer's compute dtype."""
        return _convolution(inputs, tf.cast(tf.convert_to_tensor(kernel), inputs.dtype))


@tf.custom_gradient
def _convolution(images: tf.Tensor, kernel: tf.Tensor) -> tuple[tf.Tensor, Callable[..., Any]]:
    def gradients(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        of_images = tf.raw_ops.Conv2DBackpropInput(
            input_sizes=tf.shape(images), filter=kernel, out_backprop=upstream, strides=[1] * 4, padding="SAME"
        )
        return of_images, kernel_gradient(images, upstream, kernel.shape)

    return tf.nn.conv2d(images, kernel, 1, "SAME"), gradients


def kernel_gradient(images: tf.Tensor, upstream: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    """Return the kernel gradient of a "same" convolution with stride 1 and odd kernel sizes.

    For each row of the kernel it takes one matrix product over all pixels of the batch: `images`, shifted by each of
    the row's columns and laid side by side, times `upstream`. With the height as the first axis, the pixels under one
    row of the kernel are contiguous in memory, so no product needs its own copy.

    Args:
      images: [B, height, width, channels], the input of the convolution.
      upstream: [B, height, width, filters], the gradient of its output, in the same dtype.
      shape: (rows, columns, channels, filters)
    """
    rows, columns, channels, filters = shape
    height, width = tf.unstack(tf.shape(images)[1:3])
    line = tf.shape(images)[0] * width  # pixels of the whole batch at one height
    padded = tf.pad(_by_height(images), [[rows // 2] * 2, [0, 0], [columns // 2] * 2, [0, 0]])
    shifted = tf.concat([padded[:, :, column : column + width] for column in range(columns)], axis=3)
    shifted = tf.reshape(shifted, [-1, columns * channels])
    of_pixels = tf.reshape(_by_height(upstream), [-1, filters])
    products = [
        tf.matmul(shifted[row * line : (row + height) * line], of_pixels, transpose_a=True) for row in range(rows)
    ]
    return tf.reshape(tf.stack(products), shape)


def _by_height(images: tf.Tensor) -> tf.Tensor:
    return tf.transpose(images, [1, 0, 2, 3])
