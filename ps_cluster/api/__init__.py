"""The Python API: the functions `fit`, `train` and `compare`. Scripts import them from `ps_cluster`."""
