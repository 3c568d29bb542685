"""Measure speed side by side. No test asserts a speed."""
