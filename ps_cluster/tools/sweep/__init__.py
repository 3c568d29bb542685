"""Search for good settings: many trials, each a run of its own, judged on held-out training examples."""
