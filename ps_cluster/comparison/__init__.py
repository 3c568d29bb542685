"""Finished runs side by side: reads their directories, writes one page that says what was found. No TensorFlow."""
