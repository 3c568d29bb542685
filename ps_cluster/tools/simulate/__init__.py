"""Simulate a parameter-server cluster by discrete events, to plan a real one. TensorFlow is not needed."""
