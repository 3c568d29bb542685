"""Read and write the files of a run (rows, ledger, checkpoints), and prove its updates from them. No TensorFlow."""
