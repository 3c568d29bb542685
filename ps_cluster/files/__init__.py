"""Read and write files that another program or user may have changed: strictly, within limits, and only as a whole.

These modules do not import TensorFlow, and know nothing about runs.
"""
