"""Train many runs, several at once: to search for good settings, or to join them into one model."""
