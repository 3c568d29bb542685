"""Compare finished runs: read their directories and write one page of findings. No TensorFlow."""
