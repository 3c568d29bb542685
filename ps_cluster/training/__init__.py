"""Train: the chief, the worker, the session, all-reduce, split networks, and the modes."""
