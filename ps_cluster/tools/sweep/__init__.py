"""Train many runs, several at once: to search for good settings, or to join their networks into one model."""
