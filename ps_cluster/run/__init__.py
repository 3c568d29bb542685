"""What a run is on disk: its files, rows, ledger and checkpoints, and what it may be resumed from. No TensorFlow."""
