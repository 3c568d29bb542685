"""Typed models of the files of a run that are read back, shared by writers and readers. No TensorFlow."""
