"""Measure and compare the speed and the scores of training. No test asserts a speed."""
