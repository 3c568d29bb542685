"""Train several networks and let them answer together."""
