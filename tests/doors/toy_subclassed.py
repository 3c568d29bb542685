"""A network that the package knows nothing of: a class with dropout, compiled with a loss of its own and a metric."""

import keras


@keras.saving.register_keras_serializable("toy")
class Toy(keras.Model):
    """One hidden layer."""

    def __init__(self, wanted, **named):
        super().__init__(**named)
        self.wanted = wanted
        self.flat, self.drop = keras.layers.Flatten(), keras.layers.Dropout(0.2)
        self.hidden = keras.layers.Dense(16, activation="relu", kernel_regularizer=keras.regularizers.L2(1e-4))
        self.scores = keras.layers.Dense(wanted)

    def call(self, images, training=None):
        return self.scores(self.drop(self.hidden(self.flat(images / 255)), training=training))

    def get_config(self):
        return super().get_config() | {"wanted": self.wanted}


def half(labels, scores):
    """Half of the usual loss."""
    return 0.5 * keras.losses.sparse_categorical_crossentropy(labels, scores, from_logits=True)


def build(examples, settings):
    model = Toy(examples.outputs)
    model.compile(loss=half, metrics=[keras.metrics.SparseTopKCategoricalAccuracy(3, name="top3")])
    return model
