"""The command `bench`: images per second of this cluster and of other ways to train the same network."""
