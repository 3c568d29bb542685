"""Find, download, verify, generate and pack data sets. The launcher imports these modules, so they avoid TensorFlow.

The exceptions are `batches.py` and `augment.py`, which run on the workers, and `recomputed_batches.py` and
`recomputed_images.py`, which check the results of these two modules.
"""
