"""Report a run: to a person while it goes on and at its end, to programs, and to TensorBoard."""
