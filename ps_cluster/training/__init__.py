"""Train a network: the loops of chief and workers, the start and the end of a training, and the modes."""
