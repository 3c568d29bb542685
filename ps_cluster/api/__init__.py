"""The Python API: the commands `run` and `compare` as functions. Its public names are those of `ps_cluster`."""
