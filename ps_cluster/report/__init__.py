"""Report on a run to people and to other programs, while it trains and after it has ended."""
