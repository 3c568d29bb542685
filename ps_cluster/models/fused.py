"""Parts of a network that take fewer passes over memory than Keras's own, and are the same functions.

Keras 3 builds batch normalisation out of single operations in float32, TensorFlow GELU and SiLU out of single operations in
the dtype of their input. docs/method.md says what these take.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import keras
import tensorflow as tf

CHEAP_ACTIVATIONS = ("linear", "relu")  # one operation as they are


def with_fused_layers(model: keras.Model) -> keras.Model:
    """A copy of `model` to compute with, with weights of its own. Save the original: plain Keras can't load the copy."""

    def clone(layer: keras.Layer) -> keras.Layer:
        return _fused_type(layer).from_config(layer.get_config())

    return keras.models.clone_model(model, clone_function=clone)


def _fused_type(layer: keras.Layer) -> type[keras.Layer]:
    if type(layer) is keras.layers.BatchNormalization:
        return FusedBatchNormalization
    if type(layer) is keras.layers.Activation and layer.activation.__name__ not in CHEAP_ACTIVATIONS:
        return CompiledActivation
    return type(layer)


class FusedBatchNormalization(keras.layers.BatchNormalization):
    """`keras.layers.BatchNormalization` over the last axis of images, by TensorFlow's fused kernel."""

    def call(self, inputs: tf.Tensor, training: bool | None = None, mask: tf.Tensor | None = None) -> tf.Tensor:
        """`inputs`: [B, height, width, channels] in the layer's compute dtype, as is the result."""
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
            self._move(self.moving_variance, variance * (values - 1) / values)  # the kernel's is that of a sample
        return normalised

    def _value(self, variable: keras.Variable) -> tf.Tensor:
        return tf.cast(tf.convert_to_tensor(variable), tf.float32)

    def _move(self, moving: keras.Variable, seen: tf.Tensor) -> None:
        moving.assign(self.momentum * tf.convert_to_tensor(moving) + (1 - self.momentum) * seen)


class CompiledActivation(keras.layers.Activation):
    """`keras.layers.Activation`, by XLA: one loop there and one back, computed in float32."""

    def __init__(self, activation: Callable, **options):
        super().__init__(activation, **options)
        self._compiled = compiled(self.activation)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """`inputs`: any shape, in the layer's compute dtype, as is the result."""
        return self._compiled(inputs)


@cache  # layers of equal shape share what is compiled
def compiled(function: Callable[[tf.Tensor], tf.Tensor]) -> Callable[[tf.Tensor], tf.Tensor]:
    """`function`, which is of each value by itself, with the forward and the backward pass each compiled into one loop."""

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
    def both(x: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        return forward(x), lambda upstream: backward(x, upstream)

    return both
