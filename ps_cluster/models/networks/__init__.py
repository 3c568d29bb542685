"""The networks, one file each: settings, recipe and Keras model. A new file here is found by itself."""
