"""Examine whether this machine and installation can train. No TensorFlow."""
