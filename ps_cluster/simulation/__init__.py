"""A parameter-server cluster as a discrete-event simulation, to plan one. No TensorFlow."""
