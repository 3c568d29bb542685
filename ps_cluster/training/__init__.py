"""Training: chief, worker, session, all-reduce, networks in parts, and the modes."""
