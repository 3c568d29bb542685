"""Manage the processes of a run: names and addresses, starts, and recovery from deaths. Nothing here trains."""
