"""Report a run: to a person while it trains and when it has ended, and to programs."""
