"""Images a second of this cluster beside other ways to train the same: the command `bench`."""
