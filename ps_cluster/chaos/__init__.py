"""Injects faults into a real run on purpose, and proves that its result is what it would have been without."""
