"""Paths in a container."""

CONFIG_FOLDER = "/etc/ps-cluster"
CONFIG_NAME = "config.yaml"
RUNS = "/runs"  # the volume with the run directory
DATA = "/data"
TEMPORARY = "/tmp"
CACHE = "/cache"  # packed data sets
