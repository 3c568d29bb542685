"""Manage the processes of a run: their names and addresses, their starts, and recovery from a death. Nothing here trains."""
