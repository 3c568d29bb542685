"""The command `bench`: measure the examples per second of this cluster and of other ways to train the same network."""
