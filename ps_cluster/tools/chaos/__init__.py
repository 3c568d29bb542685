"""Inject faults into a real run, and check that they did not change its result."""
