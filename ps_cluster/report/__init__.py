"""Report a run to people, while it trains and when it has ended, and to other programs."""
