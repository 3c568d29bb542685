"""Processes of the operating system: start, fork, isolate, limit, watch and end them. Nothing of training."""
