"""Read and write the files of a run (rows, ledger, checkpoints). No TensorFlow.

The ledger and the counters of the parameter servers prove that each update was applied exactly once (proof.py).
"""
