"""Tools that look at runs, or start some. Only cli/main.py imports them, when it looks up a command; the core does not."""
