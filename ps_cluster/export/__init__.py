"""Write the best model of a run in forms that other programs read, and check each against the original."""
