"""Read and write files as if somebody else could have written them: bounded, strict, whole. No TensorFlow.

Nothing here knows what a run is.
"""
