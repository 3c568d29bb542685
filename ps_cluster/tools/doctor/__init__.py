"""Examine whether this machine and installation can train: a file for each group of checks. No TensorFlow."""
