"""Predict with the best model of a run that has ended."""
