"""The command `bench`: examples per second of this cluster and of other ways to train the same network."""
