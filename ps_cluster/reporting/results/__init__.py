"""Draw what a finished run's network does well and badly, from the run directory. No TensorFlow."""
