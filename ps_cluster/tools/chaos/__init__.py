"""Inject faults into a real run, and prove that its result is what it would have been without them."""
