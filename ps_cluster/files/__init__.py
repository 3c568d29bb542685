"""Read files strictly and within limits, and write files so that other programs never see a part of them.

These modules do not import TensorFlow, and know nothing about runs.
"""
