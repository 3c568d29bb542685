"""Manage the processes of a run: their names and addresses, their starts and restarts. Nothing here trains."""
