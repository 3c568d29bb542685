"""Tools that look at runs, or start some. The core does not import them: cli/main.py names their commands in a table."""
