"""The processes of a run: their names and addresses, how they start, and what a death means. Nothing of training."""
