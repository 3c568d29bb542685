"""Find, download, verify, generate and pack data sets, without TensorFlow, because the launcher imports these modules.

`batches.py`, `augment.py` and the modules that recompute them need TensorFlow. They run on the workers.
"""
