"""The staleness methods, one file for each. `config.staleness_methods.METHODS` finds them in this folder."""
