"""Train a network: the loops of chief and workers, the session around them, and the modes."""
