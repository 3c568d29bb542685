"""Read and write files that another program or user may have changed: bounded, strict, whole. No TensorFlow.

Nothing here knows about runs.
"""
