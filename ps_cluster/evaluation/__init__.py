"""Score checkpoints on the test set, beside the training and outside its cluster."""
