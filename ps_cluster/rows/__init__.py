"""Typed models of every file of a run that is read back, the same for who writes it and who reads it. No TensorFlow."""
