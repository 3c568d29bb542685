"""The staleness methods, a file for each, or for those of one paper. `config.staleness_methods.METHODS` finds them here."""
