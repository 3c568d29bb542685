"""Check whether this machine and installation can train. Does not import TensorFlow."""
