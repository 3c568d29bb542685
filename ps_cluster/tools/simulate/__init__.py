"""Simulate a parameter-server cluster by discrete events, to plan one. No TensorFlow."""
