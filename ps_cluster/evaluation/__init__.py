"""Score checkpoints on the test set, during training and outside the cluster."""
