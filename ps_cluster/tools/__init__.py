"""Tools that inspect or start runs. The core never imports them: only cli/main.py does, when it looks up a command."""
