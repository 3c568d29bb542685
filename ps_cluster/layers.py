"""Keras layers of this package. Import the module before `keras.models.load_model` loads a model that has them."""

from ps_cluster.models.dynamic_embedding import DynamicEmbedding

__all__ = ["DynamicEmbedding"]
