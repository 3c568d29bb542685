"""The staleness methods, a file for each. `config.staleness_methods.METHODS` finds them here by itself."""
