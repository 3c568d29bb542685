"""Asynchronous parameter-server training that can be run, broken and measured on one machine."""

__version__ = "0.1.0"
