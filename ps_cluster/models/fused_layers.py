"""Replace some of Keras's layers by faster layers that compute the same.

Keras 3 builds batch normalisation from many small operations in float32. TensorFlow builds GELU and SiLU from many
small operations in the dtype of their input. oneDNN's bfloat16 kernel for the gradient of a convolution's filters runs
at half the speed of its other kernels (measured without AMX). In a step of airbench on one thread, GELU takes 14 ms
instead of 72.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import keras
import tensorflow as tf

from ps_cluster.models.keras_losses import is_of_keras

CHEAP_ACTIVATIONS = ("linear", "relu", "sigmoid", "softmax")  # each is a single operation already
WIDE = 256  # channels; with 64 channels, the copies take as much time as the matrix products save


def with_fused_layers(model: keras.Model) -> keras.Model:
    """Return a copy of `model` that computes the same results faster. Save the original: Keras can't load the copy.

    The copy shares all layers that are not replaced. If no layer can be replaced, or if the model is of a class that
    the user has defined, `model` itself is returned.
    """
    if not is_of_keras(model) or all(_fused_type(layer) is type(layer) for layer in model.layers):
        return model

    def clone(layer: keras.Layer) -> keras.Layer:
        fused = _fused_type(layer)
        return layer if fused is type(layer) else fused.from_config(layer.get_config())

    copy = keras.models.clone_model(model, clone_function=clone)
    if [variable.path for variable in copy.variables] != [variable.path for variable in model.variables]:
        return model
    for own, other in zip(copy.variables, model.variables, strict=True):
        own.trainable = other.trainable  # a layer's configuration does not contain the flags of single variables
    return copy


def _fused_type(layer: keras.Layer) -> type[keras.Layer]:
    if type(layer) is keras.layers.BatchNormalization:
        return FusedBatchNormalization
    if type(layer) is keras.layers.Activation:
        is_costly = is_of_keras(layer.activation) and layer.activation.__name__ not in CHEAP_ACTIVATIONS
        return CompiledActivation if is_costly else type(layer)
    if type(layer) is keras.layers.Conv2D and _is_faster_by_products(layer):
        return WideConvolution
    return type(layer)


def _is_faster_by_products(layer: keras.layers.Conv2D) -> bool:
    """Return whether matrix products compute the kernel gradient of a layer correctly, and faster than oneDNN."""
    plain = layer.padding == "same" and {*layer.strides, *layer.dilation_rate, layer.groups} == {1}
    odd = all(size % 2 for size in layer.kernel_size)
    return plain and odd and layer.compute_dtype == "bfloat16" and layer.kernel.shape[2] >= WIDE


class FusedBatchNormalization(keras.layers.BatchNormalization):
    """`keras.layers.BatchNormalization` over the last axis of images, by TensorFlow's fused kernel."""

    def call(self, inputs: tf.Tensor, training: bool | None = None, mask: tf.Tensor | None = None) -> tf.Tensor:
        """Return `inputs` [B, height, width, channels] normalised. Keras's own code handles what the kernel can't."""
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
    """`keras.layers.Activation`, compiled by XLA into one forward and one backward loop, in float32."""

    def __init__(self, activation: Callable[[tf.Tensor], tf.Tensor], **options: Any):
        super().__init__(activation, **options)
        self._compiled = compiled(self.activation)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return the activation of `inputs`, of any shape, in the layer's compute dtype."""
        return self._compiled(inputs)


@cache  # layers of equal shape share the compiled code
def compiled(function: Callable[[tf.Tensor], tf.Tensor]) -> Callable[[tf.Tensor], tf.Tensor]:
    """Return `function`, which is elementwise, with its forward and backward pass each compiled into one loop."""

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
    def both(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        return forward(x), lambda upstream: backward(x, upstream)

    of_both: Callable[[tf.Tensor], tf.Tensor] = both
    return of_both


class WideConvolution(keras.layers.Conv2D):
    """`keras.layers.Conv2D` with stride 1 and "same" padding, whose kernel gradient is computed by matrix products."""

    def convolution_op(self, inputs: tf.Tensor, kernel: keras.Variable) -> tf.Tensor:
        """Return the convolution of `inputs` [B, height, width, channels], in the layer's compute dtype."""
        return _convolution(inputs, tf.cast(tf.convert_to_tensor(kernel), inputs.dtype))


@tf.custom_gradient
def _convolution(
    images: tf.Tensor, kernel: tf.Tensor
) -> tuple[tf.Tensor, Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]]:
    def gradients(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        of_images = tf.raw_ops.Conv2DBackpropInput(
            input_sizes=tf.shape(images), filter=kernel, out_backprop=upstream, strides=[1] * 4, padding="SAME"
        )
        return of_images, kernel_gradient(images, upstream, kernel.shape)

    return tf.nn.conv2d(images, kernel, 1, "SAME"), gradients


def kernel_gradient(images: tf.Tensor, upstream: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    """Return the kernel gradient of a "same" convolution with stride 1 and odd kernel sizes.

    One matrix product, which sums over all pixels of the batch, computes the gradient for one row of the kernel. Its
    first factor has, for each pixel, the inputs that this row of the kernel covers there. Its second factor is
    `upstream`. The first factors of all rows are parts of one matrix. Because its first axis is the height of the
    images, each of these parts is contiguous in memory, and does not have to be copied.

    Args:
      images: [B, height, width, channels], the input of the convolution.
      upstream: [B, height, width, filters], the gradient of its output, in the same dtype.
      shape: the shape of the kernel, [rows, columns, channels, filters].
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
