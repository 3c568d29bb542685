"""A network of several inputs: each is standardised, or taken as a kind, and one dense layer follows."""

from ps_cluster.config.lazy import keras


def build(examples, settings):
    inputs, parts = {}, []
    for name, field in examples.inputs.items():
        inputs[name] = keras.Input(field.shape, name=name, dtype=field.dtype)
        if field.mean:
            variances = [value**2 for value in field.std]
            parts.append(keras.layers.Normalization(mean=field.mean, variance=variances)(inputs[name]))
        else:
            parts.append(keras.layers.CategoryEncoding(3, output_mode="one_hot")(inputs[name]))
    return keras.Model(inputs, keras.layers.Dense(examples.outputs)(keras.layers.Concatenate()(parts)))
