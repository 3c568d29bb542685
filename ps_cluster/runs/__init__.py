"""Read and write a run on disk: files, rows, ledger, checkpoints; check what it may be resumed from. No TensorFlow."""
