"""Data sets: find, download, verify, generate and pack them (no TensorFlow: the launcher imports it). Batches of step
ids and their augmentation (TensorFlow: the workers run it)."""
