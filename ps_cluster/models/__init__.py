"""The networks, and the layout of their weights in one flat vector."""
