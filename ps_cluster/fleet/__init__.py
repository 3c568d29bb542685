"""Several runs at once on this machine, each a `run` command of its own."""
