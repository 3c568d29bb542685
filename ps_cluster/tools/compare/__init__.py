"""Train the runs of a comparison, or read finished runs, and write one page of findings. Does not import TensorFlow."""
